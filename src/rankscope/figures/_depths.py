"""How a metric goes on with depth, however far beyond the range of floats."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.errors import InputError
from rankscope.figures import _theme as theme
from rankscope.figures._annotations import draw_named_values, mark_equal_tokens
from rankscope.figures._axes import Vertical
from rankscope.figures._curves import (
    NEEDED,
    WIDE,
    Curves,
    Roles,
    build_axis,
    chart_row,
    check_roles,
    finite_values,
    fit_legend,
    is_zero,
    labels_in,
    refuse_duplicates,
    tooltip,
)
from rankscope.figures._layout import lay_out
from rankscope.figures._panel import view_name
from rankscope.figures._validation import require_values, select_metric
from rankscope.metric_catalogue import Metric

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
    roles: Roles | None = None,
    title: str | None = None,
) -> alt.ConcatChart:
    """A metric against depth: the median, and a band from the 10th to the 90th percentile.

    >>> from rankscope import tables
    >>> log10 = {"layer": [0, 1], "metric": ["log10_residual"] * 2, "value": [0.0, -400.0]}
    >>> chart = by_depth(tables.summary(tables.frame(log10)), metric="log10_residual")

    A panel for each ``model``, if the summary has that column, and a curve for each ``variant``.
    Metrics named ``log10_…`` are logarithms already: their axis is even in the exponent and names
    powers of ten. Medians, because one sample with all tokens exactly equal (minus infinity) has
    no mean; where it is the median, the curve ends in a hollow marker at the bottom.
    ``log_depth`` lays the layers out logarithmically, without layer 0. ``lowest`` and ``highest``
    cut the axis, in the metric's own numbers (for ``log10_…`` exponents); curves leave the panel
    there. With ``lowest`` all panels have one axis, otherwise each has its own. ``roles`` says
    which curves are not measured but a ``bound`` or the ``floor`` of a number format: they have
    colours of their own and broken lines.
    """
    rows = _select(summary, metric, log_depth=log_depth)
    models = labels_in(rows, "model")
    layers = rows["layer"].to_list()
    look = _Depths(
        labels_in(rows, "variant"),
        (min(layers), max(layers)),
        roles=check_roles(roles),
        log_depth=log_depth,
    )
    entry = metric_catalogue.metric(metric)
    everything = finite_values(rows.to_dicts())
    panels = []
    for number, model in enumerate(models or ("",)):
        own = rows.filter(pl.col("model") == model).to_dicts() if models else rows.to_dicts()
        values = finite_values(own) if lowest is None else everything
        vertical = build_axis(
            entry, values, lowest=lowest, highest=highest, ending=any(map(is_zero, own))
        )
        heading = model if len(models) > 1 else entry.title
        size = WIDE if len(models) <= 1 else (theme.PANEL_WIDTH, theme.PANEL_HEIGHT)
        drawn = _panel(own, entry, vertical, look, number=number, size=size)
        panels.append(drawn.properties(title=alt.Title(heading, subtitle=entry.meaning or " ")))
    return fit_legend(lay_out(panels, title=title, names=look.variants, shapes=True), len(panels))


def _select(summary: pl.DataFrame, metric: str, *, log_depth: bool) -> pl.DataFrame:
    """The metric's rows, after a check that they can be drawn."""
    source = "what tables.summary returns"
    rows = select_metric(summary, metric, ("layer", *NEEDED), drawer="by_depth", source=source)
    require_values(rows, ["layer"])
    refuse_duplicates(rows, ("model", "variant", "layer"), drawer="by_depth")
    if not log_depth:
        return rows
    rows = rows.filter(pl.col("layer") > 0)
    if not rows.height:
        raise InputError("there is no layer above 0, and log_depth has no place for layer 0.")
    return rows


def _panel(
    rows: Sequence[Row],
    entry: Metric,
    vertical: Vertical,
    look: _Depths,
    *,
    number: int,
    size: tuple[int, int],
) -> alt.LayerChart:
    kept = _keep_visible({row["layer"] for row in rows}, look, size[0])
    marked = _choose_points(kept, look)
    data = [
        {
            **chart_row(row, vertical, entry),
            "marked": row["layer"] in marked,
            "across": look.across(row["layer"]),
        }
        for row in sorted(rows, key=lambda row: row["layer"])
        if row["layer"] in kept
    ]
    marks = _marks(vertical, look)
    # A legend listens to a selection only if the first of its layers holds it.
    marks[0] = marks[0].properties(name=view_name(number))
    bottom = mark_equal_tokens(_find_ends(data), look.layer(), "layer", look, size)
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=[
            *draw_named_values(entry, vertical, data, size),
            *vertical.tick_labels(),
            *marks,
            *bottom,
        ],
        width=size[0],
        height=size[1],
    )


def _marks(vertical: Vertical, look: _Depths) -> list[alt.Chart]:
    """Band, line, points, and on top of them the invisible targets that carry the tooltip."""
    base = alt.Chart().encode(
        x=look.layer(), color=look.colour(), y=vertical.encode("drawn_median:Q")
    )
    band = base.mark_area(clip=True).encode(
        y=vertical.encode("drawn_low:Q"),
        y2="drawn_high:Q",
        opacity=look.opacity(theme.BAND_OPACITY),
    )
    line = base.mark_line(clip=True).encode(opacity=look.opacity(1.0), strokeDash=look.dash())
    point = base.mark_point(filled=True, size=theme.POINT_SIZE, clip=True).encode(
        shape=look.shape(), opacity=look.opacity(1.0)
    )
    target = base.mark_point(filled=True, size=theme.TARGET_SIZE, opacity=0, clip=True).encode(
        tooltip=tooltip([alt.Tooltip("layer:Q", format=",d")], look)
    )
    return [band, line, *(mark.transform_filter("datum.marked") for mark in (point, target))]


def _find_ends(data: Sequence[Row]) -> list[Row]:
    """For each curve that ends with all tokens exactly equal, the row from which on they are."""
    curves: dict[Any, list[Row]] = {}
    for row in data:
        curves.setdefault(row.get("variant"), []).append(row)
    ends = []
    for curve in curves.values():
        run = [*takewhile(lambda row: row["all_equal"], reversed(curve))]
        ends += run[-1:]
    return ends


def _keep_visible(layers: set[int], look: _Depths, width: int) -> set[int]:
    """The layers that are at least a pixel apart, and the last: others would only cost room."""
    last_of_pixel = {round(width * look.across(layer)): layer for layer in sorted(layers)}
    return set(last_of_pixel.values())


def _choose_points(layers: set[int], look: _Depths) -> set[int]:
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
