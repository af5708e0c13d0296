"""The command line ``pymc-dp``: from survey records to a private release, without Python."""

from pymc_dp.cli.app import main

__all__ = ["main"]
