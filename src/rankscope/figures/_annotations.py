"""Words inside a panel, where nothing else is: named values, and curves that came to an end."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import altair as alt

from rankscope.figures import _theme as theme
from rankscope.figures._axes import Vertical
from rankscope.figures._curves import tooltip
from rankscope.figures._panel import Look
from rankscope.metric_catalogue import Metric

Row = Mapping[str, Any]
Size = tuple[int, int]

EQUAL: Final = "tokens exactly equal"
_FONT_SIZE: Final = 10.5
_LETTER: Final = 5.2  # pixels a letter of this size takes, about
_LINE: Final = 17.0  # pixels from a rule to the far side of its name
_NEAR: Final = 4.0  # pixels around a name that are to stay free
_STACKED: Final = 12.0  # pixels from one marker at the bottom to the next above it
_BETWEEN: Final = 8  # places looked at between two points of a curve
_LOOK: Final[Mapping[str, Any]] = {"fontSize": _FONT_SIZE, "color": theme.INK["muted"]}


def draw_named_values(
    entry: Metric, vertical: Vertical, data: Sequence[Row], size: Size
) -> list[alt.Chart]:
    """Draw the values of a metric that have a name, as lines across the panel.

    Each row of ``data`` says in ``across``, from 0 to 1, how far right it is. A name is put at an
    end of its line, above or below, where the curves leave most room.
    """
    low, high = vertical.domain
    curves = _curve_points(data, vertical, size)
    drawn = []
    for value, name in entry.marks:
        if not low <= value <= high:
            continue
        base = alt.Chart(alt.InlineData(values=[{"at": value}])).encode(y=vertical.encode("at:Q"))
        right, above = _choose_end(name, (1 - vertical.height(value)) * size[1], curves, size[0])
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


def _curve_points(data: Sequence[Row], vertical: Vertical, size: Size) -> list[tuple[float, float]]:
    """Where curves pass, in pixels from the top left: their points, and places between them."""
    curves: dict[Any, list[tuple[float, float]]] = {}
    for row in data:
        if row["drawn_median"] is not None:
            place = row["across"] * size[0], (1 - vertical.height(row["drawn_median"])) * size[1]
            curves.setdefault(row.get("variant"), []).append(place)
    passed = [place for curve in curves.values() for place in curve]
    for curve in curves.values():
        for (x, y), (later, lower) in pairwise(curve):
            steps = [k / _BETWEEN for k in range(1, _BETWEEN)]
            passed += [(x + part * (later - x), y + part * (lower - y)) for part in steps]
    return passed


def _choose_end(
    name: str, rule: float, passed: Sequence[tuple[float, float]], width: int
) -> tuple[bool, bool]:
    """Whether a name stands at the right end of its line, and whether above it."""
    long = _LETTER * len(name) + 2 * _NEAR

    def hidden(end: tuple[bool, bool]) -> int:
        right, above = end
        left_edge = width - long if right else 0.0
        # A curve on the line itself is no neighbour: the name keeps that much away from it.
        top = rule - _LINE - _NEAR if above else rule + 2.0
        bottom = top + _LINE + _NEAR - 2.0
        return sum(left_edge <= x <= left_edge + long and top <= y <= bottom for x, y in passed)

    return min([(right, above) for right in (True, False) for above in (True, False)], key=hidden)


def mark_equal_tokens(
    ends: Sequence[Row], x: alt.X, place: str, look: Look, size: Size
) -> list[alt.Chart]:
    """Draw markers at the bottom for curves whose tokens have become exactly equal, named once.

    ``place`` is the field of ``x``; rows have an ``across`` as in ``rules``. Markers in one place
    are stacked.
    """
    if not ends:
        return []
    levels: dict[Any, int] = {}
    rows = []
    for row in ends:
        level = levels[row[place]] = levels.get(row[place], -1) + 1
        rows.append({**row, "from_top": size[1] - 8 - _STACKED * level})
    marker = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_point(filled=False, fill=theme.INK["paper"], strokeWidth=1.5, size=theme.POINT_SIZE)
        .encode(
            x=x,
            y=alt.value({"expr": "datum.from_top"}),
            color=look.colour(),
            shape=look.shape(),
            opacity=look.opacity(1.0),
            tooltip=tooltip([alt.Tooltip(f"{place}:Q")], look),
        )
    )
    return [marker, *_label_equal_tokens(rows, x, place, size)]


def _label_equal_tokens(rows: Sequence[Row], x: alt.X, place: str, size: Size) -> list[alt.Chart]:
    """What the markers mean, once, beside one of them where there is room for it."""
    long = (_LETTER * len(EQUAL) + 8 + _NEAR) / size[0]
    markers = {row["across"]: row[place] for row in rows}
    ordered = sorted(markers, reverse=True)
    sides = [(at, True) for at in ordered] + [(at, False) for at in ordered]
    for at, right in sides:
        start, end = (at, at + long) if right else (at - long, at)
        if start < 0 or end > 1 or any(start < other < end for other in markers):
            continue
        word = alt.Chart(alt.InlineData(values=[{place: markers[at]}])).mark_text(
            text=EQUAL,
            align="left" if right else "right",
            baseline="middle",
            dx=8 if right else -8,
            **_LOOK,
        )
        return [word.encode(x=x, y=alt.value(size[1] - 8))]
    return []
