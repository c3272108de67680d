"""What flows through each head, or another figure of it, as a map of layers and heads."""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue, tables
from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric, Scale
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._heatmap import band, cells, shades_of, whole_numbers
from rankscope.show.figures._layout import WORDS_AS_TITLE, lay_out
from rankscope.show.figures._validation import (
    exact_text,
    finite_or_none,
    require_single,
    require_values,
    select_metrics,
)

_NEEDED: Final = ("layer", "head", "value")
_LARGEST_CELL: Final = 26.0  # how high a layer is
_HIGHEST: Final = 520.0
_LABEL_ROOM: Final = {"head": 24.0, "layer": 14.0}


@checked
def head_map(
    table: pl.DataFrame, *, metric: str = "residual_share", title: str | None = None
) -> alt.ConcatChart:
    """A figure of each head, layers against heads: which share of the residual flows through it.

    >>> from rankscope import tables
    >>> shares = {"layer": [1, 1], "head": [0, 1], "value": [0.4, 0.9]}
    >>> chart = head_map(tables.frame({**shares, "metric": ["residual_share"] * 2}))

    Medians over the samples are drawn, of any ``metric``. Rows without a head, or of a single path
    length, are about something else and left out.
    """
    source = "figures by layer and head"
    rows = select_metrics(table, [metric], _NEEDED, drawer="head_map", source=source)
    rows = _with_a_head(rows, metric)
    require_values(rows, ["layer"])
    require_single(rows, ("part", "run", "model", "variant"), drawer="head_map")
    # Under another name, or heads would be pooled with the samples.
    medians = tables.summary(rows.rename({"head": "number"}))
    return lay_out([_map(medians, metric_catalogue.metric(metric))], title=title)


def _with_a_head(rows: pl.DataFrame, metric: str) -> pl.DataFrame:
    kept = rows.filter(pl.col("head").is_not_null())
    if "length" in rows.columns:
        kept = kept.filter(pl.col("length").is_null())
    if not kept.height:
        raise InputError(f"there is nothing to draw: rows of {metric!r} have no head.")
    return kept


def _map(medians: pl.DataFrame, entry: Metric) -> alt.LayerChart:
    layers, heads = _range_of(medians["layer"]), _range_of(medians["number"])
    width, cell = theme.WIDE[0], min(_LARGEST_CELL, _HIGHEST / len(layers))
    rows = [
        {
            "layer": row["layer"],
            "head": row["number"],
            "shade": finite_or_none(row["median"]),
            "exact_median": exact_text(row["median"]),
            "count": row["count"],
        }
        for row in medians.iter_rows(named=True)
    ]
    # In proportion: what most heads hardly do is not what one looks for.
    scale: Scale = "exponent" if entry.scale == "exponent" else "linear"
    shades = shades_of(scale, [row["shade"] for row in rows if row["shade"] is not None])
    wide = width / len(heads)
    x = alt.X("head:O", scale=band(heads, size=wide), axis=_axis("head", heads, wide, labelAngle=0))
    y = alt.Y(
        "layer:O",
        scale=band(layers, size=cell),
        axis=_axis("layer", layers, cell, **WORDS_AS_TITLE),
    )
    tooltip = _tooltip()
    drawn = [mark.encode(x=x, y=y, tooltip=tooltip) for mark in cells(shades, size=min(cell, wide))]
    height = cell * len(layers)
    return alt.LayerChart(
        data=alt.InlineData(values=rows),
        layer=[*drawn, *shades.bar("median", height=height)],
        title=alt.Title(f"{entry.title} by head", subtitle=entry.meaning or " "),
        width=width,
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
        alt.Tooltip("exact_median:N", title="median"),
        alt.Tooltip("count:Q", title="measurements", format=",d"),
    ]
