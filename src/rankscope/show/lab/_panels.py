"""Charts that are no curves: tokens in the plane and on the sphere, spectra, path lengths."""

from typing import Any, Final

from rankscope.show.figures import INK, PALETTE
from rankscope.show.lab._curves import PLAIN
from rankscope.show.lab._sphere import SPHERE_SIZE, sphere_layers, sphere_parameters

Spec = dict[str, Any]
_TOKEN: Final = {
    "field": "token",
    "type": "quantitative",
    "scale": {"scheme": "turbo", "domainMin": -1},
    "legend": None,
}
_GRADIENT: Final = "'-16': '10⁻¹⁶', '-12': '10⁻¹²', '-8': '10⁻⁸', '-4': '10⁻⁴', '0': '1'"
_SHOWN: Final = "datum.layer <= shown"


def plane() -> Spec:
    """Where the tokens are, layer by layer; the last layer shown is drawn large."""
    axis = {"title": None, "labels": False, "domain": False, "values": [0]}
    scale = {"domain": [-1.08, 1.08]}
    x, y = (
        {"field": name, "type": "quantitative", "axis": axis, "scale": scale}
        for name in ("across", "up")
    )
    detail = {"field": "token"}
    last = "datum.layer == min(shown, datum.last)"
    return {
        "width": SPHERE_SIZE,
        "height": SPHERE_SIZE,
        "autosize": "pad",
        "params": [_shown()],
        "transform": [
            {"calculate": "max(abs(datum.x), abs(datum.y))", "as": "reach"},
            {
                "joinaggregate": [
                    {"op": "max", "field": "layer", "as": "last"},
                    {"op": "max", "field": "reach", "as": "size"},
                ]
            },
            {"calculate": "datum.x / (datum.size || 1)", "as": "across"},
            {"calculate": "datum.y / (datum.size || 1)", "as": "up"},
            {"filter": _SHOWN},
        ],
        "encoding": {"x": x, "y": y, "color": _TOKEN},
        "layer": [
            {
                "mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.45},
                "encoding": {"detail": detail, "order": {"field": "layer"}},
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 0.5, "size": 10},
                "encoding": {"tooltip": [{"field": "token"}, {"field": "layer"}]},
            },
            {
                "transform": [{"filter": last}],
                "mark": {
                    "type": "point",
                    "filled": True,
                    "opacity": 0.95,
                    "size": 70,
                    "stroke": INK["paper"],
                    "strokeWidth": 1,
                },
                "encoding": {"tooltip": [{"field": "token"}, {"field": "layer"}]},
            },
        ],
    }


def sphere() -> Spec:
    """Directions of the tokens, layer by layer."""
    return {
        "width": SPHERE_SIZE,
        "height": SPHERE_SIZE,
        "autosize": "pad",
        "params": [*sphere_parameters(), _shown()],
        "layer": sphere_layers(_TOKEN, _SHOWN),
    }


def spectrum() -> Spec:
    """A square for each layer and singular value."""
    colour = {
        "field": "value",
        "type": "quantitative",
        "scale": {"scheme": "viridis", "domain": [-16, 0], "clamp": True},
        "legend": {
            "title": None,
            "orient": "bottom",
            "direction": "horizontal",
            "gradientLength": 220,
            "gradientThickness": 8,
            "values": [-16, -12, -8, -4, 0],
            "labelExpr": f"({{{_GRADIENT}}})[toString(datum.value)]",
        },
    }
    axis = {"grid": False, "labelAngle": 0, "labelOverlap": "parity"}
    return {
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "layer", "type": "ordinal", "axis": {**axis, "title": "layer"}},
            "y": {
                "field": "index",
                "type": "ordinal",
                "axis": {**axis, **PLAIN, "title": "singular value"},
            },
            "color": {
                "condition": {"test": "!isValid(datum.value)", "value": INK["grid"]},
                **colour,
            },
            "tooltip": [
                {"field": "layer"},
                {"field": "index", "title": "singular value"},
                {"field": "value", "title": "log10 of its part", "format": ".3~g"},
            ],
        },
        "view": {"fill": INK["grid"]},
    }


def paths() -> Spec:
    """A bar for each length."""
    return {
        "mark": {"type": "bar", "color": PALETTE[0], "cornerRadiusEnd": 2},
        "encoding": {
            "x": {
                "field": "length",
                "type": "ordinal",
                "title": "attention layers on the path",
                "axis": {"labelAngle": 0, "grid": False, "labelOverlap": "parity"},
            },
            "y": {
                "field": "share",
                "type": "quantitative",
                "title": "share of the residual",
                "axis": {"tickCount": 5, **PLAIN},
            },
            "tooltip": [{"field": "length"}, {"field": "share", "format": ".3~g"}],
        },
    }


def _shown() -> Spec:
    """The last layer that is drawn; the page sets it."""
    return {"name": "shown", "value": 10**6}
