"""Curves drawn in panels, and the panels put together: for figures that draw summaries."""

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

import altair as alt

from rankscope.show.figures import _theme as theme
from rankscope.show.figures._annotations import (
    draw_named_values,
    draw_noise_floor,
    mark_equal_tokens,
)
from rankscope.show.figures._layout import view_name
from rankscope.show.figures._look import Look
from rankscope.show.figures._panel import Panel, Row

_MOST_POINTS: Final = 30  # on a curve: more would hide it
DOTTED: Final = "dotted where in doubt"


def draw_panel(panel: Panel, rows: Sequence[Row], *, number: int, heading: str) -> alt.LayerChart:
    """The curves with their spread, in a panel that names values and says where tokens are equal.

    ``number`` is which panel of its figure it is.
    """
    place = panel.x.field
    kept = _keep_visible({row[place] for row in rows}, panel)
    marked = _choose_points(kept, panel)
    data = [
        {**panel.chart_row(row), "marked": row[place] in marked}
        for row in sorted(rows, key=lambda row: row[place])
        if row[place] in kept
    ]
    doubtful = _mark_doubts(data)
    marks = _marks(panel, doubtful=doubtful)
    # A legend listens to a selection only if the first of its layers holds it.
    marks[0] = marks[0].properties(name=view_name(number))
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=[
            *draw_noise_floor(panel),
            *draw_named_values(panel, data),
            *panel.y.tick_labels(),
            *marks,
            *mark_equal_tokens(panel, _find_ends(panel, data)),
        ],
        title=alt.Title(heading, subtitle=_subtitle(panel.entry.meaning, doubtful=doubtful)),
        width=panel.size[0],
        height=panel.size[1],
    )


def _subtitle(meaning: str, *, doubtful: bool) -> str:
    """What the metric says, and what dots say if there are any."""
    said = [meaning] if meaning else []
    return "; ".join([*said, DOTTED] if doubtful else said) or " "


def _mark_doubts(data: Sequence[dict[str, Any]]) -> bool:
    """Say of each row whether a dotted line passes it, and whether there is any such row.

    A line is dotted from its last point that is sure.
    """
    before: dict[Any, dict[str, Any]] = {}
    for row in data:
        row["dotted"] = bool(row.get("doubt"))
        last = before.get(row.get("variant"))
        if row["dotted"] and last is not None:
            last["dotted"] = True
        before[row.get("variant")] = row
    return any(row["dotted"] for row in data)


def line_marks(
    base: alt.Chart,
    look: Look,
    tooltip: Sequence[alt.Tooltip],
    *,
    size: float = theme.POINT_SIZE,
    clip: bool = False,
) -> list[alt.Chart]:
    """Line, points, and to put on top of them the invisible targets that carry the tooltip."""
    full = look.opacity(1.0)
    line = base.mark_line(clip=clip).encode(opacity=full, strokeDash=look.dash())
    point = base.mark_point(filled=True, size=size, clip=clip).encode(
        shape=look.shape(), opacity=full
    )
    target = base.mark_point(filled=True, size=theme.TARGET_SIZE, opacity=0, clip=clip)
    return [line, point.transform_filter("datum.marked"), target.encode(tooltip=tooltip)]


def _marks(panel: Panel, *, doubtful: bool) -> list[alt.Chart]:
    """Bands or bars, and on them the curves, dotted where they are in doubt."""
    look, y = panel.look, panel.y
    base = alt.Chart().encode(x=panel.x.encode(), color=look.colour(), y=y.encode("drawn_median:Q"))
    if panel.settings:
        size, opacity = 1.5 * theme.POINT_SIZE, 0.3
        spread = base.mark_rule(strokeWidth=5, strokeCap="round", clip=y.cut)
    else:
        size, opacity = theme.POINT_SIZE, theme.BAND_OPACITY
        spread = base.mark_area(clip=y.cut)
    spread = spread.encode(
        y=y.encode("drawn_low:Q"), y2="drawn_high:Q", opacity=look.opacity(opacity)
    )
    line, point, target = line_marks(base, look, panel.tooltip(), size=size, clip=y.cut)
    marks = [spread, line, point]
    if doubtful:
        dots = base.mark_line(clip=y.cut, strokeDash=theme.DOTS, strokeCap="round")
        dots = dots.encode(opacity=look.opacity(1.0)).transform_filter("datum.dotted")
        marks = [spread, line.transform_filter("!datum.doubt"), dots, point]
    if y.floor is not None:
        hollow = base.mark_point(filled=False, fill=theme.INK["paper"], strokeWidth=1.5, size=size)
        hollow = hollow.encode(shape=look.shape(), opacity=look.opacity(1.0))
        marks.append(hollow.transform_filter("datum.off_scale && datum.marked"))
    return [*marks, target.transform_filter("datum.marked")]


def _find_ends(panel: Panel, data: Sequence[Row]) -> list[Row]:
    """Rows whose tokens are exactly equal; from layer to layer the first after which all are."""
    if panel.settings:
        return [row for row in data if row["all_equal"]]
    curves: dict[Any, list[Row]] = {}
    for row in data:
        curves.setdefault(row.get("variant"), []).append(row)
    runs = ([*takewhile(lambda row: row["all_equal"], curve[::-1])] for curve in curves.values())
    return [end for run in runs for end in run[-1:]]


def _keep_visible(places: set[float], panel: Panel) -> set[float]:
    """The places that are at least a pixel apart, and the last: others would only cost room."""
    if panel.settings:
        return places
    return set({round(panel.size[0] * panel.x.across(at)): at for at in sorted(places)}.values())


def _choose_points(places: set[float], panel: Panel) -> set[float]:
    """The places that have points: all if they are few, otherwise evenly spaced ones."""
    if panel.settings:
        return places
    if panel.x.kind == "log" and len(places) > _MOST_POINTS // 2:
        return {at for at in places if math.log2(at).is_integer()} | {max(places)}
    return set(sorted(places)[:: math.ceil(len(places) / _MOST_POINTS)])
