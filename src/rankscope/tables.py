"""The long table of all measurements: its columns, reading and writing.

Each row is one number. ``metric`` and ``value`` are always present, the other columns as needed, in
the order of ``COLUMNS``.
"""

import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl

from rankscope.arguments import FROM_PANDAS, Finite, Range, checked
from rankscope.errors import InputError, KindError
from rankscope.process import write_file

__all__ = [
    "COLUMNS",
    "frame",
    "from_rows",
    "joined",
    "pooled",
    "read",
    "stack",
    "summary",
    "write",
    "write_csv",
]

COLUMNS: dict[str, type[pl.DataType]] = {
    "part": pl.String,
    "run": pl.String,
    "model": pl.String,
    "variant": pl.String,
    "step": pl.Int64,
    "layer": pl.Int64,
    "head": pl.Int64,
    "length": pl.Int64,
    "index": pl.Int64,
    "token": pl.Int64,
    "other_token": pl.Int64,
    "parameter": pl.String,
    "setting": pl.Float64,
    "sample": pl.Int64,
    "metric": pl.String,
    "value": pl.Float64,
    "error": pl.Float64,
    "doubt": pl.Boolean,
}
"""The columns and their types, in order.

``part`` is the part of a long result that a row belongs to, ``run`` the run of a sweep or of a
training, ``step`` a step of that training. ``length`` is the length of a path, ``index`` the
number of a singular value from 1 on,
``token`` a position, and ``other_token`` the one it is compared with. ``parameter`` is the name of
a varied parameter and ``setting`` its value. ``error`` is the error bound of an estimate; ``doubt``
marks numbers whose digits may be lost to rounding.
"""
IN_RUN = "_in_run"
"""Suffix of a column of the runs' tables whose name is also that of an axis of the sweep."""
COLLAPSE_LAYER: Final = "collapse_layer"
"""The metric of ``pooled`` with ``below``."""
POOLED: Final = ("seed",)
"""Axes of a sweep over which medians are taken."""
Layer = Annotated[int, Range(0, 2**31)]
_LAYER: Final = "layer"
_NEVER_APART: Final = (_LAYER, "run", "sample", "head", "metric", "value", "error", "doubt")
PROVENANCE: Final = "rankscope"
"""The key of the provenance in a file's metadata."""
_DIGEST_BYTES: Final = 32
# A panic of polars, which some damaged files cause, is not an Exception.
_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@checked
def frame(columns: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    """Make a table from columns, with their types and order.

    >>> frame({"value": [2, 4], "metric": ["rank", "rank"], "layer": [0, 1]}).columns
    ['layer', 'metric', 'value']
    """
    unknown = set(columns) - set(COLUMNS)
    if unknown or not {"metric", "value"} <= set(columns):
        raise InputError(
            f"got the columns {', '.join(columns)}; expected metric, value and any of "
            f"{', '.join(COLUMNS)}."
        )
    schema = {name: kind for name, kind in COLUMNS.items() if name in columns}
    try:
        return pl.DataFrame({name: pl.Series(columns[name], dtype=schema[name]) for name in schema})
    except (*_UNREADABLE, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"invalid columns of a table: {error}") from None


@checked
def from_rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> pl.DataFrame:
    """Make a table from rows, each with a value or None for each of ``names``.

    >>> from_rows(("layer", "metric", "value"), [(0, "rank", 4), (1, "rank", 2)])["value"].to_list()
    [4.0, 2.0]
    """
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for index, row in enumerate(rows):
        if len(row) != len(names):
            raise InputError(f"row {index}: got {len(row)} values, expected {len(names)}.")
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    return frame(columns)


def _from_pandas(table: Any) -> pl.DataFrame:
    """A pandas frame as a table; a gap is null, but NaN stays NaN where numbers are real."""

    def entries(column: Any, kind: type[pl.DataType] | None) -> Iterator[Any]:
        for value, gap in zip(column.tolist(), column.isna().tolist(), strict=True):
            if gap:
                yield value if kind is pl.Float64 and isinstance(value, float) else None
            else:  # pandas holds whole numbers with gaps as floats
                is_whole = kind is pl.Int64 and isinstance(value, float) and value.is_integer()
                yield int(value) if is_whole else value

    try:
        return pl.DataFrame(
            [
                pl.Series(str(name), list(entries(table[name], kind)), dtype=kind)
                for name, kind in ((name, COLUMNS.get(name)) for name in table.columns)
            ]
        )
    except (*_UNREADABLE, AttributeError, TypeError, ValueError, OverflowError) as error:
        first, *_ = str(error).splitlines() or [""]
        raise InputError(f"the pandas frame cannot be read as a table: {first}") from None


FROM_PANDAS[:] = [_from_pandas]


@checked
def stack(tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate tables; columns that a table lacks are null.

    >>> from rankscope import tables
    >>> ranks = tables.frame({"layer": [1], "metric": ["rank"], "value": [2.0]})
    >>> tables.stack([ranks, tables.frame({"metric": ["loss"], "value": [0.5]})])["layer"].to_list()
    [1, None]
    """
    parts = list(tables)
    if not parts:
        raise InputError("there is no table to stack; give at least one.")
    for table in parts:
        check_kinds(table)
    try:
        stacked = pl.concat(parts, how="diagonal")
    except pl.exceptions.PolarsError as error:
        raise InputError(f"these tables do not go together: {error}") from None
    if "doubt" in stacked.columns:
        stacked = stacked.with_columns(pl.col("doubt").fill_null(False))
    return stacked.select([name for name in COLUMNS if name in stacked.columns])


@checked
def joined(tables: Mapping[str, pl.DataFrame], *, column: str = "variant") -> pl.DataFrame:
    """Concatenate tables, with a new column that labels each one.

    >>> ranks = frame({"metric": ["rank"], "value": [2.0]})
    >>> joined({"SAN": ranks, "transformer": ranks})["variant"].to_list()
    ['SAN', 'transformer']
    """
    if COLUMNS.get(column) is not pl.String or column == "metric":
        names = [name for name, kind in COLUMNS.items() if kind is pl.String and name != "metric"]
        raise InputError(
            f"column={column!r} is not a column for labels; choose {', '.join(names)}."
        )
    if not tables:
        raise InputError("got no tables, expected at least one.")
    return stack(table.with_columns(pl.lit(label).alias(column)) for label, table in tables.items())


@checked
def check_kinds(table: pl.DataFrame | pl.LazyFrame, numbers: Sequence[str] = ()) -> None:
    """Raise if a column does not hold what ``COLUMNS`` says, or cannot be compared.

    >>> check_kinds(pl.DataFrame({"value": ["a"]}))
    Traceback (most recent call last):
    rankscope.errors.KindError: the column 'value' holds String, expected numbers. ...

    ``numbers`` are more columns that must hold numbers.
    """
    for name, kind in table.collect_schema().items():
        known = pl.Float64 if name in numbers else COLUMNS.get(name)
        fits, words = not kind.is_nested() and kind != pl.Object, "numbers or text"
        if known is pl.Int64:
            fits, words = kind.is_integer(), "whole numbers"
        elif known is pl.Float64:
            fits, words = kind.is_numeric(), "numbers"
        elif known is not None:
            fits, words = kind in (known, pl.Categorical, pl.Enum), known.__name__
        if not fits and kind != pl.Null:
            raise KindError(f"the column {name!r} holds {kind}, expected {words}.")


@checked
def summary(table: pl.DataFrame) -> pl.DataFrame:
    """Statistics over samples: count, mean, and 10th, 50th and 90th percentile.

    >>> summary(frame({"layer": [0, 0], "metric": ["rank"] * 2, "value": [2.0, 4.0]})).columns
    ['layer', 'metric', 'count', 'mean', 'low', 'median', 'high']

    Heads are pooled with samples; rows with and without a head are separate, and ``heads`` is the
    number of heads in a row. Rows keep the order of first appearance. A percentile between minus
    infinity (the logarithm of zero) and a number is minus infinity. If any sample is NaN, all four
    statistics are. A row is in ``doubt`` if any of its numbers is, and its ``error`` is their
    maximum.
    """
    if not {"metric", "value"} <= set(table.columns):
        raise InputError(
            f"got the columns {', '.join(table.columns) or 'none'}; expected metric and value."
        )
    check_kinds(table)
    not_keys = ("sample", "head", "value", "error", "doubt")
    keys: list[Any] = [name for name in table.columns if name not in not_keys]
    value, head = pl.col("value"), pl.col("head")
    statistics = [value.len().alias("count"), value.mean().alias("mean")]
    for name, part in (("low", 0.1), ("median", 0.5), ("high", 0.9)):
        statistics.append(_percentile(part).alias(name))
    if "head" in table.columns:
        keys.append(head.is_not_null().alias("by_head"))
        if "heads" not in table.columns:  # in a sweep, what was set
            statistics.insert(0, head.drop_nulls().n_unique().cast(pl.Int64).alias("heads"))
    if "error" in table.columns:
        statistics.append(pl.col("error").max())
    if "doubt" in table.columns:
        statistics.append(pl.col("doubt").any())
    pooled = table.group_by(*keys, maintain_order=True).agg(*statistics)
    return pooled.drop("by_head", strict=False)


def _percentile(part: float) -> pl.Expr:
    """An interpolated percentile; −∞ next to −∞, where interpolation in polars gives NaN."""
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
def pooled(
    table: pl.DataFrame | pl.LazyFrame,
    *,
    metric: str,
    by: Sequence[str],
    layer: Layer | None = None,
    below: Finite | None = None,
    pool: Sequence[str] = POOLED,
) -> pl.DataFrame:
    """Medians and percentiles of a metric over seeds and samples, along axes of a sweep.

    >>> swept = pl.DataFrame({"run": ["a", "a", "b"], "heads": [1, 1, 2], "layer": [0, 1, 1]})
    >>> swept = swept.with_columns(metric=pl.lit("rank"), value=pl.Series([4.0, 2.0, 3.0]))
    >>> pooled(swept, metric="rank", by=["heads"])["median"].to_list()
    [2.0, 3.0]

    ``table`` is the table of a sweep, with a column per axis. Each run is taken at its last layer,
    or at ``layer``; with ``"layer"`` in ``by``, at all layers. With ``below``, the value is the
    first layer at which the median is below that, NaN if there is none (likewise for percentiles).
    ``depth`` is an alias of the axis ``layers``. It is an error if an axis varies that is neither
    in ``by`` nor in ``pool``, because the median would mix different designs.
    """
    lazy = table.lazy()
    columns = lazy.collect_schema().names()
    along = [axis_name(name, columns) for name in by]
    missing = [name for name in ("run", "metric", "value", *along) if name not in columns]
    if missing:
        raise InputError(
            f"the sweep has no column {missing[0]!r}; it has {', '.join(columns) or 'none'}."
        )
    check_kinds(lazy)
    rows = lazy.filter(pl.col("metric") == metric).collect()
    if not rows.height:
        known = lazy.select(pl.col("metric").unique(maintain_order=True)).collect()["metric"]
        raise InputError(
            f"the sweep has no rows for metric {metric!r}; it has "
            f"{', '.join(known.drop_nulls()) or 'none'}."
        )
    for name in along:
        if rows[name].dtype.is_float() and rows[name].is_nan().any():
            raise InputError(f"some runs have NaN as {name}; keep those that have a number.")
    rows = _at_layer(rows, along, layer, every=_LAYER in along or below is not None)
    grouped = list(dict.fromkeys([*along, *([_LAYER] if below is not None else [])]))
    rows = _each_run_once(rows, grouped)
    _refuse_mixed(rows, grouped, pool)
    rows = rows.select([*grouped, "metric", "value"])
    medians = summary(rows)
    if below is None:
        return medians
    keys = [name for name in grouped if name != _LAYER]
    # The first layer at which each statistic is below the threshold; NaN if it never is.
    crossed = [
        pl.col(_LAYER)
        .filter(pl.col(name) < below)
        .first()
        .cast(pl.Float64)
        .fill_null(math.nan)
        .alias(name)
        for name in ("mean", "low", "median", "high")
    ]
    ordered = medians.sort(_LAYER, maintain_order=True).group_by(keys, maintain_order=True)
    named = ordered.agg(pl.lit(COLLAPSE_LAYER).alias("metric"), pl.col("count").max(), *crossed)
    return (
        rows.select(keys)
        .unique(maintain_order=True)
        .join(named, on=keys, how="left", nulls_equal=True, maintain_order="left")
    )


@checked
def axis_name(name: str, columns: Sequence[str]) -> str:
    """The column of an axis: ``depth`` is an alias of ``layers``."""
    return "layers" if name == "depth" and name not in columns and "layers" in columns else name


@checked
def axes_of(columns: Sequence[str]) -> list[str]:
    """The columns of a sweep's table that are axes of its grid.

    >>> axes_of(["run", "heads", "layer", "layer_in_run", "metric", "value"])
    ['heads', 'layer']
    """
    ours = {name for name in columns if name in COLUMNS and name + IN_RUN not in columns}
    return [name for name in columns if name not in ours and not name.endswith(IN_RUN)]


def _at_layer(
    rows: pl.DataFrame, along: Sequence[str], layer: int | None, *, every: bool
) -> pl.DataFrame:
    """Each run at its last layer, at ``layer``, or at ``every`` layer; without layers, all rows."""
    if every and layer is not None:
        raise InputError(f"layer={layer} cannot be combined with an axis 'layer' or with below.")
    depth = pl.col(_LAYER)
    if every and _LAYER not in rows.columns:
        listed = ", ".join(rows.columns)
        raise InputError(f"the sweep has no column {_LAYER!r}; it has {listed}.")
    if every:
        return rows.filter(depth.is_not_null())
    if _LAYER not in rows.columns or rows[_LAYER].null_count() == rows.height:
        return rows
    if layer is None:
        return rows.filter(depth == depth.max().over(["run", *along]))
    at_layer = rows.filter(depth == layer)
    if not at_layer.height:
        first, last = rows.select(depth.min(), depth.max().alias("last")).row(0)
        raise InputError(f"no run has layer {layer}; layers range from {first} to {last}.")
    return at_layer


def _each_run_once(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Count a run once if several points of the grid share it and are pooled."""
    keys = list(dict.fromkeys(["run", *by]))
    axes = [name for name in rows.columns if name not in {*keys, *COLUMNS}]
    axes = [name for name in axes if not name.endswith(IN_RUN)]
    points = rows.select(*keys, *axes).unique(maintain_order=True)
    first = points.unique(keys, keep="first", maintain_order=True)
    if first.height == points.height:
        return rows
    return rows.join(first, on=[*keys, *axes], how="semi", nulls_equal=True)


def _refuse_mixed(rows: pl.DataFrame, by: Sequence[str], pool: Sequence[str]) -> None:
    """Raise if another axis varies, over which a median would mix designs."""
    others = [name for name in rows.columns if name not in {*by, *pool, *_NEVER_APART}]
    counts = [pl.col(name).n_unique().alias(name) for name in others]
    varied = rows.group_by(by).agg(counts) if by else rows.select(counts)
    for name in others:
        if varied[name].max() != 1:
            values = [*map(str, rows[name].unique(maintain_order=True))]
            listed = ", ".join(values[:6] + ["…"] * (len(values) > 6))
            raise InputError(
                f"{name} also varies ({listed}), and a median over it would mix different designs; "
                f"use it as x, color or facet, select one value, or add it to pool."
            )


@checked
def write(
    table: pl.DataFrame,
    path: str | Path,
    provenance: Mapping[str, Any],
    more: Mapping[str, str] | None = None,
) -> Path:
    """Write a table as Parquet, with its provenance and ``more`` in the file's metadata.

    >>> from rankscope import tables
    >>> ranks = tables.frame({"metric": ["rank"], "value": [2.0]})
    >>> tables.write(ranks, "ranks.parquet", {"seed": 0}).name
    'ranks.parquet'
    """
    try:
        noted = {PROVENANCE: json.dumps(dict(provenance)), **(more or {})}
    except (TypeError, ValueError, RecursionError) as error:
        raise KindError(f"the provenance cannot be written as JSON: {error}") from None
    return write_file(path, to_parquet(table, noted))


@checked
def to_parquet(table: pl.DataFrame, metadata: Mapping[str, str]) -> bytes:
    """The bytes of a Parquet file with a digest of its content, which ``from_parquet`` checks.

    Any Parquet reader can read it: the digest is between the last column and the footer, and
    readers locate columns by the offsets in the footer.
    """
    buffer = io.BytesIO()
    try:
        table.write_parquet(buffer, metadata=dict(metadata))
    except _UNREADABLE as error:
        raise InputError(f"the table cannot be written as Parquet: {error}") from error
    content = buffer.getvalue()
    footer = _footer(content)
    return content[:footer] + hashlib.sha256(content).digest() + content[footer:]


@checked
def from_parquet(path: str | Path) -> tuple[pl.DataFrame, dict[str, str]]:
    """Read a table written by ``to_parquet``, and its metadata; raises if any byte has changed."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return from_bytes(content, str(path))


@checked
def from_bytes(content: bytes, name: str = "this file") -> tuple[pl.DataFrame, dict[str, str]]:
    """The table and the metadata that ``to_parquet`` was given; errors call it by ``name``."""
    footer = _footer(content)
    start = footer - _DIGEST_BYTES
    expected = hashlib.sha256(content[: max(start, 0)] + content[max(footer, 0) :]).digest()
    if start < 0 or content[start:footer] != expected:
        raise InputError(
            f"{name} is damaged, or was not written by rankscope: its digest is missing or wrong; "
            "take another copy of it, or write it again."
        )
    try:
        return pl.read_parquet(io.BytesIO(content)), pl.read_parquet_metadata(io.BytesIO(content))
    except _UNREADABLE as error:
        raise InputError(f"{name} cannot be read: {error}") from error


def _footer(content: bytes) -> int:
    """The offset of the footer of a Parquet file: its length and a magic number end the file."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


@checked
def write_csv(table: pl.DataFrame, path: str | Path) -> Path:
    """Write a table as CSV, without provenance.

    >>> from rankscope import tables
    >>> ranks = tables.frame({"metric": ["rank"], "value": [2.0]})
    >>> print(tables.write_csv(ranks, "ranks.csv").read_text())
    metric,value
    rank,2.0

    Numbers round-trip exactly; missing values are empty.
    """
    buffer = io.BytesIO()
    try:
        table.write_csv(buffer)
    except _UNREADABLE as error:
        raise InputError(f"the table cannot be written as CSV: {error}") from error
    return write_file(path, buffer.getbuffer())


@checked
def read(path: str | Path) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Read a table written by ``write``, and its provenance.

    >>> from rankscope import tables
    >>> ranks = tables.frame({"metric": ["rank"], "value": [2.0]})
    >>> table, provenance = tables.read(tables.write(ranks, "ranks.parquet", {"seed": 0}))
    >>> table["value"].to_list(), provenance
    ([2.0], {'seed': 0})
    """
    table, written = from_parquet(path)
    try:
        provenance = json.loads(written.get(PROVENANCE, "null"))
    except (ValueError, RecursionError):
        provenance = None
    if not isinstance(provenance, dict) or not {"metric", "value"} <= set(table.columns):
        raise InputError(f"{path} is another kind of table: it has no metric, value or provenance.")
    return table, provenance
