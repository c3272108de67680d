"""The charts of the lab as Vega-Lite specifications; a page, or a picture, gives them rows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankscope.figures import INK, PALETTE, adaptive, configuration, printable, svg
from rankscope.lab._sphere import SPHERE_SIZE, sphere_layers, sphere_parameters
from rankscope.lab._ticks import POWERS

Spec = dict[str, Any]
HEIGHT: Final = 250
_PICTURE_WIDTH: Final = 620
_BLUE, _ORANGE, _GREEN, _RED, *_ = PALETTE
_PLAIN: Final = {"titleFont": configuration()["font"], "titleFontSize": 11.5}
"""Words beside an axis, not a symbol."""
_LAYER: Final = {
    "field": "layer",
    "type": "quantitative",
    "title": "layer",
    "axis": {"tickMinStep": 1, "format": "d", "grid": False},
    "scale": {"nice": False},
}
_TOKEN: Final = {
    "field": "token",
    "type": "quantitative",
    "scale": {"scheme": "turbo", "domainMin": -1},
    "legend": None,
}
_GRADIENT: Final = "'-16': '10⁻¹⁶', '-12': '10⁻¹²', '-8': '10⁻⁸', '-4': '10⁻⁴', '0': 'largest'"
_SHOWN: Final = "datum.layer <= shown"
TITLES: Final = {
    "residual": "Relative residual against depth",
    "plane": "Tokens in the plane",
    "sphere": "Tokens on the sphere",
    "spectrum": "Singular values by layer",
    "paths": "What paths of each length carry",
    "prediction": "Prediction for networks like this",
    "bounds": "Bounds on the residual",
}
"""Every chart, in the order of the page, and its heading."""
ROWS: Final = {"plane": "places", "sphere": "places"}
"""Which rows a chart draws, where they do not have its name."""


def charts() -> dict[str, Spec]:
    """Every chart, with empty data and colours that follow the page."""
    return {name: adaptive(_whole(name, chart)) for name, chart in _charts().items()}


def picture(name: str, rows: Sequence[Mapping[str, Any]], *, subtitle: Sequence[str]) -> str:
    """One chart as an SVG of its own, with the network under its title."""
    chart = _only_present(_whole(name, _charts()[name]), rows)
    if chart["width"] == "container":
        chart |= {"width": _PICTURE_WIDTH}
    title = {"text": TITLES[name], "subtitle": list(subtitle)}
    more = {"autosize": "pad", "title": title, "data": {"values": list(rows)}}
    return svg(printable({**chart, **more, "background": INK["paper"]}))


def _only_present(chart: Spec, rows: Sequence[Mapping[str, Any]]) -> Spec:
    """A legend of the names among the rows alone; the page does the same."""
    field = chart.get("usermeta", {}).get("names")
    if field is None:
        return chart
    present = {row[field] for row in rows}
    for scale in (
        chart["encoding"]["color"]["scale"],
        chart["layer"][0]["encoding"]["strokeDash"]["scale"],
    ):
        kept = [pair for pair in zip(scale["domain"], scale["range"], strict=True)]
        kept = [pair for pair in kept if pair[0] in present]
        scale |= {"domain": [name for name, _ in kept], "range": [look for _, look in kept]}
    return chart


def _whole(name: str, chart: Spec) -> Spec:
    config = configuration()
    config["legend"] |= {"orient": "bottom", "offset": 8, "labelFontSize": 11.5}
    config["padding"] = {"left": 4, "right": 10, "top": 6, "bottom": 4}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": None,
        "data": {"name": ROWS.get(name, name), "values": []},
        "config": config,
        **chart,
    }


def _charts() -> dict[str, Spec]:
    return {
        "residual": _residual(),
        "plane": _plane(),
        "sphere": {
            "width": SPHERE_SIZE,
            "height": SPHERE_SIZE,
            "autosize": "pad",
            "params": [*sphere_parameters(), _shown()],
            "layer": sphere_layers(_TOKEN, _SHOWN),
        },
        "spectrum": _spectrum(),
        "paths": _paths(),
        "prediction": _prediction(),
        "bounds": _bounds(),
    }


def _shown() -> Spec:
    """The last layer that is drawn; the page sets it."""
    return {"name": "shown", "value": 10**6}


def _power_axis(field: str, title: str) -> Spec:
    """Logarithms, linear near zero and compressed far from it, written as the numbers."""
    labels = ", ".join(f"'{_as_script(value)}': '{text}'" for value, text in POWERS.items())
    axis = {
        "values": list(POWERS),
        "labelExpr": f"({{{labels}}})[toString(datum.value)]",
        "labelOverlap": "greedy",
        "labelSeparation": 6,
        "grid": False,
        "title": title,
        **_PLAIN,
    }
    scale = {"type": "symlog", "constant": 20, "nice": False, "zero": False, "padding": 6}
    return {"field": field, "type": "quantitative", "axis": axis, "scale": scale}


def _as_script(value: float) -> str:
    """A number as JavaScript writes it."""
    return str(int(value)) if value == int(value) else repr(value)


def _residual() -> Spec:
    return _curves(
        "arithmetic",
        ["scaled", "float64", "float32", "bfloat16", "float16"],
        [_BLUE, _GREEN, _ORANGE, _ORANGE, _ORANGE],
        "relative residual",
    )


def _bounds() -> Spec:
    names = [
        "measured",
        "sharp, this layer",
        "data, this layer",
        "a priori, this layer",
        "Dong et al. 2021, all layers",
    ]
    return _curves("curve", names, [_BLUE, _GREEN, _ORANGE, _RED, PALETTE[4]], "residual")


def _curves(field: str, names: list[str], colours: list[str], title: str) -> Spec:
    """A line with points for each name; what is not measured is dashed."""
    colour = {
        "field": field,
        "type": "nominal",
        "scale": {"domain": names, "range": colours},
        "legend": {"columns": 3, "symbolType": "stroke", "symbolStrokeWidth": 2.5},
    }
    dash = {
        "field": field,
        "type": "nominal",
        "legend": None,
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
        "transform": [{"filter": "isValid(datum.value)"}],
        "encoding": {**encoding, "tooltip": tooltip},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"strokeDash": dash}},
            {"mark": {"type": "circle", "size": 26, "opacity": 1}},
        ],
    }


def _plane() -> Spec:
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


def _spectrum() -> Spec:
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
    axis = {"grid": False, "labelAngle": 0, "labelOverlap": "greedy"}
    return {
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "layer", "type": "ordinal", "axis": {**axis, "title": "layer"}},
            "y": {"field": "index", "type": "ordinal", "axis": {**axis, **_PLAIN, "title": "singular value"}},
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


def _paths() -> Spec:
    return {
        "mark": {"type": "bar", "color": _BLUE, "cornerRadiusEnd": 2},
        "encoding": {
            "x": {
                "field": "length",
                "type": "ordinal",
                "title": "attention layers on the path",
                "axis": {"labelAngle": 0, "grid": False, "labelOverlap": "greedy"},
            },
            "y": {
                "field": "share",
                "type": "quantitative",
                "title": "share of the residual",
                "axis": {"tickCount": 5, **_PLAIN},
            },
            "tooltip": [{"field": "length"}, {"field": "share", "format": ".3~g"}],
        },
    }


def _prediction() -> Spec:
    names = ["random networks like it", "this network"]
    scale = {"domain": names, "range": [_ORANGE, _BLUE]}

    def named(name: str) -> Spec:
        return {"datum": name, "type": "nominal", "scale": scale, "legend": {"columns": 2}}

    title = "relative dispersion"
    low, high = _power_axis("low", title), {"field": "high"}
    tooltip = [{"field": each, "format": ".4~g"} for each in ("layer", "mean", "measured")]
    line = {"type": "line", "strokeWidth": 2, "point": {"size": 26}}
    return {
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


def clean(value: Any) -> Any:
    """What JSON can hold: numbers that are not finite become nothing."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: clean(inner) for key, inner in value.items()}
    return [clean(inner) for inner in value] if isinstance(value, list) else value
