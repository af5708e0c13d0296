"""Root searches end on the side where a claim holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_dp._roots import nudged, safe_root


@given(st.floats(-30, 30), st.floats(0.1, 10), st.booleans(), st.floats(1e-3, 1e3))
def test_root_is_on_the_safe_side_and_next_to_the_root(root, reach, rising, slope):
    def excess(x):
        return math.expm1(slope * min((x - root) * (1 if rising else -1), 700 / slope))

    safe, other = root - reach, root + 2 * reach
    if not rising:
        safe, other = other, safe
    found = safe_root(excess, safe, other)
    assert excess(found) <= 0
    assert abs(found - root) <= 1e-13 * max(1, abs(root))


def test_staircases_that_rounding_makes_are_no_obstacle():
    """Computed prices move in steps: the step below the target is found."""

    def excess(x):
        return np.floor(x * 1e6) / 1e6 - 0.5

    found = safe_root(excess, 0.0, 1.0)
    assert excess(found) <= 0 and found > 0.5 - 2e-6


def test_where_all_serve_the_other_end_is_taken():
    assert safe_root(lambda x: x - 2.0, 0.0, 1.0) == 1.0


def test_a_start_that_does_not_serve_is_refused():
    for bad in (1.0, math.nan):
        with pytest.raises(ValueError, match="excess is positive"):
            safe_root(lambda x, bad=bad: bad, 0.0, 1.0)


def test_nudges_never_pass_the_safe_end():
    for safe in (0.0, 3.0):
        assert nudged(lambda x: 1.0, 1.0, safe) == safe
        assert nudged(lambda x: math.nan, 1.0, safe) == safe
