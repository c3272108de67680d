"""A metric as a map: layers to the right, what was varied upwards, and the line it crosses."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import Finite, checked
from rankscope.errors import InputError
from rankscope.figures import _theme as theme
from rankscope.figures._axes import AXES, Vertical
from rankscope.figures._heatmap import SCHEME, whole_numbers
from rankscope.figures._layout import WORDS_AS_TITLE, lay_out
from rankscope.figures._panel import NEEDED, Row
from rankscope.figures._validation import (
    exact_text,
    finite_or_none,
    labels_in,
    refuse_duplicates,
    require_values,
    select_metrics,
)
from rankscope.metric_catalogue import Metric
from rankscope.numerals import sentence_case, short

Along = Callable[[str], Any]
"""The encoding of a field along an axis."""
Marks = list[alt.Chart]

_PLACES: Final = ("model", "parameter", "variant", "setting", "layer")
_MOST_LABELS: Final = 10
# Drawn on cells, not on paper, so pages must not exchange them: they are in no ``theme.DARK``.
_LIGHT, _DARK = "#fdfdfd", "#12161c"
_RING: Final = 62.0
# A little over the edge to the next cell, so that no seams show.
_CORNERS: Final = {
    "left": "datum.layer - 0.5",
    "right": "datum.layer + 0.56",
    "low": "datum.at - 0.5",
    "high": "datum.at + 0.56",
}


@checked
def phase_map(
    summary: pl.DataFrame,
    *,
    metric: str,
    boundary: Finite | None = None,
    lowest: Finite | None = None,
    highest: Finite | None = None,
    marks: str = "measured",
    title: str | None = None,
) -> alt.ConcatChart:
    """A metric by layer and setting, shaded, with the line along which it crosses ``boundary``.

    >>> from rankscope import tables
    >>> cells = {"layer": [1, 2, 1, 2], "setting": [1.0, 1.0, 2.0, 2.0], "value": [1, 0.5, 1, 0.1]}
    >>> table = tables.frame({**cells, "metric": ["relative_dispersion"] * 4})
    >>> chart = phase_map(tables.summary(table), metric="relative_dispersion", boundary=0.3)

    ``summary`` has the columns layer and setting; with ``parameter`` and ``model`` each has its
    panel. Medians are shaded, all panels on one scale, whose ends ``lowest`` and ``highest`` cut.
    Rows of the variant ``marks`` are drawn as rings on the cells, filled on the same scale.
    """
    source = "summaries by layer and setting"
    needed = ("layer", "setting", *NEEDED)
    rows = select_metrics(summary, [metric], needed, drawer="phase_map", source=source)
    require_values(rows, ["layer", "setting"])
    refuse_duplicates(rows, _PLACES, drawer="phase_map")
    entry = metric_catalogue.metric(metric)
    scale = _scale(entry, rows["median"].to_list(), lowest, highest)
    divided = [name for name in ("model", "parameter") if labels_in(rows, name)]
    parts = rows.partition_by(divided, maintain_order=True) if divided else [rows]
    panels = [_panel(part, entry, scale, boundary, marks) for part in parts]
    figure = lay_out(panels, title=title)
    figure.resolve = alt.Resolve(scale={"color": "shared"})  # one bar of shades for all panels
    return figure


def _scale(
    entry: Metric, medians: Sequence[float | None], lowest: float | None, highest: float | None
) -> Vertical:
    """Where the shades begin and end, and which of them are named."""
    low = -math.inf if lowest is None else lowest
    high = math.inf if highest is None else highest
    if not low < high or (entry.scale == "log" and low <= 0 and lowest is not None):
        raise InputError(
            f"lowest={lowest} and highest={highest} are no ends of a {entry.scale} scale; lowest "
            "must be below highest, and above 0 where shades go by the order of magnitude."
        )
    found = [value for each in medians if (value := finite_or_none(each)) is not None]
    inside = [min(max(value, low), high) for value in found]
    axis = AXES[entry.scale](entry.symbol, inside)
    start = axis.domain[0] if lowest is None else lowest
    end = axis.domain[1] if highest is None else highest
    if not start < end:
        raise InputError(f"the shades go from {start:g} to {end:g}; give lowest and highest both.")
    ends = AXES[entry.scale](entry.symbol, [start, end])
    ticks = tuple(tick for tick in ends.ticks if start <= tick.value <= end)
    return replace(axis, domain=(start, end), ticks=ticks)


def _panel(
    part: pl.DataFrame,
    entry: Metric,
    scale: Vertical,
    boundary: float | None,
    marks: str,
) -> alt.LayerChart:
    own = part.to_dicts()
    settings = sorted({row["setting"] for row in own})
    at = {setting: index for index, setting in enumerate(settings)}
    rings = [_row(row, at[row["setting"]], scale) for row in own if row.get("variant") == marks]
    cells = [_row(row, at[row["setting"]], scale) for row in own if row.get("variant") != marks]
    x, y = _axes(own[0], [row["layer"] for row in own], settings)
    edges = [] if boundary is None else _edges(own, at, marks, boundary)
    return alt.LayerChart(
        layer=[
            *_shaded(cells, x, y, entry, scale),
            *(_line(edges, x, y) if edges else ()),
            *(_rings(rings, x, y, entry, scale, marks) if rings else ()),
        ],
        title=alt.Title(_heading(own[0], entry)),
        width=theme.PANEL[0],
        height=theme.PANEL[1],
    )


def _shaded(cells: Sequence[Row], x: Along, y: Along, entry: Metric, scale: Vertical) -> Marks:
    """The cells; grey if they are there and have no value."""
    base = (
        alt.Chart(alt.InlineData(values=cells))
        .transform_calculate(**_CORNERS)
        .encode(
            x=x("left"), x2="right", y=y("low"), y2="high", tooltip=_tooltip(entry, "median of")
        )
    )
    shaded = base.mark_rect(clip=True, aria=False).encode(color=_colour(entry, scale))
    grey = base.mark_rect(clip=True, aria=False, fill=theme.INK["grid"])
    return [
        shaded.transform_filter("datum.shade !== null"),
        grey.transform_filter("datum.shade === null"),
    ]


def _line(edges: Sequence[Row], x: Along, y: Along) -> Marks:
    """The boundary, light between dark edges, so that it is seen on every shade."""
    line = alt.Chart(alt.InlineData(values=edges)).encode(
        x=x("left"), x2="right", y=y("low"), y2="high"
    )
    return [
        line.mark_rule(color=colour, strokeWidth=width, strokeCap="square", clip=True)
        for colour, width in ((_DARK, 3.5), (_LIGHT, 1.6))
    ]


def _rings(
    rings: Sequence[Row], x: Along, y: Along, entry: Metric, scale: Vertical, marks: str
) -> Marks:
    point = alt.Chart(alt.InlineData(values=rings)).mark_point(
        filled=True, opacity=1, size=_RING, stroke=_LIGHT, strokeWidth=1.8
    )
    shade = alt.Fill("shade:Q", scale=_shades(scale), legend=None)
    return [point.encode(x=x("layer"), y=y("at"), fill=shade, tooltip=_tooltip(entry, marks))]


def _row(row: Row, index: int, scale: Vertical) -> dict[str, Any]:
    """A row as a chart needs it: its place, its shade, and its text."""
    low, high = scale.domain
    value = row["median"]  # which may be infinite, and has a shade then, too
    known = value is not None and not math.isnan(value)
    shade = float(f"{min(max(value, low), high):.4g}") if known else None
    return {
        "layer": row["layer"],
        "setting": row["setting"],
        "at": index,
        "shade": shade,
        "exact": exact_text(row["median"]),
    }


def _edges(
    rows: Sequence[Row], at: Mapping[float, int], marks: str, boundary: float
) -> list[dict[str, float]]:
    """Between every two neighbours on different sides of the boundary, the edge they share."""
    below = {
        (row["layer"], at[row["setting"]]): row["median"] < boundary
        for row in rows
        if row.get("variant") != marks
        and row["median"] is not None
        and not math.isnan(row["median"])
    }
    found = []
    for (layer, index), side in below.items():
        left, right, low, high = layer - 0.5, layer + 0.5, index - 0.5, index + 0.5
        if below.get((layer + 1, index), side) != side:
            found.append({"left": right, "right": right, "low": low, "high": high})
        if below.get((layer, index + 1), side) != side:
            found.append({"left": left, "right": right, "low": high, "high": high})
    return found


def _axes(first: Row, layers: Sequence[int], settings: Sequence[float]) -> tuple[Along, Along]:
    """Encodings of a field along the layers, and along the settings, which are evenly spaced."""
    start, end = min(layers), max(layers)
    every = math.ceil(len(settings) / _MOST_LABELS)
    named = list(range(0, len(settings), every))
    texts = [short(setting) for setting in settings]
    across = alt.Axis(title="layer", values=whole_numbers(layers, most=8), format="d", grid=False)
    upwards = alt.Axis(
        title=_parameter(first),
        values=named,
        labelExpr=f"{texts}[datum.value]",
        grid=False,
        **WORDS_AS_TITLE,
    )
    across_scale = alt.Scale(domain=[start - 0.5, end + 0.5], nice=False, zero=False)
    upwards_scale = alt.Scale(domain=[-0.5, len(settings) - 0.5], nice=False, zero=False)
    return (
        lambda field: alt.X(f"{field}:Q", scale=across_scale, axis=across),
        lambda field: alt.Y(f"{field}:Q", scale=upwards_scale, axis=upwards),
    )


def _colour(entry: Metric, scale: Vertical) -> alt.Color:
    legend = alt.Legend(
        orient="top",
        direction="horizontal",
        title=entry.title,
        titleOrient="left",
        titlePadding=12,
        titleColor=theme.INK["text"],
        titleFontSize=11.5,
        titleFontWeight="normal",
        gradientLength=200,
        gradientThickness=9,
        labelFontSize=theme.LABEL_SIZE,
        format=",~g" if entry.scale == "log" else "",
        values=[tick.value for tick in scale.ticks] or alt.Undefined,
        tickCount=5,
        offset=18,
    )
    return alt.Color("shade:Q", scale=_shades(scale), legend=legend)


def _shades(scale: Vertical) -> alt.Scale:
    return alt.Scale(type=scale.kind, domain=list(scale.domain), scheme=SCHEME, clamp=True)


def _tooltip(entry: Metric, what: str) -> list[alt.Tooltip]:
    title = f"{what} {entry.title[:1].lower()}{entry.title[1:]}"
    return [
        alt.Tooltip("layer:Q", format="d"),
        alt.Tooltip("setting:Q", format=",.4~g"),
        alt.Tooltip("exact:N", title=title),
    ]


def _parameter(row: Row) -> str:
    return (row.get("parameter") or "setting").replace("_", " ")


def _heading(row: Row, entry: Metric) -> str:
    """What a panel varies, and in which design."""
    parameter = sentence_case(_parameter(row)) if row.get("parameter") else entry.title
    return f"{parameter}, {row['model']}" if row.get("model") else parameter
