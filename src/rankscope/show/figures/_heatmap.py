"""Cells shaded by a value, and the bar below them that says which shade means what."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import altair as alt

from rankscope.metric_catalogue import Scale
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import (
    Tick,
    Vertical,
    exponent_axis,
    linear_axis,
    log_axis,
    round_step,
    write_ticks,
)

# Even steps look even, also to the colour-blind. No colour of it is in ``theme.DARK``: a page can
# exchange single colours, not those between them, so these must do on light and on dark paper.
SCHEME: Final = alt.SchemeParams(name="viridis", extent=[0.03, 0.96])
_BAR_WIDTH: Final = 220.0
_BAR_HEIGHT: Final = 9.0
_BAR_STEPS: Final = 110
_BELOW: Final = 58.0  # from the plot down to the bar, past the axis
_GAP_FROM: Final = 9.0  # pixels a cell must have for a gap between it and the next


@dataclass(frozen=True)
class Shades:
    """A scale of shades, with its ends, its ticks and its floor as an axis has them."""

    axis: Vertical

    def encode(self, field: str) -> alt.Color:
        """The encoding that shades a field."""
        scale = alt.Scale(
            type=self.axis.kind, domain=list(self.axis.domain), scheme=SCHEME, clamp=True
        )
        return alt.Color(field, scale=scale, legend=None)

    def bar(self, title: str, *, height: float, below: float = _BELOW) -> list[alt.Chart]:
        """The shades from the least to the most with their names, below a plot of this height.

        Drawn, because a legend cannot raise its exponents: see ``Vertical.tick_labels``.
        """
        top = height + below
        steps = [
            {"at": _BAR_WIDTH * k / _BAR_STEPS, "shade": self._value((k + 0.5) / _BAR_STEPS)}
            for k in range(_BAR_STEPS)
        ]
        # A little wider than their distance, so that no seams show.
        shades = alt.Chart(alt.InlineData(values=steps)).mark_rect(
            width=_BAR_WIDTH / _BAR_STEPS + 0.4, height=_BAR_HEIGHT, align="left", baseline="top"
        )
        name = alt.Chart(alt.InlineData(values=[{}])).mark_text(
            text=title, align="left", baseline="middle", fontSize=11.5, color=theme.INK["muted"]
        )
        return [
            shades.encode(x=_at(), y=alt.value(top), color=self.encode("shade:Q")),
            name.encode(x=alt.value(_BAR_WIDTH + 14), y=alt.value(top + _BAR_HEIGHT / 2)),
            *self._names(top + _BAR_HEIGHT + 10),
        ]

    def _names(self, y: float) -> list[alt.Chart]:
        """The names of the ticks, in the middle below their shades."""
        rows = [
            {"at": _BAR_WIDTH * self.axis.height(t.value), "text": t.text, "exponent": t.exponent}
            for t in self._named()
        ]
        powers = [row for row in rows if row["exponent"]]
        plain = [row for row in rows if not row["exponent"]]
        base = alt.Chart(alt.InlineData(values=plain)).mark_text(
            align="center", baseline="middle", fontSize=theme.LABEL_SIZE, color=theme.INK["text"]
        )
        return [
            *([base.encode(x=_at(), y=alt.value(y), text="text:N")] if plain else []),
            *(write_ticks(powers, _at(), alt.value(y), 3.0) if powers else []),
        ]

    def _named(self) -> list[Tick]:
        """The ticks there is room to name, from the highest down; zero in any case."""
        zero = [tick for tick in self.axis.ticks if tick.text == "0"]
        others = [tick for tick in self.axis.ticks if tick.text != "0"]
        room = 20 + 5.5 * max((len(tick.exponent) for tick in others), default=0)
        every = math.ceil(room * (len(others) + len(zero)) / _BAR_WIDTH)
        return [*zero, *reversed(others[::-every])]

    def _value(self, part: float) -> float:
        low, high = self.axis.domain
        if self.axis.kind == "log":
            return float(10 ** (math.log10(low) + part * (math.log10(high) - math.log10(low))))
        return low + part * (high - low)


def log_shades(values: Sequence[float]) -> Shades:
    """Shades by the order of magnitude; what is not positive has the last shade."""
    return Shades(log_axis("", values))


def shades_of(scale: Scale, values: Sequence[float]) -> Shades:
    """The shades of a metric, by its scale."""
    if scale == "exponent":
        return Shades(exponent_axis("", values))
    return log_shades(values) if scale == "log" else linear_shades(values)


def linear_shades(values: Sequence[float]) -> Shades:
    """Shades in proportion, from 0 up, or from the least if that is less.

    Values that are all large and close together start at the least, but not so near to the most
    that rounding would look like something.
    """
    low, high = min([0.0, *values]), max([0.0, *values])
    high = high if high > low else 1.0
    least = min(values, default=0.0)
    if low == 0.0 and least > high / 2:
        low = min(least, 0.9 * high)
    step = round_step((high - low) / 4)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = [k * step for k in range(first, last + 1)]
    axis = replace(linear_axis("", [low, high], includes=[0.0]), domain=(low, high))
    return Shades(replace(axis, ticks=tuple(Tick(value, f"{value:.6g}") for value in ticks)))


def cells(shades: Shades, *, size: float) -> list[alt.Chart]:
    """Cells shaded by ``shade``; grey if they are there and have no value.

    The chart they are put in gives them their place. Small ones overlap a little, or seams show.
    """
    wide = {"band": 1.0 if size >= _GAP_FROM else 1.1}
    # What a screen reader is told is the chart's description, not thousands of cells.
    look: dict[str, Any] = {"width": wide, "height": wide, "aria": False}
    filled = alt.Chart().mark_rect(**look).encode(color=shades.encode("shade:Q"))
    empty = alt.Chart().mark_rect(**look, fill=theme.INK["grid"])
    return [
        empty.transform_filter("datum.shade === null"),
        filled.transform_filter("datum.shade !== null"),
    ]


def band(values: Sequence[Any], *, size: float) -> alt.Scale:
    """Room for cells, with a gap between them if they are large."""
    gap = 1 / size if size >= _GAP_FROM else 0.0
    # A cell that rounding puts a hair before the first pixel would lose its name on the axis.
    return alt.Scale(type="band", domain=list(values), paddingInner=gap, paddingOuter=1e-4)


def whole_numbers(values: Sequence[int], *, most: int) -> list[int]:
    """Which of the numbers an axis names: the first, then multiples of 1, 2, 5, 10 …"""
    first, last = min(values), max(values)
    step = max(1, round(round_step((last - first + 1) / most)))
    named = [value for value in range(first, last + 1) if value % step == 0]
    if not named or named[0] - first > step / 2:
        named = [first, *named]
    return named


def _at() -> Any:
    """Where a row of the bar says, in pixels: the bar has no part in the plot's own axes."""
    return alt.value({"expr": "datum.at"})
