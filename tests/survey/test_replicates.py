"""Replicate weights against R's survey package, published standard errors and brute force."""

from __future__ import annotations

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest

from pymc_dp.survey import replicates as survey_replicates
from pymc_dp.survey.estimate import hajek
from pymc_dp.survey.replicates import replicate_columns

# R prints fifteen digits; both sides round a few hundred times.
DIGITS = 1e-10


@pytest.fixture(scope="module")
def reference(shared):
    table = pd.read_csv(shared / "reference" / "survey_designs.csv")
    return lambda case: table[table["case"] == case].set_index("area").sort_index()


def check(direct, rows):
    assert direct["area"].values.tolist() == rows.index.tolist()
    np.testing.assert_allclose(direct["estimate"], rows["estimate"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(direct["variance"], rows["variance"], rtol=DIGITS)


class TestRSurveyPackage:
    """R centres at the mean of the replicates unless told otherwise."""

    ROLES = {"outcome": "y", "weight": "w", "area": "area", "replicate_center": "mean"}  # noqa: RUF012

    @pytest.fixture(params=[pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
    def made(self, request, shared):
        return lambda name: request.param(pd.read_csv(shared / "data" / f"made_{name}.csv"))

    def test_stratified_jackknife_with_one_scale_for_each_replicate(self, made, shared, reference):
        text = (shared / "reference" / "jkn_scales.txt").read_text()
        scales = [float(line.split("(")[-1].rstrip(")")) for line in text.split()]
        options = {"variance": "jkn", "replicate_weights": "JKN", "replicate_scale": scales}
        direct = hajek(made("jkn"), **options, **self.ROLES)
        check(direct, reference("jkn y"))
        assert direct.attrs["replicate_scale"] == scales
        assert direct.attrs["n_replicates"] == 27

    def test_jackknife_that_leaves_out_one_cluster_at_a_time(self, made, reference):
        direct = hajek(made("jk1"), variance="jk1", replicate_weights="JK", **self.ROLES)
        check(direct, reference("jk1 y"))
        assert direct.attrs["replicate_scale"] == 28 / 29

    def test_balanced_half_samples(self, made, reference):
        direct = hajek(made("brr_fay"), variance="brr", replicate_weights="BRR", **self.ROLES)
        check(direct, reference("brr y"))

    def test_fays_method(self, made, reference):
        options = {"variance": "fay", "replicate_weights": "FAY", "fay_rho": 0.3}
        direct = hajek(made("brr_fay"), **options, **self.ROLES)
        check(direct, reference("fay0.3 y"))
        assert direct.attrs["fay_rho"] == 0.3

    @pytest.mark.parametrize("as_frame", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
    def test_successive_differences_of_seattle(self, shared, reference, as_frame):
        persons = pd.read_csv(
            shared / "data" / "acs_pums_2016_seattle_repweights.csv.gz", dtype={"puma": str}
        )
        persons = persons.dropna(subset=["esr"])
        persons = persons.assign(unemployed=persons["esr"] == 3)
        direct = hajek(
            as_frame(persons),
            outcome="unemployed",
            weight="pwgtp",
            area="puma",
            variance="sdr",
            replicate_weights="pwgtp",
        )
        check(direct, reference("Seattle ACS 2016 unemployed among 16+, sdr mse=TRUE"))
        published = [0.0041, 0.0068, 0.0076, 0.0089, 0.0065]
        np.testing.assert_array_equal(np.round(np.sqrt(direct["variance"]), 4), published)


class TestA02SuccessiveDifferencesWithNegativeWeights:
    WEIGHT, OUTCOME = np.array([40, 25, 60, 35, 80, 10]), [1, 0, 0, 1, 0, 1]
    AMPLITUDE = np.array([0.6, 0.9, 0.4, 0.7, 0.5, 1.3])

    def data(self, change=lambda weights: weights):
        j, r = np.arange(6)[:, None], np.arange(1, 81)
        wave = 1 + self.AMPLITUDE[:, None] * np.cos(2 * np.pi * (j + 1) * r / 80)
        weights = change(self.WEIGHT[:, None] * wave)
        data = pd.DataFrame({"area": "a", "PWGTP": self.WEIGHT, "y": self.OUTCOME})
        return data.join(pd.DataFrame(weights, columns=[f"PWGTP{k}" for k in r]))

    def variance(self, data=None, variance="sdr", **options):
        roles = {"outcome": "y", "weight": "PWGTP", "area": "area"}
        data = self.data() if data is None else data
        direct = hajek(data, variance=variance, replicate_weights="PWGTP", **roles, **options)
        assert direct["estimate"].item() == pytest.approx(0.34, abs=1e-12)
        return direct["variance"].item()

    def test_negative_replicate_weights_are_legal(self):
        assert (self.data().filter(regex=r"PWGTP\d") < 0).to_numpy().sum() == 18
        assert self.variance() == pytest.approx(0.02950666513, rel=1e-9)

    @pytest.mark.parametrize(
        ("options", "variance"),
        [
            ({"variance": "brr"}, 0.007376666282),
            ({"variance": "jk1"}, 0.5827566362),
            ({"replicate_center": "mean"}, 0.0295006461),
        ],
        ids=["one for each", "jackknife", "around the mean of the replicates"],
    )
    def test_another_method_is_another_variance(self, options, variance):
        assert self.variance(**options) == pytest.approx(variance, rel=1e-9)

    def test_neither_clipped_nor_dropped(self):
        clipped = self.data(lambda weights: np.maximum(weights, 0))
        assert self.variance(clipped) == pytest.approx(0.02912427537, rel=1e-9)
        assert self.variance() != pytest.approx(0.01765066939, rel=0.1)

    def test_negative_main_weights_are_not_legal(self):
        data = self.data()
        data.loc[1, "PWGTP"] = -25
        with pytest.raises(ValueError, match=r"column 'PWGTP': 1 negative weight, in a \(1\)"):
            self.variance(data)


class TestDefinitions:
    @pytest.fixture
    def data(self):
        rng = np.random.default_rng(8)
        size = 300
        data = pd.DataFrame(
            {
                "area": rng.choice(list("abc"), size),
                "w": rng.lognormal(3, 1, size) * (rng.random(size) > 0.1),
                "y": rng.uniform(-2, 5, size),
            }
        )
        factors = rng.normal(1, 0.5, (size, 45))
        replicates = pd.DataFrame(factors * data[["w"]].to_numpy()).add_prefix("r")
        return data.join(replicates)

    ROLES = {"outcome": "y", "weight": "w", "area": "area", "bounds": (-2, 5)}  # noqa: RUF012

    @pytest.mark.parametrize("center", ["estimate", "mean"])
    @pytest.mark.parametrize("as_frame", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
    def test_every_replicate_is_an_estimate_of_its_own(self, data, center, as_frame):
        """More replicates than one pass takes, and those of scale 0 in no mean."""
        scale = np.linspace(0, 1, 45)
        direct = hajek(
            as_frame(data),
            variance="bootstrap",
            replicate_weights="r",
            replicate_scale=scale,
            replicate_center=center,
            **self.ROLES,
        )
        for label, rows in data[data["w"] > 0].groupby("area"):
            theta = np.array([np.average(rows["y"], weights=rows[f"r{k}"]) for k in range(45)])
            full = np.average(rows["y"], weights=rows["w"])
            middle = full if center == "estimate" else theta[1:].mean()
            expected = np.sum(scale * (theta - middle) ** 2)
            got = direct["variance"].sel(area=label).item()
            assert got == pytest.approx(expected, rel=1e-11)

    def test_the_factor_of_each_method(self, data):
        columns = [f"r{k}" for k in range(10)]
        options = {"replicate_weights": columns, **self.ROLES}
        one = hajek(data, variance="bootstrap", replicate_scale=1.0, **options)["variance"]
        factors = {"sdr": 4 / 10, "brr": 1 / 10, "bootstrap": 1 / 10, "jk1": 9 / 10}
        for variance, factor in factors.items():
            direct = hajek(data, variance=variance, **options)
            np.testing.assert_allclose(direct["variance"], factor * one, rtol=1e-14)
        fay = hajek(data, variance="fay", fay_rho=0.5, **options)
        np.testing.assert_allclose(fay["variance"], 0.4 * one, rtol=1e-14)

    def test_the_size_of_a_batch_changes_nothing(self, data, monkeypatch):
        options = {"variance": "sdr", "replicate_weights": "r", **self.ROLES}
        direct = hajek(data, **options)
        for batch in (1, 7, 45):
            monkeypatch.setattr(survey_replicates, "BATCH", batch)
            other = hajek(data, **options)
            np.testing.assert_array_equal(other["variance"], direct["variance"])

    def test_a_replicate_without_weight_in_an_area_leaves_its_variance_missing(self, data):
        data = data.copy()
        data.loc[data["area"] == "b", "r3"] = 0.0
        direct = hajek(data, variance="jk1", replicate_weights="r", **self.ROLES)
        np.testing.assert_array_equal(np.isnan(direct["variance"]), [False, True, False])
        assert not np.isnan(direct["sensitivity"]).any()

    def test_outcomes_that_all_agree_have_a_variance_of_exactly_zero(self, data):
        same = data.assign(y=0.1)
        direct = hajek(same, variance="sdr", replicate_weights="r", **self.ROLES)
        assert (direct["variance"] == 0).all()


def numbers(names):
    return nw.Schema(dict.fromkeys(names, nw.Float64()))


class TestColumns:
    def test_a_prefix_means_that_text_and_a_number_and_nothing_else(self):
        names = [
            "PWGTP",
            "PWGTP10",
            "PWGTP9",
            "PWGTP8",
            "PWGTPX7",
            "PWGTP11b",
            "XPWGTP11",
            "pwgtp7",
        ]
        assert replicate_columns(numbers(names), "PWGTP") == ("PWGTP8", "PWGTP9", "PWGTP10")

    def test_a_prefix_is_text_and_no_pattern(self):
        assert replicate_columns(numbers(["a.1", "ab1", "a.2"]), "a.") == ("a.1", "a.2")

    @pytest.mark.parametrize(
        ("names", "wanted", "message"),
        [
            (["r1", "r2", "r4"], "r", "the 3 columns are not consecutive from 1 to 4"),
            (["r1", "r01", "r2"], "r", "not consecutive"),
            (["w", "w1a"], "w", "finds 0 columns, not 2 or more"),
            (["r1", "r2"], ["r1"], "finds 1 columns"),
            (["r1", "r2"], ["r1", "r3"], "no column 'r3'"),
            (["r1", "r2"], ["r1", "r1"], "names a column twice"),
        ],
    )
    def test_a_replicate_that_is_not_there_is_noticed(self, names, wanted, message):
        with pytest.raises(ValueError, match=message):
            replicate_columns(numbers(names), wanted)


class TestRefusals:
    DATA = pd.DataFrame({"area": ["a", "a", "b"], "w": 1.0, "y": [0, 1, 1], "r1": 1.0, "r2": 2.0})

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"variance": "sdr"}, "'sdr' needs replicate_weights"),
            ({"replicate_weights": "r"}, "belong to variance='sdr', 'brr', 'fay'"),
            ({"replicate_scale": 1.0}, "belong to variance='sdr'"),
            ({"replicate_center": "mean"}, "belong to variance='sdr'"),
            ({"variance": "jkn", "replicate_weights": "r"}, "'jkn' needs replicate_scale"),
            ({"variance": "fay", "replicate_weights": "r"}, "fay_rho and variance='fay' belong"),
            ({"variance": "brr", "replicate_weights": "r", "fay_rho": 0.3}, "belong together"),
            ({"variance": "fay", "replicate_weights": "r", "fay_rho": 1.0}, "at least 0 and below"),
            ({"variance": "fay", "replicate_weights": "r", "fay_rho": np.nan}, "at least 0"),
            (
                {"variance": "sdr", "replicate_weights": "r", "replicate_center": "median"},
                "replicate_center must be 'estimate' or 'mean'",
            ),
            (
                {"variance": "sdr", "replicate_weights": "r", "replicate_scale": [1, 2, 3]},
                "must be one number, or one for each of 2",
            ),
            (
                {"variance": "sdr", "replicate_weights": "r", "replicate_scale": [1, -1]},
                "must be finite, not negative",
            ),
            (
                {"variance": "sdr", "replicate_weights": "r", "replicate_scale": np.nan},
                "must be finite, not negative",
            ),
            (
                {"variance": "sdr", "replicate_weights": "r", "strata": "area"},
                "strata and cluster belong to variance='linearized'",
            ),
            ({"variance": "sdr", "replicate_weights": ["w", "area"]}, "not as in column 'area'"),
        ],
    )
    def test_options_that_do_not_belong_together(self, options, message):
        with pytest.raises(ValueError, match=message):
            hajek(self.DATA, outcome="y", weight="w", area="area", **options)

    @pytest.mark.parametrize("as_frame", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_missing_and_infinite_replicate_weights(self, as_frame, value):
        data = self.DATA.copy()
        data.loc[2, "r2"] = value
        message = (
            r"'r1' to 'r2': replicate weights are missing or infinite in 1 records, in b \(1\)"
        )
        options = {"outcome": "y", "weight": "w", "area": "area", "variance": "sdr"}
        with pytest.raises(ValueError, match=message):
            hajek(as_frame(data), replicate_weights="r", **options)
