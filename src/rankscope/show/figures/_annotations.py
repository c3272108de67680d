"""Words inside a panel, where nothing else is: named values, and curves that came to an end."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import altair as alt

from rankscope.show.figures import _theme as theme
from rankscope.show.figures._panel import NOISE_FLOOR, Panel, Row

EQUAL: Final = "tokens exactly equal"
_FONT_SIZE: Final = 10.5
_LETTER: Final = 5.2  # pixels a letter of this size takes, about
_LINE: Final = 17.0  # pixels from a rule to the far side of its name
_NEAR: Final = 4.0  # pixels around a name that are to stay free
_STACKED: Final = 12.0  # pixels from one marker at the bottom to the next above it
_BETWEEN: Final = 8  # places looked at between two points of a curve
_LOOK: Final[Mapping[str, Any]] = {"fontSize": _FONT_SIZE, "color": theme.INK["muted"]}


def draw_named_values(panel: Panel, data: Sequence[Row]) -> list[alt.Chart]:
    """Draw the values of a metric that have a name, as lines across the panel.

    A name is put at an end of its line, above or below, where the curves leave most room.
    """
    low, high = panel.y.domain
    passed = _curve_points(panel, data)
    drawn = []
    for value, name in panel.entry.marks:
        if not low <= value <= high:
            continue
        base = alt.Chart(alt.InlineData(values=[{"at": value}])).encode(y=panel.y.encode("at:Q"))
        right, above = _choose_end(name, value, passed, panel)
        text = base.mark_text(
            text=name,
            align="right" if right else "left",
            baseline="bottom" if above else "top",
            dx=-4 if right else 4,
            dy=-4 if above else 5,
            **_LOOK,
        )
        line = base.mark_rule(color=theme.INK["muted"], strokeWidth=1, opacity=0.7)
        drawn += [line, text.encode(x=alt.value("width" if right else 0))]
    return drawn


def draw_noise_floor(panel: Panel) -> list[alt.Chart]:
    """Draw where float32 ends, if the panel shows it: a faint band across, with its name."""
    if not panel.shows_noise:
        return []
    low, high = NOISE_FLOOR
    middle = math.sqrt(low * high)
    base = alt.Chart(alt.InlineData(values=[{"from": low, "to": high, "middle": middle}]))
    band = base.mark_rect(color=theme.INK["muted"], opacity=0.13)
    name = base.mark_text(
        text="float32 noise floor", align="left", baseline="middle", dx=8, **_LOOK
    )
    return [
        band.encode(y=panel.y.encode("from:Q"), y2="to:Q"),
        name.encode(x=alt.value(0), y=panel.y.encode("middle:Q")),
    ]


def _curve_points(panel: Panel, data: Sequence[Row]) -> list[tuple[float, float]]:
    """Where curves pass, in pixels from the top left: their points, and places between them."""
    curves: dict[Any, list[tuple[float, float]]] = {}
    for row in data:
        place = panel.place(row)
        if place is not None:
            curves.setdefault(row.get("variant"), []).append(place)
    passed = [place for curve in curves.values() for place in curve]
    for curve in curves.values():
        for (x, y), (later, lower) in pairwise(curve):
            steps = [k / _BETWEEN for k in range(1, _BETWEEN)]
            passed += [(x + part * (later - x), y + part * (lower - y)) for part in steps]
    return passed


def _choose_end(
    name: str, value: float, passed: Sequence[tuple[float, float]], panel: Panel
) -> tuple[bool, bool]:
    """Whether a name stands at the right end of its line, and whether above it."""
    width, height = panel.size
    rule = (1 - panel.y.height(value)) * height
    long = _LETTER * len(name) + 2 * _NEAR

    def hidden(end: tuple[bool, bool]) -> int:
        right, above = end
        left_edge = width - long if right else 0.0
        # A curve on the line itself is no neighbour: the name keeps that much away from it.
        top = rule - _LINE - _NEAR if above else rule + 2.0
        bottom = top + _LINE + _NEAR - 2.0
        return sum(left_edge <= x <= left_edge + long and top <= y <= bottom for x, y in passed)

    return min([(right, above) for right in (True, False) for above in (True, False)], key=hidden)


def mark_equal_tokens(panel: Panel, ends: Sequence[Row]) -> list[alt.Chart]:
    """Draw markers at the bottom for curves whose tokens have become exactly equal, named once.

    Markers in one place are stacked.
    """
    if not ends:
        return []
    levels: dict[Any, int] = {}
    rows = []
    for row in ends:
        at = row[panel.x.field]
        level = levels[at] = levels.get(at, -1) + 1
        rows.append({**row, "from_top": panel.size[1] - 8 - _STACKED * level})
    marker = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_point(filled=False, fill=theme.INK["paper"], strokeWidth=1.5, size=theme.POINT_SIZE)
        .encode(
            x=panel.x.encode(),
            y=alt.value({"expr": "datum.from_top"}),
            color=panel.look.colour(),
            shape=panel.look.shape(),
            opacity=panel.look.opacity(1.0),
            tooltip=panel.tooltip(),
        )
    )
    return [marker, *_label_equal_tokens(panel, list(levels))]


def _label_equal_tokens(panel: Panel, places: Sequence[float]) -> list[alt.Chart]:
    """What the markers mean, once, beside one of them where there is room for it."""
    long = (_LETTER * len(EQUAL) + 8 + _NEAR) / panel.size[0]
    markers = {panel.x.across(place): place for place in places}
    ordered = sorted(markers, reverse=True)
    for at, right in [(at, True) for at in ordered] + [(at, False) for at in ordered]:
        start, end = (at, at + long) if right else (at - long, at)
        if start < 0 or end > 1 or any(start < other < end for other in markers):
            continue
        word = alt.Chart(alt.InlineData(values=[{panel.x.field: markers[at]}])).mark_text(
            text=EQUAL,
            align="left" if right else "right",
            baseline="middle",
            dx=8 if right else -8,
            **_LOOK,
        )
        return [word.encode(x=panel.x.encode(), y=alt.value(panel.size[1] - 8))]
    return []
