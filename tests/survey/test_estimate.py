"""Direct estimates against plain NumPy, exact fractions, enumeration and published tables."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp.survey.estimate import hajek


def converted(data, backend):
    with np.errstate(invalid="ignore"):  # pandas 2 tries whether infinities are integers
        return data.convert_dtypes(dtype_backend=backend)


ENGINES = {
    "pandas": lambda data: data,
    "pandas nullable": lambda data: converted(data, "numpy_nullable"),
    "pandas arrow": lambda data: converted(data, "pyarrow"),
    "polars": pl.from_pandas,
    "polars lazy": lambda data: pl.from_pandas(data).lazy(),
    "pyarrow": pa.Table.from_pandas,
}
# The published tables keep eight significant digits.
TABLE_DIGITS = 5.1e-8


@pytest.fixture(params=ENGINES.values(), ids=ENGINES.keys())
def engine(request):
    return request.param


def small_survey(seed=1, areas=7, records=400, low=0.0, high=1.0):
    """Records in random order, with unequal weights, some of them zero, and households."""
    rng = np.random.default_rng(seed)
    outcome = rng.integers(0, 2, records) if high == 1 else rng.uniform(low, high, records)
    return pd.DataFrame(
        {
            "area": [f"{k:02d}" for k in rng.integers(0, areas, records)],
            "home": rng.integers(0, 40, records),
            "w": rng.lognormal(3, 1, records) * (rng.random(records) > 0.1),
            "y": outcome,
        }
    )


def plain_hajek(data, unit=None):
    """The definitions, area by area, in NumPy."""
    rows = {}
    for label, all_records in data.groupby("area"):
        records = all_records[all_records["w"] > 0]
        w, y = records["w"].to_numpy(), records["y"].to_numpy(dtype=float)
        units = np.arange(len(w)) if unit is None else records[unit].to_numpy()
        mean = np.sum(w * y) / np.sum(w)
        z = [np.sum((w * (y - mean))[units == u]) / np.sum(w) for u in np.unique(units)]
        summed = [np.sum(w[units == u]) for u in np.unique(units)]
        rows[label] = {
            "estimate": mean,
            "variance": len(z) / (len(z) - 1) * np.sum(np.square(z)),
            "share": max(summed) / np.sum(w),
            "n": len(w),
            "n_units": len(z),
            "sum_weights": np.sum(w),
            "max_weight": max(summed),
            "n_eff": np.sum(w) ** 2 / np.sum(w**2),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def assert_agrees(direct, plain, width=1.0):
    assert direct["area"].values.tolist() == plain.index.tolist()
    for name in ("n", "n_units"):
        np.testing.assert_array_equal(direct[name], plain[name])
    for name in ("variance", "sum_weights", "max_weight", "n_eff"):
        np.testing.assert_allclose(direct[name], plain[name], rtol=1e-12, err_msg=name)
    # Half a step of the grid and a few roundings; the grid and its like for the sensitivity.
    np.testing.assert_allclose(direct["estimate"], plain["estimate"], rtol=0, atol=1e-12 * width)
    excess = direct["sensitivity"] - width * plain["share"].to_numpy()
    assert (excess > 0).all() and (excess < 4e-12 * width).all()


class TestDefinitions:
    @pytest.mark.parametrize("unit", [None, "home"])
    def test_every_engine_agrees_with_numpy(self, engine, unit):
        data = small_survey()
        ids = unit and ["area", unit]
        direct = hajek(engine(data), outcome="y", weight="w", area="area", unit=ids)
        assert_agrees(direct, plain_hajek(data, unit))

    @pytest.mark.parametrize("unit", [None, "home"])
    def test_a_continuous_outcome_in_its_own_units(self, engine, unit):
        data = small_survey(seed=2, low=-3000.0, high=50_000.0)
        ids = unit and ["area", unit]
        bounds = (-3000, 50_000)
        direct = hajek(engine(data), outcome="y", weight="w", area="area", unit=ids, bounds=bounds)
        assert_agrees(direct, plain_hajek(data, unit), width=53_000)

    @settings(max_examples=40, deadline=None)
    @given(
        rows=st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.integers(0, 5),
                st.one_of(st.just(0.0), st.floats(1e-3, 1e6)),
                st.floats(0, 1),
            ),
            min_size=1,
            max_size=30,
        ),
        unit=st.sampled_from([None, "home"]),
        as_frame=st.sampled_from([pd.DataFrame, pl.from_pandas]),
    )
    def test_any_small_survey_agrees_with_exact_arithmetic(self, rows, unit, as_frame):
        data = pd.DataFrame(rows, columns=["area", "home", "w", "y"])
        if not data["w"].any():
            return
        ids = unit and ["area", unit]
        direct = hajek(as_frame(data), outcome="y", weight="w", area="area", unit=ids)
        for label, records in data[data["w"] > 0].groupby("area"):
            got = direct.sel(area=label)
            w, y = ([Fraction(v) for v in records[c]] for c in ("w", "y"))
            units = records["home"].tolist() if unit else range(len(w))
            mean = sum(a * b for a, b in zip(w, y, strict=True)) / sum(w)
            z, share = dict.fromkeys(units, Fraction(0)), dict.fromkeys(units, Fraction(0))
            for u, a, b in zip(units, w, y, strict=True):
                z[u] += a * (b - mean) / sum(w)
                share[u] += a / sum(w)
            assert abs(Fraction(got["estimate"].item()) - mean) <= Fraction(1, 10**12)
            assert got["n_units"].item() == len(z)
            if len(z) == 1:
                assert np.isnan(got["variance"])
            else:
                factor = len(z) / (len(z) - 1)
                exact = factor * float(sum(v * v for v in z.values()))
                # Deviations off by some n roundings, e, move the sum of squares by this at most.
                squared_shares = float(factor * sum(v * v for v in share.values()))
                e = 4 * (len(w) + 4) * 2.0**-53 * squared_shares**0.5
                moved = 2 * e * exact**0.5 + e**2
                assert abs(got["variance"].item() - exact) <= 1e-12 * exact + moved

    @pytest.mark.parametrize("unit", [None, "home"])
    def test_the_variance_of_large_values_with_small_differences_keeps_its_digits(
        self, engine, unit
    ):
        rng = np.random.default_rng(3)
        data = small_survey(seed=3).assign(y=rng.normal(20_000, 1, 400))
        ids = unit and ["area", unit]
        bounds = (0, 1_000_000)
        direct = hajek(engine(data), outcome="y", weight="w", area="area", unit=ids, bounds=bounds)
        # By shifting the outcomes exactly (to 2**-20) the plain formula keeps all its digits. Ours
        # can keep those that a deviation of 1 has beside the middle, 5e5: 2**-53 * 5e5 = 6e-11.
        plain = plain_hajek(data.assign(y=data["y"] - 20_000), unit)
        np.testing.assert_allclose(direct["variance"], plain["variance"], rtol=2e-10)

    @pytest.mark.parametrize("unit", [None, "home"])
    def test_outcomes_that_all_agree_have_a_variance_of_exactly_zero(self, engine, unit):
        data = small_survey(seed=4).assign(y=13.7)
        ids = unit and ["area", unit]
        direct = hajek(engine(data), outcome="y", weight="w", area="area", unit=ids, bounds=(0, 30))
        assert (direct["variance"] == 0).all()

    def test_households_that_all_have_the_same_mean_have_a_variance_of_exactly_zero(self, engine):
        data = pd.DataFrame(
            {
                "area": "a",
                "home": [1, 1, 1, 2, 2, 2, 3, 3, 3],
                "w": [0.1, 0.1, 0.1, 0.7, 0.7, 0.7, 1.3, 1.3, 1.3],
                "y": [0, 0, 1, 0, 1, 0, 1, 0, 0],
            }
        )
        direct = hajek(engine(data), outcome="y", weight="w", area="area", unit="home")
        assert direct["variance"].item() == 0
        assert hajek(engine(data), outcome="y", weight="w", area="area")["variance"].item() > 0

    def test_the_variance_of_a_single_unit_is_missing(self, engine):
        data = pd.DataFrame({"area": ["a", "b", "b"], "home": [1, 2, 2], "w": 1.0, "y": [1, 0, 1]})
        by_record = hajek(engine(data), outcome="y", weight="w", area="area")
        np.testing.assert_array_equal(np.isnan(by_record["variance"]), [True, False])
        by_home = hajek(engine(data), outcome="y", weight="w", area="area", unit="home")
        np.testing.assert_array_equal(np.isnan(by_home["variance"]), [True, True])
        assert not np.isnan(by_home["sensitivity"]).any()

    def test_small_integers_do_not_overflow(self):
        weight, outcome = np.array([100, 120, 90], "int8"), np.array([100, 50, 120], "int8")
        data = pd.DataFrame({"area": "a", "w": weight, "y": outcome})
        for frame in (data, pl.from_pandas(data), pa.Table.from_pandas(data)):
            direct = hajek(frame, outcome="y", weight="w", area="area", bounds=(0, 120))
            expected = (100 * 100 + 120 * 50 + 90 * 120) / 310
            assert direct["estimate"].item() == pytest.approx(expected, abs=1e-10)
            assert direct["sum_weights"].item() == 310

    def test_booleans_are_outcomes(self, engine):
        data = small_survey()
        boolean = hajek(engine(data.assign(y=data["y"] == 1)), outcome="y", weight="w", area="area")
        xr.testing.assert_allclose(
            boolean, hajek(data, outcome="y", weight="w", area="area"), rtol=1e-12
        )

    def test_columns_may_have_any_names_and_several_roles(self):
        data = small_survey()
        odd = data.rename(columns={"area": "weight", "w": "outcome", "y": "area_0"})
        direct = hajek(
            odd, outcome="area_0", weight="outcome", area="weight", unit=["weight", "home"]
        )
        assert_agrees(direct, plain_hajek(data, "home"))


class TestKish:
    def test_it_is_the_binomial_variance_of_the_effective_sample(self, engine):
        data = small_survey()
        direct = hajek(
            engine(data), outcome="y", weight="w", area="area", variance="kish", rate=0.12
        )
        plain = plain_hajek(data)
        np.testing.assert_allclose(direct["variance"], 0.12 * 0.88 / plain["n_eff"], rtol=1e-12)
        assert direct.attrs["variance_method"] == "kish"
        assert (direct.attrs["rate"], direct.attrs["design_factor"]) == (0.12, 1.0)

    def test_the_outcomes_do_not_enter_it(self):
        data = small_survey()
        options = {"outcome": "y", "weight": "w", "area": "area", "variance": "kish", "rate": 0.12}
        one, other = (hajek(data.assign(y=y), **options) for y in (data["y"], 1 - data["y"]))
        changed = [name for name in one if not one[name].equals(other[name])]
        assert changed == ["estimate"]

    def test_records_give_the_effective_sample_and_households_the_design_factor(self):
        data = small_survey()
        direct = hajek(
            data,
            outcome="y",
            weight="w",
            area="area",
            unit=["area", "home"],
            variance="kish",
            rate=0.12,
            design_factor=2.5,
        )
        plain = plain_hajek(data)
        np.testing.assert_allclose(
            direct["variance"], 2.5 * 0.12 * 0.88 / plain["n_eff"], rtol=1e-12
        )

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"variance": "kish"}, "needs a public rate"),
            ({"variance": "kish", "rate": 0.0}, "needs a public rate"),
            ({"variance": "kish", "rate": 1.0}, "needs a public rate"),
            ({"variance": "kish", "rate": np.nan}, "needs a public rate"),
            ({"variance": "kish", "rate": 0.1, "bounds": (0, 30)}, r"needs bounds \(0, 1\)"),
            ({"variance": "kish", "rate": 0.1, "design_factor": 0.0}, "design_factor must be"),
            ({"variance": "kish", "rate": 0.1, "design_factor": np.inf}, "design_factor must be"),
            ({"rate": 0.1}, "belong to variance='kish'"),
            ({"design_factor": 2.0}, "belong to variance='kish'"),
            ({"variance": "jackknife"}, "must be 'linearized' or 'kish'"),
            ({"missing": "ignore"}, "must be 'fail' or 'drop'"),
        ],
    )
    def test_options_that_do_not_belong_together_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            hajek(small_survey(), outcome="y", weight="w", area="area", **options)


def estimates(weight, outcomes, bounds, unit=None, as_frame=pd.DataFrame):
    """Each row of outcomes as a data set of its own: an area with the same weights and units."""
    sets, size = np.shape(outcomes)
    data = pd.DataFrame(
        {
            "set": [f"{k:05d}" for k in np.repeat(np.arange(sets), size)],
            "home": np.tile(np.arange(size) if unit is None else unit, sets),
            "w": np.tile(weight, sets),
            "y": np.ravel(outcomes),
        }
    )
    ids = None if unit is None else ["set", "home"]
    direct = hajek(as_frame(data), outcome="y", weight="w", area="set", unit=ids, bounds=bounds)
    return direct["estimate"].values, direct["sensitivity"].values, direct.attrs["outcome_grid"]


class TestSensitivity:
    @pytest.mark.parametrize("unit", [None, [0, 0, 1, 1, 2, 3, 3]], ids=["record", "household"])
    def test_enumerating_all_binary_data_sets_reaches_it_and_never_exceeds_it(self, unit):
        weight = np.array([3.7, 0.1, 12.25, 1 / 3, 0.0, 8.0, 5.5])
        size, sets = len(weight), 2 ** len(weight)
        bits = np.arange(sets)[:, None] >> np.arange(size) & 1
        estimate, sensitivity, _ = estimates(weight, bits, (0, 1), unit)
        members = np.arange(size) if unit is None else np.array(unit)
        masks = [sum(1 << k for k in np.flatnonzero(members == u)) for u in np.unique(members)]
        others = [
            (np.arange(sets) & ~mask)[:, None]
            | np.array([s for s in range(sets) if s & ~mask == 0])
            for mask in masks
        ]
        largest = max(np.abs(estimate[:, None] - estimate[other]).max() for other in others)
        assert largest <= sensitivity.min()
        # Grid and rounding error add about 1e-12.
        np.testing.assert_allclose(sensitivity, largest, rtol=0, atol=3e-12)

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_no_replacement_moves_the_computed_estimate_further(self, data):
        """Whatever the weights, bounds and outcomes: compared as exact fractions."""
        low = data.draw(st.sampled_from([0.0, -1.0, 0.1, 1e9, -1e-9, 1e-30]) | st.floats(-1e6, 1e6))
        width = data.draw(st.sampled_from([1.0, 0.3, 7.0, 2.0**-10]) | st.floats(1e-3, 1e6))
        high = low + width
        if not low < high:
            return
        size = data.draw(st.integers(1, 12))
        weight = data.draw(
            st.lists(
                st.sampled_from([0.1, 1.0, 3.0, 1e15, 1e-15]) | st.floats(1e-20, 1e20),
                min_size=size,
                max_size=size,
            )
        )
        value = st.sampled_from([low, high]) | st.floats(low, high)
        outcome = data.draw(st.lists(value, min_size=size, max_size=size))
        changed = [data.draw(value) for _ in range(size)]
        rows = np.tile(outcome, (size + 1, 1))
        rows[np.arange(size), np.arange(size)] = changed
        as_frame = data.draw(st.sampled_from([pd.DataFrame, pl.from_pandas]))
        estimate, sensitivity, _ = estimates(weight, rows, (low, high), as_frame=as_frame)
        for other in estimate[:-1]:
            assert abs(Fraction(estimate[-1]) - Fraction(other)) <= Fraction(sensitivity.min())

    @pytest.mark.parametrize("unit", [None, np.arange(50) // 3], ids=["record", "household"])
    @pytest.mark.parametrize("low", [0, 1e9])
    def test_the_plain_formula_would_not_hold_for_computed_estimates(self, unit, low):
        """Outcomes at the ends: computed differences exceed max(w) / sum(w) and the grid.

        Far from zero, the rounding of the estimate itself exceeds the grid. They never exceed the
        sensitivity.
        """
        rng = np.random.default_rng(5)
        exceeded = 0
        for _ in range(5):
            weight = rng.lognormal(0, 2, 50)
            members = np.arange(50) if unit is None else unit
            summed = np.bincount(members, weight)
            flip = members == summed.argmax()
            sets = rng.random((100, 50)) < 0.5
            up, sensitivity, grid = estimates(weight, low + (sets | flip), (low, low + 1), unit)
            down, _, _ = estimates(weight, low + (sets & ~flip), (low, low + 1), unit)
            assert all(
                Fraction(u) - Fraction(d) <= Fraction(s)
                for u, d, s in zip(up, down, sensitivity, strict=True)
            )
            plain = summed.max() / weight.sum() + (grid if low else 0)
            exceeded += np.sum(up - down > plain)
        assert exceeded > 0

    def test_what_is_added_covers_the_error_of_every_order_of_summation(self):
        """The estimate from records in any order stays within the part added for rounding."""
        rng = np.random.default_rng(6)
        weight, outcome = rng.lognormal(0, 3, 2000), rng.random(2000)
        exact = sum(Fraction(w) * Fraction(y) for w, y in zip(weight, outcome, strict=True))
        exact /= sum(map(Fraction, weight))
        orders = [rng.permutation(2000) for _ in range(5)] + [np.argsort(weight)[::-1]]
        for order in orders:
            rows = outcome[order][None, :]
            estimate, sensitivity, grid = estimates(weight[order], rows, (0, 1))
            added = Fraction(sensitivity[0]) - Fraction(weight.max()) / sum(map(Fraction, weight))
            assert 2 * abs(Fraction(estimate[0]) - exact) <= added
            assert added < Fraction(grid) + Fraction(6e-16) * 2010

    @pytest.mark.parametrize(
        ("bounds", "grid"),
        [
            ((0, 1), 2.0**-40),
            ((0, 100), 2.0**-33),
            ((-1, 1), 2.0**-39),
            ((0, 0.3), 2.0**-41),
            ((0, 2.0**-5), 2.0**-45),
        ],
    )
    def test_estimates_lie_on_the_declared_grid(self, bounds, grid):
        low, high = bounds
        data = small_survey(seed=7, low=low, high=high)
        data["y"] = data["y"].clip(low, high)
        direct = hajek(data, outcome="y", weight="w", area="area", bounds=bounds)
        assert direct.attrs["outcome_grid"] == grid
        steps = direct["estimate"].values / grid
        np.testing.assert_array_equal(steps, np.round(steps))


class TestLabels:
    def test_text_is_kept_exactly_and_sorted(self, engine):
        names = ["b", "  lead", "001", "Å", "東京", "NaN", "None", "a/b", 'q"', "A"]
        data = pd.DataFrame({"area": names * 2, "w": 1.0, "y": [0, 1] * 10})
        direct = hajek(engine(data), outcome="y", weight="w", area="area")
        assert direct["area"].values.tolist() == sorted(names)
        assert direct["area"].dtype.kind == "U"

    @pytest.mark.parametrize(
        "column",
        [
            pd.Categorical(["y", "x", "y", "x"], categories=["z", "y", "x"]),
            pd.Series(["y", "x", "y", "x"], dtype=object),
        ],
        ids=["categorical", "object"],
    )
    def test_other_kinds_of_text_columns(self, column):
        data = pd.DataFrame({"area": column, "w": [1.0, 2.0, 3.0, 5.0], "y": [0, 1, 1, 0]})
        direct = hajek(data, outcome="y", weight="w", area="area")
        assert direct["area"].values.tolist() == ["x", "y"]
        np.testing.assert_allclose(direct["estimate"], [2 / 7, 3 / 4], rtol=0, atol=1e-12)

    def test_several_columns_are_joined_by_a_space_and_kept_beside_the_label(self, engine):
        data = small_survey().assign(year=lambda d: 2012 + (d["w"] > 20).astype(int))
        direct = hajek(engine(data), outcome="y", weight="w", area=["year", "area"])
        assert direct.sizes == {"area": 14}
        assert direct["area"].values.tolist()[0] == "2012 00"
        assert direct["year"].values.tolist() == ["2012"] * 7 + ["2013"] * 7
        plain = plain_hajek(data.assign(area=data["year"].astype(str) + " " + data["area"]))
        assert_agrees(direct, plain)

    def test_levels_that_join_to_the_same_label_are_refused(self, engine):
        data = pd.DataFrame(
            {"x": ["a b", "a", "q"], "z": ["c", "b c", "r"], "w": 1.0, "y": [0, 1, 1]}
        )
        with pytest.raises(ValueError, match=r"'x', 'z': more than one area has the label 'a b c'"):
            hajek(engine(data), outcome="y", weight="w", area=["x", "z"])

    def test_a_number_and_its_text_are_not_one_area(self):
        data = pd.DataFrame({"x": pd.Series([4, "4"], dtype=object), "w": 1.0, "y": [0, 1]})
        with pytest.raises(ValueError, match="more than one area has the label '4'"):
            hajek(data, outcome="y", weight="w", area="x")

    @pytest.mark.parametrize("blank", [None, "", "  "], ids=["missing", "empty", "blank"])
    def test_blank_areas_are_refused_and_counted(self, engine, blank):
        data = small_survey()
        data.loc[[0, 5, 9], "area"] = blank
        with pytest.raises(ValueError, match=r"'area': no area \(missing or blank\) in 3 records"):
            hajek(engine(data), outcome="y", weight="w", area="area")

    def test_blank_levels_are_refused(self, engine):
        data = small_survey().assign(year=2012.0)
        data.loc[[0, 5], "year"] = np.nan
        with pytest.raises(ValueError, match=r"'year', 'area': no area .* in 2 records"):
            hajek(engine(data), outcome="y", weight="w", area=["year", "area"])

    def test_a_level_named_like_a_variable_of_the_result_is_kept_beside_it(self):
        data = small_survey().assign(n=1)
        direct = hajek(data, outcome="y", weight="w", area=["area", "n"])
        assert direct["area"].values.tolist() == [f"{k:02d} 1" for k in range(7)]
        assert direct["area_level"].values.tolist() == [f"{k:02d}" for k in range(7)]
        assert direct["n_level"].values.tolist() == ["1"] * 7


class TestRefusals:
    """Each message names the column, the areas and the count, and shows no outcome."""

    OUTCOMES = (0.8431, 0.2719)  # distinctive, so that a leak would be seen

    def survey(self):
        data = small_survey()
        data["y"] = np.where(data["y"] == 1, *self.OUTCOMES)
        return data

    def refused(self, data, message, **options):
        roles = {"outcome": "y", "weight": "w", "area": "area"} | options
        with pytest.raises(ValueError, match=message) as error:
            hajek(data, **roles)
        assert not any(str(y)[:5] in str(error.value) for y in (*self.OUTCOMES, 77.25, -3.125))

    @pytest.mark.parametrize(
        ("column", "value", "message"),
        [
            ("w", np.nan, r"column 'w': 2 missing weights, in 01 \(1\), 04 \(1\)"),
            ("w", -1.0, r"column 'w': 2 negative weights, in 01 \(1\), 04 \(1\)"),
            ("w", -np.inf, r"column 'w': 2 negative weights, in 01 \(1\), 04 \(1\)"),
            ("w", np.inf, r"column 'w': 2 infinite weights, in 01 \(1\), 04 \(1\)"),
            ("y", np.nan, r"column 'y': 2 missing outcomes, in 01 \(1\), 04 \(1\)"),
            ("y", 77.25, r"column 'y': 2 outcomes outside 0..1, in 01 \(1\), 04 \(1\)"),
            ("y", -3.125, r"column 'y': 2 outcomes outside 0..1, in 01 \(1\), 04 \(1\)"),
            ("y", np.inf, r"column 'y': 2 outcomes outside 0..1, in 01 \(1\), 04 \(1\)"),
        ],
    )
    def test_unusable_values(self, engine, column, value, message):
        data = self.survey()
        rows = [data.index[data["area"] == label][3] for label in ("01", "04")]
        data.loc[rows, column] = value
        self.refused(engine(data), message)
        if not np.isnan(value):
            self.refused(engine(data), message, missing="drop")

    def test_not_a_number_and_null_are_both_missing_in_polars(self):
        data = pl.DataFrame({"area": "a", "w": [1.0, None, float("nan")], "y": [1.0, 0.0, 1.0]})
        self.refused(data, r"column 'w': 2 missing weights, in a \(2\)")
        data = pl.DataFrame({"area": "a", "w": 1.0, "y": [1.0, None, float("nan")]})
        self.refused(data, r"column 'y': 2 missing outcomes, in a \(2\)")

    def test_all_faults_come_in_one_message(self):
        data = self.survey()
        data.loc[0, "w"], data.loc[1, "w"], data.loc[2, "y"] = -1, np.nan, 77.25
        self.refused(data, "1 negative weight, .*; .* 1 outcome outside .*; .* 1 missing weight, ")

    def test_many_areas_are_shortened(self):
        data = self.survey().assign(w=-1.0)
        self.refused(data, r"400 negative weights, in 00 \(\d+\), .*, 04 \(\d+\) and 2 more$")

    def test_absent_columns(self, engine):
        self.refused(engine(self.survey()), "no column 'weight', 'hh'", weight="weight", unit="hh")

    @pytest.mark.parametrize(
        "weight",
        [["12"] * 400, [True] * 400, pd.Timestamp("2020-01-01")],
        ids=["text", "bool", "date"],
    )
    def test_weights_that_are_no_numbers(self, engine, weight):
        message = "column 'w' holds .*: weights must be numbers"
        self.refused(engine(self.survey().assign(w=weight)), message)

    def test_outcomes_held_as_text(self, engine):
        data = self.survey()
        data["y"] = data["y"].astype(str)
        self.refused(engine(data), "column 'y' holds String: outcomes must be numbers or booleans")

    @pytest.mark.parametrize("home", [None, ""], ids=["missing", "empty"])
    def test_missing_units(self, engine, home):
        data = self.survey()
        data["home"] = data["area"] + "-" + data["home"].astype(str)
        rows = data.index[data["area"] == "02"][:2]
        data.loc[rows, "home"] = home
        self.refused(engine(data), r"'home': 2 missing units, in 02 \(2\)", unit="home")

    def test_missing_unit_numbers(self, engine):
        data = self.survey().astype({"home": float})
        data.loc[data.index[data["area"] == "02"][:2], "home"] = np.nan
        self.refused(
            engine(data), r"'area home': 2 missing units, in 02 \(2\)", unit=["area", "home"]
        )

    def test_units_in_several_areas(self, engine):
        data = self.survey()
        spanning = data.groupby("home")["area"].nunique().gt(1).sum()
        message = rf"'home': {spanning} units have records in more .* unit=\['area', 'home'\]"
        self.refused(engine(data), message, unit="home")

    def test_units_in_several_of_several_area_columns(self, engine):
        data = self.survey().assign(year=2012)
        data["id"] = data["area"] + "-" + data["home"].astype(str)
        data.loc[0, "year"] = 2013
        assert (data["id"] == data.loc[0, "id"]).sum() > 1
        options = {"area": ["year", "area"], "unit": ["area", "id"]}
        self.refused(engine(data), "'area id': 1 units have records in more than one", **options)

    def test_an_empty_table(self, engine):
        typed = self.survey().iloc[:0]
        self.refused(engine(typed), "the data hold no records")
        self.refused(engine(typed), "the data hold no records", unit=["area", "home"])

    def test_no_positive_weight_at_all(self, engine):
        self.refused(engine(self.survey().assign(w=0.0)), "no record .* has a positive weight")

    @pytest.mark.parametrize("weight", [1e-60, 1e60, 1e308])
    def test_weights_whose_squares_cannot_be_represented(self, engine, weight):
        data = self.survey()
        self.refused(engine(data.assign(w=weight)), "in 7 areas, 00, .*: rescale them")
        data.loc[data["area"] == "03", "w"] = weight
        for unit in (None, ["area", "home"]):
            self.refused(engine(data), "in 1 areas, 03: rescale them", unit=unit)

    @pytest.mark.parametrize("bounds", [(0, 1e60), (0, 1e-60), (-1.7e308, 1.7e308)])
    def test_bounds_whose_squares_cannot_be_represented(self, bounds):
        self.refused(self.survey(), "rescale the outcome|bounds must be", bounds=bounds)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"area": []}, "area names no column"),
            ({"unit": []}, "unit names no column"),
            ({"area": ["area", "area"]}, "area names a column twice: area, area"),
            ({"unit": ["home", "home"]}, "unit names a column twice: home, home"),
        ],
    )
    def test_roles_without_columns(self, options, message):
        self.refused(self.survey(), message, **options)


class TestRecord:
    def test_dropped_records_are_counted_by_area_and_by_reason(self, engine):
        data = small_survey()
        of = {label: data.index[data["area"] == label] for label in ("01", "04")}
        data = data.astype({"y": float})
        data.loc[of["01"][:3], "w"] = np.nan
        data.loc[of["01"][2:4], "y"] = np.nan
        data.loc[of["04"][:1], "y"] = np.nan
        direct = hajek(engine(data), outcome="y", weight="w", area="area", missing="drop")
        assert direct["n_dropped"].values.tolist() == [0, 4, 0, 0, 1, 0, 0]
        assert direct.attrs["n_rows"] == 400
        assert direct.attrs["n_missing_weight_dropped"] == 3
        assert direct.attrs["n_missing_outcome_dropped"] == 2
        assert_agrees(direct, plain_hajek(data.dropna()))

    def test_an_area_that_loses_all_its_records_has_no_sample(self, engine):
        data = small_survey().astype({"y": float})
        data.loc[data["area"] == "03", "y"] = np.nan
        direct = hajek(engine(data), outcome="y", weight="w", area="area", missing="drop")
        assert direct.attrs["n_areas_without_sample"] == 1
        assert direct.attrs["areas_without_sample"] == "03"
        assert np.isnan(direct["estimate"].sel(area="03"))
        assert direct["sensitivity"].sel(area="03") == 0

    def test_attributes_are_plain_and_the_result_survives_a_file(self, tmp_path):
        data = small_survey()
        data.loc[data["area"] == "03", "w"] = 0.0
        direct = hajek(data.assign(year=1), outcome="y", weight="w", area=["year", "area"])
        assert all(isinstance(v, (str, float, int, list)) for v in direct.attrs.values())
        direct.to_netcdf(tmp_path / "direct.nc", engine="h5netcdf")
        with xr.open_dataset(tmp_path / "direct.nc", engine="h5netcdf") as read:
            xr.testing.assert_equal(read.load(), direct)
            for name, value in direct.attrs.items():
                assert np.array_equal(read.attrs[name], value), name

    def test_the_data_given_are_not_changed(self):
        data = small_survey()
        before = data.copy()
        hajek(data, outcome="y", weight="w", area="area", unit=["area", "home"])
        pd.testing.assert_frame_equal(data, before)


class TestRealSurveys:
    """Published tables, to their digits; what grid and rounding add stays below 1e-6 of s."""

    @staticmethod
    def check(direct, table, variance, share, estimate, digits=TABLE_DIGITS):
        np.testing.assert_array_equal(direct["n"], table["n"])
        for name, column in {
            "estimate": estimate,
            "variance": variance,
            "sensitivity": share,
            "sum_weights": "sum_w",
        }.items():
            # Zero estimates are 0 within the grid.
            np.testing.assert_allclose(
                direct[name], table[column], rtol=digits, atol=1e-12, err_msg=name
            )
        plain = direct["max_weight"] / direct["sum_weights"]
        added = direct["sensitivity"] / plain - 1
        assert (added > 0).all() and (added < 1e-6).all()

    @pytest.mark.parametrize("as_frame", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
    @pytest.mark.parametrize("outcome", ["smoker", "diabetes"])
    @pytest.mark.parametrize("domain", ["hra", "hra_year", "strata_hra"])
    def test_king_county_health_survey(self, shared, domain, outcome, as_frame):
        records = pd.read_csv(shared / "data" / "brfss_king_county_2009_2013.csv.gz")
        records = records.dropna(subset=[outcome, "hra"])
        columns = domain.split("_")
        table = pd.read_csv(shared / "data" / "brfss_king_county_area_table.csv")
        table = table[(table["domain"] == domain) & (table["outcome"] == outcome)]
        table = table.assign(area=table["area"].str.replace(" | ", " ")).sort_values("area")
        direct = hajek(as_frame(records), outcome=outcome, weight="w", area=columns)
        assert direct["area"].values.tolist() == table["area"].tolist()
        self.check(direct, table, "var_lin", "max_share", "hajek")
        np.testing.assert_allclose(direct["n_eff"], table["n_eff"], rtol=TABLE_DIGITS)
        assert (direct["variance"].values[table["n_y1"] == 0] == 0).all()

    def test_incomes_of_spanish_provinces(self, shared):
        records = pd.read_csv(shared / "data" / "sae_incomedata_52_provinces.csv.gz")
        table = pd.read_csv(shared / "data" / "sae_incomedata_area_table.csv")
        direct = hajek(records, outcome="poor", weight="weight", area="provlab")
        table = table.set_index("area").loc[direct["area"].values]
        # The weights in the file are rounded to eight digits too, those behind the table were not.
        self.check(direct, table, "var_lin", "max_share", "hajek", digits=2 * TABLE_DIGITS)
        np.testing.assert_allclose(direct["n_eff"], table["n_eff"], rtol=2 * TABLE_DIGITS)

    @pytest.mark.parametrize("as_frame", [pl.DataFrame.clone, pl.DataFrame.to_pandas])
    def test_poverty_by_area_for_persons_and_for_households(self, shared, as_frame):
        persons = pl.read_csv(
            shared / "data" / "acs_pums_2024_persons_part6.csv.gz",
            schema_overrides={"puma": pl.String},
        )
        persons = persons.drop_nulls("povpip").with_columns(poor=pl.col("povpip") < 100)
        table = pd.read_csv(
            shared / "data" / "acs_pums_2024_puma_table.csv.gz", dtype={"puma": str}
        )
        table = table.set_index("puma")
        data = as_frame(persons)
        for unit, suffix in ((None, ""), (["puma", "hh"], "_hh")):
            direct = hajek(data, outcome="poor", weight="w", area="puma", unit=unit)
            rows = table.loc[direct["area"].values]
            assert len(rows) > 200
            variance = "var_hh" if unit else "var_person"
            self.check(direct, rows, variance, f"max_share{suffix}", "p_hat")
            np.testing.assert_array_equal(direct["n_units"], rows["n_hh" if unit else "n"])
            n_eff = rows["sum_w"] ** 2 / rows["sum_w2"]
            np.testing.assert_allclose(direct["n_eff"], n_eff, rtol=1e-12)


def test_sensitivity_carries_its_unit_and_range_into_a_release() -> None:
    records = pd.DataFrame(
        {"area": ["a", "a", "b"], "hh": [1, 1, 2], "w": [1.0, 2, 3], "y": [0, 10, 20]}
    )
    direct = hajek(records, outcome="y", weight="w", area="area", bounds=(0, 30), unit="hh")
    assert direct["sensitivity"].attrs == {"outcome_bounds": [0.0, 30.0], "unit": "hh"}
