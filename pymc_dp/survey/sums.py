"""Add the records up by area: what every estimate and every kind of variance starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp.survey import frames
from pymc_dp.survey.columns import Sample, check_counts, check_labels, check_spanning, check_totals
from pymc_dp.survey.frames import Frame, Table, collect, texts

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Sums:
    """What was added up, and the frames behind it, lazy where the user's is.

    Attributes
    ----------
    frame : the user's
    records, units, areas : one row a record, a unit (without unit columns a record), an area
    levels, labels : for each area column the values, and the labels of the areas; sorted
    table : by area, sums over the records that take part
    counts : by area, how many records there are of each kind of fault
    reach : by area, the largest weight of a unit, times the number of its areas
    unit_areas : by area, the most areas of a unit that has records in it
    spanning : what the result records of units in several areas
    """

    frame: Frame
    records: Frame
    units: Frame
    areas: Frame
    levels: list[list[Any]]
    labels: NDArray[np.str_]
    table: Table
    counts: Table
    reach: NDArray[np.float64]
    unit_areas: NDArray[np.float64]
    spanning: dict[str, Any]

    @property
    def mean(self) -> NDArray[np.float64]:
        """By area, sum(w y) / sum(w), as a deviation from the middle of the bounds."""
        return ratio(self.table["weighted_outcome"], self.table["weight"])

    @property
    def n_eff(self) -> NDArray[np.float64]:
        """Effective number of records by area, sum(w)^2 / sum(w^2)."""
        return ratio(self.table["weight"] ** 2, self.table["squared_weight"])

    @property
    def varies(self) -> NDArray[np.bool_]:
        """Whether the outcomes of an area differ at all."""
        return self.table["highest"] > self.table["lowest"]


def sum_records(frame: Frame, sample: Sample, more: Mapping[str, Any]) -> Sums:
    """Add up the records, with `more` columns in their frames, or refuse those unfit for it."""
    records = frames.read_records(frame, sample, more)
    units = frames.total_units(records, sample)
    areas = frames.total_areas(units, sample)
    levels, table = collect(areas, frames.area_keys(sample))
    if not levels[0]:
        raise ValueError("the data hold no records")
    labels = check_labels([texts(level) for level in levels], table["rows"], sample.area)
    counts = dict.fromkeys(frames.COUNTS, np.zeros(len(labels))) | {"rows": table["rows"]}
    if np.any(table["rows"] > table["n"]):
        counts = frames.count_records(frame, sample)
    check_counts(counts, labels, sample)
    check_totals(table["weight"], table["max_weight"], labels)

    reach, unit_areas, spanning = table["max_weight"], np.ones(len(labels)), {}
    pairs = float(np.sum(table.get("groups", 0)))
    if crossing := frames.count_spanning(records, units, pairs, sample):
        check_spanning(crossing, sample)
        widest = frames.spanning_weights(units, sample)
        reach, unit_areas = widest["reach"], np.maximum(widest["unit_areas"], 1)
        spanning = {
            "spanning": sample.spanning,
            "n_spanning_units": crossing,
            "max_areas_of_a_unit": int(widest["unit_areas"].max()),
        }
    return Sums(
        frame=frame,
        records=records,
        units=units,
        areas=areas,
        levels=levels,
        labels=labels,
        table=table,
        counts=counts,
        reach=reach,
        unit_areas=unit_areas,
        spanning=spanning,
    )


def ratio(numerator: Any, denominator: NDArray[Any]) -> NDArray[np.float64]:
    """Divide by area; missing where the denominator is 0 or missing: there is no sample."""
    return numerator / np.where(denominator > 0, denominator, np.nan)
