"""Where an axis begins and ends, and which values it names."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from rankscope.figures import theme

_MOST_TICKS = 7
_MARGIN = 0.04  # of an axis, left free at its ends, so that nothing touches the frame
_TINY = 1e-300  # a decade below it a float64 has lost its digits; smaller counts as zero


@dataclass(frozen=True)
class Tick:
    """A value an axis names: as ``text``, or as ``text`` with a raised ``exponent``."""

    value: float
    text: str
    exponent: str = ""


@dataclass(frozen=True)
class Vertical:
    """A y axis: its ends, the values it names, and where it shows what has no place on it.

    ``floor`` is set on a logarithmic axis when there are values that are not positive. Without
    ``ticks`` the renderer chooses them.
    """

    kind: Literal["log", "linear"]
    title: str
    domain: tuple[float, float]
    ticks: tuple[Tick, ...] = ()
    floor: float | None = None

    def of(self, field: str) -> alt.Y:
        """The encoding that draws a field on this axis."""
        scale = alt.Scale(type=self.kind, domain=list(self.domain), nice=False)
        if not self.ticks:
            return alt.Y(field, scale=scale, axis=alt.Axis(title=self.title, tickCount=5))
        values: list[Any] = [tick.value for tick in self.ticks]
        return alt.Y(
            field, scale=scale, axis=alt.Axis(title=self.title, values=values, labels=False)
        )

    def names(self) -> list[alt.Chart]:
        """The names of the ticks as marks: raised exponents are in no way an axis can be asked for.

        Superscript characters would do in a browser, but most fonts lack them, and in a picture
        they turn up as boxes or in some other font.
        """
        if not self.ticks:
            return []
        rows = [{"value": t.value, "text": t.text, "exponent": t.exponent} for t in self.ticks]
        longest = max(len(tick.exponent) for tick in self.ticks)
        edge = -7.0 - 5.0 * longest
        base = alt.Chart(alt.InlineData(values=rows)).encode(y=self.of("value:Q"))
        look: dict[str, Any] = {"color": theme.INK["text"], "baseline": "middle"}
        text = base.mark_text(align="right", fontSize=theme.LABEL_SIZE, **look)
        raised = base.mark_text(align="left", fontSize=theme.LABEL_SIZE - 2.5, dy=-4.5, **look)
        return [
            text.encode(x=alt.value(edge), text="text:N"),
            raised.encode(x=alt.value(edge + 0.5), text="exponent:N"),
        ]

    def shown(self, value: float | None) -> float | None:
        """Where a value is drawn: at the floor, if the axis has no other place for it."""
        if value is None or self.floor is None:
            return value
        return value if value >= _TINY else self.floor


def linear(title: str, values: Sequence[float], *, includes: Sequence[float] = ()) -> Vertical:
    """An axis that holds all values, and those it has to include."""
    held = [*values, *includes] or [0.0, 1.0]
    low, high = min(held), max(held)
    span = high - low or abs(low) or 1.0
    return Vertical(
        "linear",
        title,
        (low if low in includes else low - _MARGIN * span, high + _MARGIN * span),
    )


def logarithmic(title: str, values: Sequence[float], *, includes: Sequence[float] = ()) -> Vertical:
    """A logarithmic axis, with what is not positive a decade below the smallest that is.

    It spans a decade at least, so that what stays level looks level.
    """
    shown = positive(values)
    smallest = min(shown, default=1.0)
    floor = smallest / 10 if len(shown) < len(values) else None
    held = [*shown, *includes] or [1.0]
    low, high = min(held), max(held)
    low = min(low, high / 10, floor or low)
    ticks = _ticks(low, high)
    if floor is not None:
        ticks = [Tick(floor, "0"), *(tick for tick in ticks if tick.value >= 3 * floor)]
    margin = 10 ** (_MARGIN * (math.log10(high) - math.log10(low)))
    domain = (max(low / margin, 1e-307), min(high * margin, 1e307))
    return Vertical("log", title, domain, tuple(ticks), floor)


def positive(values: Sequence[float]) -> list[float]:
    """Those a logarithmic axis has a place for."""
    return [value for value in values if value >= _TINY]


def _ticks(low: float, high: float) -> list[Tick]:
    """Powers of ten within the range, thinned; 1, 2 and 5 times them if it is short."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if math.log10(high) - math.log10(low) < 2:
        steps = [float(f"{m}e{e}") for e in range(first, last + 1) for m in (1, 2, 5)]
        return [Tick(step, f"{step:g}") for step in steps if low <= step <= high]
    powers = [e for e in range(last, first - 1, -1) if low <= float(f"1e{e}") <= high]
    thinned = powers[:: math.ceil(len(powers) / _MOST_TICKS)]
    return [Tick(float(f"1e{e}"), "10", f"{e}".replace("-", "−")) for e in reversed(thinned)]
