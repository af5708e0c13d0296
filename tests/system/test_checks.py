"""What counts as a positive number, and as a positive whole number."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pymc_dp._checks import positive_number, whole_number

NO_NUMBER = [
    None,
    True,
    np.True_,
    "1",
    b"1",
    1j,
    [1],
    np.ones(1),
    np.array("1"),
    pd.NA,
    xr.Dataset(),
]


@pytest.mark.parametrize(
    "value",
    [2, 2.0, np.float32(2), np.int8(2), np.array(2.0), xr.DataArray(2.0), Decimal(2), Fraction(2)],
)
def test_one_number_of_any_kind_is_taken(value):
    number = positive_number("rho", value)
    assert (number, type(number)) == (2.0, float)


@pytest.mark.parametrize("value", [*NO_NUMBER, 0, -1.0, math.nan, math.inf, -math.inf, 10**400])
def test_what_is_no_positive_number_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"^rho must be a positive finite number: see above$"):
        positive_number("rho", value, ": see above")


@pytest.mark.parametrize("value", [3, np.int64(3), np.array(3), np.uint8(3)])
def test_whole_numbers_are_taken(value):
    number = whole_number("draws", value)
    assert (number, type(number)) == (3, int)


@pytest.mark.parametrize("value", [*NO_NUMBER, 0, -2, 2.0, np.float64(2), Decimal(2)])
def test_what_is_no_positive_whole_number_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"^draws must be a positive whole number$"):
        whole_number("draws", value)
