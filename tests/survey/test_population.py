"""Finite population correction: R's definition by hand, and every sample of a population."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pandas as pd
import polars as pl
import pytest

from pymc_dp.survey.estimate import hajek

ROLES = {"outcome": "y", "weight": "w", "area": "area"}


def dense(data, area, psu, rule="remove"):
    """As R's survey package defines it (Lumley 2010, section 2.2), in plain loops over clusters.

    The sum over strata of (N - n) / N n / (n - 1) sum_c (z_c - mean)^2; a stratum whose population
    is in the sample adds 0, before any rule for single clusters is asked.
    """
    domain = data[data["area"] == area]
    total = domain["w"].sum()
    mean = (domain["w"] * domain["y"]).sum() / total
    terms = []
    for _, stratum in data.groupby("stratum"):
        score = (stratum["w"] * (stratum["y"] - mean) * (stratum["area"] == area)) / total
        z, size = score.groupby(stratum[psu]).sum(), stratum["N"].iloc[0]
        n, left = len(z), (size - len(z)) / size
        if left == 0:
            terms.append(0.0)
        elif n == 1:
            single = {"remove": 0.0, "certainty": 0.0, "adjust": left * z.iloc[0] ** 2}
            terms.append(single.get(rule, np.nan))
        else:
            terms.append(left * n / (n - 1) * ((z - z.mean()) ** 2).sum())
    known = np.array(terms)[~np.isnan(terms)]
    return known.sum() * len(terms) / len(known)


@pytest.fixture
def data():
    """Six strata of clusters: the fourth has one of 3 clusters, the fifth its only one, the sixth
    all."""
    rng = np.random.default_rng(61)
    clusters = {0: 5, 1: 7, 2: 4, 3: 1, 4: 1, 5: 3}
    rows = [(h, f"{h}-{c}") for h, n in clusters.items() for c in range(n) for _ in range(9)]
    data = pd.DataFrame(rows, columns=["stratum", "psu"])
    data["N"] = data["stratum"].map({0: 20, 1: 8, 2: 4_000_000, 3: 3, 4: 1, 5: 3})
    data["area"] = rng.choice(list("ab"), len(data))
    data["w"] = rng.lognormal(3, 1, len(data))
    data["y"] = rng.random(len(data))
    return data


class TestByTheDefinition:
    @pytest.mark.parametrize("as_frame", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
    @pytest.mark.parametrize("rule", ["remove", "certainty", "adjust", "average"])
    def test_clusters_in_strata(self, data, rule, as_frame):
        design = {"strata": "stratum", "cluster": "psu", "singleton": rule, "fpc": "N"}
        direct = hajek(as_frame(data), **ROLES, **design)
        expected = [dense(data, area, "psu", rule) for area in "ab"]
        # Both sides round a few hundred times.
        np.testing.assert_allclose(direct["variance"], expected, rtol=1e-12)
        assert direct.attrs["fpc"] == "N"
        assert direct.attrs["n_singleton_strata"] == 1

    def test_a_cluster_that_is_its_whole_stratum_needs_no_rule(self, data):
        design = {"strata": "stratum", "cluster": "psu"}
        rest = data[data["stratum"] != 3]
        direct = hajek(rest, **ROLES, **design, fpc="N")
        expected = [dense(rest, area, "psu") for area in "ab"]
        np.testing.assert_allclose(direct["variance"], expected, rtol=1e-12)
        with pytest.raises(ValueError, match="1 stratum has a single sampled cluster, 4"):
            hajek(rest, **ROLES, **design)
        with pytest.raises(ValueError, match="1 stratum has a single sampled cluster, 3"):
            hajek(data, **ROLES, **design, fpc="N")

    def test_strata_of_records_and_of_units(self, data):
        data = data.assign(N=1000 + data["stratum"], record=np.arange(len(data)))
        data["home"] = data["area"] + (data["record"] // 2).astype(str)
        data["stratum"] = data["record"] // 40
        data["N"] = 1000 + data["stratum"]
        by_record = hajek(data, strata="stratum", fpc="N", **ROLES)
        by_home = hajek(data, strata="stratum", unit="home", fpc="N", **ROLES)
        for direct, psu in ((by_record, "record"), (by_home, "home")):
            expected = [dense(data, area, psu) for area in "ab"]
            np.testing.assert_allclose(direct["variance"], expected, rtol=1e-12)

    def test_clusters_without_strata(self, data):
        data = data.assign(N=77, stratum=0)
        direct = hajek(data, cluster="psu", fpc="N", **ROLES)
        expected = [dense(data, area, "psu") for area in "ab"]
        np.testing.assert_allclose(direct["variance"], expected, rtol=1e-12)

    @pytest.mark.parametrize("unit", [None, "psu"])
    def test_without_a_design_every_area_is_a_sample_of_its_own_population(self, data, unit):
        data = data.assign(N=data["area"].map({"a": 500, "b": 900}), stratum=data["area"])
        data["psu"] = data["area"] + data["psu"]
        data["record"] = np.arange(len(data))
        direct = hajek(data, unit=unit, fpc="N", **ROLES)
        expected = [dense(data, area, unit or "record") for area in "ab"]
        np.testing.assert_allclose(direct["variance"], expected, rtol=1e-12)
        # R's other spelling of the same design.
        as_strata = hajek(data, strata="area", unit=unit, fpc="N", **ROLES)
        np.testing.assert_allclose(direct["variance"], as_strata["variance"], rtol=1e-12)

    def test_hand_numbers(self):
        """Four of ten, equal weights, one yes: p = 1/4, s^2 = 1/4, (1 - 4/10) s^2 / 4 = 0.0375."""
        data = pd.DataFrame({"area": "a", "w": 2.5, "y": [1, 0, 0, 0], "N": 10})
        assert hajek(data, fpc="N", **ROLES)["variance"].item() == pytest.approx(0.0375, rel=1e-14)
        assert hajek(data, **ROLES)["variance"].item() == pytest.approx(0.0625, rel=1e-14)

    def test_records_left_out_are_not_in_the_sample_of_their_area(self):
        data = pd.DataFrame(
            {"area": "a", "w": [1, 1, 1, 0], "y": [1, 0, 0, 1], "N": [6, 6, 6, -1], "in": True}
        )
        rest = hajek(data[:3], fpc="N", **ROLES)["variance"].item()
        assert rest == pytest.approx((1 - 3 / 6) * (1 / 3) / 3, rel=1e-14)
        assert hajek(data, fpc="N", **ROLES)["variance"].item() == rest
        data.loc[3, ["w", "in"]] = [1, False]
        outside = hajek(data, fpc="N", universe="in", **ROLES)
        assert outside["variance"].item() == rest

    def test_an_area_that_was_asked_entirely_has_no_sampling_variance(self):
        data = pd.DataFrame({"area": list("aab"), "w": 1, "y": [1, 0, 1], "N": [2, 2, 1]})
        assert hajek(data, fpc="N", **ROLES)["variance"].values.tolist() == [0, 0]
        direct = hajek(data.assign(N=[2, 2, 3]), fpc="N", **ROLES)
        assert direct["variance"][0] == 0 and np.isnan(direct["variance"][1])

    def test_nothing_but_the_variance_changes(self, data):
        design = {"strata": "stratum", "cluster": "psu", "singleton": "adjust"}
        plain, corrected = hajek(data, **ROLES, **design), hajek(data, **ROLES, **design, fpc="N")
        assert (corrected["variance"] < plain["variance"]).all()
        for name in set(plain.data_vars) - {"variance"}:
            np.testing.assert_array_equal(plain[name], corrected[name], err_msg=name)


class TestAllSamplesOfASmallPopulation:
    """The mean over all samples of the estimated variance is the variance of the estimates."""

    VALUES = np.array([0.1, 0.9, 0.4, 0.4, 0.75, 0.0, 1.0])

    def test_simple_random_samples(self):
        estimates, variances = [], []
        for sample in combinations(range(7), 3):
            data = pd.DataFrame({"area": "a", "w": 7 / 3, "y": self.VALUES[list(sample)], "N": 7})
            direct = hajek(data, fpc="N", **ROLES)
            estimates.append(direct["estimate"].item())
            variances.append(direct["variance"].item())
        assert np.mean(estimates) == pytest.approx(self.VALUES.mean(), abs=1e-12)
        # Estimates are rounded to 1e-12, the variance of all of them to about as much.
        assert np.mean(variances) == pytest.approx(np.var(estimates), abs=1e-11)

    def test_stratified_samples_with_weights_that_add_up_to_the_strata(self):
        """Two of the first four and two of the last three; the total of weights is always 7."""
        estimates, variances = [], []
        first, last = combinations(range(4), 2), list(combinations(range(4, 7), 2))
        for pair, other in product(first, last):
            data = pd.DataFrame(
                {
                    "area": "a",
                    "stratum": [1, 1, 2, 2],
                    "N": [4, 4, 3, 3],
                    "w": [2, 2, 1.5, 1.5],
                    "y": self.VALUES[[*pair, *other]],
                }
            )
            direct = hajek(data, strata="stratum", fpc="N", **ROLES)
            estimates.append(direct["estimate"].item())
            variances.append(direct["variance"].item())
        assert np.mean(variances) == pytest.approx(np.var(estimates), abs=1e-11)

    def test_clusters_of_equal_size(self):
        values = np.append(self.VALUES, 0.6).reshape(4, 2)
        estimates, variances = [], []
        for sample in combinations(range(4), 2):
            y = values[list(sample)].ravel()
            data = pd.DataFrame({"area": "a", "c": [1, 1, 2, 2], "w": 2, "y": y, "N": 4})
            direct = hajek(data, cluster="c", fpc="N", **ROLES)
            estimates.append(direct["estimate"].item())
            variances.append(direct["variance"].item())
        assert np.mean(variances) == pytest.approx(np.var(estimates), abs=1e-11)


class TestRefusals:
    @pytest.mark.parametrize("as_frame", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
    @pytest.mark.parametrize(
        ("size", "message"),
        [
            (0.25, "'N': the population is missing or below 1 in 6 strata, 0"),
            (np.nan, "missing or below 1 in 6 strata"),
            (np.inf, "missing or below 1 in 6 strata"),
            (4, r"smaller than the sample \(take counts, not fractions\) in 2 strata, 0, 1$"),
        ],
    )
    def test_populations_that_cannot_be(self, data, size, message, as_frame):
        data["N"] = float(size)
        with pytest.raises(ValueError, match=message):
            hajek(as_frame(data), strata="stratum", cluster="psu", fpc="N", **ROLES)

    def test_populations_that_differ_within_a_stratum_or_area(self, data):
        data.loc[0, "N"] += 1
        with pytest.raises(ValueError, match=r"not the same in all records in 1 strata, 0$"):
            hajek(data, strata="stratum", cluster="psu", fpc="N", **ROLES)
        with pytest.raises(ValueError, match=r"not the same in all records in 2 areas, a, b$"):
            hajek(data, fpc="N", **ROLES)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"fpc": "M"}, "no column 'M'"),
            ({"fpc": "psu"}, "column 'psu' holds String: population counts are numbers"),
            ({"fpc": "N", "variance": "kish", "rate": 0.2}, "fpc belongs to .*'linearized'"),
        ],
    )
    def test_options_that_do_not_fit(self, data, options, message):
        with pytest.raises(ValueError, match=message):
            hajek(data, **ROLES, **options)
