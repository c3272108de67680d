"""One panel of a figure: one metric against the layer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import altair as alt

from rankscope import metric_catalogue
from rankscope.figures import _theme as theme
from rankscope.figures._axes import AXES, Vertical, power_text, select_positive
from rankscope.figures._validation import exact_text, finite_or_none
from rankscope.metric_catalogue import Metric

Row = Mapping[str, Any]

# What centring float32 tokens leaves of them, about, whatever they were.
NOISE_FLOOR: Final = (3e-8, 3e-7)
_NEAR_NOISE: Final = 1e-5
_NOISE_METRIC: Final = "relative_residual"
_CURVES: Final = ("mean", "low", "high")

# The two selections of a figure: the variant under the pointer, and those clicked on in the legend.
HOVERED: Final = "hovered"
PINNED: Final = "pinned"
_IN_FOCUS: Final = {
    "or": [
        {"param": HOVERED, "empty": False},
        {"and": [{"param": HOVERED}, {"param": PINNED}]},
    ]
}


@dataclass(frozen=True)
class Look:
    """What the panels of one figure have in common: the variants and the layers."""

    variants: tuple[str, ...]
    layers: tuple[int, int]

    def colour(self) -> Any:
        """A fixed colour per variant, or one for all if there are no variants."""
        if not self.variants:
            return alt.value(theme.SINGLE_COLOUR)
        return alt.Color("variant:N", scale=theme.fixed_scale(theme.colours(self.variants)))

    def shape(self) -> Any:
        """A fixed shape per variant."""
        if not self.variants:
            return alt.value(theme.SHAPES[0])
        return alt.Shape("variant:N", scale=theme.fixed_scale(theme.shapes(self.variants)))

    def dash(self) -> Any:
        """Solid and dashed lines in turn."""
        if not self.variants:
            return alt.value([1, 0])
        return alt.StrokeDash("variant:N", scale=theme.fixed_scale(theme.dashes(self.variants)))

    def opacity(self, full: float) -> Any:
        """Full for the variants in focus, faint for the others."""
        if not self.variants:
            return alt.value(full)
        return alt.OpacityValue(full * theme.FADED, condition={"test": _IN_FOCUS, "value": full})

    def point_size(self) -> float:
        """Smaller where layers are many."""
        first, last = self.layers
        return theme.POINT_SIZE * min(1.0, theme.MANY_LAYERS / max(1, last - first))

    def layer(self) -> alt.X:
        """The layer, in whole numbers, with the same ends in every panel."""
        first, last = self.layers
        return alt.X(
            "layer:Q",
            axis=alt.Axis(title="layer", format="d", tickMinStep=1, tickCount=8, grid=False),
            scale=alt.Scale(
                domain=[first, max(last, first + 1)], nice=False, zero=False, padding=10
            ),
        )


def panel(
    metric: str, rows: Sequence[Row], look: Look, *, number: int, heading: str | None = None
) -> alt.LayerChart:
    """The metric's mean per layer with points, in its band of 10 to 90 per cent."""
    entry = metric_catalogue.metric(metric)
    vertical = _build_axis(entry, rows)
    marks = _marks(vertical, look)
    # A legend listens to a selection only if the first of its layers holds it.
    marks[0] = marks[0].properties(name=view_name(number))
    noise = _noise_floor(vertical) if _reaches_noise(metric, vertical) else []
    return alt.LayerChart(
        data=alt.InlineData(values=[_chart_row(row, vertical, entry) for row in rows]),
        layer=[*noise, *vertical.tick_labels(), *marks],
        title=alt.Title(heading or entry.title, subtitle=entry.meaning or " "),
        width=theme.PANEL_WIDTH,
        height=theme.PANEL_HEIGHT,
    )


def view_name(number: int) -> str:
    """The name under which a figure's selections find the panel."""
    return f"metric_{number}"


def value_text(value: float | None, entry: Metric) -> str:
    """A value of a metric as a tooltip shows it."""
    return power_text(value) if entry.scale == "exponent" else exact_text(value)


def _build_axis(entry: Metric, rows: Sequence[Row]) -> Vertical:
    found = (finite_or_none(row[name]) for row in rows for name in _CURVES)
    values = [value for value in found if value is not None]
    noise = NOISE_FLOOR[:1] if entry.name == _NOISE_METRIC and _near_noise(values) else ()
    return AXES[entry.scale](entry.symbol, values, includes=(*entry.includes, *noise))


def _near_noise(values: Sequence[float]) -> bool:
    """Whether to show the noise floor: values come close, and zero would be drawn below it."""
    kept = select_positive(values)
    smallest = min(kept, default=1.0)
    return smallest < _NEAR_NOISE and (len(kept) == len(values) or smallest / 10 <= NOISE_FLOOR[0])


def _marks(vertical: Vertical, look: Look) -> list[alt.Chart]:
    """Band, line, points, and on top of them the invisible targets that carry the tooltip."""
    base = alt.Chart().encode(
        x=look.layer(), color=look.colour(), y=vertical.encode("drawn_mean:Q")
    )
    full, shape = look.opacity(1.0), look.shape()
    band = base.mark_area().encode(
        y=vertical.encode("drawn_low:Q"),
        y2="drawn_high:Q",
        opacity=look.opacity(theme.BAND_OPACITY),
    )
    line = base.mark_line().encode(opacity=full, strokeDash=look.dash())
    point = base.mark_point(filled=True, size=look.point_size()).encode(shape=shape, opacity=full)
    marks = [band, line, point]
    if vertical.floor is not None:
        hollow = base.mark_point(
            filled=False, fill=theme.INK["paper"], strokeWidth=1.5, size=look.point_size()
        )
        off_scale = hollow.encode(shape=shape, opacity=full).transform_filter("datum.off_scale")
        marks.append(off_scale)
    target = base.mark_point(filled=True, size=theme.TARGET_SIZE, opacity=0)
    return [*marks, target.encode(tooltip=_tooltip(look))]


def _chart_row(row: Row, vertical: Vertical, entry: Metric) -> dict[str, Any]:
    """A row as the chart needs it: its values, where each is drawn, and its text."""
    drawn = dict(row)
    for name in ("mean", "median", "low", "high"):
        value = row[name]
        drawn[f"exact_{name}"] = value_text(value, entry)
        drawn[name] = finite_or_none(value)  # JSON has no NaN; the line is broken
    for name in _CURVES:
        drawn[f"drawn_{name}"] = vertical.place(drawn[name])
    drawn["off_scale"] = drawn["drawn_mean"] != drawn["mean"]
    return drawn


def _tooltip(look: Look) -> list[alt.Tooltip]:
    variant = [alt.Tooltip("variant:N")] if look.variants else []
    return [
        *variant,
        *exact_values(),
    ]


def exact_values() -> list[alt.Tooltip]:
    """What every tooltip shows of a row of a summary."""
    return [
        alt.Tooltip("layer:Q", format="d"),
        alt.Tooltip("exact_mean:N", title="mean"),
        alt.Tooltip("exact_median:N", title="median"),
        alt.Tooltip("exact_low:N", title="10th percentile"),
        alt.Tooltip("exact_high:N", title="90th percentile"),
        alt.Tooltip("count:Q", title="measurements", format=",d"),
    ]


def _reaches_noise(metric: str, vertical: Vertical) -> bool:
    return metric == _NOISE_METRIC and vertical.domain[0] <= NOISE_FLOOR[0]


def _noise_floor(vertical: Vertical) -> list[alt.Chart]:
    """Where float32 ends, as a faint band across the panel with its name."""
    low, high = NOISE_FLOOR
    middle = math.sqrt(low * high)
    base = alt.Chart(alt.InlineData(values=[{"from": low, "to": high, "middle": middle}]))
    band = base.mark_rect(color=theme.INK["muted"], opacity=0.13).encode(
        y=vertical.encode("from:Q"), y2="to:Q"
    )
    name = base.mark_text(
        text="float32 noise floor",
        align="left",
        baseline="middle",
        dx=8,
        fontSize=10.5,
        color=theme.INK["muted"],
    ).encode(x=alt.value(0), y=vertical.encode("middle:Q"))
    return [band, name]
