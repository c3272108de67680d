"""The one long table everything measured ends in: its columns, and reading and writing it.

A row is one number. ``metric`` and ``value`` are always there; the other columns as far as each
applies, always in the order of ``COLUMNS``.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from rankscope.arguments import checked
from rankscope.errors import InputError, KindError
from rankscope.process.files import whole_file

COLUMNS: dict[str, type[pl.DataType]] = {
    "run": pl.String,
    "model": pl.String,
    "variant": pl.String,
    "layer": pl.Int64,
    "head": pl.Int64,
    "length": pl.Int64,
    "parameter": pl.String,
    "setting": pl.Float64,
    "sample": pl.Int64,
    "metric": pl.String,
    "value": pl.Float64,
    "error": pl.Float64,
    "doubt": pl.Boolean,
}
"""``error`` is there if any number is an estimate, and says how far off it may be; ``doubt`` if any
is in doubt: scaled arithmetic has lost its digits."""
IN_RUN = "_in_run"
"""What a sweep adds to the name of a column of its runs' tables where it has one of that name."""
_PROVENANCE_KEY = "rankscope"
# A panic of polars, which some damaged files cause, is no Exception.
_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@checked
def frame(columns: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    """A table from its columns, typed and in order.

    >>> frame({"value": [2, 4], "metric": ["rank", "rank"], "layer": [0, 1]}).columns
    ['layer', 'metric', 'value']
    """
    unknown = set(columns) - set(COLUMNS)
    if unknown or not {"metric", "value"} <= set(columns):
        raise InputError(
            f"a table has the columns metric, value and any of {', '.join(COLUMNS)}; "
            f"got {', '.join(columns)}."
        )
    present = [name for name in COLUMNS if name in columns]
    try:
        return pl.DataFrame(
            {name: pl.Series(columns[name], dtype=COLUMNS[name]) for name in present}
        )
    except (*_UNREADABLE, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"these are no columns of a table: {error}") from None


@checked
def from_rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> pl.DataFrame:
    """A table from its rows, each with a value, or None, for every one of ``names``.

    >>> from_rows(("layer", "metric", "value"), [(0, "rank", 4), (1, "rank", 2)])["value"].to_list()
    [4.0, 2.0]
    """
    given = list(rows)
    for index, row in enumerate(given):
        if len(row) != len(names):
            raise InputError(f"row {index} has {len(row)} values for {len(names)} names.")
    named = [dict(zip(names, row, strict=True)) for row in given]
    return frame({name: [row[name] for row in named] for name in names})


@checked
def stack(tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Tables one below the other, their columns in order; null where one lacks a column."""
    given = list(tables)
    if not given:
        raise InputError("there is no table to stack; give at least one.")
    whole = pl.concat(given, how="diagonal")
    if "doubt" in whole.columns:
        whole = whole.with_columns(pl.col("doubt").fill_null(False))
    return whole.select([name for name in COLUMNS if name in whole.columns])


@checked
def joined(tables: Mapping[str, pl.DataFrame], *, column: str = "variant") -> pl.DataFrame:
    """Several tables as one, with a new column that says which each row comes from.

    >>> one = frame({"metric": ["rank"], "value": [2.0]})
    >>> joined({"SAN": one, "transformer": one})["variant"].to_list()
    ['SAN', 'transformer']
    """
    if COLUMNS.get(column) is not pl.String or column == "metric":
        names = [name for name, kind in COLUMNS.items() if kind is pl.String and name != "metric"]
        raise InputError(f"column={column!r} cannot hold labels; choose {', '.join(names)}.")
    if not tables:
        raise InputError("there is no table to join; give at least one.")
    return stack(table.with_columns(pl.lit(label).alias(column)) for label, table in tables.items())


@checked
def summary(table: pl.DataFrame) -> pl.DataFrame:
    """Over the samples: how many, their mean, their 10th, 50th and 90th percentile.

    >>> summary(frame({"layer": [0, 0], "metric": ["rank"] * 2, "value": [2.0, 4.0]})).columns
    ['layer', 'metric', 'count', 'mean', 'low', 'median', 'high']

    Heads are pooled with the samples, but not with rows that have none; ``heads``, if the table has
    heads at all, says how many went into a row. Order of first appearance is kept, so that variants
    stay in the order they were run in. A percentile between minus infinity (the logarithm of zero)
    and a number is minus infinity. NaN among the samples makes all four NaN. A row is in ``doubt``
    if any number is that went into it, and its ``error`` is the largest of theirs.
    """
    if not {"metric", "value"} <= set(table.columns):
        raise InputError(
            f"a table has the columns metric and value; got {', '.join(table.columns) or 'none'}."
        )
    keys = [
        name for name in table.columns if name not in ("sample", "head", "value", "error", "doubt")
    ]
    value, head = pl.col("value"), pl.col("head")
    by_head = "head" in table.columns
    apart = [head.is_not_null().alias("by_head")] if by_head else []
    heads = [head.drop_nulls().n_unique().cast(pl.Int64).alias("heads")] if by_head else []
    pooled = table.group_by(*keys, *apart, maintain_order=True).agg(
        *heads,
        value.len().alias("count"),
        value.mean().alias("mean"),
        _percentile(0.1).alias("low"),
        _percentile(0.5).alias("median"),
        _percentile(0.9).alias("high"),
        *([pl.col("error").max()] if "error" in table.columns else []),
        *([pl.col("doubt").any()] if "doubt" in table.columns else []),
    )
    return pooled.drop("by_head", strict=False)


def _percentile(part: float) -> pl.Expr:
    """Interpolated as usual, and where that fails as its limit: polars has NaN above −∞."""
    value = pl.col("value")
    below, above = value.quantile(part, "lower"), value.quantile(part, "higher")
    return (
        pl.when(value.is_nan().any())  # polars would sort NaN above all numbers
        .then(math.nan)
        .when((below == -math.inf) & (above < math.inf))
        .then(-math.inf)
        .otherwise(value.quantile(part, "linear"))
    )


@checked
def write(
    table: pl.DataFrame,
    path: str | Path,
    provenance: Mapping[str, Any],
    more: Mapping[str, str] | None = None,
) -> Path:
    """Write a table as Parquet, with where it came from (and ``more``) in the file's metadata."""
    try:
        noted = {_PROVENANCE_KEY: json.dumps(dict(provenance)), **(more or {})}
    except (TypeError, ValueError) as error:
        raise KindError(f"the provenance cannot be written as JSON: {error}") from None
    try:
        with whole_file(path) as unfinished:
            table.write_parquet(unfinished, metadata=noted)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path} cannot be written: {error}") from error
    return Path(path)


@checked
def write_csv(table: pl.DataFrame, path: str | Path) -> Path:
    """Write a table as CSV, which every program reads; where it came from is not in it.

    >>> one = frame({"metric": ["rank"], "value": [2.0]})
    >>> write_csv(one, "ranks.csv").read_text().splitlines()
    ['metric,value', 'rank,2.0']

    Numbers are written so that reading them gives the same numbers; what does not apply is empty.
    """
    try:
        with whole_file(path) as unfinished:
            table.write_csv(unfinished)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path} cannot be written: {error}") from error
    return Path(path)


@checked
def read(path: str | Path) -> tuple[pl.DataFrame, dict[str, Any]]:
    """A table and its provenance, as written by ``write``."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no table at {path}.")
    written = metadata(path)
    try:
        table = pl.read_parquet(path)
    except _UNREADABLE as error:
        raise InputError(f"{path} is no Parquet file that can be read: {error}") from error
    provenance = _parsed(written.get(_PROVENANCE_KEY))
    if provenance is None or not {"metric", "value"} <= set(table.columns):
        raise InputError(
            f"{path} was not written by rankscope: it lacks our columns or provenance."
        )
    return table, provenance


@checked
def metadata(path: str | Path) -> dict[str, str]:
    """What a Parquet file says beside its table, by key."""
    try:
        return dict(pl.read_parquet_metadata(Path(path)))
    except _UNREADABLE as error:
        raise InputError(f"{path} is no Parquet file that can be read: {error}") from error


def _parsed(written: str | None) -> dict[str, Any] | None:
    try:
        provenance = json.loads(written or "null")
    except json.JSONDecodeError:
        return None
    return provenance if isinstance(provenance, dict) else None
