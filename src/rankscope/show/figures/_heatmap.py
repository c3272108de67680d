"""``heatmap``, one of the two drawing functions: cells coloured by value, and a colour bar.

Cells are evenly spaced at integers, whatever their labels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric, Scale
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import (
    AXES,
    Tick,
    Vertical,
    linear_axis,
    multiples,
    named_ticks,
    over,
    round_step,
    whole_numbers,
    write_ticks,
)
from rankscope.show.figures._chart import lay_out
from rankscope.show.figures._rows import exact_text, finite_or_none

# Even steps look even, also to the colour-blind. No colour of it is in ``theme.DARK``: a page can
# exchange single colours, not those between them, so these must do on light and on dark paper.
SCHEME: Final = alt.SchemeParams(name="viridis", extent=[0.03, 0.96])
# Drawn on cells, not on paper, so pages must not exchange them either.
LIGHT, DARK = "#fdfdfd", "#12161c"
_BAR_WIDTH: Final = 220.0
_BAR_HEIGHT: Final = 9.0
_BAR_STEPS: Final = 110
_BELOW: Final = 58.0  # from the plot down to the bar, past the axis
_GAP_FROM: Final = 9.0  # pixels a cell must have for a gap between it and the next
_OVER: Final = 0.6  # pixels by which smaller cells overlap, so that no seams show
_RING: Final = 62.0
_MOST_PLACES: Final = 1_000_000


@dataclass(frozen=True)
class Shades:
    """A colour scale with the domain, ticks and floor of an axis."""

    axis: Vertical

    def encode(self, field: str, channel: Any = alt.Color, **more: Any) -> Any:
        """The colour encoding of a field."""
        scale = alt.Scale(
            type=self.axis.kind, domain=list(self.axis.domain), scheme=SCHEME, clamp=True
        )
        return channel(field, scale=scale, legend=None, **more)

    def of(self, value: float | None) -> float | None:
        """The value clipped to the scale; None if it is unknown."""
        low, high = self.axis.domain
        if value is None or math.isnan(value):
            return None
        placed = self.axis.clip(value) if math.isfinite(value) else value
        return float(f"{min(max(placed or 0.0, low), high):.4g}")

    def bar(self, title: str, *, height: float, below: float = _BELOW) -> list[alt.Chart]:
        """The colour bar with tick labels, below a plot of this height.

        Drawn as marks, because a legend cannot show superscripts: see ``Vertical.tick_labels``.
        """
        top, log = height + below, self.axis.kind == "log"
        low, high = (math.log10(end) if log else end for end in self.axis.domain)
        steps = []
        for k in range(_BAR_STEPS):
            value = low + (k + 0.5) / _BAR_STEPS * (high - low)
            steps.append({"at": _BAR_WIDTH * k / _BAR_STEPS, "shade": 10**value if log else value})
        # A little wider than their distance, so that no seams show.
        shades = over(steps).mark_rect(
            width=_BAR_WIDTH / _BAR_STEPS + 0.4, height=_BAR_HEIGHT, align="left", baseline="top"
        )
        name = over([{}]).mark_text(
            text=title, align="left", baseline="middle", fontSize=11.5, color=theme.INK["muted"]
        )
        at: Any = alt.value({"expr": "datum.at"})  # in pixels: it has no part in the plot's axes
        return [
            shades.encode(x=at, y=alt.value(top), color=self.encode("shade:Q")),
            name.encode(x=alt.value(_BAR_WIDTH + 14), y=alt.value(top + _BAR_HEIGHT / 2)),
            *self._names(at, alt.value(top + _BAR_HEIGHT + 10)),
        ]

    def _names(self, x: Any, y: Any) -> list[alt.Chart]:
        """The tick labels that fit, from the highest down; zero is always shown."""
        zero = [tick for tick in self.axis.ticks if tick.text == "0"]
        others = [tick for tick in self.axis.ticks if tick.text != "0"]
        room = 20 + 5.5 * max((len(tick.exponent) for tick in others), default=0)
        every = max(1, math.ceil(room * (len(others) + len(zero)) / _BAR_WIDTH))
        plain: list[dict[str, Any]] = []
        powers: list[dict[str, Any]] = []
        for tick in (*zero, *reversed(others[::-every])):
            at = _BAR_WIDTH * self.axis.height(tick.value)
            row = {"at": at, "text": tick.text, "exponent": tick.exponent}
            (powers if tick.exponent else plain).append(row)
        look: dict[str, Any] = {"align": "center", "baseline": "middle"}
        base = over(plain).mark_text(color=theme.INK["text"], fontSize=theme.LABEL_SIZE, **look)
        names = [base.encode(x=x, y=y, text="text:N")] if plain else []
        return names + (write_ticks(powers, x, y, 3.0) if powers else [])


def shades_of(
    scale: Scale,
    values: Sequence[float | None],
    *,
    lowest: float | None = None,
    highest: float | None = None,
) -> Shades:
    """The colour scale of a metric; ``lowest`` and ``highest`` cut it.

    On a logarithmic scale values that are not positive have the first colour. A linear scale begins
    at 0, or at the minimum if that is less. If all values are large and close together, it begins
    at the minimum, but spans enough that rounding errors stay invisible.
    """
    bottom = -math.inf if lowest is None else lowest
    top = math.inf if highest is None else highest
    if not bottom < top or (scale == "log" and bottom <= 0 and lowest is not None):
        raise InputError(
            f"lowest={lowest} and highest={highest} are not valid on a {scale} scale; lowest must "
            "be below highest, and above 0 on a logarithmic scale."
        )
    finite = [value for measured in values if (value := finite_or_none(measured)) is not None]
    inside = [min(max(value, bottom), top) for value in finite]
    if scale == "linear":
        low, high = min([0.0, *inside]), max([0.0, *inside])
        high = high if high > low else 1.0
        least = min(inside, default=0.0)
        axis = _even(min(least, 0.9 * high) if low == 0.0 and least > high / 2 else low, high)
    else:
        axis = AXES[scale]("", inside)
    if lowest is None and highest is None:
        return Shades(axis)
    start = axis.domain[0] if lowest is None else lowest
    end = axis.domain[1] if highest is None else highest
    if not start < end:
        raise InputError(f"the shades go from {start:g} to {end:g}; give lowest and highest both.")
    ends = _even(start, end) if scale == "linear" else AXES[scale]("", [start, end])
    ticks = tuple(tick for tick in ends.ticks if start <= tick.value <= end)
    return Shades(replace(axis, domain=(start, end), ticks=ticks))


def _even(low: float, high: float) -> Vertical:
    """A linear scale between two ends, with round ticks."""
    step = round_step((high - low) / 4)
    ticks = tuple(Tick(k * step, f"{k * step:.6g}") for k in multiples(step, low, high))
    return replace(linear_axis("", [low, high]), domain=(low, high), ticks=ticks)


@dataclass(frozen=True)
class MapSide:
    """One side of a map: its values with their texts, and which of them have ticks.

    The first value is left, or at the bottom unless the side goes ``down``. ``labels`` replace the
    texts on the axis; ``look`` are further options of the axis.
    """

    name: str
    values: Sequence[Any]
    texts: Sequence[str]
    named: Sequence[int]
    title: str | None = ""
    down: bool = False
    labels: Sequence[str] = ()
    look: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_numbers(cls, name: str, numbers: Sequence[int], *, most: int, **more: Any) -> "MapSide":
        """Integers with at most about ``most`` round ticks."""
        if len(numbers) > _MOST_PLACES:
            raise InputError(f"{name} takes {len(numbers):,} values; a map has {_MOST_PLACES:,}.")
        round_ones = set(whole_numbers(numbers, most=most))
        named = [at for at, number in enumerate(numbers) if number in round_ones] or [0]
        return cls(name, numbers, [str(number) for number in numbers], named, **more)

    @classmethod
    def of_words(
        cls, name: str, values: Sequence[Any], texts: Sequence[str], *, most: int, **more: Any
    ) -> "MapSide":
        """Values of any kind, with a tick at every n-th of them."""
        every = math.ceil(len(values) / most)
        return cls(name, values, texts, range(0, len(values), every), **more)

    @cached_property
    def index(self) -> dict[Any, int]:
        """The index of a value."""
        return {value: number for number, value in enumerate(self.values)}

    def encode(self, channel: Any, field: str) -> Any:
        """The encoding of a number along this side."""
        axis = alt.Axis(
            title=self.name if self.title == "" else self.title,
            values=list(self.named),
            labelExpr=named_ticks(self.labels or self.texts),
            grid=False,
            labelFlush=False,
            labelOverlap=False,
            **self.look,
        )
        ends = [-0.5, len(self.values) - 0.5]
        scale = alt.Scale(domain=ends, nice=False, zero=False, reverse=self.down)
        return channel(f"{field}:Q", scale=scale, axis=axis)


@dataclass(frozen=True)
class Cells:
    """The cells of one panel: columns ``x`` and ``y`` with values of its sides, and ``value``.

    ``rings`` are drawn on top, with the same colour scale.
    """

    rows: pl.DataFrame
    x: MapSide
    y: MapSide
    title: alt.Title
    rings: pl.DataFrame | None = None

    def data(self, rows: pl.DataFrame, shades: Shades, entry: Metric) -> list[dict[str, Any]]:
        """Rows as a chart needs them: their position, their shade, and texts for a tooltip."""
        data = []
        for row in rows.iter_rows(named=True):
            across, up, value = self.x.index[row["x"]], self.y.index[row["y"]], row.pop("value")
            at = {"across": across, "up": up, "x": self.x.texts[across], "y": self.y.texts[up]}
            shade = {"shade": shades.of(value), "exact": exact_text(value, entry)}
            data.append({**row, **at, **shade})
        return data


def heatmap(
    panels: Sequence[Cells],
    shades: Shades,
    entry: Metric,
    *,
    bar: str,
    title: str | None,
    fixed: Mapping[str, Any] | None = None,
    **look: Any,
) -> alt.ConcatChart:
    """Panels of cells with one colour scale; ``bar`` is the title of the colour bar at the end.

    ``look`` are options of ``heat_panel``, ``fixed`` is that of ``lay_out``.
    """
    bars = [*[""] * (len(panels) - 1), bar]
    charts = [
        heat_panel(cells, shades, entry, bar=bar, **look)
        for cells, bar in zip(panels, bars, strict=True)
    ]
    return lay_out(charts, title=title, fixed=fixed)


def heat_panel(
    cells: Cells,
    shades: Shades,
    entry: Metric,
    *,
    size: tuple[float, float],
    value_title: str = "median",
    tooltip: Sequence[alt.Tooltip] = (),
    rings_title: str = "",
    bar: str = "",
    below: float = _BELOW,
    gaps: bool = True,
    boundary: float | None = None,
) -> alt.LayerChart:
    """A panel of cells; a cell without a value is grey.

    A tooltip shows the value as ``value_title``, unless ``tooltip`` replaces it. With ``gaps``,
    large cells are separated; a line separates cells on different sides of ``boundary``. ``bar`` is
    the title of the colour bar, ``below`` pixels under the panel, if there is one.
    """
    x, y = cells.x, cells.y
    where = [alt.Tooltip("x:N", title=x.name), alt.Tooltip("y:N", title=y.name)]
    left, low = x.encode(alt.X, "left"), y.encode(alt.Y, "low")
    mark = cell_mark(
        left,
        low,
        shades,
        [*where, *(tooltip or [alt.Tooltip("exact:N", title=value_title)])],
        data=cells.data(cells.rows, shades, entry),
        pixels=(size[0] / len(x.values), size[1] / len(y.values)),
        gaps=gaps,
    )
    layer = [mark]
    edges = [] if boundary is None else _edges(cells, boundary)
    # Light between dark edges, so that it is seen on every shade.
    for colour, width in ((DARK, 3.5), (LIGHT, 1.6)) if edges else ():
        line = over(edges).mark_rule(color=colour, strokeWidth=width, strokeCap="square", clip=True)
        layer.append(line.encode(x=left, x2="right", y=low, y2="high"))
    if cells.rings is not None and cells.rings.height:
        rings = over(cells.data(cells.rings, shades, entry))
        ring = rings.mark_point(filled=True, opacity=1, size=_RING, stroke=LIGHT, strokeWidth=1.8)
        layer.append(
            ring.encode(
                x=x.encode(alt.X, "across"),
                y=y.encode(alt.Y, "up"),
                fill=shades.encode("shade:Q", alt.Fill),
                tooltip=[*where, alt.Tooltip("exact:N", title=rings_title)],
            )
        )
    if bar:
        layer += shades.bar(bar, height=size[1], below=below)
    return alt.LayerChart(layer=layer, title=cells.title, width=size[0], height=size[1])


def cell_mark(
    x: alt.X,
    y: alt.Y,
    shades: Shades,
    tooltip: Sequence[alt.Tooltip],
    *,
    data: Sequence[Mapping[str, Any]] | None = None,
    pixels: tuple[float, float] = (1.0, 1.0),
    gaps: bool = False,
) -> alt.Chart:
    """The mark of cells at ``across`` and ``up``, from ``left`` to ``right``, ``low`` to ``high``.

    ``shade`` is their colour; cells without one are grey. Large cells (``pixels``) have ``gaps``
    between them; small ones overlap a little.
    """
    apart = gaps and min(pixels) >= _GAP_FROM
    # From the middle of a cell to its edges, in cells.
    before = [0.5 - 0.5 / side if apart else 0.5 for side in pixels]
    after = [0.5 - 0.5 / side if apart else 0.5 + min(_OVER / side, 0.05) for side in pixels]
    base: alt.Chart = alt.Chart() if data is None else over(data)
    base = base.transform_calculate(
        left=f"datum.across - {before[0]:.6g}",
        right=f"datum.across + {after[0]:.6g}",
        low=f"datum.up - {before[1]:.6g}",
        high=f"datum.up + {after[1]:.6g}",
    ).encode(x=x, x2="right", y=y, y2="high", tooltip=list(tooltip))
    grey = {"test": "!isValid(datum.shade)", "value": theme.INK["grid"]}
    # What a screen reader is told is the chart's description, not thousands of cells.
    cells: alt.Chart = base.mark_rect(clip=True, aria=False, invalid=None)
    return cells.encode(color=shades.encode("shade:Q", condition=grey))


def _edges(cells: Cells, boundary: float) -> list[dict[str, float]]:
    """The edges between neighbouring cells on different sides of the boundary.

    Cells without a value have no side.
    """
    below = {
        (cells.x.index[x], cells.y.index[y]): value < boundary
        for x, y, value in cells.rows.select("x", "y", "value").iter_rows()
        if value is not None and not math.isnan(value)
    }
    edges = []
    for (across, at), side in below.items():
        left, right, low, high = across - 0.5, across + 0.5, at - 0.5, at + 0.5
        if below.get((across + 1, at), side) != side:
            edges.append({"left": right, "right": right, "low": low, "high": high})
        if below.get((across, at + 1), side) != side:
            edges.append({"left": left, "right": right, "low": high, "high": high})
    return edges
