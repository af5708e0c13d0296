"""Stratified and clustered designs against R's survey package, exact cases and brute force."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from pymc_dp.survey.estimate import hajek

# R prints fifteen digits; both sides round a few hundred times.
DIGITS = 1e-10
INCOMES = (0, 200_000)
RULES = ("remove", "adjust", "average", "certainty")


@pytest.fixture(scope="module")
def reference(shared):
    return pd.read_csv(shared / "reference" / "survey_designs.csv")


@pytest.fixture(scope="module")
def made(shared):
    return pd.read_csv(shared / "data" / "made_strata_clusters.csv")


def check(direct, reference, case):
    rows = reference[reference["case"] == case].sort_values("area")
    assert len(rows) > 0
    rows = rows.set_index("area").loc[direct["area"].values]
    # The public grid moves an estimate by 1e-12 of the range at most.
    width = direct.attrs["bounds"][1]
    np.testing.assert_allclose(
        direct["estimate"], rows["estimate"], rtol=DIGITS, atol=1e-12 * width, err_msg=case
    )
    np.testing.assert_allclose(direct["variance"], rows["variance"], rtol=DIGITS, err_msg=case)


class TestRSurveyPackage:
    @pytest.mark.parametrize("as_frame", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
    @pytest.mark.parametrize("singleton", RULES)
    @pytest.mark.parametrize(("outcome", "bounds"), [("y", (0, 1)), ("income", INCOMES)])
    def test_clusters_in_strata(self, made, reference, outcome, bounds, singleton, as_frame):
        direct = hajek(
            as_frame(made),
            outcome=outcome,
            weight="w",
            area="area",
            bounds=bounds,
            strata="stratum",
            cluster="psu",
            singleton=singleton,
        )
        check(direct, reference, f"clusters+strata {outcome} lonely={singleton}")
        assert direct.attrs["n_strata"] == made["stratum"].nunique()
        assert direct.attrs["n_clusters"] == len(made[["stratum", "psu"]].drop_duplicates())
        assert direct.attrs["n_singleton_strata"] == 2
        assert direct.attrs["singleton"] == singleton

    @pytest.mark.parametrize(("outcome", "bounds"), [("y", (0, 1)), ("income", INCOMES)])
    def test_clusters_alone(self, made, reference, outcome, bounds):
        options = {"outcome": outcome, "weight": "w", "area": "area", "bounds": bounds}
        direct = hajek(made, cluster="psu", **options)
        check(direct, reference, f"clusters only {outcome}")

    @pytest.mark.parametrize(("outcome", "bounds"), [("y", (0, 1)), ("income", INCOMES)])
    def test_the_whole_sample_as_one_design(self, made, reference, outcome, bounds):
        options = {"outcome": outcome, "weight": "w", "area": "area", "bounds": bounds}
        direct = hajek(made.assign(all=1), strata="all", **options)
        check(direct, reference, f"weights only {outcome}")

    def test_strata_alone(self, made, reference):
        direct = hajek(made, outcome="y", weight="w", area="area", strata="stratum")
        check(direct, reference, "strata only y")

    def test_areas_of_king_county_as_domains(self, shared, reference):
        records = pd.read_csv(shared / "data" / "brfss_king_county_2009_2013.csv.gz")
        records = records.dropna(subset=["smoker", "hra"]).assign(all=1)
        options = {"outcome": "smoker", "weight": "w", "area": "hra"}
        whole = hajek(records, strata="all", **options)
        case = "King County smoker by hra, weights only (whole sample as one design)"
        check(whole, reference, case)
        direct = hajek(records, strata=["year", "strata"], **options)
        check(direct, reference, "King County smoker by hra, strata year x strata")
        assert direct.attrs["strata"] == "year strata"

    @pytest.mark.parametrize("domain", ["hra", "hra_year", "strata_hra"])
    def test_the_published_table_of_king_county(self, shared, domain):
        records = pd.read_csv(shared / "data" / "brfss_king_county_2009_2013.csv.gz")
        for outcome in ("smoker", "diabetes"):
            table = pd.read_csv(shared / "data" / "brfss_king_county_area_table.csv")
            table = table[(table["domain"] == domain) & (table["outcome"] == outcome)]
            table = table.assign(area=table["area"].str.replace(" | ", " ")).set_index("area")
            direct = hajek(
                records.dropna(subset=[outcome, "hra"]),
                outcome=outcome,
                weight="w",
                area=domain.split("_"),
                strata=["year", "strata"],
            )
            expected = table.loc[direct["area"].values, "var_strat"]
            # The published table keeps eight significant digits.
            np.testing.assert_allclose(direct["variance"], expected, rtol=5.1e-8)


class TestA07AStratumWithASingleSampledUnit:
    DATA = pd.DataFrame(
        {
            "area": "King",
            "_STSTR": ["531011"] * 3 + ["531012"] + ["531013"] * 3,
            "_PSU": [1, 2, 3, 4, 5, 6, 7],
            "_LLCPWT": [200, 300, 250, 400, 150, 350, 350],
            "y": [1, 0, 1, 0, 1, 0, 1],
        }
    )

    def direct(self, data=DATA, **options):
        roles = {"outcome": "y", "weight": "_LLCPWT", "area": "area"}
        return hajek(data, strata="_STSTR", cluster="_PSU", **roles, **options)

    def test_without_a_rule_the_stratum_is_named(self):
        message = r"column '_STSTR': 1 stratum has a single sampled cluster, 531012: choose"
        with pytest.raises(ValueError, match=message):
            self.direct()

    @pytest.mark.parametrize(
        ("singleton", "variance"),
        [
            ("remove", 0.04130429688),
            ("certainty", 0.04130429688),
            ("adjust", 0.05032929687),
            ("average", 0.06195644531),
        ],
    )
    def test_each_rule_gives_its_own_variance(self, singleton, variance):
        direct = self.direct(singleton=singleton)
        assert direct["variance"].item() == pytest.approx(variance, rel=1e-9)
        assert direct["estimate"].item() == pytest.approx(0.475, abs=1e-12)
        assert direct["sensitivity"].item() == pytest.approx(0.2, abs=2e-12)
        assert direct.attrs["singleton"] == singleton

    def test_ignoring_the_strata_is_another_variance_and_the_result_names_none(self):
        direct = hajek(self.DATA, outcome="y", weight="_LLCPWT", area="area")
        assert direct["variance"].item() == pytest.approx(0.04440989583, rel=1e-9)
        assert "strata" not in direct.attrs and "singleton" not in direct.attrs

    def test_a_cluster_number_that_starts_again_in_every_stratum_is_another_cluster(self):
        numbered = self.DATA.assign(_PSU=[1, 2, 3, 1, 1, 2, 3])
        assert self.direct(numbered, singleton="adjust").equals(self.direct(singleton="adjust"))

    def test_where_every_stratum_is_single_the_average_of_the_others_is_missing(self):
        data = self.DATA.assign(_STSTR=list("abcdefg"))
        assert np.isnan(self.direct(data, singleton="average")["variance"])
        assert self.direct(data, singleton="remove")["variance"] == 0


def brute_force(data, area, psu_key):
    """Whole-sample linearisation in plain loops: every cluster of every stratum, zeros included."""
    used = data[(data["w"] > 0) & data["y"].notna()]
    domain = used[used["area"] == area]
    total = domain["w"].sum()
    mean = (domain["w"] * domain["y"]).sum() / total
    variance = 0.0
    for _, stratum in data[data["w"] > 0].groupby("stratum"):
        z = []
        for _, cluster in stratum.groupby(psu_key):
            inside = cluster[(cluster["area"] == area) & cluster["y"].notna()]
            z.append(float((inside["w"] * (inside["y"] - mean)).sum() / total))
        variance += len(z) / (len(z) - 1) * np.sum((np.array(z) - np.mean(z)) ** 2)
    return variance


class TestDomains:
    @pytest.fixture
    def data(self):
        rng = np.random.default_rng(12)
        size = 600
        psu = rng.integers(0, 60, size)
        data = pd.DataFrame(
            {
                "stratum": psu % 4,
                "psu": psu,
                "area": rng.choice(list("abc"), size),
                "w": rng.lognormal(3, 1, size) * (rng.random(size) > 0.2),
                "y": np.where(rng.random(size) > 0.1, rng.random(size), np.nan),
            }
        )
        # Two clusters nobody of whom answers, and one without any weight.
        data.loc[data["psu"].isin([4, 9]), "y"] = np.nan
        data.loc[data["psu"] == 15, "w"] = 0.0
        return data

    def test_clusters_without_the_domain_or_without_an_answer_count_as_zeros(self, data):
        direct = hajek(
            data,
            outcome="y",
            weight="w",
            area="area",
            strata="stratum",
            cluster="psu",
            missing="drop",
        )
        assert direct.attrs["n_clusters"] == data.loc[data["w"] > 0, "psu"].nunique()
        expected = [brute_force(data, area, "psu") for area in "abc"]
        np.testing.assert_allclose(direct["variance"], expected, rtol=1e-12)

    def test_without_clusters_the_units_are_what_was_sampled(self, data):
        roles = {"outcome": "y", "weight": "w", "area": "area", "missing": "drop"}
        numbered = data.assign(hh=np.arange(len(data)) // 2)
        numbered["stratum"] = numbered["hh"] % 5
        direct = hajek(numbered, strata="stratum", unit=["area", "hh"], **roles)
        nested = numbered.assign(psu=numbered["area"] + numbered["hh"].astype(str))
        expected = [brute_force(nested, area, "psu") for area in "abc"]
        np.testing.assert_allclose(direct["variance"], expected, rtol=1e-12)

    def test_records_outside_the_universe_are_counted_and_stay_in_the_design(self, data):
        rng = np.random.default_rng(13)
        inside = rng.random(len(data)) < 0.7
        options = {"outcome": "y", "weight": "w", "area": "area", "strata": "stratum"}
        options |= {"cluster": "psu", "missing": "drop"}
        direct = hajek(data.assign(inside=inside), universe="inside", **options)
        masked = data.assign(y=data["y"].where(inside))
        expected = hajek(masked, **options)
        for name in ("estimate", "variance", "sensitivity", "n", "sum_weights"):
            np.testing.assert_array_equal(direct[name], expected[name])
        counts = data.assign(outside=~inside).groupby("area")["outside"].sum()
        np.testing.assert_array_equal(direct["n_outside_universe"], counts)
        unanswered = (data["y"].isna() & inside).groupby(data["area"]).sum()
        np.testing.assert_array_equal(direct["n_dropped"], unanswered)

    def test_an_area_inside_one_cluster_has_no_variance_left(self):
        """Its deviations add up to 0 within the cluster; rounding must not pass for a variance."""
        rng = np.random.default_rng(14)
        data = pd.DataFrame(
            {"area": ["a"] * 50 + ["b"] * 50, "psu": [1] * 50 + [2, 3] * 25, "w": rng.random(100)}
        ).assign(y=rng.random(100))
        direct = hajek(data, outcome="y", weight="w", area="area", cluster="psu")
        assert direct["variance"].sel(area="a") == 0
        assert direct["variance"].sel(area="b") > 0

    def test_outcomes_that_all_agree_have_a_variance_of_exactly_zero(self, data):
        direct = hajek(
            data.assign(y=0.37),
            outcome="y",
            weight="w",
            area="area",
            strata="stratum",
            cluster="psu",
        )
        assert (direct["variance"] == 0).all()


class TestRefusals:
    DATA = TestA07AStratumWithASingleSampledUnit.DATA

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"strata": "_STSTR", "singleton": "ignore"}, "singleton must be one of 'fail', "),
            ({"singleton": "adjust"}, "singleton belongs to strata and cluster"),
            ({"strata": "_STSTR", "variance": "kish", "rate": 0.1}, "belong to .*'linearized'"),
            ({"strata": []}, "strata names no column"),
            ({"cluster": ["_PSU", "_PSU"]}, "cluster names a column twice"),
            ({"cluster": "psu"}, "no column 'psu'"),
            ({"cluster": "area"}, "the sample has a single cluster, and no strata: choose"),
            ({"universe": "_STSTR"}, "the universe must be booleans, or 0 and 1"),
            ({"universe": "_PSU"}, r"'_PSU': 6 records neither in the universe nor outside, in"),
        ],
    )
    def test_options_that_do_not_fit(self, options, message):
        with pytest.raises(ValueError, match=message):
            hajek(self.DATA, outcome="y", weight="_LLCPWT", area="area", **options)

    @pytest.mark.parametrize("as_frame", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
    @pytest.mark.parametrize(
        ("column", "message"),
        [
            ("_STSTR", r"column '_STSTR': 2 missing strata, in King \(2\)"),
            ("_PSU", r"column '_PSU': 2 missing clusters, in King \(2\)"),
        ],
    )
    def test_missing_strata_and_clusters(self, column, message, as_frame):
        data = self.DATA.astype({"_PSU": float})
        data.loc[[0, 4], column] = None
        with pytest.raises(ValueError, match=message):
            hajek(
                as_frame(data),
                outcome="y",
                weight="_LLCPWT",
                area="area",
                strata="_STSTR",
                cluster="_PSU",
                singleton="remove",
            )
