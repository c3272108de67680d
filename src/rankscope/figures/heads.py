"""What flows through each head, as a map of layers and heads."""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope.figures.drawable import exact, measured, no_gaps, one_only, rows_of
from rankscope.figures.framing import WORDS_AS_TITLE, framed
from rankscope.figures.metric_words import metric_words
from rankscope.figures.shading import band, cells, linear_shades, whole_numbers

_METRIC: Final = "residual_share"
_NEEDED: Final = ("layer", "head", "value")
_LARGEST_CELL: Final = 30.0
_LONGEST_SIDE: Final = 624.0
_LABEL_ROOM: Final = {"head": 24.0, "layer": 14.0}


def head_map(table: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """The share of the residual that flows through each head, layers against heads.

    >>> head_map(head_shares(net, x).table)

    Means over the samples are drawn.
    """
    rows = rows_of(table, _METRIC, _NEEDED, drawer="head_map", source="shares by layer and head")
    no_gaps(rows, ["layer", "head"])
    one_only(rows, ("run", "model", "variant", "length"), drawer="head_map")
    means = rows.group_by("layer", "head", maintain_order=True).agg(
        pl.col("value").mean().alias("mean"), pl.col("value").len().alias("count")
    )
    figure = framed([_map(means)], title=title)
    # Cells are squares, so pages are not told that they may stretch the panel.
    figure.usermeta = {"embedOptions": {"renderer": "svg"}}
    return figure


def _map(means: pl.DataFrame) -> alt.LayerChart:
    layers, heads = _whole(means["layer"]), _whole(means["head"])
    cell = min(_LARGEST_CELL, _LONGEST_SIDE / max(len(layers), len(heads)))
    rows = [
        {
            "layer": row["layer"],
            "head": row["head"],
            "shade": measured(row["mean"]),
            "exact_mean": exact(row["mean"]),
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
    words = metric_words(_METRIC)
    return alt.LayerChart(
        data=alt.InlineData(values=rows),
        layer=[*drawn, *shades.bar("mean share", height=height)],
        title=alt.Title(f"{words.title} through each head", subtitle=words.meaning),
        width=cell * len(heads),
        height=height,
    )


def _whole(numbers: pl.Series) -> list[int]:
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
