"""The charts of the lab as Vega-Lite specifications; a page, or a picture, gives them rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rankscope.show.figures import INK, adaptive, configuration, printable, svg
from rankscope.show.lab._curves import bounds, prediction, residual
from rankscope.show.lab._panels import paths, plane, spectrum, sphere

Spec = dict[str, Any]
_HEIGHT: Final = 250
_PICTURE_WIDTH: Final = 620
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
    return {name: adaptive(_whole(name, make())) for name, make in _CHARTS.items()}


def picture(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    subtitle: Sequence[str],
    ticks: Sequence[float] = (),
) -> str:
    """One chart as an SVG of its own, with the network under its title."""
    chart = _only_present(_whole(name, _CHARTS[name]()), rows)
    if ticks:
        chart["params"] = [{"name": "ticks", "value": list(ticks)}]
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
        looks = zip(scale["domain"], scale["range"], strict=True)
        kept = [(name, look) for name, look in looks if name in present]
        scale |= {"domain": [name for name, _ in kept], "range": [look for _, look in kept]}
    return chart


def _whole(name: str, chart: Spec) -> Spec:
    config = configuration()
    config["legend"] |= {"orient": "bottom", "offset": 8, "labelFontSize": 11.5}
    config["aria"] = False  # each chart is told in one sentence, not mark by mark
    config["padding"] = {"left": 4, "right": 10, "top": 6, "bottom": 4}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": _HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": None,
        "data": {"name": ROWS.get(name, name), "values": []},
        "config": config,
        **chart,
    }


_CHARTS: Mapping[str, Callable[[], Spec]] = {
    "residual": residual,
    "plane": plane,
    "sphere": sphere,
    "spectrum": spectrum,
    "paths": paths,
    "prediction": prediction,
    "bounds": bounds,
}
