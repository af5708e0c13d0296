"""The possible combinations of cells, and prices over the cells of one column.

A person is in one cell of every column: in a PUMA and in an age group of a state, say. Which
combinations are possible is public, fixed when the ledger is created, and vouched for.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pymc_dp._checks import name_some, plain_text, spelling, text_labels

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from pymc_dp._typing import Array


@dataclass(frozen=True, eq=False)
class Cells:
    """The possible combinations, one a row.

    Attributes
    ----------
    labels : dict
        The labels of each column, in order; columns in order of their names.
    codes : ndarray of shape (n, k)
        Combinations: each row's place among the labels of each of k columns.
    """

    labels: dict[str, list[str]]
    codes: NDArray[np.int64]

    def code(self, column: str) -> NDArray[np.int64]:
        """Place of every combination among the labels of one column; (n,)."""
        return self.codes[:, list(self.labels).index(column)]

    def words(self, row: int) -> str:
        """Name one combination."""
        names = zip(self.labels.items(), self.codes[row], strict=True)
        return ", ".join(f"{column} {labels[code]}" for (column, labels), code in names)

    def summary(self) -> str:
        """Say how many there are, of what."""
        return f"{len(self.codes):,} combinations of {', '.join(self.labels)}"


def read_cells(frame: pd.DataFrame) -> Cells:
    """The combinations that a frame lists, in an order of their own.

    Raises
    ------
    ValueError
        If it is no pandas DataFrame, has no row or column, or a label is missing or has two
        spellings, naming the column.
    """
    import numpy as np
    import pandas as pd

    if not isinstance(frame, pd.DataFrame) or not frame.size:
        raise ValueError("cells must be a pandas DataFrame with a row for each combination")
    names = [plain_text(name, "the name of a column of cells") for name in frame.columns]
    _refuse_twins(names, "two columns of cells have almost the same name")
    labels: dict[str, list[str]] = {}
    codes = []
    for name, at in sorted((name, at) for at, name in enumerate(names)):
        column = frame.iloc[:, at]
        if missing := int(column.isna().sum()):
            raise ValueError(
                f"column {name!r} of cells lacks {missing} labels: give those who are in no cell "
                "a label of their own"
            )
        code, values = pd.factorize(column)
        texts = text_labels(values.tolist())
        _refuse_twins(texts, f"column {name!r} of cells has two spellings of a label")
        order = np.argsort(np.array(texts, dtype=object))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        labels[name] = [texts[i] for i in order]
        codes.append(place[code])
    return Cells(labels, np.unique(np.column_stack(codes), axis=0))


def to_text(cells: Cells) -> str:
    """The combinations as JSON, the same text for the same combinations."""
    return json.dumps({"labels": cells.labels, "codes": cells.codes.T.tolist()})


def from_text(text: str) -> Cells:
    """The combinations that were stored."""
    import numpy as np

    stored = json.loads(text)
    return Cells(stored["labels"], np.array(stored["codes"], dtype=np.int64).T)


def read_prices(prices: pd.Series[Any], cells: Cells) -> tuple[str, Array]:
    """The column that a Series is about, and the price of each of its labels.

    Raises
    ------
    ValueError
        If the name of its index is no column, a label is unknown, missing or there twice, or a
        price is no number, not finite or below zero, naming the labels.
    """
    import numpy as np
    import pandas as pd

    if not isinstance(prices, pd.Series):
        raise ValueError("cells must be a pandas Series of prices, indexed by the labels of cells")
    column = prices.index.name
    if column not in cells.labels:
        raise ValueError(
            f"the index of the prices is named {column!r}, and the ledger has the columns "
            f"{', '.join(map(repr, cells.labels))}: name it with rename_axis"
        )
    labels = cells.labels[str(column)]
    given = text_labels(prices.index)
    known = set(labels)
    twice = sorted(label for label, times in Counter(given).items() if times > 1)
    unknown = [label for label in given if label not in known]
    for words, bad in (("have two prices", twice), ("are not in the ledger", unknown)):
        if bad:
            raise ValueError(f"{column!r}: {len(bad)} cells {words}: {name_some(bad)}")
    if missing := sorted(known.difference(given)):
        raise ValueError(
            f"{column!r}: {len(missing)} cells have no price: {name_some(missing)}. A cell that "
            "the release does not touch has the price 0, explicitly"
        )
    if not (pd.api.types.is_float_dtype(prices) or pd.api.types.is_integer_dtype(prices)):
        raise ValueError(f"prices must be numbers, not {prices.dtype}")
    values = prices.to_numpy(dtype=float, na_value=np.nan)
    unusable = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(unusable):
        raise ValueError(
            f"{column!r}: the price is missing, not finite or below 0 in {len(unusable)} cells: "
            f"{name_some(given[i] for i in unusable)}"
        )
    by_label = dict(zip(given, values.tolist(), strict=True))
    return str(column), np.array([by_label[a] for a in labels])


def prices_to_text(column: str, prices: Array, cells: Cells) -> str:
    """The prices of one charge as JSON."""
    by_label = dict(zip(cells.labels[column], prices.tolist(), strict=True))
    return json.dumps({"column": column, "prices": by_label}, allow_nan=False)


def prices_from_text(text: str, cells: Cells) -> tuple[str, Array]:
    """The column and the prices that were stored."""
    import numpy as np

    stored = json.loads(text)
    by_label = stored["prices"]
    return stored["column"], np.array([by_label[a] for a in cells.labels[stored["column"]]])


def _refuse_twins(names: list[str], words: str) -> None:
    """Refuse names that hardly differ: one cell must not be taken for two."""
    seen: dict[str, str] = {}
    for name in names:
        if (key := spelling(name)) in seen:
            raise ValueError(f"{words}: {seen[key]!r} and {name!r}")
        seen[key] = name
