"""The theme of all charts: colours, marks, fonts, sizes and the styles of curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final

import altair as alt

from rankscope.arguments import checked
from rankscope.errors import KindError
from rankscope.results import Role

# Every colour with what it becomes on a dark page: the same hue, light enough to stand out there.
# Of variants, two warm colours for those that collapse, two cool ones for those that hold: apart
# from each other with each kind of colour blindness, and readable on white as on near-black.
_VARIANTS: Final = {
    "SAN": ("#c0312b", "#e35d53"),
    "SAN+MLP": ("#df7d1d", "#f0a64c"),
    "SAN+skip": ("#1b9a80", "#36b699"),
    "transformer": ("#3566c8", "#6394ee"),
}
_FOLLOWING: Final = {
    "#a66fdc": "#cba4fa",
    "#a8208c": "#d457ba",
    "#6b675e": "#99948a",
    "#e0559b": "#f595c4",
    "#2f7d1f": "#6fbf5a",
    "#6d28d9": "#9d78f5",
}
# Of everything that is not data.
_INK: Final = {
    "paper": ("#ffffff", "#191f26"),
    "strong": ("#1b2430", "#eef1f5"),
    "text": ("#3a4656", "#c3ccd7"),
    "muted": ("#6a7686", "#8d99a8"),
    "axis": ("#b9c1cb", "#4a5563"),
    "grid": ("#e9ecf0", "#28303a"),
}
SINGLE_COLOUR: Final = "#3f5f8a"
VARIANT_COLOURS: Final = {name: light for name, (light, _) in _VARIANTS.items()}
FOLLOWING_COLOURS: Final = tuple(_FOLLOWING)
INK: Final = {name: light for name, (light, _) in _INK.items()}
DARK: Final = dict(
    [*_INK.values(), *_VARIANTS.values(), *_FOLLOWING.items(), (SINGLE_COLOUR, "#8fadd6")]
)
# For curves of any name: neighbours far apart in hue, grey and the violets late.
_RED, _ORANGE, _GREEN, _BLUE = VARIANT_COLOURS.values()
PALETTE: Final = (_BLUE, _ORANGE, _GREEN, _RED, *FOLLOWING_COLOURS)
# Four kinds of line in turn: of two curves that coincide both are seen.
DASHES: Final = ([1, 0], [6, 3], [3, 2], [8, 3, 2, 3])
DOTS: Final = (0, 5)  # of round caps, for what is in doubt
# Shape says the variant a second time, for readers and printers without colour.
SHAPES: Final = (
    "circle", "square", "diamond",
    "triangle-up", "triangle-down", "triangle-left", "triangle-right",
)  # fmt: skip

FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# The last two are for machines without any fonts, where pictures have Arial's likeness alone.
MATH_FONT: Final = (
    "'STIX Two Text', Cambria, 'Times New Roman', 'DejaVu Serif', serif, Arial, sans-serif"
)
# The title of a y axis that is words, not a formula.
WORDS_AS_TITLE: Final[Mapping[str, Any]] = {
    "titleFont": FONT,
    "titleFontSize": 11.5,
    "titleColor": INK["muted"],
}
PANEL: Final = (400, 236)  # width and height, in pixels
WIDE: Final = (620, 300)  # a figure's only panel
COLUMNS: Final = 2
SPACING: Final = {"row": 36, "column": 48}
LABEL_SIZE: Final = 11.0
LINE_WIDTH: Final = 2.0
POINT_SIZE: Final = 34.0
TARGET_SIZE: Final = 260.0  # what the pointer has to hit to see a point's values
BAND_OPACITY: Final = 0.16
FADED: Final = 0.12

Figure = (
    alt.Chart
    | alt.LayerChart
    | alt.ConcatChart
    | alt.HConcatChart
    | alt.VConcatChart
    | alt.FacetChart
    | alt.RepeatChart
)
"""Any chart of Altair."""


def configuration() -> dict[str, Any]:
    """The Vega-Lite configuration of the theme."""
    return {
        "font": FONT,
        "padding": {"left": 8, "right": 16, "top": 8, "bottom": 8},
        "view": {"stroke": None, "continuousWidth": PANEL[0], "continuousHeight": PANEL[1]},
        "title": {
            "anchor": "start",
            "frame": "group",
            "offset": 14,
            "color": INK["strong"],
            "fontSize": 13,
            "fontWeight": 600,
            "subtitleColor": INK["muted"],
            "subtitleFontSize": 11.5,
            "subtitlePadding": 5,
        },
        "axis": {
            "domainColor": INK["axis"],
            "grid": True,
            "gridColor": INK["grid"],
            "gridWidth": 1,
            "labelColor": INK["text"],
            "labelFontSize": LABEL_SIZE,
            "labelPadding": 6,
            "ticks": False,
            "titleColor": INK["muted"],
            "titleFontSize": 11.5,
            "titleFontWeight": "normal",
            "titlePadding": 8,
        },
        "axisY": {
            "minExtent": 34,
            "titleFont": MATH_FONT,
            "titleFontSize": 13,
            "titleColor": INK["text"],
        },
        "legend": {
            "orient": "top",
            "direction": "horizontal",
            "title": None,
            "columnPadding": 22,
            "labelColor": INK["strong"],
            "labelFontSize": 12.5,
            "labelLimit": 340,
            "labelOffset": 6,
            "offset": 18,
            "symbolOpacity": 1,
            "symbolSize": 80,
            "symbolStrokeWidth": 0,
        },
        "point": {"size": POINT_SIZE, "filled": True},
        "line": {"strokeWidth": LINE_WIDTH, "strokeJoin": "round"},
    }


@checked
def adaptive(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A chart's specification with its colours as CSS variables, ``var(--on-3a4656, #3a4656)``.

    As SVG, it takes its colours from the page: see ``dark_variables``. Data are unchanged.
    """
    try:
        return _adaptive(spec)
    except RecursionError:
        raise KindError("the chart holds itself or is nested too deeply.") from None


def _adaptive(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value if key in ("data", "datasets") else _with_variables(value)
        for key, value in spec.items()
    }


def dark_variables() -> str:
    """The CSS variables of ``adaptive`` for a dark page, as declarations."""
    return " ".join(f"--on-{light[1:]}: {dark};" for light, dark in DARK.items())


def _with_variables(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _adaptive(value)
    if isinstance(value, list):
        return [_with_variables(item) for item in value]
    known = isinstance(value, str) and value in DARK
    return f"var(--on-{value[1:]}, {value})" if known else value


Roles = Mapping[str, Role]

# The colours of curves that are not measured, by their role and in the order they are given out;
# what is measured comes first, and starts with blue.
_BESIDE: Final[Mapping[Role, Sequence[str]]] = {
    "bound": (_GREEN, _RED, _ORANGE, *FOLLOWING_COLOURS),
    "floor": (_ORANGE, _RED, _GREEN, *FOLLOWING_COLOURS),
}
# The two selections of a figure: the curve under the pointer, and those clicked on in the legend.
HOVERED: Final = "hovered"
PINNED: Final = "pinned"
_IN_FOCUS: Final = {
    "or": [{"param": HOVERED, "empty": False}, {"and": [{"param": HOVERED}, {"param": PINNED}]}]
}


@dataclass(frozen=True)
class Look:
    """The style of each curve by name (field ``variant``); one style if there are no names.

    If the legend is not interactive, it shows lines, and all points are round.
    """

    colours: Mapping[str, str]
    dashes: Mapping[str, Sequence[int]]
    legend: bool = True
    listens: bool = True

    @classmethod
    def of(cls, names: Sequence[str], roles: Roles | None = None, *, kinds: int = 4) -> "Look":
        """The style of curves with these names and ``kinds`` of lines."""
        return cls(colours(names, roles), dashes(names, roles, kinds=kinds))

    @property
    def names(self) -> list[str]:
        """The names of the curves in the legend."""
        return list(self.colours) if self.legend else []

    def colour(self) -> Any:
        """A fixed colour for each curve."""
        return self._fixed(alt.Color, self.colours, SINGLE_COLOUR)

    def shape(self) -> Any:
        """A fixed shape for each curve."""
        return self._fixed(alt.Shape, shapes(self.names) if self.listens else {}, SHAPES[0])

    def dash(self) -> Any:
        """A fixed kind of line for each curve."""
        return self._fixed(alt.StrokeDash, self.dashes, DASHES[0])

    def opacity(self, full: float) -> Any:
        """Full opacity for curves in focus, faint for the others."""
        if not (self.names and self.listens):
            return alt.value(full)
        return alt.OpacityValue(full * FADED, condition={"test": _IN_FOCUS, "value": full})

    def _fixed(self, channel: Any, looks: Mapping[str, Any], single: Any) -> Any:
        if not looks:
            return alt.value(single)
        scale = alt.Scale(domain=list(looks), range=list(looks.values()))
        if self.legend and self.listens:
            return channel("variant:N", scale=scale)
        lines = alt.Legend(symbolType="stroke", symbolSize=320, symbolStrokeWidth=LINE_WIDTH)
        return channel("variant:N", scale=scale, legend=lines if self.legend else None)


def colours(names: Sequence[str], roles: Roles | None = None) -> dict[str, str]:
    """One colour per curve: that of its variant if it has one, otherwise by its role.

    >>> colours(["measured", "a bound"], {"a bound": "bound"})["measured"]
    '#3566c8'
    """
    beside = _not_measured(names, roles)
    measured = [name for name in names if name not in beside]
    known = any(name in VARIANT_COLOURS for name in measured)
    following = cycle(FOLLOWING_COLOURS if known else PALETTE)
    chosen = {name: VARIANT_COLOURS.get(name) or next(following) for name in measured}
    for name, role in beside.items():
        order = _BESIDE[role]
        free = [colour for colour in order if colour not in chosen.values()]
        chosen[name] = free[0] if free else order[len(chosen) % len(order)]
    return {name: chosen[name] for name in names}


def dashes(
    names: Sequence[str], roles: Roles | None = None, *, kinds: int = 4
) -> dict[str, list[int]]:
    """Solid for measurements next to bounds and floors; otherwise varied, so that none hides."""
    beside = _not_measured(names, roles)
    if not beside:
        return dict(zip(names, cycle(DASHES[:kinds]), strict=False))
    solid, *broken = DASHES
    return dict.fromkeys(names, solid) | dict(zip(beside, cycle(broken), strict=False))


def _not_measured(names: Sequence[str], roles: Roles | None) -> dict[str, Role]:
    known_roles = {name: roles[name] for name in names if roles and name in roles}
    return {name: role for name, role in known_roles.items() if role != "measured"}


def shapes(variants: Sequence[str]) -> dict[str, str]:
    """One point shape per variant: its fixed shape if it has one, otherwise an unused one."""
    preferred = dict(zip(VARIANT_COLOURS, SHAPES, strict=False))
    taken = {preferred[name] for name in variants if name in preferred}
    following = cycle([shape for shape in SHAPES if shape not in taken])
    return {name: preferred.get(name) or next(following) for name in variants}
