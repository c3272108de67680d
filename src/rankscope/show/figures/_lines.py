"""``lines``, one of the two drawing functions: panels of medians with their spread."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product, takewhile
from typing import Any, Final, Literal

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import AXES, Horizontal, Vertical, over, select_positive
from rankscope.show.figures._chart import lay_out, view_name
from rankscope.show.figures._rows import STATISTICS, Row, exact_text, finite_or_none, labels_in
from rankscope.show.figures._theme import Look

# How the 10th to the 90th percentile is drawn: as a band from layer to layer, as bars where each
# place is another network, or not at all.
Spread = Literal["band", "bar", "none"]

# What centring float32 tokens leaves of them, about, whatever they were.
NOISE_FLOOR: Final = (3e-8, 3e-7)
_NEAR_NOISE: Final = 1e-5
_NOISE_METRIC: Final = "relative_residual"
_KEPT: Final = ("place_name", "variant", "count", "doubt")  # of a row, beside its place
_BELOW: Final = 0.09  # of an axis, left free for markers at the bottom
_REACH: Final = 50.0  # axis lengths: a line that leaves the panel still leaves it in its place
_MOST_POINTS: Final = 30  # on a curve: more would hide it
_EQUAL: Final = "tokens exactly equal"
_LINE: Final = 17.0  # pixels from a rule to the far side of its name
_NEAR: Final = 4.0  # pixels around a name that are to stay free
_STACKED: Final = 12.0  # pixels from one marker at the bottom to the next above it
_BETWEEN: Final = 8  # places looked at between two points of a curve
_WORDS: Final[Mapping[str, Any]] = {"fontSize": 10.5, "color": theme.INK["muted"]}
_LETTER: Final = 5.2  # pixels a letter of this size takes, about


def lines(
    rows: pl.DataFrame,
    *,
    x: Horizontal | Callable[[Sequence[Row]], Horizontal],
    facet: Sequence[str] = (),
    heading: Callable[[Row, Metric], str] | None = None,
    entry: Metric | None = None,
    look: Look | None = None,
    spread: Spread = "band",
    lowest: float | None = None,
    highest: float | None = None,
    one_scale: bool = False,
    title: str | None = None,
) -> alt.ConcatChart:
    """A curve for each ``variant`` of a summary, in a panel for each combination of ``facet``.

    ``x`` is the axis, or a function that makes one from the rows of a panel. Each panel has its own
    y-axis, unless ``one_scale``; ``lowest`` and ``highest`` cut it. The title of a panel is its
    metric, unless ``heading`` is given; ``entry`` replaces texts of the catalogue.
    """
    look = Look.of(labels_in(rows, "variant")) if look is None else look
    parts = rows.partition_by(list(facet), maintain_order=True) if facet else [rows]
    size = theme.WIDE if len(parts) == 1 else theme.PANEL
    panels = []
    for number, part in enumerate(parts):
        panel_rows = part.to_dicts()
        words = entry or metric_catalogue.metric(panel_rows[0]["metric"])
        scaled = rows.to_dicts() if one_scale else panel_rows
        y = build_axis(words, scaled, lowest=lowest, highest=highest)
        panel = Panel(words, x(panel_rows) if callable(x) else x, y, look, size=size, spread=spread)
        head = words.title if heading is None else heading(panel_rows[0], words)
        panels.append(line_panel(panel, panel_rows, number=number, heading=head))
    return lay_out(panels, title=title, names=look.names)


@dataclass(frozen=True)
class Panel:
    """The axes of one metric's curves and their style: ``joined`` to lines, with ``spread``.

    In tooltips ``curve`` is the title of the curve's name, and ``unit`` follows each value.
    """

    entry: Metric
    x: Horizontal
    y: Vertical
    look: Look
    size: tuple[int, int] = theme.PANEL
    spread: Spread = "band"
    joined: bool = True
    curve: str = "curve"
    unit: str = ""

    def tooltip(self) -> list[alt.Tooltip]:
        """Which curve, where, and its values."""
        curve = [alt.Tooltip("variant:N", title=self.curve)] if self.look.names else []
        title = "layer" if self.x.field == "layer" else self.x.axis["title"]
        position = alt.Tooltip(f"{self.x.field}:Q", title=title, format=",.6~g")
        if self.x.named:
            position = alt.Tooltip("place_name:N", title=title)
        single = [alt.Tooltip("exact_median:N", title="value")]
        return [*curve, position, *(single if self.spread == "none" else tell_values())]

    def chart_row(self, row: Row) -> dict[str, Any]:
        """A row as a chart needs it: where its values are drawn, and their texts for a tooltip."""
        drawn = {name: row[name] for name in (self.x.field, *_KEPT) if name in row}
        low, high = self.y.domain
        reach = _REACH * (high - low) if self.y.kind == "linear" else math.inf
        for name in (name for name in STATISTICS if name in row):
            text = row.get(f"exact_{name}") or exact_text(row[name], self.entry)
            drawn[f"exact_{name}"] = text + self.unit
            # Not so far off the axis that renderers lose the line that leads to it.
            at = self.y.clip(finite_or_none(row[name]))
            drawn[f"drawn_{name}"] = at if at is None else min(max(at, low - reach), high + reach)
        if row.get("low") == -math.inf and finite_or_none(row["high"]) is not None:
            drawn["drawn_low"] = low  # a band down to zero has no end
        median = finite_or_none(row["median"])
        drawn["off_scale"] = self.y.clip(median) != median
        drawn["all_equal"] = _is_zero(row, self.entry)
        return drawn


def tell_values() -> list[alt.Tooltip]:
    """The tooltip of a row of a summary: the median and the spread."""
    return [
        alt.Tooltip("exact_median:N", title="median"),
        alt.Tooltip("exact_low:N", title="10th percentile"),
        alt.Tooltip("exact_high:N", title="90th percentile"),
        alt.Tooltip("count:Q", title="measurements", format=",d"),
    ]


def build_axis(
    entry: Metric, rows: Sequence[Row], *, lowest: float | None = None, highest: float | None = None
) -> Vertical:
    """The y-axis of the rows of a metric, cut at ``lowest`` and ``highest``."""
    bottom = -math.inf if lowest is None else lowest
    top = math.inf if highest is None else highest
    values = [finite_or_none(row[name]) for row in rows for name in STATISTICS if name in row]
    inside = [min(max(value, bottom), top) for value in values if value is not None]
    includes = list(entry.includes)
    if entry.name == _NOISE_METRIC:
        # The noise floor, where values come close to it and zero would be drawn below it.
        positive = select_positive(inside)
        least = min(positive, default=1.0)
        below = len(positive) == len(inside) or least / 10 <= NOISE_FLOOR[0]
        includes += NOISE_FLOOR[:1] if least < _NEAR_NOISE and below else ()
    includes = [value for value in includes if bottom <= value <= top]
    axis = AXES[entry.scale](entry.symbol, inside, includes=includes)
    low, high = max(axis.domain[0], bottom), min(axis.domain[1], top)
    if low > bottom and any(_is_zero(row, entry) for row in rows):
        low = max(low - _BELOW * (high - low), bottom)  # markers need room
    if not low < high:
        raise InputError(
            f"lowest={lowest} and highest={highest} leave nothing of the axis; lowest must be "
            "below highest."
        )
    ticks = tuple(tick for tick in axis.ticks if low <= tick.value <= high)
    cut = lowest is not None or highest is not None
    floor = axis.floor
    if axis.kind == "log" and len(select_positive(inside)) == len(inside):
        # Zeros may have been lifted to the lowest value, where the axis now ends.
        floor = low if any(value is not None and value <= 0 for value in values) else None
    return replace(axis, domain=(low, high), ticks=ticks, cut=cut, floor=floor)


def _is_zero(row: Row, entry: Metric) -> bool:
    """Whether the value is the logarithm of zero: all tokens are exactly equal."""
    return entry.scale == "exponent" and row["median"] == -math.inf


def line_panel(
    panel: Panel, rows: Sequence[Row], *, number: int, heading: str, subtitle: str | None = None
) -> alt.LayerChart:
    """A panel of curves with their spread, reference lines and marks where tokens are equal.

    ``number`` is the index of the panel. A column ``marked`` selects the rows that have a point.
    """
    column = panel.x.field
    drawn_at, points = _thin({row[column] for row in rows}, panel)
    data = [
        {**panel.chart_row(row), "marked": row.get("marked", row[column] in points)}
        for row in sorted(rows, key=lambda row: row[column])
        if row[column] in drawn_at
    ]
    curves: dict[Any, list[dict[str, Any]]] = {}
    for row in data:
        row["dotted"] = bool(row.get("doubt"))
        curves.setdefault(row.get("variant"), []).append(row)
    for before, row in (pair for curve in curves.values() for pair in pairwise(curve)):
        before["dotted"] = before["dotted"] or bool(row.get("doubt"))  # from the last that is sure
    doubtful = any(row["dotted"] for row in data)
    equal = [row for row in data if row["all_equal"]]
    if panel.spread == "band":  # from layer to layer, the first after which all are
        ends = ([*takewhile(lambda row: row["all_equal"], c[::-1])] for c in curves.values())
        equal = [row for end in ends for row in end[-1:]]
    marks = line_marks(
        panel.x.encode(),
        panel.y.encode,
        panel.look,
        panel.tooltip(),
        spread=panel.spread,
        joined=panel.joined,
        room=panel.size[0] / len(drawn_at),
        clip=panel.y.cut,
        hollow=panel.y.floor is not None,
        doubtful=doubtful,
    )
    # A legend listens to a selection only if the first of its layers holds it.
    marks[0] = marks[0].properties(name=view_name(number))
    about = panel.entry.meaning if subtitle is None else subtitle
    said = "; ".join(filter(None, [about, "dotted where in doubt" * doubtful]))
    return alt.LayerChart(
        data=alt.InlineData(values=tuple(data)),  # see ``over``
        layer=[
            *_draw_noise_floor(panel),
            *_draw_named_values(panel, list(curves.values())),
            *panel.y.tick_labels(),
            *marks,
            *_mark_equal_tokens(panel, equal),
        ],
        title=alt.Title(heading, subtitle=said or " "),
        width=panel.size[0],
        height=panel.size[1],
    )


def _thin(places: set[float], panel: Panel) -> tuple[set[float], set[float]]:
    """The positions drawn and those that have points; all of them, unless there are many.

    Positions are at least a pixel apart, and the last is kept. Points are evenly spaced.
    """
    if panel.spread != "band":
        return places, places
    pixels = {round(panel.size[0] * panel.x.across(at)): at for at in sorted(places)}
    drawn_at = sorted(pixels.values())
    if panel.x.kind == "log" and len(drawn_at) > _MOST_POINTS // 2:
        return set(drawn_at), {at for at in drawn_at if math.log2(at).is_integer()} | {drawn_at[-1]}
    return set(drawn_at), set(drawn_at[:: math.ceil(len(drawn_at) / _MOST_POINTS)])


def line_marks(
    x: alt.X,
    y: Callable[[str], alt.Y],
    look: Look,
    tooltip: Sequence[alt.Tooltip],
    *,
    spread: Spread = "band",
    joined: bool = True,
    room: float = math.inf,
    clip: bool = False,
    hollow: bool = False,
    doubtful: bool = False,
    marked: str = "datum.marked",
) -> list[alt.Chart]:
    """The marks of curves: bands or bars, lines, points, and the targets that carry the tooltip.

    They draw the fields ``drawn_median``, ``drawn_low`` and ``drawn_high``, and points where the
    expression ``marked`` is true: ``hollow`` ones where a row is ``off_scale``. Lines are dotted
    where ``doubtful``. Points are no wider than ``room``, the distance of positions.
    """
    bars, full = spread == "bar", look.opacity(1.0)
    size = min(1.5 * theme.POINT_SIZE, (0.7 * room) ** 2) if bars else theme.POINT_SIZE
    base = alt.Chart().encode(x=x, y=y("drawn_median:Q"), color=look.colour())
    marks = []
    if spread != "none":
        area = base.mark_area(clip=clip)
        bar = base.mark_rule(strokeWidth=min(5, 0.6 * room), strokeCap="round", clip=clip)
        opacity = look.opacity(0.3 if bars else theme.BAND_OPACITY)
        ends = {"y": y("drawn_low:Q"), "y2": "drawn_high:Q"}
        marks.append((bar if bars else area).encode(**ends, opacity=opacity))
    if joined:
        line = base.mark_line(clip=clip).encode(opacity=full, strokeDash=look.dash())
        dots = base.mark_line(clip=clip, strokeDash=theme.DOTS, strokeCap="round")
        dots = dots.encode(opacity=full).transform_filter("datum.dotted")
        marks += [line.transform_filter("!datum.doubt"), dots] if doubtful else [line]
    point = base.mark_point(filled=True, size=size, clip=clip)
    point = point.encode(shape=look.shape(), opacity=full).transform_filter(marked)
    # A legend takes its symbols from the first of its layers; a line would break their edges.
    marks = [point, *marks] if spread == "none" else [*marks, point]
    if hollow:
        ring = base.mark_point(filled=False, fill=theme.INK["paper"], strokeWidth=1.5, size=size)
        ring = ring.encode(shape=look.shape(), opacity=full)
        marks.append(ring.transform_filter(f"datum.off_scale && {marked}"))
    target = base.mark_point(filled=True, size=theme.TARGET_SIZE, opacity=0, clip=clip)
    target = target.encode(tooltip=list(tooltip))
    return [*marks, target.transform_filter(marked) if spread != "none" else target]


def _draw_named_values(panel: Panel, curves: Sequence[Sequence[Row]]) -> list[alt.Chart]:
    """Reference values of a metric as lines across the panel.

    A label is at an end of its line, above or below, where curves leave the most space.
    """
    (low, high), (width, height) = panel.y.domain, panel.size
    passed: list[tuple[float, float]] = []  # in pixels from the top left
    for curve in curves:
        places = [
            (panel.x.across(row[panel.x.field]) * width, (1 - panel.y.height(drawn)) * height)
            for row in curve
            if (drawn := row["drawn_median"]) is not None
        ]
        passed += places
        for (x, y), (later, lower) in pairwise(places):
            steps = [k / _BETWEEN for k in range(1, _BETWEEN)]
            passed += [(x + part * (later - x), y + part * (lower - y)) for part in steps]
    layer = []
    for value, name in panel.entry.marks:
        if not low <= value <= high:
            continue
        rule, long = (1 - panel.y.height(value)) * height, _LETTER * len(name) + 2 * _NEAR
        hidden = {}
        for right, above in product((True, False), repeat=2):
            left = width - long if right else 0.0
            # A curve on the line itself is no neighbour: the name keeps that much away from it.
            top = rule - _LINE - _NEAR if above else rule + 2.0
            bottom = top + _LINE + _NEAR - 2.0
            inside = (left <= x <= left + long and top <= y <= bottom for x, y in passed)
            hidden[right, above] = sum(inside)
        right, above = min(hidden, key=lambda end: hidden[end])
        base = over([{"at": value}]).encode(y=panel.y.encode("at:Q"))
        text = base.mark_text(
            text=name,
            align="right" if right else "left",
            baseline="bottom" if above else "top",
            dx=-4 if right else 4,
            dy=-4 if above else 5,
            **_WORDS,
        )
        line = base.mark_rule(color=theme.INK["muted"], strokeWidth=1, opacity=0.7)
        layer += [line, text.encode(x=alt.value("width" if right else 0))]
    return layer


def _draw_noise_floor(panel: Panel) -> list[alt.Chart]:
    """The noise floor of float32 as a faint labelled band, if the axis reaches it."""
    low, high = NOISE_FLOOR
    if panel.entry.name != _NOISE_METRIC or panel.y.domain[0] > low:
        return []
    base = over([{"from": low, "to": high, "middle": math.sqrt(low * high)}])
    band = base.mark_rect(color=theme.INK["muted"], opacity=0.13)
    name = base.mark_text(
        text="float32 noise floor", align="left", baseline="middle", dx=8, **_WORDS
    )
    return [
        band.encode(y=panel.y.encode("from:Q"), y2="to:Q"),
        name.encode(x=alt.value(0), y=panel.y.encode("middle:Q")),
    ]


def _mark_equal_tokens(panel: Panel, ends: Sequence[Row]) -> list[alt.Chart]:
    """Markers at the bottom for curves whose tokens have become exactly equal, named once.

    Markers in one place are stacked. The name stands beside one of them where there is room.
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
        over(rows)
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
    long = (_LETTER * len(_EQUAL) + 8 + _NEAR) / panel.size[0]
    markers = {panel.x.across(level): level for level in levels}
    for right, at in product((True, False), sorted(markers, reverse=True)):
        start, end = (at, at + long) if right else (at - long, at)
        if start < 0 or end > 1 or any(start < other < end for other in markers):
            continue
        side: dict[str, Any] = {"align": "left" if right else "right", "dx": 8 if right else -8}
        word = over([{panel.x.field: markers[at]}]).mark_text(
            text=_EQUAL, baseline="middle", **side, **_WORDS
        )
        return [marker, word.encode(x=panel.x.encode(), y=alt.value(panel.size[1] - 8))]
    return [marker]
