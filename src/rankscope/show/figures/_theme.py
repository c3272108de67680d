"""How every chart looks: colours, marks, fonts and sizes."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Final

import altair as alt

from rankscope.arguments import checked

# Two warm colours for the variants that collapse, two cool ones for those that hold. Apart from
# each other with each kind of colour blindness, and readable on white as on near-black.
VARIANT_COLOURS: Final[Mapping[str, str]] = {
    "SAN": "#c0312b",
    "SAN+MLP": "#df7d1d",
    "SAN+skip": "#1b9a80",
    "transformer": "#3566c8",
}
FOLLOWING_COLOURS: Final = ("#a66fdc", "#a8208c", "#6b675e", "#e0559b", "#2f7d1f", "#6d28d9")
SINGLE_COLOUR: Final = "#3f5f8a"
# For curves of any name: neighbours far apart in hue, grey and the violets late.
PALETTE: Final = (
    VARIANT_COLOURS["transformer"],
    VARIANT_COLOURS["SAN+MLP"],
    VARIANT_COLOURS["SAN+skip"],
    VARIANT_COLOURS["SAN"],
    *FOLLOWING_COLOURS,
)
# Four kinds of line in turn: of two curves that coincide both are seen.
DASHES: Final = ([1, 0], [6, 3], [3, 2], [8, 3, 2, 3])
DOTS: Final = (0, 5)  # of round caps, for what is in doubt
# Shape says the variant a second time, for readers and printers without colour.
SHAPES: Final = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "triangle-left",
    "triangle-right",
)

# The colours of everything that is not data.
INK: Final[Mapping[str, str]] = {
    "paper": "#ffffff",
    "strong": "#1b2430",
    "text": "#3a4656",
    "muted": "#6a7686",
    "axis": "#b9c1cb",
    "grid": "#e9ecf0",
}

# What each colour becomes on a dark page: the same hue, light enough to stand out there.
DARK: Final[Mapping[str, str]] = {
    "#ffffff": "#191f26",
    "#1b2430": "#eef1f5",
    "#3a4656": "#c3ccd7",
    "#6a7686": "#8d99a8",
    "#b9c1cb": "#4a5563",
    "#e9ecf0": "#28303a",
    "#c0312b": "#e35d53",
    "#df7d1d": "#f0a64c",
    "#1b9a80": "#36b699",
    "#3566c8": "#6394ee",
    "#a66fdc": "#cba4fa",
    "#a8208c": "#d457ba",
    "#6b675e": "#99948a",
    "#e0559b": "#f595c4",
    "#2f7d1f": "#6fbf5a",
    "#6d28d9": "#9d78f5",
    "#3f5f8a": "#8fadd6",
}

FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# The last two are for machines without any fonts, where pictures have Arial's likeness alone.
MATH_FONT: Final = (
    "'STIX Two Text', Cambria, 'Times New Roman', 'DejaVu Serif', serif, Arial, sans-serif"
)
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
"""Any chart Altair makes."""


def shapes(variants: Sequence[str]) -> dict[str, str]:
    """One point shape per variant: its own if it has one, otherwise the next that is free."""
    own = dict(zip(VARIANT_COLOURS, SHAPES, strict=False))
    taken = {own[name] for name in variants if name in own}
    following = cycle([shape for shape in SHAPES if shape not in taken])
    return {name: own.get(name) or next(following) for name in variants}


def apply_style(chart: alt.ConcatChart, *, names: Sequence[str] = ()) -> alt.ConcatChart:
    """Give the panels the house style, written into their own configuration.

    ``names`` are those in the legend, which is broken into lines as wide as a row of panels.
    ``usermeta`` speaks to pages that embed the chart: it asks all of them for vector graphics, and
    tells ours that the panels may be given another width and another number of columns.
    """
    room = max(WIDE[0], sum(panel.width for panel in chart.concat[:COLUMNS]))
    width = 40 + 7 * max(map(len, names), default=0)
    figure = chart.copy(deep=False)
    figure.background = INK["paper"]
    figure.config = configuration()
    figure.config["legend"]["columns"] = max(1, room // width)
    figure.usermeta = {
        "embedOptions": {"renderer": "svg"},
        "rankscope": {"panels": True, "legendEntry": width},
    }
    return figure


def configuration() -> dict[str, Any]:
    """The Vega-Lite configuration of the house style."""
    return {
        "font": FONT,
        "padding": {"left": 8, "right": 16, "top": 8, "bottom": 8},
        "view": {"stroke": None, "continuousWidth": PANEL[0], "continuousHeight": PANEL[1]},
        "title": _title(),
        "axis": _axis(),
        "axisY": _y_axis(),
        "legend": _legend(),
        "point": {"size": POINT_SIZE, "filled": True},
        "line": {"strokeWidth": LINE_WIDTH, "strokeJoin": "round"},
    }


@checked
def adaptive(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A chart's specification with its colours as CSS variables, ``var(--on-3a4656, #3a4656)``.

    Drawn as SVG, it takes its colours from the page: see ``dark_variables``. Data are left alone.
    """
    return {
        key: value if key in ("data", "datasets") else _with_variables(value)
        for key, value in spec.items()
    }


def dark_variables() -> str:
    """The CSS variables of ``adaptive`` for a dark page, as declarations."""
    return " ".join(f"{_variable(light)}: {dark};" for light, dark in DARK.items())


def _with_variables(value: Any) -> Any:
    if isinstance(value, Mapping):
        return adaptive(value)
    if isinstance(value, list):
        return [_with_variables(item) for item in value]
    if isinstance(value, str) and value in DARK:
        return f"var({_variable(value)}, {value})"
    return value


def _variable(colour: str) -> str:
    return f"--on-{colour.removeprefix('#')}"


def _title() -> dict[str, Any]:
    return {
        "anchor": "start",
        "frame": "group",
        "offset": 14,
        "color": INK["strong"],
        "fontSize": 13,
        "fontWeight": 600,
        "subtitleColor": INK["muted"],
        "subtitleFontSize": 11.5,
        "subtitlePadding": 5,
    }


def _axis() -> dict[str, Any]:
    return {
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
    }


def _y_axis() -> dict[str, Any]:
    return {"minExtent": 34, "titleFont": MATH_FONT, "titleFontSize": 13, "titleColor": INK["text"]}


def _legend() -> dict[str, Any]:
    return {
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
    }
