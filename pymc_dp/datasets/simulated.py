"""Simulated records, where no survey is at hand: a state's telephone survey, and the ACS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pymc_dp.datasets._states import STATES

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


# Seed of the invented nation, which stays the same whatever sample is drawn from it.
NATION_SEED = 1790
# Households with records of 1 to 8 persons, and how the logit of poverty changes with their size.
# These shares and all figures below are near those of the 2024 one-year file.
SIZES = np.array([0.302, 0.364, 0.143, 0.111, 0.049, 0.019, 0.008, 0.004])
POVERTY_BY_SIZE = np.array([0.75, -0.55, -0.5, -0.55, -0.25, 0.0, 0.2, 0.2])
# Standard deviation of the logarithm of weights between households and within one.
BETWEEN, WITHIN = 0.72, 0.2
# Weights are trimmed at this many standard deviations.
TRIM = 2.5
# Records in group quarters weigh about half of the others, those of the poor a little more.
GROUP_QUARTERS_WEIGHT, POOR_WEIGHT = 0.5, 1.12
# How many persons in households of several have a family income of their own.
UNRELATED = 0.06


def simulate_acs(
    *, areas: int = 100, persons: int = 130_000, random_seed: int = 2024
) -> pd.DataFrame:
    """Simulate person records like those that :func:`read_acs_pums` reads, with the same columns.

    Persons live in households, in PUMAs of an invented nation of up to 51 states; the nation is the
    same whatever sample is drawn. Sample sizes, sizes of households, weights, poverty and group
    quarters are about as unequal as in the 2024 one-year file: weights have a coefficient of
    variation of 0.5 to 1.5 within an area, poverty runs from about 3 to 40 percent over many areas,
    and all members of a family share theirs. What is not there: age, income, other variables, and
    replicate weights.

    Parameters
    ----------
    areas : int, default 100
        How many PUMAs, two or more; the United States have 2,462.
    persons : int, default 130000
        How many records, 50 or more for each area on average; the file of 2024 has 3.4 million.
    random_seed : int, default 2024
        Seed of the sample. Simulated records are no secret.

    Returns
    -------
    pandas.DataFrame
        One row a person: `puma` (state and PUMA, seven digits, as text), `SERIALNO` (household, or
        person in group quarters, as text), `PWGTP` (weight, in persons), `POVPIP` (percent of the
        poverty threshold, 0 to 501; missing in group quarters), `poor` (1, 0 or missing),
        `in_universe`. The attribute ``attrs["unit"]`` names the household column.

    Raises
    ------
    ValueError
        Fewer than two areas, or fewer than 50 persons an area.

    Examples
    --------
    >>> records = simulate_acs(areas=10, persons=9_000)
    >>> records.shape, records["puma"].nunique(), records.attrs["unit"]
    ((9000, 6), 10, 'SERIALNO')
    """
    if areas < 2:
        raise ValueError(f"a survey of areas needs two or more, got {areas}")
    if persons < 50 * areas:
        raise ValueError(f"{areas} areas need {50 * areas} persons or more, got {persons}")
    nation, rng = _nation(areas), np.random.default_rng(random_seed)
    ends = np.rint(np.cumsum(nation["share"]) * persons).astype(int)
    sizes = np.diff(ends, prepend=0)
    in_quarters = rng.binomial(sizes - 1, nation["quarters"])

    members = [
        _household_sizes(rng, size, tilt)
        for size, tilt in zip(sizes - in_quarters, nation["tilt"], strict=True)
    ]
    households = np.array([len(part) for part in members])
    # Households of the area first, then its persons in group quarters.
    area = np.repeat(np.repeat(np.arange(areas), 2), np.stack([households, in_quarters], 1).ravel())
    quarters = np.concatenate(
        [np.arange(h + q) >= h for h, q in zip(households, in_quarters, strict=True)]
    )
    size = np.ones(len(area), dtype=int)
    size[~quarters] = np.concatenate(members)
    kind = pd.Series(np.where(quarters, "2024GQ", "2024HU"), dtype="str")
    serial = kind + _digits(np.arange(1, len(area) + 1), 7)

    household = np.repeat(np.arange(len(area)), size)
    home, outside = area[household], quarters[household]
    percent = _poverty(rng, household, size, nation["logit"].to_numpy()[area])
    factor = np.where(outside, GROUP_QUARTERS_WEIGHT, np.where(percent < 100, POOR_WEIGHT, 1.0))
    weight = _weights(rng, household, home, factor, nation)
    persons_frame = pd.DataFrame(
        {
            "puma": pd.Series(nation.index).take(home).reset_index(drop=True),
            "SERIALNO": serial.take(household).reset_index(drop=True),
            "PWGTP": weight,
            "POVPIP": np.where(outside, np.nan, percent),
            "poor": np.where(outside, np.nan, percent < 100),
            "in_universe": ~outside,
        }
    )
    persons_frame.attrs["unit"] = "SERIALNO"
    return persons_frame


def _nation(areas: int) -> pd.DataFrame:
    """Invent the nation: for each PUMA its share of the sample, people, poverty, households."""
    rng = np.random.default_rng([NATION_SEED, areas])
    states = min(51, (areas + 4) // 5)
    # As with real states, the largest has a tenth of all PUMAs and the smallest one or two.
    parts = rng.multinomial(areas - states, _shares(rng.lognormal(sigma=1.05, size=states))) + 1
    state = np.repeat(np.arange(states), parts)
    number = np.concatenate([100 * np.arange(1, part + 1) for part in parts])
    size = np.clip(rng.normal(size=areas), -3.5, 3.5)
    people = 130_000 * np.exp(0.11 * size + 0.16 * rng.normal(size=areas))
    effect = 0.26 * rng.normal(size=states)[state] + 0.51 * rng.normal(size=areas)
    quarters = np.minimum(np.exp(rng.normal(np.log(0.031), 0.9, areas)), 0.4)
    codes = np.array(list(STATES))[state]
    return pd.DataFrame(
        {
            "share": _shares(np.exp(0.31 * size)),
            "people": people,
            "logit": -1.98 + effect,
            "quarters": quarters,
            "tilt": 0.13 * rng.normal(size=areas),
            "spread": BETWEEN * np.exp(0.12 * rng.normal(size=areas)),
        },
        index=pd.Index(pd.Series(codes, dtype="str") + _digits(number, 5), name="puma"),
    )


def _shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values / values.sum()


def _digits(numbers: NDArray[np.int64], width: int) -> pd.Series:
    return pd.Series(numbers).astype("str").str.zfill(width)


def _household_sizes(rng: np.random.Generator, persons: int, tilt: float) -> NDArray[np.int64]:
    """Sizes of households of so many persons; larger ones the higher the tilt."""
    sizes = np.arange(1, len(SIZES) + 1)
    drawn = rng.choice(sizes, persons, p=_shares(SIZES * np.exp(tilt * sizes)))
    last = int(np.searchsorted(np.cumsum(drawn), persons))
    kept = drawn[: last + 1]
    kept[-1] -= kept.sum() - persons
    return kept


def _weights(
    rng: np.random.Generator,
    household: NDArray[np.int64],
    area: NDArray[np.int64],
    factor: NDArray[np.float64],
    nation: pd.DataFrame,
) -> NDArray[np.float64]:
    """Whole numbers of persons, alike in a household, that add up to about the area's people."""
    common = np.clip(rng.normal(size=household[-1] + 1), -TRIM, TRIM)[household]
    own = WITHIN * rng.normal(size=len(household))
    weight = factor * np.exp(nation["spread"].to_numpy()[area] * common + own)
    scale = nation["people"].to_numpy() / np.bincount(area, weight, len(nation))
    return np.maximum(np.rint(weight * scale[area]), 1.0)


def _poverty(
    rng: np.random.Generator,
    household: NDArray[np.int64],
    size: NDArray[np.int64],
    logit: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Income of each person's family, in percent of its threshold: 0 to 501, which says "more"."""
    from scipy.special import expit

    place = rng.random(len(size))[household]
    unrelated = (rng.random(len(household)) < UNRELATED) & (size[household] > 1)
    # Who is related to nobody there is as often poor as those who live alone.
    effect = np.where(unrelated, POVERTY_BY_SIZE[0], POVERTY_BY_SIZE[size - 1][household])
    rate = expit(logit[household] + effect)
    place = np.where(unrelated, rng.random(len(household)), place)
    poor = place < rate
    # One in seven of the poor has no income at all; two in five of the others more than 500.
    below = 100 * np.maximum(place / rate - 0.15, 0) / 0.85
    above = 100 + 401 * (place - rate) / (1 - rate) / 0.61
    return np.floor(np.where(poor, np.minimum(below, 99), np.minimum(above, 501)))
