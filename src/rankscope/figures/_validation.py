"""Whether a table can be drawn, and its numbers as a chart's data can hold them."""

import math
from collections.abc import Sequence

import polars as pl

from rankscope.errors import InputError


def select_metric(
    table: pl.DataFrame, metric: str, needed: Sequence[str], *, drawer: str, source: str
) -> pl.DataFrame:
    """The rows of one metric, after a check that they have the columns."""
    missing = [name for name in ("metric", *needed) if name not in table.columns]
    if missing:
        raise InputError(f"the table lacks {', '.join(missing)}; {drawer} draws {source}.")
    rows = table.filter(pl.col("metric") == metric)
    if not rows.height:
        present = ", ".join(table["metric"].unique(maintain_order=True).drop_nulls().to_list())
        raise InputError(
            f"there is nothing to draw: no rows for metric {metric!r}; the table has "
            f"{present or 'no metric at all'}."
        )
    return rows


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


def finite_or_none(value: float | None) -> float | None:
    """A number, or nothing: a chart's data can hold neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def exact_text(value: float | None) -> str:
    """A number as a tooltip shows it."""
    return "none" if value is None else f"{value:.6g}"
