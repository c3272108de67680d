"""What charts of medians have in common: their curves' looks, their axes, marks and tooltips."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope.errors import InputError
from rankscope.figures import theme
from rankscope.figures.distributions import DASHES
from rankscope.figures.distributions import colours as neighbourly
from rankscope.figures.drawable import exact, measured
from rankscope.figures.metric_words import MetricWords
from rankscope.figures.panel import Look
from rankscope.figures.scales import Vertical, exponents, linear, logarithmic, power_text

Row = Mapping[str, Any]

NEEDED: Final = ("count", "mean", "low", "median", "high")
WIDE: Final = (620, 300)  # a figure's only panel
_STATISTICS: Final = ("median", "low", "high")
# Names with a look of their own wherever they turn up: what is measured is blue and solid.
_BLUE, _ORANGE = theme.VARIANT_COLOURS["transformer"], theme.VARIANT_COLOURS["SAN+MLP"]
_RED, _GREEN = theme.VARIANT_COLOURS["SAN"], theme.VARIANT_COLOURS["SAN+skip"]
_OWN_COLOURS: Final[Mapping[str, str]] = {
    "measured": _BLUE,
    "scaled": _BLUE,
    "bound from the data": _GREEN,
    "a-priori bound": _RED,
    "float64": _ORANGE,
    "float32": _RED,
}
_SOLID, *_BROKEN = DASHES
_BELOW: Final = 0.09  # of an axis, left free for markers at the bottom
_REACH = 50.0  # axis lengths: a line that leaves the panel still leaves it in its place


@dataclass(frozen=True)
class Curves(Look):
    """A look for curves of any name: far apart in hue, bounds in broken lines."""

    def colour(self) -> Any:
        """A fixed colour per curve, or one for all if they have no names."""
        if not self.variants:
            return alt.value(theme.SINGLE_COLOUR)
        return alt.Color("variant:N", scale=_fixed(colours(self.variants)))

    def dash(self) -> Any:
        """Bounds broken and what they bound solid; otherwise four kinds of line in turn."""
        if not self.variants:
            return alt.value(_SOLID)
        return alt.StrokeDash("variant:N", scale=_fixed(dashes(self.variants)))


def colours(names: Sequence[str]) -> dict[str, str]:
    """One colour per curve: that of its name if it has one, otherwise the next of the palette."""
    if any(name in theme.VARIANT_COLOURS for name in names):
        return theme.colours(names)
    own = {name: _OWN_COLOURS[name] for name in names if name in _OWN_COLOURS}
    # Asked for so many that enough are left when those in use are struck out.
    palette = neighbourly([str(k) for k in range(len(names) + len(own))]).values()
    free = iter([colour for colour in palette if colour not in own.values()] or palette)
    return {name: own.get(name) or next(free) for name in names}


def dashes(names: Sequence[str]) -> dict[str, list[int]]:
    """Bounds broken and the rest solid; without bounds in turn, so that none hides another."""
    bounds = [name for name in names if "bound" in name]
    if not bounds:
        return {name: DASHES[k % len(DASHES)] for k, name in enumerate(names)}
    broken = {name: _BROKEN[k % len(_BROKEN)] for k, name in enumerate(bounds)}
    return {name: broken.get(name, _SOLID) for name in names}


def labels(rows: pl.DataFrame, column: str) -> tuple[str, ...]:
    """The labels of a column in order of appearance; none if it is missing or empty."""
    if column not in rows.columns or rows[column].null_count() == rows.height:
        return ()
    if rows[column].null_count():
        raise InputError(f"some rows have no {column}; keep those that have one.")
    return tuple(rows[column].unique(maintain_order=True).to_list())


def no_twins(rows: pl.DataFrame, keys: Sequence[str], *, drawer: str) -> None:
    """Raise if two rows would be drawn in one place."""
    present = [name for name in keys if name in rows.columns]
    twins = rows.filter(rows.select(present).is_duplicated())
    if twins.height:
        place = ", ".join(f"{name} {twins.row(0, named=True)[name]}" for name in present)
        raise InputError(
            f"several rows for {place}; {drawer} draws one: keep one, or name them in the variant "
            "column."
        )


def values_of(rows: Sequence[Row]) -> list[float]:
    """Every number that is to be drawn."""
    return [v for row in rows for name in _STATISTICS if (v := measured(row[name])) is not None]


def gone(row: Row) -> bool:
    """Whether the median is the logarithm of zero: all tokens are exactly equal."""
    return bool(row["median"] == -math.inf)


def vertical_of(
    words: MetricWords,
    values: Sequence[float],
    *,
    lowest: float | None = None,
    highest: float | None = None,
    ending: bool = False,
) -> Vertical:
    """The axis a metric is drawn on, cut where it is asked to be.

    ``ending`` says that some curves end below any number, so that their markers need room.
    """
    bottom = -math.inf if lowest is None else lowest
    top = math.inf if highest is None else highest
    inside = [min(max(value, bottom), top) for value in values]
    build = {"exponent": exponents, "linear": linear, "log": logarithmic}[words.scale]
    axis = build(words.symbol, inside, includes=[v for v in words.includes if bottom <= v <= top])
    low, high = max(axis.domain[0], bottom), min(axis.domain[1], top)
    if ending and low > bottom:
        low = max(low - _BELOW * (high - low), bottom)
    if not low < high:
        raise InputError(
            f"lowest={lowest} and highest={highest} leave nothing of the axis; lowest must be "
            "below highest."
        )
    return replace(
        axis, domain=(low, high), ticks=tuple(t for t in axis.ticks if low <= t.value <= high)
    )


def told(row: Row, vertical: Vertical, words: MetricWords) -> dict[str, Any]:
    """A row as a chart needs it: where its values are drawn, and how a tooltip tells them."""
    drawn = dict(row)
    for name in ("mean", "low", "median", "high"):
        value = row[name]
        drawn[f"exact_{name}"] = power_text(value) if words.scale == "exponent" else exact(value)
        drawn[name] = measured(value)
    for name in _STATISTICS:
        drawn[f"drawn_{name}"] = _within_reach(vertical.shown(drawn[name]), vertical)
    if row["low"] == -math.inf and drawn["high"] is not None:
        drawn["drawn_low"] = vertical.domain[0]  # a band down to zero has no end
    drawn["gone"] = words.scale == "exponent" and gone(row)
    return drawn


def _within_reach(value: float | None, vertical: Vertical) -> float | None:
    """A value not so far off the axis that renderers lose the line that leads to it."""
    if value is None or vertical.kind != "linear":
        return value
    low, high = vertical.domain
    reach = _REACH * (high - low)
    return min(max(value, low - reach), high + reach)


def tooltip(first: Sequence[alt.Tooltip], look: Look) -> list[alt.Tooltip]:
    """Which curve, where, and its values."""
    curve = [alt.Tooltip("variant:N", title="curve")] if look.variants else []
    return [
        *curve,
        *first,
        alt.Tooltip("exact_median:N", title="median"),
        alt.Tooltip("exact_low:N", title="10th percentile"),
        alt.Tooltip("exact_high:N", title="90th percentile"),
        alt.Tooltip("count:Q", title="measurements", format=",d"),
    ]


def legend_fits(figure: alt.ConcatChart, panels: int) -> alt.ConcatChart:
    """The legend broken into lines as wide as a single panel is, if there is but one."""
    if panels == 1:
        entry = figure.usermeta["rankscope"]["legendEntry"]
        figure.config["legend"]["columns"] = max(1, WIDE[0] // entry)
    return figure


def _fixed(chosen: Mapping[str, Any]) -> alt.Scale:
    return alt.Scale(domain=list(chosen), range=list(chosen.values()))
