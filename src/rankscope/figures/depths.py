"""How a metric goes on with depth, however far beyond the range of floats."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope.errors import InputError
from rankscope.figures import theme
from rankscope.figures.curves import (
    NEEDED,
    WIDE,
    Curves,
    gone,
    labels,
    legend_fits,
    no_twins,
    told,
    tooltip,
    values_of,
    vertical_of,
)
from rankscope.figures.drawable import no_gaps, rows_of
from rankscope.figures.framing import framed
from rankscope.figures.metric_words import MetricWords, metric_words
from rankscope.figures.notes import equal_marks, rules
from rankscope.figures.panel import view_name
from rankscope.figures.scales import Vertical

Row = Mapping[str, Any]

_MOST_POINTS: Final = 30  # on a curve: more would hide it
_MOST_DOUBLINGS: Final = 12  # on an axis: beyond, only powers of ten are named


@dataclass(frozen=True)
class _Depths(Curves):
    """The curves of a figure and how layers are laid out in all its panels."""

    log_depth: bool = False

    def layer(self) -> alt.X:
        """The layer, in whole numbers, evenly or logarithmically, with the same ends everywhere."""
        if not self.log_depth:
            return super().layer()
        first, last = self.layers
        axis = alt.Axis(
            title="layer, on a logarithmic axis (layer 0 is left out)",
            format=",d",
            values=_doublings(first, last),
            grid=False,
        )
        scale = alt.Scale(type="log", domain=[first, max(last, 2 * first)], nice=False, padding=10)
        return alt.X("layer:Q", axis=axis, scale=scale)

    def across(self, layer: int) -> float:
        """How far right a layer is in its panel, from 0 to 1."""
        first, last = self.layers
        if self.log_depth:
            return math.log(layer / first) / math.log(max(last / first, 2.0))
        return (layer - first) / max(1, last - first)


def by_depth(
    summary: pl.DataFrame,
    *,
    metric: str = "log10_relative_residual",
    log_depth: bool = False,
    lowest: float | None = None,
    highest: float | None = None,
    title: str | None = None,
) -> alt.ConcatChart:
    """A metric against depth: the median, and a band from the 10th to the 90th percentile.

    >>> by_depth(tables.summary(deep_trace(net, x).table))

    A panel for each ``model``, if the summary has that column, and a curve for each ``variant``.
    Metrics named ``log10_…`` are logarithms already: their axis is even in the exponent and names
    powers of ten. Medians, because one sample with all tokens exactly equal (minus infinity) has
    no mean; where it is the median, the curve ends in a hollow marker at the bottom.
    ``log_depth`` lays the layers out logarithmically, without layer 0. ``lowest`` and ``highest``
    cut the axis, in the metric's own numbers (for ``log10_…`` exponents); curves leave the panel
    there. With ``lowest`` all panels have one axis, otherwise each has its own.
    """
    rows = _drawable(summary, metric, log_depth=log_depth)
    models = labels(rows, "model")
    layers = rows["layer"].to_list()
    look = _Depths(labels(rows, "variant"), (min(layers), max(layers)), log_depth=log_depth)
    words = metric_words(metric)
    everything = values_of(rows.to_dicts())
    panels = []
    for number, model in enumerate(models or ("",)):
        own = rows.filter(pl.col("model") == model).to_dicts() if models else rows.to_dicts()
        values = values_of(own) if lowest is None else everything
        vertical = vertical_of(
            words, values, lowest=lowest, highest=highest, ending=any(map(gone, own))
        )
        heading = model if len(models) > 1 else words.title
        size = WIDE if len(models) <= 1 else (theme.PANEL_WIDTH, theme.PANEL_HEIGHT)
        drawn = _panel(own, words, vertical, look, number=number, size=size)
        panels.append(drawn.properties(title=alt.Title(heading, subtitle=words.meaning or " ")))
    return legend_fits(framed(panels, title=title, names=look.variants, shapes=True), len(panels))


def _drawable(summary: pl.DataFrame, metric: str, *, log_depth: bool) -> pl.DataFrame:
    """The metric's rows, after a check that they can be drawn."""
    source = "what tables.summary returns"
    rows = rows_of(summary, metric, ("layer", *NEEDED), drawer="by_depth", source=source)
    no_gaps(rows, ["layer"])
    no_twins(rows, ("model", "variant", "layer"), drawer="by_depth")
    if not log_depth:
        return rows
    rows = rows.filter(pl.col("layer") > 0)
    if not rows.height:
        raise InputError("there is no layer above 0, and log_depth has no place for layer 0.")
    return rows


def _panel(
    rows: Sequence[Row],
    words: MetricWords,
    vertical: Vertical,
    look: _Depths,
    *,
    number: int,
    size: tuple[int, int],
) -> alt.LayerChart:
    kept = _told_apart({row["layer"] for row in rows}, look, size[0])
    marked = _marked(kept, look)
    data = [
        {
            **told(row, vertical, words),
            "marked": row["layer"] in marked,
            "across": look.across(row["layer"]),
        }
        for row in sorted(rows, key=lambda row: row["layer"])
        if row["layer"] in kept
    ]
    marks = _marks(vertical, look)
    # A legend listens to a selection only if the first of its layers holds it.
    marks[0] = marks[0].properties(name=view_name(number))
    bottom = equal_marks(_ended(data), look.layer(), "layer", look, size)
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=[*rules(words, vertical, data, size), *vertical.names(), *marks, *bottom],
        width=size[0],
        height=size[1],
    )


def _marks(vertical: Vertical, look: _Depths) -> list[alt.Chart]:
    """Band, line, points, and on top of them the invisible targets that carry the tooltip."""
    base = alt.Chart().encode(x=look.layer(), color=look.colour(), y=vertical.of("drawn_median:Q"))
    band = base.mark_area(clip=True).encode(
        y=vertical.of("drawn_low:Q"), y2="drawn_high:Q", opacity=look.opacity(theme.BAND_OPACITY)
    )
    line = base.mark_line(clip=True).encode(opacity=look.opacity(1.0), strokeDash=look.dash())
    point = base.mark_point(filled=True, size=theme.POINT_SIZE, clip=True).encode(
        shape=look.shape(), opacity=look.opacity(1.0)
    )
    target = base.mark_point(filled=True, size=theme.TARGET_SIZE, opacity=0, clip=True).encode(
        tooltip=tooltip([alt.Tooltip("layer:Q", format=",d")], look)
    )
    return [band, line, *(mark.transform_filter("datum.marked") for mark in (point, target))]


def _ended(data: Sequence[Row]) -> list[Row]:
    """For each curve that ends with all tokens exactly equal, the row from which on they are."""
    curves: dict[Any, list[Row]] = {}
    for row in data:
        curves.setdefault(row.get("variant"), []).append(row)
    ended = []
    for curve in curves.values():
        run = [*takewhile(lambda row: row["gone"], reversed(curve))]
        ended += run[-1:]
    return ended


def _told_apart(layers: set[int], look: _Depths, width: int) -> set[int]:
    """The layers that are at least a pixel apart, and the last: others would only cost room."""
    last_of_pixel = {round(width * look.across(layer)): layer for layer in sorted(layers)}
    return set(last_of_pixel.values())


def _marked(layers: set[int], look: _Depths) -> set[int]:
    """The layers that have points: all if they are few, otherwise evenly spaced ones."""
    if look.log_depth and len(layers) > _MOST_POINTS // 2:
        return {layer for layer in layers if layer & (layer - 1) == 0} | {max(layers)}
    every = math.ceil(len(layers) / _MOST_POINTS)
    return set(sorted(layers)[::every])


def _doublings(first: int, last: int) -> list[int]:
    """Powers of two between the ends, or of ten if those are too many."""
    for base in (2, 10):
        powers = [base**k for k in range(64) if first <= base**k <= last]
        if len(powers) <= _MOST_DOUBLINGS:
            break
    return powers or [first]
