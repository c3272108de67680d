"""Shaded cells on two evenly spaced axes, the line between their two sides, and their legend."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import altair as alt

from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import AXES, Vertical
from rankscope.show.figures._heatmap import SCHEME
from rankscope.show.figures._panel import Row
from rankscope.show.figures._validation import exact_text, finite_or_none

Along = Callable[[str], Any]
"""The encoding of a field along an axis."""
Marks = list[alt.Chart]

# Drawn on cells, not on paper, so pages must not exchange them: they are in no ``theme.DARK``.
LIGHT, DARK = "#fdfdfd", "#12161c"
_OVER: Final = 0.06  # of a cell, over the edge to the next, so that no seams show
_PLAIN: Final = 1e-3  # shades below it are named as powers


@dataclass(frozen=True)
class Cells:
    """What cells are drawn with: their metric and its shades, two axes, the text of a tooltip.

    Rows have ``shade`` and whole numbers for places: ``at`` upwards, and ``across``. Cells reach
    ``over`` their edges by that part of a cell; large ones need less.
    """

    entry: Metric
    scale: Vertical
    x: Along
    y: Along
    tooltip: Sequence[alt.Tooltip]
    across: str = "layer"
    over: float = _OVER

    def shaded(self, rows: Sequence[Row]) -> Marks:
        """The cells; grey if they are there and have no value."""
        base = (
            alt.Chart(alt.InlineData(values=rows))
            .transform_calculate(
                left=f"datum.{self.across} - 0.5",
                right=f"datum.{self.across} + {0.5 + self.over}",
                low="datum.at - 0.5",
                high=f"datum.at + {0.5 + self.over}",
            )
            .encode(x=self.x("left"), x2="right", y=self.y("low"), y2="high", tooltip=self.tooltip)
        )
        shaded = base.mark_rect(clip=True, aria=False).encode(color=self._colour())
        grey = base.mark_rect(clip=True, aria=False, fill=theme.INK["grid"])
        return [
            shaded.transform_filter("datum.shade !== null"),
            grey.transform_filter("datum.shade === null"),
        ]

    def line(self, edges: Sequence[Row]) -> Marks:
        """The boundary, light between dark edges, so that it is seen on every shade."""
        if not edges:
            return []
        line = alt.Chart(alt.InlineData(values=edges)).encode(
            x=self.x("left"), x2="right", y=self.y("low"), y2="high"
        )
        return [
            line.mark_rule(color=colour, strokeWidth=width, strokeCap="square", clip=True)
            for colour, width in ((DARK, 3.5), (LIGHT, 1.6))
        ]

    def shades(self) -> alt.Scale:
        """The scale of the shades."""
        return alt.Scale(
            type=self.scale.kind, domain=list(self.scale.domain), scheme=SCHEME, clamp=True
        )

    def _colour(self) -> alt.Color:
        legend = alt.Legend(
            orient="top",
            direction="horizontal",
            title=self.entry.title,
            titleOrient="left",
            titlePadding=12,
            titleLimit=420,
            titleColor=theme.INK["text"],
            titleFontSize=11.5,
            titleFontWeight="normal",
            gradientLength=280 if self._powers() else 200,
            gradientThickness=9,
            labelFontSize=theme.LABEL_SIZE,
            labelExpr=self._powers() or alt.Undefined,
            format=",~g" if self.entry.scale == "log" else "",
            values=[tick.value for tick in self.scale.ticks] or alt.Undefined,
            tickCount=5,
            offset=18,
        )
        return alt.Color("shade:Q", scale=self.shades(), legend=legend)

    def _powers(self) -> str:
        """The expression that names shades as powers of ten, where they are or are very small."""
        written = "{0} == 0 ? '1' : '10^' + replace(format({0}, ',~r'), '-', '−')"
        if self.entry.scale == "exponent":
            return written.format("datum.value")
        small = self.scale.kind == "log" and any(t.value < _PLAIN for t in self.scale.ticks)
        return written.format("round(log(datum.value) / LN10)") if small else ""


def shade_row(value: float | None, scale: Vertical) -> dict[str, Any]:
    """The shade of a value, and its text."""
    low, high = scale.domain
    known = value is not None and not math.isnan(value)  # it may be infinite, and has a shade then
    shade = float(f"{min(max(value, low), high):.4g}") if known and value is not None else None
    return {"shade": shade, "exact": exact_text(value)}


def shade_scale(
    entry: Metric,
    medians: Sequence[float | None],
    lowest: float | None = None,
    highest: float | None = None,
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


def find_edges(
    values: Mapping[tuple[int, int], float | None], boundary: float
) -> list[dict[str, float]]:
    """Between every two neighbours on different sides of the boundary, the edge they share.

    ``values`` are by their place across and upwards; what is not known has no side.
    """
    below = {
        place: value < boundary
        for place, value in values.items()
        if value is not None and not math.isnan(value)
    }
    found = []
    for (across, at), side in below.items():
        left, right, low, high = across - 0.5, across + 0.5, at - 0.5, at + 0.5
        if below.get((across + 1, at), side) != side:
            found.append({"left": right, "right": right, "low": low, "high": high})
        if below.get((across, at + 1), side) != side:
            found.append({"left": left, "right": right, "low": high, "high": high})
    return found
