"""Survey records: from the files of the ACS and the BRFSS, or simulated where none is at hand."""

from pymc_dp.datasets._download import fetch_acs_pums, fetch_brfss
from pymc_dp.datasets.acs import read_acs_pums
from pymc_dp.datasets.brfss import read_brfss
from pymc_dp.datasets.simulated import (
    simulate_acs,
    simulate_state_survey,
    state_covariates,
    state_prevalence,
)

__all__ = [
    "fetch_acs_pums",
    "fetch_brfss",
    "read_acs_pums",
    "read_brfss",
    "simulate_acs",
    "simulate_state_survey",
    "state_covariates",
    "state_prevalence",
]
