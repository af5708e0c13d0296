"""Situations that people met with survey files: the right value or a clear error."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import polars as pl
import pytest

from pymc_dp.survey.estimate import hajek

# The estimate is rounded to a grid of 1e-12 of the range and the sensitivity raised by about that.
GRID = 2e-12

TWO_STATES = """ST,PUMA,PWGTP,hit
04,00100,20,1
04,00100,30,0
04,00100,50,1
04,00101,25,1
04,00101,25,1
04,00101,30,0
08,00100,10,0
08,00100,40,1
08,00100,30,0
08,00101,15,0
08,00101,35,0
08,00101,70,1
"""
HOUSEHOLDS = """SERIALNO,PWGTP
2019HU0001234,25
2019HU0001234,25
2019HU0001234,30
2019HU0001234,20
2019HU0005678,60
2019HU0005678,40
2019GQ0000042,70
2019GQ0000043,80
"""


def area(weight, outcome, **options):
    data = pd.DataFrame({"area": "King", "w": list(weight), "y": list(outcome)})
    return hajek(data, outcome="y", weight="w", area="area", **options)


class TestA01CodesLoseTheirZerosAndRepeatAcrossStates:
    def check(self, direct, labels):
        assert direct["area"].values.tolist() == labels
        estimate, sensitivity = [0.7, 0.625, 0.5, 7 / 12], [0.5, 0.375, 0.5, 7 / 12]
        np.testing.assert_allclose(direct["estimate"], estimate, rtol=0, atol=GRID)
        np.testing.assert_allclose(direct["sensitivity"], sensitivity, rtol=0, atol=GRID)

    @pytest.mark.parametrize(
        "read",
        [
            lambda file: pd.read_csv(file, dtype={"ST": str, "PUMA": str}),
            lambda file: pl.read_csv(file, schema_overrides={"ST": pl.String, "PUMA": pl.String}),
        ],
        ids=["pandas", "polars"],
    )
    def test_text_codes_keep_their_zeros_and_give_four_areas(self, read):
        direct = hajek(
            read(io.StringIO(TWO_STATES)), outcome="hit", weight="PWGTP", area=["ST", "PUMA"]
        )
        self.check(direct, ["04 00100", "04 00101", "08 00100", "08 00101"])
        assert direct["ST"].values.tolist() == ["04", "04", "08", "08"]
        assert direct["PUMA"].values.tolist() == ["00100", "00101", "00100", "00101"]

    @pytest.mark.parametrize("read", [pd.read_csv, pl.read_csv], ids=["pandas", "polars"])
    def test_codes_read_as_integers_still_give_four_areas(self, read):
        direct = hajek(
            read(io.StringIO(TWO_STATES)), outcome="hit", weight="PWGTP", area=["ST", "PUMA"]
        )
        self.check(direct, ["4 100", "4 101", "8 100", "8 101"])


class TestA03MissingWeight:
    WEIGHT = (12, 8, np.nan, 20, 10)
    OUTCOME = (1, 0, 1, 1, 0)

    def test_it_is_an_error_that_says_how_many_and_where(self):
        with pytest.raises(ValueError, match=r"column 'w': 1 missing weight, in King \(1\)"):
            area(self.WEIGHT, self.OUTCOME)

    def test_dropping_it_is_a_choice_that_the_result_records(self):
        direct = area(self.WEIGHT, self.OUTCOME, missing="drop")
        np.testing.assert_allclose(direct["estimate"], 0.64, rtol=0, atol=GRID)
        np.testing.assert_allclose(direct["sensitivity"], 0.4, rtol=0, atol=GRID)
        assert direct["n_dropped"].item() == 1
        assert direct["n"].item() == 4
        assert direct.attrs["n_rows"] == 5
        assert direct.attrs["n_missing_weight_dropped"] == 1
        assert direct.attrs["n_missing_outcome_dropped"] == 0

    @pytest.mark.parametrize("missing", ["fail", "drop"])
    def test_an_infinite_weight_does_not_pass(self, missing):
        with pytest.raises(ValueError, match=r"column 'w': 1 infinite weight, in King \(1\)"):
            area([12, 8, np.inf, 20, 10], self.OUTCOME, missing=missing)

    @pytest.mark.parametrize("missing", ["fail", "drop"])
    def test_weights_held_as_text_do_not_pass(self, missing):
        with pytest.raises(ValueError, match="column 'w' holds String: weights must be numbers"):
            area(["12", "8", "15", "20", "10"], self.OUTCOME, missing=missing)


class TestA04ZeroWeights:
    DATA = pl.DataFrame(
        {
            "area": ["Z", "Z", "Z", "B", "B", "B", "B"],
            "w": [0, 0, 0, 0, 30, 70, 100],
            "y": [1, 1, 0, 1, 0, 1, 1],
        }
    )

    @pytest.fixture(params=[DATA, DATA.to_pandas()], ids=["polars", "pandas"])
    def direct(self, request):
        return hajek(request.param, outcome="y", weight="w", area="area")

    def test_a_record_of_weight_zero_is_not_counted(self, direct):
        b = direct.sel(area="B")
        np.testing.assert_allclose(b["estimate"], 0.85, rtol=0, atol=GRID)
        np.testing.assert_allclose(b["sensitivity"], 0.5, rtol=0, atol=GRID)
        assert b["n"].item() == b["n_units"].item() == 3
        # Four records would give 0.03285. The value given is exact, up to a few roundings.
        np.testing.assert_allclose(b["variance"], 0.03695625, rtol=1e-14)

    def test_an_area_of_zero_weights_is_carried_as_an_area_without_sample(self, direct):
        z = direct.sel(area="Z")
        assert np.isnan(z["estimate"]) and np.isnan(z["variance"])
        for name in ("sensitivity", "n", "n_units", "sum_weights", "max_weight", "n_eff"):
            assert z[name].item() == 0, name
        assert direct.attrs["n_areas_without_sample"] == 1
        assert direct.attrs["areas_without_sample"] == "Z"


class TestA05TheProtectedUnitIsAHousehold:
    OUTCOME = (1, 1, 1, 1, 0, 0, 1, 0)

    def direct(self, **options):
        data = pd.read_csv(io.StringIO(HOUSEHOLDS)).assign(area="a", y=list(self.OUTCOME))
        return hajek(data, outcome="y", weight="PWGTP", area="area", **options)

    def test_without_a_unit_the_sensitivity_is_that_of_a_record_and_the_result_says_so(self):
        direct = self.direct()
        np.testing.assert_allclose(direct["sensitivity"], 80 / 350, rtol=0, atol=GRID)
        assert direct["max_weight"].item() == 80
        assert direct.attrs["unit"] == "record"
        assert direct.attrs["neighbours"].startswith("one record replaced")

    def test_with_a_unit_it_is_the_largest_summed_weight_and_serial_numbers_are_text(self):
        direct = self.direct(unit="SERIALNO")
        np.testing.assert_allclose(direct["sensitivity"], 100 / 350, rtol=0, atol=GRID)
        assert direct["max_weight"].item() == 100
        assert (direct["n"].item(), direct["n_units"].item()) == (8, 4)
        assert direct.attrs["unit"] == "SERIALNO"


class TestA06ReservedCodesPassAsNumbers:
    WEIGHT = (100, 150, 200, 50, 120, 80)

    def test_values_outside_the_range_are_counted_and_never_shown_or_clipped(self):
        with pytest.raises(ValueError, match=r"3 outcomes outside 0\.\.30, in King") as error:
            area(self.WEIGHT, [5, 88, 30, 77, 99, 10], bounds=(0, 30))
        assert not any(code in str(error.value) for code in ("88", "77", "99"))

    def test_after_the_users_own_recode(self):
        direct = area(self.WEIGHT, [5, 0, 30, np.nan, np.nan, 10], bounds=(0, 30), missing="drop")
        np.testing.assert_allclose(direct["estimate"], 7300 / 530, rtol=0, atol=32 * GRID)
        np.testing.assert_allclose(direct["sensitivity"], 30 * 200 / 530, rtol=0, atol=32 * GRID)
        assert direct["n_dropped"].item() == 2
        assert direct.attrs["n_missing_outcome_dropped"] == 2

    def test_codes_of_a_yes_no_item_lie_outside_zero_and_one(self):
        with pytest.raises(ValueError, match=r"4 outcomes outside 0\.\.1, in King"):
            area(self.WEIGHT, [1, 2, 1, 7, 9, 2])


class TestA14SensitivityOfAWeightedMean:
    cases = pytest.mark.parametrize(
        ("weight", "share"),
        [([120, 80, 50, 250], 0.5), ([10] * 5, 0.2), ([400, 600], 0.6)],
        ids=["w1", "w2", "w3"],
    )

    @pytest.mark.parametrize("high", [1, 100])
    @cases
    def test_it_is_the_range_times_the_largest_share_of_the_weights(self, weight, share, high):
        outcome = np.linspace(0, high, len(weight))
        direct = area(weight, outcome, bounds=(0, high))
        expected = high * share
        np.testing.assert_allclose(direct["sensitivity"], expected, rtol=0, atol=128 * GRID)
        assert direct["sensitivity"].item() > expected
        assert direct.attrs["bounds"] == [0, high]
        assert "weights, areas and who answered are public" in direct.attrs["neighbours"]

    @cases
    def test_trying_every_data_set_and_replacement_finds_exactly_that_change(self, weight, share):
        size, sets = len(weight), 2 ** len(weight)
        bits = np.arange(sets)[:, None] >> np.arange(size) & 1
        data = pd.DataFrame(
            {
                "set": np.repeat(np.arange(sets), size),
                "w": np.tile(weight, sets),
                "y": bits.ravel(),
            }
        )
        direct = hajek(data, outcome="y", weight="w", area="set")
        direct = direct.assign_coords(area=direct["area"].astype(int)).sortby("area")
        estimate, sensitivity = direct["estimate"].values, direct["sensitivity"].values
        changes = [
            abs(estimate[s] - estimate[s ^ (1 << k)]) for s in range(sets) for k in range(size)
        ]
        assert max(changes) <= sensitivity.min()
        np.testing.assert_allclose(max(changes), share, rtol=0, atol=GRID)

    @pytest.mark.parametrize(
        "bounds", [(1, 1), (1, 0), (0, np.inf), (-np.inf, 0), (0, np.nan), None, (0,), (0, 1, 2)]
    )
    def test_a_range_that_is_empty_or_missing_is_an_error(self, bounds):
        with pytest.raises(ValueError, match="bounds must be"):
            area([1, 2], [0, 1], bounds=bounds)
