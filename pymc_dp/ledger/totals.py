"""What is spent on the person who is charged most: exact sums, rounded up.

A person is in one of the possible combinations of cells and in at most one part. Nobody knows which
goes with which, so that every combination is taken with every part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pymc_dp._checks import rounded, spelling
from pymc_dp.ledger.cells import Cells

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pymc_dp._typing import Array

# Summation order and the last bit of a computed price move a sum by about 1e-15 of itself; a budget
# that is met exactly must not be refused for that. No more than this is ever overspent in total,
# and figures in words are exact to it.
SLACK = 1e-12
NEAR = 1e-9  # of a sum: more than the error of adding it up in floating point


class Charge(NamedTuple):
    """The price of one entry: one number, or one for each label of a column of cells."""

    rho: float
    part: str | None = None
    column: str | None = None
    prices: Array | None = None

    def by_combination(self, cells: Cells) -> Array:
        """Price in every combination; (n,)."""
        import numpy as np

        if self.column is None or self.prices is None:
            return np.full(len(cells.codes), self.rho)
        return self.prices[cells.code(self.column)]


class Total(NamedTuple):
    """What the people of one part and combination pay, and which combination it is."""

    rho: float
    part: str | None
    row: int | None


def largest(charges: Sequence[Charge], cells: Cells | None) -> Total:
    """The largest total of a person, rounded up to the next float."""
    return max((_in_part(charges, part, cells) for part in _parts(charges)), key=_rho)


def largest_with(charges: Sequence[Charge], new: Charge, cells: Cells | None) -> Total:
    """The largest total, of the people that a new charge is about, once it is added."""
    charges = [*charges, new]
    parts = _parts(charges) if new.part is None else [spelling(new.part)]
    touched = None
    if cells is not None and new.prices is not None:
        touched = new.by_combination(cells) > 0
    return max((_in_part(charges, part, cells, touched) for part in parts), key=_rho)


def on(charges: Sequence[Charge], total: Total, cells: Cells | None) -> float:
    """What these charges take from the people of a total, rounded up."""
    shares = (c for c in charges if c.part is None or spelling(c.part) == total.part)
    if cells is None or total.row is None:
        return sum_up(c.rho for c in shares)
    return sum_up(float(c.by_combination(cells)[total.row]) for c in shares)


def by_combination(charges: Sequence[Charge], cells: Cells) -> Array:
    """The largest total of every combination, rounded up; (n,)."""
    import numpy as np

    sums = [
        np.sum([np.zeros(len(cells.codes)), *(c.by_combination(cells) for c in about)], axis=0)
        for about in (_about(charges, part) for part in _parts(charges))
    ]
    error = (len(charges) + 1) * 2.0**-52  # of n additions of numbers above zero
    most: Array = np.max(sums, axis=0)
    return np.where(most > 0, np.nextafter(most * (1 + error), np.inf), 0.0)


def sum_up(prices: Iterable[float]) -> float:
    """The sum, rounded up: the least float that is not below it.

    Examples
    --------
    >>> sum_up([0.1] * 10), sum_up([0.5, 0.25])
    (1.0000000000000002, 0.75)
    """
    listed = list(prices)
    total = math.fsum(listed)  # exact, then rounded to nearest
    return math.nextafter(total, math.inf) if math.fsum([*listed, -total]) > 0 else total


def left(budget: float, spent: float) -> float:
    """What is left, rounded down and not below zero."""
    rest = budget - spent
    if math.fsum([budget, -spent, -rest]) < 0:
        rest = math.nextafter(rest, -math.inf)
    return max(rest, 0.0)


def up(rho: float) -> str:
    """Six digits, not below rho (to SLACK, so that ten tenths are 1).

    Examples
    --------
    >>> up(0.12345601), up(sum_up([0.1] * 10))
    ('0.123457', '1')
    """
    return rounded(rho * (1 - SLACK), 6)


def down(rho: float) -> str:
    """Six digits, not above rho (to SLACK).

    Examples
    --------
    >>> down(0.12345699), down(1 - 0.9)
    ('0.123456', '0.1')
    """
    return rounded(rho * (1 + SLACK), 6, up=False)


def _parts(charges: Sequence[Charge]) -> list[str | None]:
    """The keys of the parts, and None for people in no part."""
    return [None, *sorted({spelling(c.part) for c in charges if c.part is not None})]


def _about(charges: Sequence[Charge], part: str | None) -> list[Charge]:
    return [c for c in charges if c.part is None or spelling(c.part) == part]


def _in_part(
    charges: Sequence[Charge],
    part: str | None,
    cells: Cells | None,
    touched: NDArray[np.bool_] | None = None,
) -> Total:
    """The largest total of the people of one part, among the combinations that are touched."""
    about = _about(charges, part)
    plain = [c.rho for c in about if c.prices is None]
    by_cell = [c for c in about if c.prices is not None]
    if cells is None or not by_cell:
        return Total(sum_up(plain), part, None)
    import numpy as np

    # Sums in floating point say which combinations may be the largest; exact sums say which is.
    rough = np.sum([c.by_combination(cells) for c in by_cell], axis=0)
    if touched is not None:
        rough = np.where(touched, rough, -1.0)
    near = np.flatnonzero(rough >= rough.max() * (1 - NEAR))
    table = np.column_stack([c.by_combination(cells)[near] for c in by_cell])
    table, first = np.unique(table, axis=0, return_index=True)
    sums = [sum_up([*plain, *row]) for row in table.tolist()]
    at = int(np.argmax(sums))
    return Total(sums[at], part, int(near[first[at]]))


def _rho(total: Total) -> float:
    return total.rho
