"""Curves against depth: residuals, bounds and predictions, on an axis of powers of ten."""

from typing import Any, Final

from rankscope.show.figures import PALETTE, configuration
from rankscope.show.lab._ticks import LINEAR, POWERS

Spec = dict[str, Any]
_BLUE, _ORANGE, _GREEN, _RED, _VIOLET, *_ = PALETTE
PLAIN: Final = {"titleFont": configuration()["font"], "titleFontSize": 11.5}
"""Words beside an axis, not a symbol."""
TICKS: Final = {"name": "ticks", "value": [0]}
"""Where the axis has ticks; whoever gives rows sets it."""
_LAYER: Final = {
    "field": "layer",
    "type": "quantitative",
    "title": "layer",
    "axis": {"tickMinStep": 1, "format": "d", "grid": False},
    "scale": {"nice": False},
}


def residual() -> Spec:
    """The relative residual by layer, a curve for each arithmetic."""
    names = ["scaled", "float64", "float32", "bfloat16", "float16"]
    colours = [_BLUE, _GREEN, _ORANGE, _ORANGE, _ORANGE]
    return {**_curves("arithmetic", names, colours, "relative residual"), "height": 290}


def bounds() -> Spec:
    """The residual by layer and bounds on it."""
    names = [
        "measured",
        "sharp, this layer",
        "data, this layer",
        "a priori, this layer",
        "Dong et al. 2021, all layers",
    ]
    colours = [_BLUE, _GREEN, _ORANGE, _RED, _VIOLET]
    return _curves("curve", names, colours, "residual", columns=2)


def prediction() -> Spec:
    """A band of random networks, and this one."""
    names = ["random networks like it", "this network"]
    scale = {"domain": names, "range": [_ORANGE, _BLUE]}

    def named(name: str) -> Spec:
        return {"datum": name, "type": "nominal", "scale": scale, "legend": {"columns": 2}}

    title = "relative dispersion"
    low, high = _power_axis("low", title), {"field": "high"}
    tooltip = [{"field": each, "format": ".4~g"} for each in ("layer", "mean", "measured")]
    line = {"type": "line", "strokeWidth": 2, "point": {"size": 26}}
    return {
        "params": [TICKS],
        "encoding": {"x": _LAYER, "tooltip": tooltip},
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.18},
                "encoding": {"y": low, "y2": high, "color": named(names[0])},
            },
            {"mark": line, "encoding": {"y": _power_axis("mean", title), "color": named(names[0])}},
            {
                "mark": line,
                "encoding": {"y": _power_axis("measured", title), "color": named(names[1])},
            },
        ],
    }


def _curves(
    field: str, names: list[str], colours: list[str], title: str, *, columns: int = 3
) -> Spec:
    """A line with points for each name; what is not measured is dashed."""
    colour = {
        "field": field,
        "type": "nominal",
        "scale": {"domain": names, "range": colours},
        "legend": {
            "columns": columns,
            "symbolType": "stroke",
            "symbolSize": 320,
            "symbolStrokeWidth": 2,
        },
    }
    dash = {
        "field": field,
        "type": "nominal",
        "scale": {"domain": names, "range": [[1, 0], *[[5, 3]] * (len(names) - 1)]},
    }
    encoding = {"x": _LAYER, "y": _power_axis("value", title), "color": colour}
    tooltip = [
        {"field": field, "title": " "},
        {"field": "layer"},
        {"field": "value", "title": "log10", "format": ".4~g"},
    ]
    return {
        "usermeta": {"names": field},
        "params": [TICKS],
        "transform": [{"filter": "isValid(datum.value)"}],
        "encoding": {**encoding, "tooltip": tooltip},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"strokeDash": dash}},
            {"mark": {"type": "circle", "size": 26, "opacity": 1}},
        ],
    }


def _power_axis(field: str, title: str) -> Spec:
    """Logarithms, linear near zero and compressed far from it, written as the numbers."""
    labels = ", ".join(f"'{_as_script(value)}': '{text}'" for value, text in POWERS.items())
    axis = {
        "values": {"expr": "ticks"},
        "labelExpr": f"({{{labels}}})[toString(datum.value)]",
        "labelOverlap": False,
        "grid": False,
        "title": title,
        **PLAIN,
    }
    scale = {"type": "symlog", "constant": LINEAR, "nice": False, "zero": True, "padding": 6}
    return {"field": field, "type": "quantitative", "axis": axis, "scale": scale}


def _as_script(value: float) -> str:
    """A number as JavaScript writes it."""
    return str(int(value)) if value == int(value) else repr(value)
