"""The command line as a module: ``python -m pymc_dp``."""

from pymc_dp.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
