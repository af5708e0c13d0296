"""Survey records: from the files of the ACS and the BRFSS, or simulated where none is at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pymc_dp.files_acs import read_acs_pums
from pymc_dp.files_brfss import read_brfss
from pymc_dp.files_fetch import fetch_acs_pums, fetch_brfss
from pymc_dp.simulated_acs import simulate_acs

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

# Seed of the invented state, which stays the same whatever sample is drawn from it.
STATE_SEED = 105

AGE_BANDS = np.array(["18-24", "25-44", "45-64", "65+"])
POPULATION_AGES = np.array([0.13, 0.34, 0.33, 0.20])
# Those who answer the telephone are older than the population, and the oldest smoke least.
RESPONDENT_AGES = np.array([0.06, 0.23, 0.37, 0.34])
SMOKING_BY_AGE = np.array([1.10, 1.25, 1.05, 0.43])


def simulate_state_survey(
    *, areas: int = 52, respondents: int = 13_000, random_seed: int = 2013
) -> pd.DataFrame:
    """Simulate the records of a state's telephone survey about smoking.

    The survey is a sample, stratified by area, of the invented state that `state_covariates` and
    `state_prevalence` describe. Weights are made as such surveys make them: adults over telephones
    and respondents of the household, an adjustment to the ages of the population, and a skewed
    factor for all further adjustments; they add up to the adults of the area. They are as unequal
    as in real telephone surveys: a coefficient of variation of 0.95 to 1.4 within each area, and a
    long right tail. Members of a household tend to agree.

    Parameters
    ----------
    areas : int, default 52
        How many areas, two or more.
    respondents : int, default 13000
        How many records, 50 or more for each area on average. Sample sizes are very unequal.
    random_seed : int, default 2013
        Seed of the sample. Simulated records are no secret.

    Returns
    -------
    pandas.DataFrame
        One row a respondent: `area` ("R01" and so on) and `household` as text, `weight` in adults,
        `smoker` 0 or 1, `age_band` in years as text.

    Raises
    ------
    ValueError
        Fewer than two areas, or fewer than 50 respondents an area.

    Examples
    --------
    >>> records = simulate_state_survey()
    >>> records.shape, list(records.columns)
    ((13000, 5), ['area', 'household', 'weight', 'smoker', 'age_band'])
    """
    state = _state(areas)
    if respondents < 50 * areas:
        raise ValueError(f"{areas} areas need {50 * areas} respondents or more, got {respondents}")
    rng = np.random.default_rng(random_seed)
    ends = np.rint(np.cumsum(state["sample_share"]) * respondents).astype(int)
    sizes = np.diff(ends, prepend=0)
    samples = [
        _sample_area(rng, str(area), size, adults, prevalence)
        for area, size, adults, prevalence in zip(
            state.index, sizes, state["adults"], state["prevalence"], strict=True
        )
    ]
    return pd.concat(samples, ignore_index=True)


def state_covariates(areas: int = 52) -> pd.DataFrame:
    """Public facts about the areas of the invented state, to be used as covariates.

    They explain about half of the variance of the prevalence between areas.

    Parameters
    ----------
    areas : int, default 52
        How many areas, two or more.

    Returns
    -------
    pandas.DataFrame
        Indexed by area label: `adults` (count), `college` (share of adults with a degree),
        `unemployment` (share of the labour force), `rural` (share of adults).

    Examples
    --------
    >>> state_covariates().loc["R01"].index.tolist()
    ['adults', 'college', 'unemployment', 'rural']
    """
    return _state(areas)[["adults", "college", "unemployment", "rural"]]


def state_prevalence(areas: int = 52) -> pd.Series:
    """Look up the true share of smokers in each area of the invented state.

    Parameters
    ----------
    areas : int, default 52
        How many areas, two or more.

    Returns
    -------
    pandas.Series
        Indexed by area label: the prevalence that `simulate_state_survey` draws from, 0.08 to 0.30.

    Examples
    --------
    >>> state_prevalence().between(0.08, 0.30).all()
    np.True_
    """
    return _state(areas)["prevalence"]


def _state(areas: int) -> pd.DataFrame:
    """Invent the state: covariates, true prevalence and sample shares of its areas."""
    if areas < 2:
        raise ValueError(f"a survey of areas needs two or more, got {areas}")
    rng = np.random.default_rng([STATE_SEED, areas])
    share = np.clip(rng.lognormal(sigma=0.75, size=areas), 0.3, 4.5)
    people = share * rng.lognormal(sigma=0.3, size=areas)
    college = np.clip(rng.normal(0.32, 0.09, areas), 0.12, 0.60).round(3)
    unemployment = np.clip(rng.normal(0.065, 0.015, areas), 0.03, 0.12).round(3)
    rural = rng.beta(1.2, 1.8, areas).round(3)
    explained = _standardize(0.3 * _standardize(unemployment) - _standardize(college))
    effect = _standardize(explained + _standardize(rng.normal(size=areas)))
    width = max(2, len(str(areas)))
    return pd.DataFrame(
        {
            "adults": np.rint(5_000_000 * people / people.sum()).astype(int),
            "college": college,
            "unemployment": unemployment,
            "rural": rural,
            "prevalence": np.clip(0.17 + 0.04 * effect, 0.08, 0.30),
            "sample_share": share / share.sum(),
        },
        index=pd.Index([f"R{k:0{width}d}" for k in range(1, areas + 1)], name="area"),
    )


def _standardize(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return (values - values.mean()) / values.std()


def _sample_area(
    rng: np.random.Generator, area: str, size: int, adults: int, prevalence: float
) -> pd.DataFrame:
    """Draw the respondents of one area, household after household."""
    members = rng.choice([1, 2, 3], size, p=[0.7, 0.25, 0.05])
    household = np.repeat(np.arange(size), members)[:size]
    at_home = np.maximum(members, rng.choice([1, 2, 3], size, p=[0.3, 0.55, 0.15]))
    telephones = rng.choice([1, 2], size, p=[0.75, 0.25])
    age = rng.choice(len(AGE_BANDS), size, p=RESPONDENT_AGES)

    selection = (at_home / (members * telephones))[household]
    weight = _spread(rng, selection * (POPULATION_AGES / RESPONDENT_AGES)[age])
    by_age = SMOKING_BY_AGE / (POPULATION_AGES @ SMOKING_BY_AGE)
    # Half of the answers follow the household's own inclination, which its members share.
    inclination = np.where(rng.random(size) < 0.5, rng.random(size)[household], rng.random(size))
    return pd.DataFrame(
        {
            "area": area,
            "household": [f"{area}-{number:04d}" for number in household],
            "weight": (weight * adults / weight.sum()).round(4),
            "smoker": (inclination < prevalence * by_age[age]).astype(int),
            "age_band": AGE_BANDS[age],
        }
    )


def _spread(rng: np.random.Generator, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply by a lognormal factor that brings the coefficient of variation to 0.95 .. 1.4."""
    from scipy.optimize import brentq

    normal, wanted = rng.normal(size=weight.size), rng.uniform(0.95, 1.4)

    def excess(sigma: float) -> float:
        spread = weight * np.exp(sigma * normal)
        return float(spread.std() / spread.mean() - wanted)

    sigma = brentq(excess, 0.0, 10.0) if excess(0.0) < 0 else 0.0
    return weight * np.exp(sigma * normal)
