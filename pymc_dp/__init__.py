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
    from pymc_dp import audit as audit
    from pymc_dp import datasets as datasets
    from pymc_dp import privacy as privacy
    from pymc_dp.budget_frontier import frontier as frontier
    from pymc_dp.budget_plots import plot_drivers as plot_drivers
    from pymc_dp.budget_plots import plot_frontier as plot_frontier
    from pymc_dp.comparison import compare_variance_components as compare_variance_components
    from pymc_dp.comparison_plot import plot_variance_components as plot_variance_components
    from pymc_dp.components import estimate_sigma_u as estimate_sigma_u
    from pymc_dp.components import log_marginal_likelihood as log_marginal_likelihood
    from pymc_dp.direct_table import direct_from_table as direct_from_table
    from pymc_dp.drivers import guarantee_drivers as guarantee_drivers
    from pymc_dp.drivers import record_guarantee as record_guarantee
    from pymc_dp.estimated_bound import bound_estimated as bound_estimated
    from pymc_dp.ledger import BudgetExceeded as BudgetExceeded
    from pymc_dp.ledger import PrivacyLedger as PrivacyLedger
    from pymc_dp.models import fay_herriot as fay_herriot
    from pymc_dp.noisy_direct import private_direct as private_direct
    from pymc_dp.planning import compare_plans as compare_plans
    from pymc_dp.planning import plan as plan
    from pymc_dp.planning import planned_release as planned_release
    from pymc_dp.planning import pool as pool
    from pymc_dp.planning import weight_table as weight_table
    from pymc_dp.plots import plot_guarantee as plot_guarantee
    from pymc_dp.plots import plot_rdp as plot_rdp
    from pymc_dp.plots import plot_release as plot_release
    from pymc_dp.privacy import advantage as advantage
    from pymc_dp.privacy import delta as delta
    from pymc_dp.privacy import epsilon as epsilon
    from pymc_dp.privacy import epsilon_zcdp as epsilon_zcdp
    from pymc_dp.privacy import mu as mu
    from pymc_dp.privacy import rdp as rdp
    from pymc_dp.private_components import private_sigma_u as private_sigma_u
    from pymc_dp.proviso import check_proviso as check_proviso
    from pymc_dp.proviso_plot import plot_proviso as plot_proviso
    from pymc_dp.public_file import read_public as read_public
    from pymc_dp.public_file import write_public as write_public
    from pymc_dp.recommendation import recommend as recommend
    from pymc_dp.release import PrivateRelease as PrivateRelease
    from pymc_dp.sampling import sample_posterior as sample_posterior
    from pymc_dp.statement import write_statement as write_statement
    from pymc_dp.survey import hajek as hajek
    from pymc_dp.symbolic import NotLinearGaussianError as NotLinearGaussianError
    from pymc_dp.trimming import trim_weights as trim_weights

__version__ = "0.1.0"

_HOME = {
    "BudgetExceeded": "ledger",
    "NotLinearGaussianError": "symbolic",
    "PrivacyLedger": "ledger",
    "PrivateRelease": "release",
    "advantage": "privacy",
    "bound_estimated": "estimated_bound",
    "check_proviso": "proviso",
    "compare_plans": "planning",
    "compare_variance_components": "comparison",
    "delta": "privacy",
    "direct_from_table": "direct_table",
    "epsilon": "privacy",
    "epsilon_zcdp": "privacy",
    "estimate_sigma_u": "components",
    "fay_herriot": "models",
    "frontier": "budget_frontier",
    "guarantee_drivers": "drivers",
    "hajek": "survey",
    "log_marginal_likelihood": "components",
    "mu": "privacy",
    "plan": "planning",
    "planned_release": "planning",
    "plot_drivers": "budget_plots",
    "plot_frontier": "budget_plots",
    "plot_guarantee": "plots",
    "plot_proviso": "proviso_plot",
    "plot_rdp": "plots",
    "plot_release": "plots",
    "plot_variance_components": "comparison_plot",
    "pool": "planning",
    "private_direct": "noisy_direct",
    "private_sigma_u": "private_components",
    "rdp": "privacy",
    "read_public": "public_file",
    "recommend": "recommendation",
    "record_guarantee": "drivers",
    "sample_posterior": "sampling",
    "trim_weights": "trimming",
    "weight_table": "planning",
    "write_public": "public_file",
    "write_statement": "statement",
}

_MODULES = ("audit", "datasets", "privacy")

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
