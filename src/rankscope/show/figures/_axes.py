"""The domains and ticks of axes."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import altair as alt

from rankscope.metric_catalogue import Scale
from rankscope.numerals import MINUS, exponent_text
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._chart import printable

Kind = Literal["log", "linear"]

_MOST_TICKS = 7
_MARGIN = 0.04  # of an axis, left free at its ends, so that nothing touches the frame
_TINY = 1e-300  # a decade below it a float64 has lost its digits; smaller counts as zero
_FARTHEST = 1.7e308  # an end beyond it would be infinite, which no chart can hold
_AXIS_ROOM = 34.0  # pixels left of a plot for the names of short ticks, as the theme leaves them
_MOST_DOUBLINGS = 12  # on an axis: beyond, only powers of ten are named
_WIDE_SPAN = 8.0  # from the least setting to the largest: then their axis is logarithmic
_MOST_SETTINGS = 12  # that an axis has room to name
_MOST_WORDS = 24
_LETTER = 6.0  # pixels a letter below an axis takes, about


@dataclass(frozen=True)
class Tick:
    """A tick: its value and its label, ``text`` with an optional superscript ``exponent``."""

    value: float
    text: str
    exponent: str = ""


@dataclass(frozen=True)
class Horizontal:
    """An x-axis: its field, its domain and further options of Vega-Lite.

    With ``named``, positions are words side by side; rows hold them as ``place_name``.
    """

    field: str
    kind: Kind
    domain: tuple[float, float]
    axis: Mapping[str, Any]
    padding: int = 10
    named: bool = False

    def encode(self) -> alt.X:
        """The encoding of the field on this axis."""
        # Vega warns where a logarithmic scale is told anything about zero.
        zero = False if self.kind == "linear" else alt.Undefined
        scale = alt.Scale(
            type=self.kind, domain=list(self.domain), nice=False, zero=zero, padding=self.padding
        )
        return alt.X(f"{self.field}:Q", axis=alt.Axis(grid=False, **self.axis), scale=scale)

    def across(self, value: float) -> float:
        """How far right a value is drawn, from 0 to 1."""
        return _part(value, self.domain, self.kind)


def layer_axis(layers: Sequence[int], *, log: bool = False) -> Horizontal:
    """An axis of layers with integer ticks; powers of two or ten if it is logarithmic."""
    first, last = min(layers), max(layers)
    if not log:
        axis = {"title": "layer", "format": "d", "tickMinStep": 1, "tickCount": 8}
        return Horizontal("layer", "linear", (first, max(last, first + 1)), axis)
    twos, tens = ([b**k for k in range(64) if first <= b**k <= last] or [first] for b in (2, 10))
    values = twos if len(twos) <= _MOST_DOUBLINGS else tens
    title = "layer, on a logarithmic axis (layer 0 is left out)"
    axis = {"title": title, "format": ",d", "values": values}
    return Horizontal("layer", "log", (first, max(last, 2 * first)), axis)


def setting_axis(title: str, settings: Sequence[float], *, field: str = "setting") -> Horizontal:
    """An axis of settings in ascending order, with ticks at some of them."""
    first, last = settings[0], settings[-1]
    named: dict[str, Any] = {"values": settings[:: math.ceil(len(settings) / _MOST_SETTINGS)]}
    rounded = [float(f"{setting:.3g}") for setting in settings]
    if len(settings) > _MOST_SETTINGS and rounded != list(settings):
        named = {"tickCount": 6}  # measured, not chosen: round numbers say more
    return Horizontal(
        field,
        "log" if first > 0 and last >= _WIDE_SPAN * first else "linear",
        (first, last) if first < last else (first - 1, first + 1),
        {"title": title, **named, "format": ",.6~g"},
        padding=14,
    )


def word_axis(
    title: str, words: Sequence[str], width: float, *, named: Sequence[int] = ()
) -> Horizontal:
    """An axis of words at 0, 1, 2 …, held as ``place_name``; ticks at those ``named``."""
    every = math.ceil(len(words) / _MOST_WORDS)
    tight = _LETTER * sum(len(word) + 2 for word in words) > width and not named
    axis = {
        "title": title,
        "values": list(named) or list(range(0, len(words), every)),
        "labelExpr": named_ticks(words),
        "labelAngle": -30 if tight else 0,
    }
    return Horizontal("place", "linear", (-0.5, len(words) - 0.5), axis, padding=0, named=True)


def named_ticks(texts: Sequence[str]) -> str:
    """The Vega expression for the labels of integer ticks."""
    # Printable before it is escaped: an escaped NUL ends the renderer, and with it the process.
    return f"{json.dumps(printable(list(texts)))}[datum.value]"


def whole_numbers(values: Sequence[int], *, most: int) -> list[int]:
    """The integer ticks of an axis: the first number, then multiples of 1, 2, 5, 10 …"""
    first, last = min(values), max(values)
    step = max(1, round(round_step((last - first + 1) / most)))
    named = list(range(math.ceil(first / step) * step, last + 1, step))
    return named if named and named[0] - first <= step / 2 else [first, *named]


@dataclass(frozen=True)
class Vertical:
    """A y-axis: its domain, its ticks, and where it shows values outside the scale.

    ``floor`` is set on a logarithmic axis when there are values that are not positive. Without
    ``ticks`` the renderer chooses them, as integers with ``integers``. With ``cut``, curves may
    leave the axis; ``words`` means that its title is not a formula.
    """

    kind: Kind
    title: str
    domain: tuple[float, float]
    ticks: tuple[Tick, ...] = ()
    floor: float | None = None
    cut: bool = False
    integers: bool = False
    words: bool = False

    def encode(self, field: str) -> alt.Y:
        """The encoding that draws a field on this axis."""
        named: dict[str, Any] = {"tickCount": 5}
        if self.ticks:
            # It does not know of the names drawn beside it, so it is given the room they need.
            room = max(_AXIS_ROOM, 12.0 - self._edge())
            values: list[Any] = [tick.value for tick in self.ticks]
            named = {"values": values, "labels": False, "minExtent": room}
        elif self.integers:
            step = max(1.0, round_step((self.domain[1] - self.domain[0]) / 5))
            named = {"values": [k * step for k in multiples(step, *self.domain)], "format": ",d"}
        look = theme.WORDS_AS_TITLE if self.words else {}
        scale = alt.Scale(type=self.kind, domain=list(self.domain), nice=False)
        return alt.Y(field, scale=scale, axis=alt.Axis(title=self.title, **look, **named))

    def tick_labels(self) -> list[alt.Chart]:
        """The labels of the ticks as marks."""
        rows = [{"value": t.value, "text": t.text, "exponent": t.exponent} for t in self.ticks]
        return write_ticks(rows, alt.value(0), self.encode("value:Q"), self._edge()) if rows else []

    def height(self, value: float) -> float:
        """How far up the axis a value is drawn, from 0 to 1."""
        return _part(value, self.domain, self.kind)

    def _edge(self) -> float:
        """Where the raised exponents begin, in pixels left of the plot: "," and "." are narrow."""
        widths = ([2.5 if letter in ",." else 5.0 for letter in t.exponent] for t in self.ticks)
        return -7.0 - max(map(sum, widths))

    def clip(self, value: float | None) -> float | None:
        """The value at which a number is drawn: the floor if the scale cannot show it."""
        if value is None or self.floor is None:
            return value
        return value if value >= _TINY else self.floor


def over(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart with its own rows, without marks and encodings.

    A tuple, because Altair copies lists, with all that is in them, at every step.
    """
    return alt.Chart(alt.InlineData(values=tuple(rows)))


def write_ticks(rows: Sequence[Mapping[str, Any]], x: Any, y: Any, dx: float) -> list[alt.Chart]:
    """Tick labels with superscript exponents, which Vega-Lite axes cannot draw.

    Superscript characters would work in a browser, but most fonts lack them, and saved images show
    boxes or another font. Exponents begin ``dx`` pixels from ``x``.
    """
    base = over(rows).encode(x=x, y=y)
    look: dict[str, Any] = {"color": theme.INK["text"], "baseline": "middle"}
    text = base.mark_text(align="right", fontSize=theme.LABEL_SIZE, dx=dx, **look)
    small = theme.LABEL_SIZE - 2.5
    raised = base.mark_text(align="left", fontSize=small, dx=dx + 0.5, dy=-4.5, **look)
    return [text.encode(text="text:N"), raised.encode(text="exponent:N")]


def linear_axis(title: str, values: Sequence[float], *, includes: Sequence[float] = ()) -> Vertical:
    """A linear axis that contains all values and those in ``includes``."""
    inside = [*values, *includes] or [0.0, 1.0]
    low, high = min(inside), max(inside)
    margin = _MARGIN * (high - low or abs(low) or 1.0)
    integers = max(values, default=0) > 1 and all(float(value).is_integer() for value in values)
    domain = (low if low in includes else low - margin, high + margin)
    return Vertical("linear", title, domain, integers=integers)


def log_axis(title: str, values: Sequence[float], *, includes: Sequence[float] = ()) -> Vertical:
    """A logarithmic axis; values that are not positive are drawn a decade below the others.

    It spans at least a factor of three, so that a constant curve looks constant.
    """
    positive = select_positive(values)
    smallest = min(positive, default=1.0)
    floor = smallest / 10 if len(positive) < len(values) else None
    inside = [*positive, *includes] or [1.0]
    low, high = min(inside), max(inside)
    low = min(low, high / 3, floor or low)
    ticks = _decade_ticks(low, high)
    if floor is not None:
        ticks = [Tick(floor, "0"), *(tick for tick in ticks if tick.value >= 3 * floor)]
    margin = 10 ** (_MARGIN * (math.log10(high) - math.log10(low)))
    domain = (max(low / margin, 1e-307), min(high * margin, 1e307))
    return Vertical("log", title, domain, tuple(ticks), floor)


def exponent_axis(
    title: str, values: Sequence[float], *, includes: Sequence[float] = ()
) -> Vertical:
    """A linear axis for values that are log10, with powers of ten as labels.

    It spans at least one decade, so that a constant curve looks constant.
    """
    inside = [min(max(v, -_FARTHEST), _FARTHEST) for v in (*values, *includes)] or [0.0]
    low, high = min(inside), max(inside)
    low = min(low, high - max(1.0, 1e-9 * abs(high)))  # the second where floats are further apart
    margin = _MARGIN * (high / 2 - low / 2) * 2
    domain = (max(low - margin, -_FARTHEST), min(high + margin, _FARTHEST))
    return Vertical("linear", title, domain, tuple(_power_ticks(*domain)))


# How the axis of a metric is made, by its scale.
AXES: Final[Mapping[Scale, Callable[..., Vertical]]] = {
    "log": log_axis,
    "linear": linear_axis,
    "exponent": exponent_axis,
}


def select_positive(values: Sequence[float]) -> list[float]:
    """The values that a logarithmic axis can show."""
    return [value for value in values if value >= _TINY]


def _part(value: float, domain: tuple[float, float], kind: Kind) -> float:
    """The position of a value on an axis, from 0 to 1."""
    low, high = domain
    if kind == "log":
        low, high, value = math.log(low), math.log(high), math.log(value)
    # Halved, or the ends of the float range would be too far apart.
    return (value / 2 - low / 2) / (high / 2 - low / 2)


def _decade_ticks(low: float, high: float) -> list[Tick]:
    """Powers of ten within the range, thinned; 1, 2 and 5 times them if it is short."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if math.log10(high) - math.log10(low) < 2:
        steps = [float(f"{m}e{e}") for e in range(first, last + 1) for m in (1, 2, 5)]
        return [Tick(step, f"{step:g}") for step in steps if low <= step <= high]
    powers = [e for e in range(last, first - 1, -1) if low <= float(f"1e{e}") <= high]
    thinned = powers[:: math.ceil(len(powers) / _MOST_TICKS)]
    return [Tick(float(f"1e{e}"), "10", f"{e}".replace("-", MINUS)) for e in reversed(thinned)]


def _power_ticks(low: float, high: float) -> list[Tick]:
    """Round exponents within the range; the numbers themselves if it is short and near one."""
    span = high / 2 - low / 2  # halved, or the ends of the float range would be too far apart
    if 2 * span < 2 and low >= -4 and high <= 5:
        near = _decade_ticks(10**low, 10**high)
        return [Tick(math.log10(tick.value), tick.text, tick.exponent) for tick in near]
    step = round_step(span / (_MOST_TICKS + 1) * 2)
    step = max(step, 1.0) if 2 * span >= 2 else step
    while len(numbers := multiples(step, low, high)) > _MOST_TICKS:
        step = round_step(1.5 * step)
    decimals = max(0, -math.floor(math.log10(step)))
    return [Tick(k * step, "10", exponent_text(k * step, decimals=decimals)) for k in numbers]


def multiples(step: float, low: float, high: float) -> range:
    """The integers k for which k times the step lies between two ends."""
    return range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)


def round_step(least: float) -> float:
    """The next of 1, 2, 5, 10 … times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(float(m * power) for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))
