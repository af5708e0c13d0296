"""Columns of a Parquet file, as those of a delimited table: codes as text, numbers as floats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymc_dp.tables.columns import check_columns
from pymc_dp.tables.files import Dialect

if TYPE_CHECKING:
    import pandas as pd

# Below this whole numbers of different codes are different as floats too.
EXACT = 2.0**53


def parquet_header(path: Path, label: str) -> tuple[str, ...]:
    """Read the names of the columns.

    Raises
    ------
    ValueError
        If it is no Parquet file, or pyarrow is not installed.
    """
    return tuple(_file(path, label).schema_arrow.names)


def read_parquet(
    path: Path,
    label: str,
    dialect: Dialect,
    *,
    texts: Sequence[str],
    numbers: Sequence[str],
    others: Sequence[str] = (),
) -> pd.DataFrame:
    """Read columns; what is blank is missing.

    Parameters
    ----------
    path : Path
    label : str
    dialect : Dialect
        Which values stand for a missing one.
    texts : sequence of str
        Columns of codes: text, or whole numbers, which become text.
    numbers : sequence of str
        Columns of numbers, or of booleans, which become 0 and 1.
    others : sequence of str
        Columns that keep their type.

    Raises
    ------
    ValueError
        If the file is damaged, a column is absent or stands twice, or holds something else.
    """
    import pandas as pd

    file = _file(path, label)
    check_columns(label, file.schema_arrow.names, [*texts, *numbers, *others])
    try:
        table = file.read([*texts, *numbers, *others])
    except Exception as error:
        raise ValueError(f"{label} is damaged, or was not copied whole") from error
    if not table.num_rows:
        raise ValueError(f"{label} has columns and no rows")
    columns: dict[str, pd.Series[Any]] = {}
    for name in texts:
        codes = _as_text(table[name], f"{label}: column {name!r}")
        columns[name] = codes.mask(codes.isin(["", *dialect.missing_in.get(name, ())]))
    for name in numbers:
        columns[name] = _as_numbers(table[name], f"{label}: column {name!r}", name, dialect)
    columns |= {name: table[name].to_pandas() for name in others}
    return pd.DataFrame(columns)


def _file(path: Path, label: str) -> Any:
    try:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError(
            f"{label}: Parquet files need an extra: pip install 'pymc_dp[parquet]'; or give CSV"
        ) from None
    try:
        return pq.ParquetFile(path)
    except OSError:
        raise
    except Exception:
        raise ValueError(f"{label} is no Parquet file, or a damaged one") from None


def _plain(column: Any) -> Any:
    """Values in place of a dictionary's numbers."""
    import pyarrow as pa

    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _as_text(column: Any, where: str) -> pd.Series[str]:
    import pandas as pd
    from pyarrow import types

    column = _plain(column)
    kind = column.type
    if types.is_floating(kind):
        values = column.to_pandas().astype("float64")
        given = values.dropna()
        if not ((given == given.round()) & (given.abs() < EXACT)).all():
            raise ValueError(
                f"{where} holds numbers with decimals: codes are text or whole numbers"
            )
        return values.astype("Int64").astype("string").astype(object).where(values.notna(), None)
    if types.is_null(kind):
        return pd.Series([None] * len(column), dtype=object)
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)):
        raise ValueError(f"{where} holds {kind}: codes are text or whole numbers")
    return column.cast("string").to_pandas()


def _as_numbers(column: Any, where: str, name: str, dialect: Dialect) -> pd.Series[float]:
    import pandas as pd
    from pyarrow import types

    column = _plain(column)
    kind = column.type
    numeric = (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    if types.is_boolean(kind):
        column = column.cast("int8")
    elif not any(is_kind(kind) for is_kind in numeric):
        raise ValueError(f"{where} holds {kind}, not numbers")
    values = column.cast("float64").to_pandas()
    codes = [*dialect.missing, *dialect.missing_in.get(name, ())]
    return values.mask(values.isin(pd.to_numeric(pd.Series(codes), errors="coerce").dropna()))
