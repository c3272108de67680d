"""What flows through each head, as a map of layers and heads."""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.figures._heatmap import band, cells, linear_shades, whole_numbers
from rankscope.figures._layout import WORDS_AS_TITLE, lay_out
from rankscope.figures._validation import (
    exact_text,
    finite_or_none,
    require_single,
    require_values,
    select_metrics,
)

_METRIC: Final = "residual_share"
_NEEDED: Final = ("layer", "head", "value")
_LARGEST_CELL: Final = 30.0
_LONGEST_SIDE: Final = 624.0
_LABEL_ROOM: Final = {"head": 24.0, "layer": 14.0}


@checked
def head_map(table: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """The share of the residual that flows through each head, layers against heads.

    >>> from rankscope import tables
    >>> shares = {"layer": [1, 1], "head": [0, 1], "value": [0.4, 0.9]}
    >>> chart = head_map(tables.frame({**shares, "metric": ["residual_share"] * 2}))

    Means over the samples are drawn. Rows without a head, or of a single path length, are about
    something else and left out.
    """
    source = "shares by layer and head"
    rows = select_metrics(table, [_METRIC], _NEEDED, drawer="head_map", source=source)
    rows = _with_a_head(rows)
    require_values(rows, ["layer"])
    require_single(rows, ("run", "model", "variant"), drawer="head_map")
    means = rows.group_by("layer", "head", maintain_order=True).agg(
        pl.col("value").mean().alias("mean"), pl.col("value").len().alias("count")
    )
    figure = lay_out([_map(means)], title=title)
    # Cells are squares, so pages are not told that they may stretch the panel.
    figure.usermeta = {"embedOptions": {"renderer": "svg"}}
    return figure


def _with_a_head(rows: pl.DataFrame) -> pl.DataFrame:
    kept = rows.filter(pl.col("head").is_not_null())
    if "length" in rows.columns:
        kept = kept.filter(pl.col("length").is_null())
    if not kept.height:
        raise InputError(f"there is nothing to draw: rows of {_METRIC!r} have no head.")
    return kept


def _map(means: pl.DataFrame) -> alt.LayerChart:
    layers, heads = _range_of(means["layer"]), _range_of(means["head"])
    cell = min(_LARGEST_CELL, _LONGEST_SIDE / max(len(layers), len(heads)))
    rows = [
        {
            "layer": row["layer"],
            "head": row["head"],
            "shade": finite_or_none(row["mean"]),
            "exact_mean": exact_text(row["mean"]),
            "count": row["count"],
        }
        for row in means.iter_rows(named=True)
    ]
    shades = linear_shades([row["shade"] for row in rows if row["shade"] is not None])
    x = alt.X("head:O", scale=band(heads, size=cell), axis=_axis("head", heads, cell, labelAngle=0))
    y = alt.Y(
        "layer:O",
        scale=band(layers, size=cell),
        axis=_axis("layer", layers, cell, **WORDS_AS_TITLE),
    )
    drawn = [mark.encode(x=x, y=y, tooltip=_tooltip()) for mark in cells(shades, size=cell)]
    height = cell * len(layers)
    entry = metric_catalogue.metric(_METRIC)
    return alt.LayerChart(
        data=alt.InlineData(values=rows),
        layer=[*drawn, *shades.bar("mean share", height=height)],
        title=alt.Title(f"{entry.title} through each head", subtitle=entry.meaning),
        width=cell * len(heads),
        height=height,
    )


def _range_of(numbers: pl.Series) -> list[int]:
    values = numbers.to_list()
    return list(range(min(values), max(values) + 1))


def _axis(title: str, values: Sequence[int], cell: float, **look: Any) -> alt.Axis:
    most = max(1, round(cell * len(values) / _LABEL_ROOM[title]))
    return alt.Axis(title=title, values=whole_numbers(values, most=most), grid=False, **look)


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("layer:Q", format="d"),
        alt.Tooltip("head:Q", format="d"),
        alt.Tooltip("exact_mean:N", title="mean share"),
        alt.Tooltip("count:Q", title="measurements", format=",d"),
    ]
