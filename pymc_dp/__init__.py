"""Privacy in small area estimation: one posterior draw, and how private it is.

The way through the package: :mod:`~pymc_dp.survey` (records to direct estimates) ->
:mod:`~pymc_dp.models` (a ``pm.Model``) -> :mod:`~pymc_dp.posterior` (its exact posterior) ->
:mod:`~pymc_dp.privacy` and :mod:`~pymc_dp.guarantee` (prices) -> :mod:`~pymc_dp.release`
(the draw and its record).
"""

from pymc_dp import datasets
from pymc_dp.ledger import BudgetExceeded, PrivacyLedger
from pymc_dp.models import fay_herriot
from pymc_dp.plots import plot_guarantee, plot_rdp, plot_release
from pymc_dp.privacy import advantage, delta, epsilon, epsilon_zcdp, mu, rdp
from pymc_dp.recognition import NotLinearGaussianError
from pymc_dp.release import PrivateRelease
from pymc_dp.survey import hajek

__version__ = "0.1.0"

__all__ = [
    "BudgetExceeded",
    "NotLinearGaussianError",
    "PrivacyLedger",
    "PrivateRelease",
    "__version__",
    "advantage",
    "datasets",
    "delta",
    "epsilon",
    "epsilon_zcdp",
    "fay_herriot",
    "hajek",
    "mu",
    "plot_guarantee",
    "plot_rdp",
    "plot_release",
    "rdp",
]
