"""What a chart over a sweep's axes shows: one layer of each run, and medians over the rest."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import polars as pl

from rankscope import tables
from rankscope.arguments import Finite, Range, checked
from rankscope.errors import InputError

Table = pl.DataFrame | pl.LazyFrame
Layer = Annotated[int, Range(0, 2**31)]

BELOW: Final = "collapse_layer"
POOLED: Final = ("seed",)
_LAYER: Final = "layer"
_NEVER_APART: Final = (_LAYER, "run", "sample", "head", "metric", "value", "error", "doubt")
_STATISTICS: Final = ("mean", "low", "median", "high")


@checked
def axis_medians(
    table: pl.DataFrame | pl.LazyFrame,
    *,
    metric: str,
    by: Sequence[str],
    layer: Layer | None = None,
    below: Finite | None = None,
    pool: Sequence[str] = POOLED,
) -> pl.DataFrame:
    """A metric of a sweep along some axes: medians and percentiles over seeds and samples.

    >>> swept = pl.DataFrame({"run": ["a", "a", "b"], "heads": [1, 1, 2], "layer": [0, 1, 1]})
    >>> swept = swept.with_columns(metric=pl.lit("rank"), value=pl.Series([4.0, 2.0, 3.0]))
    >>> axis_medians(swept, metric="rank", by=["heads"])["median"].to_list()
    [2.0, 3.0]

    ``table`` has a column for each axis, as a sweep's has. Each run counts with its last layer, or
    with the ``layer`` given; with ``"layer"`` among ``by``, with all of them. With ``below``, the
    figure is the first layer at which the median is below that, NaN if none is (likewise of the
    percentiles). ``depth`` is another word for the axis ``layers``. Another axis that varies beside
    those in ``by`` and ``pool`` is refused, since a median over it would mix designs.
    """
    rows = axis_rows(table, metric=metric, by=by, layer=layer, below=below, pool=pool)
    summary = tables.summary(rows)
    if below is None:
        return summary
    keys = [name for name in rows.columns if name not in (_LAYER, "metric", "value")]
    crossed = [_first_below(name, below) for name in _STATISTICS]
    found = summary.sort(_LAYER, maintain_order=True).group_by(keys, maintain_order=True)
    named = found.agg(pl.lit(BELOW).alias("metric"), pl.col("count").max(), *crossed)
    return (
        rows.select(keys)
        .unique(maintain_order=True)
        .join(named, on=keys, how="left", nulls_equal=True, maintain_order="left")
    )


def axis_rows(
    table: Table,
    *,
    metric: str,
    by: Sequence[str],
    layer: int | None = None,
    below: float | None = None,
    pool: Sequence[str] = POOLED,
) -> pl.DataFrame:
    """The numbers that medians are taken of: columns ``by``, metric and value."""
    lazy = table.lazy()
    columns = lazy.collect_schema().names()
    _require(columns, ("run", "metric", "value"))
    along = [axis_name(name, columns) for name in by]
    _require(columns, along)
    rows = lazy.filter(pl.col("metric") == metric).collect()
    if not rows.height:
        known = lazy.select(pl.col("metric").unique(maintain_order=True)).collect()["metric"]
        raise InputError(
            f"the sweep has no rows for metric {metric!r}; it has {', '.join(known) or 'none'}."
        )
    every_layer = _LAYER in along or below is not None
    if every_layer and layer is not None:
        raise InputError(f"layer={layer} is one layer, and here every layer is looked at.")
    if every_layer:
        _require(columns, [_LAYER])
        rows = rows.filter(pl.col(_LAYER).is_not_null())
    elif _LAYER in columns:
        rows = _at_layer(rows, along, layer)
    grouped = list(dict.fromkeys([*along, *([_LAYER] if below is not None else [])]))
    rows = _each_run_once(rows, grouped)
    _refuse_mixed(rows, grouped, pool)
    return rows.select([*grouped, "metric", "value"])


def axis_name(name: str, columns: Sequence[str]) -> str:
    """An axis as its column is called: ``depth`` is another word for ``layers``."""
    return "layers" if name == "depth" and name not in columns and "layers" in columns else name


def _at_layer(rows: pl.DataFrame, along: Sequence[str], layer: int | None) -> pl.DataFrame:
    """Each run at its own last layer, or at one; what has no layers is kept as it is."""
    place = pl.col(_LAYER)
    if rows[_LAYER].null_count() == rows.height:
        return rows
    if layer is None:
        return rows.filter(place == place.max().over(["run", *along]))
    kept = rows.filter(place == layer)
    if not kept.height:
        first, last = rows.select(place.min(), place.max().alias("last")).row(0)
        raise InputError(f"no run has a layer {layer}; layers go from {first} to {last}.")
    return kept


def _each_run_once(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """A run that stands at several points of the grid counts once where they are drawn as one."""
    place = list(dict.fromkeys(["run", *by]))
    axes = [name for name in rows.columns if name not in {*place, *tables.COLUMNS}]
    axes = [name for name in axes if not name.endswith(tables.IN_RUN)]
    points = rows.select(*place, *axes).unique(maintain_order=True)
    first = points.unique(place, keep="first", maintain_order=True)
    if first.height == points.height:
        return rows
    return rows.join(first, on=[*place, *axes], how="semi", nulls_equal=True)


def _first_below(name: str, below: float) -> pl.Expr:
    """The first layer at which a figure is below a threshold; NaN if it never is."""
    first = pl.col(_LAYER).filter(pl.col(name) < below).first()
    return first.cast(pl.Float64).fill_null(float("nan")).alias(name)


def _refuse_mixed(rows: pl.DataFrame, by: Sequence[str], pool: Sequence[str]) -> None:
    """Raise if something else varies, which a median would mix."""
    others = [name for name in rows.columns if name not in {*by, *pool, *_NEVER_APART}]
    counts = [pl.col(name).n_unique().alias(name) for name in others]
    varied = rows.group_by(by).agg(counts) if by else rows.select(counts)
    for name in others:
        if varied[name].max() != 1:
            found: list[Any] = rows[name].unique(maintain_order=True).to_list()
            listed = ", ".join(map(str, found[:6])) + (", …" if len(found) > 6 else "")
            raise InputError(
                f"{name} varies, too ({listed}), and a median over it would mix different runs; "
                f"draw it along an axis (x, color, facet), keep one value, or put it in pool."
            )


def _require(columns: Sequence[str], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        raise InputError(
            f"the sweep has no column {missing[0]!r}; it has {', '.join(columns) or 'none'}."
        )
