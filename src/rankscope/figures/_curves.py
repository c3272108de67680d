"""What charts of medians have in common: the looks of their curves, their axes and tooltips."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

import altair as alt
import polars as pl

from rankscope.errors import InputError
from rankscope.figures import _theme as theme
from rankscope.figures._axes import AXES, Vertical
from rankscope.figures._panel import Look, value_text
from rankscope.figures._validation import finite_or_none
from rankscope.metric_catalogue import Metric
from rankscope.results import Role

Row = Mapping[str, Any]
Roles = Mapping[str, Role]

NEEDED: Final = ("count", "mean", "low", "median", "high")
WIDE: Final = (620, 300)  # a figure's only panel
_STATISTICS: Final = ("median", "low", "high")
_BLUE, _ORANGE, _GREEN, _RED, *_OTHERS = theme.PALETTE
# The colours of curves that are not measured, by their role and in the order they are given out;
# what is measured comes first, and starts with blue.
_BESIDE: Final[Mapping[Role, Sequence[str]]] = {
    "bound": (_GREEN, _RED, _ORANGE, *_OTHERS),
    "floor": (_ORANGE, _RED, _GREEN, *_OTHERS),
}
_SOLID, *_BROKEN = theme.DASHES
_BELOW: Final = 0.09  # of an axis, left free for markers at the bottom
_REACH = 50.0  # axis lengths: a line that leaves the panel still leaves it in its place


@dataclass(frozen=True)
class Curves(Look):
    """A look for curves of any name: far apart in hue, bounds and floors in broken lines."""

    roles: Roles = field(default_factory=dict)

    def colour(self) -> Any:
        """A fixed colour per curve, or one for all if they have no names."""
        if not self.variants:
            return alt.value(theme.SINGLE_COLOUR)
        return alt.Color("variant:N", scale=theme.fixed_scale(colours(self.variants, self.roles)))

    def dash(self) -> Any:
        """What is measured solid beside bounds and floors; by itself four kinds of line in turn."""
        if not self.variants:
            return alt.value(_SOLID)
        return alt.StrokeDash(
            "variant:N", scale=theme.fixed_scale(dashes(self.variants, self.roles))
        )


def colours(names: Sequence[str], roles: Roles | None = None) -> dict[str, str]:
    """One colour per curve: that of its variant if it has one, otherwise by its role.

    >>> colours(["measured", "a bound"], {"a bound": "bound"})["measured"]
    '#3566c8'
    """
    beside = _not_measured(names, roles)
    measured = [name for name in names if name not in beside]
    known = any(name in theme.VARIANT_COLOURS for name in measured)
    chosen = theme.colours(measured) if known else theme.palette(measured)
    for name, role in beside.items():
        order = _BESIDE[role]
        free = [colour for colour in order if colour not in chosen.values()]
        chosen[name] = free[0] if free else order[len(chosen) % len(order)]
    return {name: chosen[name] for name in names}


def dashes(names: Sequence[str], roles: Roles | None = None) -> dict[str, list[int]]:
    """What is measured solid beside bounds and floors; by itself in turn, so that none hides."""
    beside = _not_measured(names, roles)
    if not beside:
        return {name: theme.DASHES[k % len(theme.DASHES)] for k, name in enumerate(names)}
    broken = {name: _BROKEN[k % len(_BROKEN)] for k, name in enumerate(beside)}
    return {name: broken.get(name, _SOLID) for name in names}


def check_roles(roles: Roles | None) -> dict[str, Role]:
    """The roles as given; one we do not know is refused."""
    for name, role in (roles or {}).items():
        if role not in get_args(Role):
            raise InputError(
                f"the curve {name!r} has the role {role!r}; choose {', '.join(get_args(Role))}."
            )
    return dict(roles or {})


def _not_measured(names: Sequence[str], roles: Roles | None) -> dict[str, Role]:
    """The curves that stand beside what was measured, with their roles."""
    return {
        name: roles[name] for name in names if roles and roles.get(name, "measured") != "measured"
    }


def labels_in(rows: pl.DataFrame, column: str) -> tuple[str, ...]:
    """The labels of a column in order of appearance; none if it is missing or empty."""
    if column not in rows.columns or rows[column].null_count() == rows.height:
        return ()
    if rows[column].null_count():
        raise InputError(f"some rows have no {column}; keep those that have one.")
    return tuple(rows[column].unique(maintain_order=True).to_list())


def refuse_duplicates(rows: pl.DataFrame, keys: Sequence[str], *, drawer: str) -> None:
    """Raise if two rows would be drawn in one place."""
    present = [name for name in keys if name in rows.columns]
    twins = rows.filter(rows.select(present).is_duplicated())
    if twins.height:
        place = ", ".join(f"{name} {twins.row(0, named=True)[name]}" for name in present)
        raise InputError(
            f"several rows for {place}; {drawer} draws one: keep one, or name them in the variant "
            "column."
        )


def finite_values(rows: Sequence[Row]) -> list[float]:
    """Every number that is to be drawn."""
    found = (finite_or_none(row[name]) for row in rows for name in _STATISTICS)
    return [value for value in found if value is not None]


def is_zero(row: Row) -> bool:
    """Whether the median is the logarithm of zero: all tokens are exactly equal."""
    return bool(row["median"] == -math.inf)


def build_axis(
    entry: Metric,
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
    axis = AXES[entry.scale](
        entry.symbol, inside, includes=[v for v in entry.includes if bottom <= v <= top]
    )
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


def chart_row(row: Row, vertical: Vertical, entry: Metric) -> dict[str, Any]:
    """A row as a chart needs it: where its values are drawn, and their text for a tooltip."""
    drawn = dict(row)
    for name in ("mean", "low", "median", "high"):
        value = row[name]
        drawn[f"exact_{name}"] = value_text(value, entry)
        drawn[name] = finite_or_none(value)
    for name in _STATISTICS:
        drawn[f"drawn_{name}"] = _clamp(vertical.place(drawn[name]), vertical)
    if row["low"] == -math.inf and drawn["high"] is not None:
        drawn["drawn_low"] = vertical.domain[0]  # a band down to zero has no end
    drawn["all_equal"] = entry.scale == "exponent" and is_zero(row)
    return drawn


def _clamp(value: float | None, vertical: Vertical) -> float | None:
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


def fit_legend(figure: alt.ConcatChart, panels: int) -> alt.ConcatChart:
    """The legend broken into lines as wide as a single panel is, if there is but one."""
    if panels == 1:
        width = figure.usermeta["rankscope"]["legendEntry"]
        figure.config["legend"]["columns"] = max(1, WIDE[0] // width)
    return figure
