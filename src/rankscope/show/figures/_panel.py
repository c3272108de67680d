"""One panel of a figure: curves of one metric, over layers or over what was varied."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import altair as alt

from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import AXES, Horizontal, Vertical, power_text, select_positive
from rankscope.show.figures._look import Look
from rankscope.show.figures._validation import exact_text, finite_or_none

Row = Mapping[str, Any]

STATISTICS: Final = ("low", "median", "high")
NEEDED: Final = ("count", *STATISTICS)
_LEFT_OUT: Final = (
    "part",
    "run",
    "metric",
    "mean",
    "heads",
    *STATISTICS,
)  # of a row: no mark needs them
# What centring float32 tokens leaves of them, about, whatever they were.
NOISE_FLOOR: Final = (3e-8, 3e-7)
_NEAR_NOISE: Final = 1e-5
_NOISE_METRIC: Final = "relative_residual"
_BELOW: Final = 0.09  # of an axis, left free for markers at the bottom
_REACH: Final = 50.0  # axis lengths: a line that leaves the panel still leaves it in its place


@dataclass(frozen=True)
class Panel:
    """What the curves of one metric are drawn on.

    Lines are medians. On ``settings`` each place is another network, so the spread is told by bars;
    from layer to layer it is told by bands.
    """

    entry: Metric
    x: Horizontal
    y: Vertical
    look: Look
    size: tuple[int, int] = theme.PANEL
    settings: bool = False

    @property
    def shows_noise(self) -> bool:
        """Whether the axis reaches down to where float32 ends."""
        return self.entry.name == _NOISE_METRIC and self.y.domain[0] <= NOISE_FLOOR[0]

    def place(self, row: Row) -> tuple[float, float] | None:
        """Where the line passes, in pixels from the top left; nothing where it is broken."""
        drawn = row["drawn_median"]
        if drawn is None:
            return None
        width, height = self.size
        return self.x.across(row[self.x.field]) * width, (1 - self.y.height(drawn)) * height

    def tooltip(self) -> list[alt.Tooltip]:
        """Which curve, where, and its values."""
        curve = [alt.Tooltip("variant:N", title="curve")] if self.look.names else []
        title = self.x.axis["title"] if self.settings else "layer"
        place = alt.Tooltip(f"{self.x.field}:Q", title=title, format=",.6~g")
        if self.x.named:
            place = alt.Tooltip("place_name:N", title=title)
        return [*curve, place, *tell_values()]

    def chart_row(self, row: Row) -> dict[str, Any]:
        """A row as a chart needs it: where its values are drawn, and their texts for a tooltip."""
        drawn = {name: value for name, value in row.items() if name not in _LEFT_OUT}
        text = power_text if self.entry.scale == "exponent" else exact_text
        for name in STATISTICS:
            value = finite_or_none(row[name])
            drawn[f"exact_{name}"] = text(row[name])
            drawn[f"drawn_{name}"] = self._clamp(self.y.place(value))
        if row["low"] == -math.inf and finite_or_none(row["high"]) is not None:
            drawn["drawn_low"] = self.y.domain[0]  # a band down to zero has no end
        median = finite_or_none(row["median"])
        drawn["off_scale"] = self.y.place(median) != median
        drawn["all_equal"] = is_zero(row, self.entry)
        return drawn

    def _clamp(self, value: float | None) -> float | None:
        """A value not so far off the axis that renderers lose the line that leads to it."""
        if value is None or self.y.kind != "linear":
            return value
        low, high = self.y.domain
        reach = _REACH * (high - low)
        return min(max(value, low - reach), high + reach)


def tell_values() -> list[alt.Tooltip]:
    """What every tooltip shows of a row of a summary: the median, and the spread."""
    return [
        alt.Tooltip("exact_median:N", title="median"),
        alt.Tooltip("exact_low:N", title="10th percentile"),
        alt.Tooltip("exact_high:N", title="90th percentile"),
        alt.Tooltip("count:Q", title="measurements", format=",d"),
    ]


def is_zero(row: Row, entry: Metric) -> bool:
    """Whether what is drawn is the logarithm of zero: all tokens are exactly equal."""
    return entry.scale == "exponent" and row["median"] == -math.inf


def build_axis(
    entry: Metric,
    rows: Sequence[Row],
    *,
    lowest: float | None = None,
    highest: float | None = None,
) -> Vertical:
    """The axis on which rows of a metric are drawn, cut where it is asked to be."""
    bottom = -math.inf if lowest is None else lowest
    top = math.inf if highest is None else highest
    found = (finite_or_none(row[name]) for row in rows for name in STATISTICS)
    inside = [min(max(value, bottom), top) for value in found if value is not None]
    noise = NOISE_FLOOR[:1] if entry.name == _NOISE_METRIC and _near_noise(inside) else ()
    includes = [value for value in (*entry.includes, *noise) if bottom <= value <= top]
    axis = AXES[entry.scale](entry.symbol, inside, includes=includes)
    low, high = max(axis.domain[0], bottom), min(axis.domain[1], top)
    if low > bottom and any(is_zero(row, entry) for row in rows):
        low = max(low - _BELOW * (high - low), bottom)  # markers need room
    if not low < high:
        raise InputError(
            f"lowest={lowest} and highest={highest} leave nothing of the axis; lowest must be "
            "below highest."
        )
    ticks = tuple(tick for tick in axis.ticks if low <= tick.value <= high)
    cut = lowest is not None or highest is not None
    return replace(axis, domain=(low, high), ticks=ticks, cut=cut)


def _near_noise(values: Sequence[float]) -> bool:
    """Whether to show the noise floor: values come close, and zero would be drawn below it."""
    kept = select_positive(values)
    smallest = min(kept, default=1.0)
    return smallest < _NEAR_NOISE and (len(kept) == len(values) or smallest / 10 <= NOISE_FLOOR[0])
