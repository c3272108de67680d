"""Select the rows that a figure draws, and convert their numbers to chart data."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.numerals import power_of_ten
from rankscope.tables import check_kinds

Row = Mapping[str, Any]

STATISTICS: Final = ("low", "median", "high")
SUMMARY: Final = ("count", *STATISTICS)
"""The columns of a summary that figures draw."""
VALUE: Final = ("value",)


def select(
    table: pl.DataFrame,
    metrics: Sequence[str],
    *,
    drawer: str,
    needed: Sequence[str],
    numbers: Sequence[str] = SUMMARY,
    filled: Sequence[str] | None = None,
    single: Sequence[str] = (),
    keys: Sequence[str] = (),
) -> pl.DataFrame:
    """The rows of some metrics; raises if ``drawer`` cannot draw them.

    They must have the columns ``needed``, those in ``filled`` (default: all) without null, and a
    single value in each of ``single``. No two rows may have the same ``keys``.
    """
    missing = [name for name in ("metric", *needed, *numbers) if name not in table.columns]
    if missing:
        source = "what tables.summary returns" if numbers is SUMMARY else "a table"
        raise InputError(
            f"the table lacks {', '.join(missing)}; {drawer} draws {source}, by "
            f"{', '.join(needed)}."
        )
    check_kinds(table, numbers)
    table = table.with_columns(pl.col(pl.Null).cast(pl.Float64))
    present = labels_in(table.filter(pl.col("metric").is_not_null()), "metric")
    unknown = [name for name in metrics if name not in present]
    if unknown or not metrics:
        lacking = f": no rows for metric {unknown[0]!r}" if unknown else ""
        raise InputError(
            f"there is nothing to draw{lacking}; the table has "
            f"{', '.join(present) or 'no metric at all'}."
        )
    rows = table.filter(pl.col("metric").is_in(metrics))
    require_values(rows, needed if filled is None else filled)
    for name in single:
        if name in rows.columns and rows[name].n_unique() > 1:
            raise InputError(
                f"the table has several values of {name}; {drawer} draws one: keep it."
            )
    places = [name for name in keys if name in rows.columns]
    twins = rows.filter(rows.select(places).is_duplicated()) if places else rows.clear()
    if twins.height:
        position = ", ".join(f"{name} {twins.row(0, named=True)[name]}" for name in places)
        named = ", or name them in the variant column" if "variant" in keys else ""
        raise InputError(f"several rows for {position}; {drawer} draws one: keep one{named}.")
    return rows


def labels_in(rows: pl.DataFrame, column: str) -> tuple[str, ...]:
    """The labels of a column in order of appearance; none if it is missing or empty."""
    if column not in rows.columns or rows[column].null_count() == rows.height:
        return ()
    require_values(rows, [column])
    return tuple(rows[column].unique(maintain_order=True).to_list())


def require_values(rows: pl.DataFrame, columns: Sequence[str]) -> None:
    """Raise if a row lacks a value in a column."""
    for name in columns:
        if rows[name].null_count() or (rows[name].dtype.is_float() and rows[name].is_nan().any()):
            raise InputError(f"some rows have no {name}; keep those that have one.")


def finite_or_none(value: float | None) -> float | None:
    """A finite number or None: JSON has neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def exact_text(value: float | None, entry: Metric | None = None) -> str:
    """A number as a tooltip shows it: a power of ten, if the metric's values are exponents."""
    if entry is not None and entry.scale == "exponent":
        return power_of_ten(value, digits=3)
    return "none" if value is None else f"{value:.6g}"
