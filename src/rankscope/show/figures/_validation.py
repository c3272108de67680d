"""Whether a table can be drawn, and its numbers as a chart's data can hold them."""

import math
from collections.abc import Sequence

import polars as pl

from rankscope.errors import InputError


def select_metrics(
    table: pl.DataFrame, metrics: Sequence[str], needed: Sequence[str], *, drawer: str, source: str
) -> pl.DataFrame:
    """The rows of some metrics, after a check that they have the columns."""
    missing = [name for name in ("metric", *needed) if name not in table.columns]
    if missing:
        raise InputError(f"the table lacks {', '.join(missing)}; {drawer} draws {source}.")
    present = labels_in(table.filter(pl.col("metric").is_not_null()), "metric")
    unknown = [name for name in metrics if name not in present]
    if unknown or not metrics:
        lacking = f": no rows for metric {unknown[0]!r}" if unknown else ""
        raise InputError(
            f"there is nothing to draw{lacking}; the table has "
            f"{', '.join(present) or 'no metric at all'}."
        )
    return table.filter(pl.col("metric").is_in(metrics))


def labels_in(rows: pl.DataFrame, column: str) -> tuple[str, ...]:
    """The labels of a column in order of appearance; none if it is missing or empty."""
    if column not in rows.columns or rows[column].null_count() == rows.height:
        return ()
    require_values(rows, [column])
    return tuple(rows[column].unique(maintain_order=True).to_list())


def require_values(rows: pl.DataFrame, columns: Sequence[str]) -> None:
    """Raise if a row does not say where it belongs."""
    for name in columns:
        if rows[name].null_count():
            raise InputError(f"some rows have no {name}; keep those that have one.")


def require_single(rows: pl.DataFrame, columns: Sequence[str], *, drawer: str) -> None:
    """Raise if the table holds several runs, models and the like, which would be drawn as one."""
    for name in columns:
        if name in rows.columns and rows[name].n_unique() > 1:
            raise InputError(
                f"the table has several values of {name}; {drawer} draws one: keep it."
            )


def refuse_duplicates(rows: pl.DataFrame, keys: Sequence[str], *, drawer: str) -> None:
    """Raise if two rows would be drawn in one place."""
    present = [name for name in keys if name in rows.columns]
    twins = rows.filter(rows.select(present).is_duplicated())
    if twins.height:
        place = ", ".join(f"{name} {twins.row(0, named=True)[name]}" for name in present)
        named = ", or name them in the variant column" if "variant" in keys else ""
        raise InputError(f"several rows for {place}; {drawer} draws one: keep one{named}.")


def finite_or_none(value: float | None) -> float | None:
    """A number, or nothing: a chart's data can hold neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def exact_text(value: float | None) -> str:
    """A number as a tooltip shows it."""
    return "none" if value is None else f"{value:.6g}"
