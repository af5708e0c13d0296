"""Privacy in small area estimation: one posterior draw, and how private it is.

The way through the package: :mod:`~pymc_dp.survey` (records to direct estimates) ->
:mod:`~pymc_dp.models` (a ``pm.Model``) -> :mod:`~pymc_dp.posterior` (its exact posterior) ->
:mod:`~pymc_dp.privacy` and :mod:`~pymc_dp.guarantee` (prices) -> :mod:`~pymc_dp.release`
(the draw and its record).

Names are imported when they are first used: PyMC takes seconds, and the command line's help or a
look at a ledger does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pymc_dp import datasets as datasets
    from pymc_dp import privacy as privacy
    from pymc_dp.comparison import compare_variance_components as compare_variance_components
    from pymc_dp.ledger import BudgetExceeded as BudgetExceeded
    from pymc_dp.ledger import PrivacyLedger as PrivacyLedger
    from pymc_dp.models import fay_herriot as fay_herriot
    from pymc_dp.plots import plot_guarantee as plot_guarantee
    from pymc_dp.plots import plot_rdp as plot_rdp
    from pymc_dp.plots import plot_release as plot_release
    from pymc_dp.privacy import advantage as advantage
    from pymc_dp.privacy import delta as delta
    from pymc_dp.privacy import epsilon as epsilon
    from pymc_dp.privacy import epsilon_zcdp as epsilon_zcdp
    from pymc_dp.privacy import mu as mu
    from pymc_dp.privacy import rdp as rdp
    from pymc_dp.public_file import read_public as read_public
    from pymc_dp.public_file import write_public as write_public
    from pymc_dp.recognition import NotLinearGaussianError as NotLinearGaussianError
    from pymc_dp.release import PrivateRelease as PrivateRelease
    from pymc_dp.sampling import sample_posterior as sample_posterior
    from pymc_dp.survey import hajek as hajek

__version__ = "0.1.0"

_HOME = {
    "BudgetExceeded": "ledger",
    "NotLinearGaussianError": "recognition",
    "PrivacyLedger": "ledger",
    "PrivateRelease": "release",
    "advantage": "privacy",
    "compare_variance_components": "comparison",
    "delta": "privacy",
    "epsilon": "privacy",
    "epsilon_zcdp": "privacy",
    "fay_herriot": "models",
    "hajek": "survey",
    "mu": "privacy",
    "plot_guarantee": "plots",
    "plot_rdp": "plots",
    "plot_release": "plots",
    "rdp": "privacy",
    "read_public": "public_file",
    "sample_posterior": "sampling",
    "write_public": "public_file",
}

_MODULES = ("datasets", "privacy")

__all__ = sorted([*_HOME, "__version__", "datasets"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"pymc_dp.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'pymc_dp' has no attribute {name!r}")
    value = getattr(import_module(f"pymc_dp.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
