"""The public names of pymc_dp, each once: read by type checkers, and at run time by lazy_loader."""

from . import audit as audit
from . import datasets as datasets
from . import inference as inference
from . import privacy as privacy
from ._version import __version__ as __version__
from .bound.estimated import bound_estimated as bound_estimated
from .components.comparison import compare_variance_components as compare_variance_components

# Variance components
from .components.estimates import estimate_sigma_u as estimate_sigma_u
from .components.estimates import log_marginal_likelihood as log_marginal_likelihood
from .components.posterior import sample_posterior as sample_posterior
from .components.private import private_sigma_u as private_sigma_u
from .components.proviso import check_proviso as check_proviso

# Inference from a release
from .inference.likelihood import noisy_direct as noisy_direct
from .inference.likelihood import released_likelihood as released_likelihood
from .inference.posterior import release_posterior as release_posterior
from .ledger.ledger import BudgetExceeded as BudgetExceeded
from .ledger.ledger import PrivacyLedger as PrivacyLedger
from .mechanisms.direct import private_direct as private_direct

# Models
from .models.builder import fay_herriot as fay_herriot
from .planning.drivers import guarantee_drivers as guarantee_drivers
from .planning.drivers import record_guarantee as record_guarantee
from .planning.options import frontier as frontier
from .planning.options import recommend as recommend
from .planning.plans import compare_plans as compare_plans

# Planning and budgets
from .planning.plans import plan as plan
from .planning.plans import planned_release as planned_release
from .planning.trimming import trim_weights as trim_weights
from .plots.components import plot_proviso as plot_proviso
from .plots.components import plot_variance_components as plot_variance_components
from .plots.planning import plot_drivers as plot_drivers
from .plots.planning import plot_frontier as plot_frontier
from .plots.release import plot_guarantee as plot_guarantee
from .plots.release import plot_rdp as plot_rdp

# Pictures
from .plots.release import plot_release as plot_release
from .privacy.convert import advantage as advantage
from .privacy.convert import delta as delta
from .privacy.convert import epsilon as epsilon
from .privacy.convert import epsilon_zcdp as epsilon_zcdp
from .privacy.convert import mu as mu

# What a price means
from .privacy.convert import rdp as rdp
from .publish.public_file import read_public as read_public

# Publication
from .publish.public_file import write_public as write_public
from .publish.statement import write_statement as write_statement
from .reading.symbolic import NotLinearGaussianError as NotLinearGaussianError

# The release
from .release.release import PrivateRelease as PrivateRelease

# Records, or a table, to direct estimates
from .survey.estimate import hajek as hajek
from .survey.table import direct_from_table as direct_from_table
from .survey.weights import pool as pool
from .survey.weights import weight_table as weight_table
