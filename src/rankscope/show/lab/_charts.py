"""The charts of the lab; the page, or a saved image, supplies their rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Final

import altair as alt

from rankscope.numerals import MINUS
from rankscope.show.figures import (
    INK,
    PALETTE,
    WORDS_AS_TITLE,
    Look,
    Shades,
    Tick,
    Vertical,
    adaptive,
    cell_mark,
    configuration,
    line_marks,
    over,
    printable,
    svg,
)
from rankscope.show.lab._words import BAND, LINEAR, POWERS, THIS

Spec = dict[str, Any]
Names = Mapping[str, str]  # of curves, with their colours
# Every chart, in the order of the page, and its heading.
TITLES: Final = {
    "residual": "Relative residual by layer",
    "plane": "Tokens in the plane",
    "sphere": "Tokens on the sphere",
    "spectrum": "Singular values by layer",
    "paths": "Contribution of paths by length",
    "prediction": "Prediction for random networks of this architecture",
    "bounds": "Bounds on the residual",
}
ROWS: Final = {"plane": "places", "sphere": "places"}  # name of a chart's rows, if not its own
_HEIGHT: Final = 250
_PICTURE_WIDTH: Final = 620
_SQUARE: Final = 300
_BLUE, _ORANGE, _GREEN, _RED, _VIOLET, *_ = PALETTE
# The curves of each chart, measurements first; the others are dashed.
_NAMES: Final[Mapping[str, Names]] = {
    "residual": {
        "scaled": _BLUE,
        "float64": _GREEN,
        "float32": _ORANGE,
        "bfloat16": _ORANGE,
        "float16": _ORANGE,
    },
    "prediction": {THIS: _BLUE, BAND: _ORANGE},
    "bounds": {
        "measured": _BLUE,
        "sharp, this layer": _GREEN,
        "data, this layer": _ORANGE,
        "a priori, this layer": _RED,
        "Dong et al. 2021, all layers": _VIOLET,
    },
}


def charts() -> dict[str, Spec]:
    """All charts, without data, with colours that follow the page."""
    return {name: adaptive(_spec(name, _NAMES.get(name, {}))) for name in TITLES}


def picture(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    subtitle: Sequence[str],
    ticks: Sequence[float] = (),
) -> str:
    """One chart as an SVG, with the network as its subtitle."""
    present = {row.get("variant") for row in rows}
    spec = _spec(name, {n: c for n, c in _NAMES.get(name, {}).items() if n in present})
    if ticks:
        spec["params"] = [{"name": "ticks", "value": list(ticks)}]
    if spec["width"] == "container":
        spec["width"] = _PICTURE_WIDTH
    title = {"text": TITLES[name], "subtitle": list(subtitle)}
    more = {"autosize": "pad", "title": title, "data": {"values": list(rows)}}
    return svg(printable({**spec, **more, "background": INK["paper"]}))


def _spec(name: str, names: Names) -> Spec:
    """The Vega-Lite specification of a chart without rows."""
    config = configuration()
    config["legend"] |= {"orient": "bottom", "offset": 8, "labelFontSize": 11.5}
    config["legend"]["columns"] = 3 if name == "residual" else 2
    config["aria"] = False  # each chart has one description instead of one per mark
    config["padding"] = {"left": 4, "right": 10, "top": 6, "bottom": 4}
    chart: Spec = {
        "data": alt.NamedData(ROWS.get(name, name)),
        "width": "container",
        "height": _HEIGHT,
        "autosize": alt.AutoSizeParams(type="fit-x", contains="padding"),
        "background": "transparent",
        "config": config,
    }
    if names:
        chart["usermeta"] = {"names": "variant"}  # the page shows those that are in its rows
    return dict(alt.LayerChart(**(chart | _CHARTS[name](names))).to_dict())


def _curves(names: Names, title: str, **look: Any) -> Spec:
    """Curves by layer with a logarithmic y-axis; all but measurements are dashed."""
    dashes = {name: [5, 3] if at else [1, 0] for at, name in enumerate(names)}
    axis = alt.Axis(title="layer", tickMinStep=1, format="d", grid=False)
    layer = alt.X("layer:Q", axis=axis, scale=alt.Scale(nice=False, zero=False))
    tooltip = [
        alt.Tooltip("variant:N", title=" "),
        alt.Tooltip("layer:Q"),
        alt.Tooltip("exact_median:N", title=title),
    ]
    marks = line_marks(
        layer,
        lambda field: _powers(field, title),
        Look(names, dashes, listens=False),
        tooltip,
        marked="isValid(datum.drawn_median)",
        **{"spread": "none", **look},
    )
    ticks = alt.VariableParameter(name="ticks", value=[0])  # set together with the rows
    return {"layer": marks, "params": [ticks]}


def _powers(field: str, title: str) -> alt.Y:
    """A symlog axis of logarithms, labelled with the numbers themselves."""
    # Keys as JavaScript formats numbers.
    keys = {int(value) if value == int(value) else value: text for value, text in POWERS.items()}
    labels = ", ".join(f"'{value!r}': '{text}'" for value, text in keys.items())
    axis = alt.Axis(
        title=title,
        values=alt.ExprRef("ticks"),
        labelExpr=f"({{{labels}}})[toString(datum.value)]",
        labelOverlap=False,
        grid=False,
        **WORDS_AS_TITLE,
    )
    scale = alt.Scale(type="symlog", constant=LINEAR, nice=False, zero=True, padding=6)
    return alt.Y(field, axis=axis, scale=scale)


def _spectrum(_: Names) -> Spec:
    """A heatmap by layer and singular value."""
    ticks = (Tick(e, "10", f"{e}".replace("-", MINUS)) for e in (-16, -12, -8, -4, 0))
    shades = Shades(Vertical("linear", "", (-16.0, 0.0), tuple(ticks)))
    counts: dict[str, Any] = {"tickMinStep": 1, "tickCount": 16, "format": "d", "grid": False}
    across = alt.Axis(title="layer", **counts)
    down = alt.Axis(title="singular value", **counts, **WORDS_AS_TITLE)
    x = alt.X("left:Q", axis=across, scale=alt.Scale(nice=False, zero=False))
    y = alt.Y("low:Q", axis=down, scale=alt.Scale(nice=False, zero=False, reverse=True))
    tooltip = [
        alt.Tooltip("across:Q", title="layer"),
        alt.Tooltip("up:Q", title="singular value"),
        alt.Tooltip("shade:Q", title="log10 of σᵢ/σ₁", format=".3~g"),
    ]
    mark = cell_mark(x, y, shades, tooltip, pixels=(30.0, 15.0))
    return {"layer": [mark, *shades.bar("", height=_HEIGHT, below=48)]}


def _paths(_: Names) -> Spec:
    """One bar per length."""
    length = alt.Axis(labelAngle=0, grid=False, labelOverlap="parity")
    share = alt.Axis(tickCount=5, **WORDS_AS_TITLE)
    bar = alt.Chart().mark_bar(color=PALETTE[0], cornerRadiusEnd=2)
    bar = bar.encode(
        x=alt.X("length:O", title="attention layers on the path", axis=length),
        y=alt.Y("share:Q", title="share of the residual", axis=share),
        tooltip=[alt.Tooltip("length:O"), alt.Tooltip("share:Q", format=".3~g")],
    )
    return {"layer": [bar]}


def _plane(_: Names) -> Spec:
    """Positions of the tokens by layer; the last layer shown is drawn large."""
    axis = alt.Axis(title=None, labels=False, domain=False, values=[0])
    ways = (
        alt.Chart()
        .transform_calculate(reach="max(abs(datum.x), abs(datum.y))")
        .transform_joinaggregate(last="max(layer)", size="max(reach)")
        .transform_calculate(across="datum.x / (datum.size || 1)", up="datum.y / (datum.size || 1)")
        .transform_filter(_SHOWN)
        .encode(**_placed(axis), color=_token())
    )
    small = ways.mark_point(filled=True, opacity=0.5, size=10).encode(tooltip=_TOOLTIP)
    line = ways.mark_line(strokeWidth=1.2, opacity=0.45).encode(detail="token:Q", order="layer:Q")
    return {**_square(), "layer": [line, small, _last(ways, alt.value(0.95))]}


def _sphere(_: Names) -> Spec:
    """Directions of the tokens by layer on a sphere; the far side is fainter."""
    lines = _seen(over(_graticule()), "a", "b", "c").mark_line(
        strokeWidth=1, color=INK["axis"], opacity=0.55
    )
    ways = alt.Chart().transform_joinaggregate(last="max(layer)").transform_filter(_SHOWN)
    ways = _seen(ways, "sx", "sy", "sz").encode(color=_token())
    front = alt.condition("datum.near >= 0", alt.value(0.95), alt.value(0.35))
    return {
        **_square(
            alt.VariableParameter(name="turn", value=0.6),
            alt.VariableParameter(name="tilt", value=0.35),
        ),
        "layer": [
            lines.encode(detail="line:N", order="step:Q"),
            ways.mark_line(strokeWidth=1.2, opacity=0.4).encode(detail="token:Q", order="layer:Q"),
            _last(ways, front),
        ],
    }


_SHOWN: Final = "datum.layer <= shown"
_TOOLTIP: Final = ["token:Q", "layer:Q"]


def _square(*more: alt.VariableParameter) -> Spec:
    """A square of fixed size; the page sets the last layer to show."""
    shown = alt.VariableParameter(name="shown", value=10**6)
    size = {"width": _SQUARE, "height": _SQUARE, "autosize": "pad"}
    return {**size, "params": [*more, shown]}


def _token() -> alt.Color:
    return alt.Color("token:Q", scale=alt.Scale(scheme="turbo", domainMin=-1), legend=None)


def _placed(axis: alt.Axis | None) -> dict[str, Any]:
    """Encodings of x and y with a fixed domain."""
    scale = alt.Scale(domain=[-1.08, 1.08])
    return {
        "x": alt.X("across:Q", axis=axis, scale=scale),
        "y": alt.Y("up:Q", axis=axis, scale=scale),
    }


def _last(ways: alt.Chart, opacity: Any) -> alt.Chart:
    """The tokens at the last layer shown, drawn large."""
    points: alt.Chart = ways.transform_filter("datum.layer == min(shown, datum.last)")
    points = points.mark_point(filled=True, size=70, stroke=INK["paper"], strokeWidth=1)
    return points.encode(opacity=opacity, tooltip=_TOOLTIP)


def _seen(chart: alt.Chart, x: str, y: str, z: str) -> alt.Chart:
    """Points of the unit sphere, rotated about the vertical axis, then tilted."""
    ahead = f"(datum.{y} * cos(turn) - datum.{x} * sin(turn))"
    return chart.transform_calculate(
        across=f"datum.{x} * cos(turn) + datum.{y} * sin(turn)",
        up=f"datum.{z} * cos(tilt) + {ahead} * sin(tilt)",
        near=f"datum.{z} * sin(tilt) - {ahead} * cos(tilt)",
    ).encode(**_placed(None))


def _graticule() -> list[dict[str, Any]]:
    """Three great circles and two parallels: two axes and the center of each."""
    wide, high, steps = math.sqrt(0.75), 0.5, 48
    circles = (
        ((1, 0, 0), (0, 1, 0), (0, 0, 0)),
        ((1, 0, 0), (0, 0, 1), (0, 0, 0)),
        ((0, 1, 0), (0, 0, 1), (0, 0, 0)),
        ((wide, 0, 0), (0, wide, 0), (0, 0, high)),
        ((wide, 0, 0), (0, wide, 0), (0, 0, -high)),
    )
    rows = []
    for (line, axes), step in product(enumerate(circles), range(steps + 1)):
        cos, sin = (f(2 * math.pi * step / steps) for f in (math.cos, math.sin))
        a, b, c = (round(u * cos + v * sin + w, 4) for u, v, w in zip(*axes, strict=True))
        rows.append({"line": line, "step": step, "a": a, "b": b, "c": c})
    return rows


_CHARTS: Final[Mapping[str, Callable[[Names], Spec]]] = {
    "residual": lambda names: {**_curves(names, "relative residual"), "height": 290},
    "plane": _plane,
    "sphere": _sphere,
    "spectrum": _spectrum,
    "paths": _paths,
    "prediction": lambda names: _curves(names, "relative dispersion", spread="band"),
    "bounds": lambda names: _curves(names, "residual"),
}
