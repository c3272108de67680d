"""The globe: points of the unit sphere turned, tilted and seen from afar, inside the chart."""

import math
from typing import Any, Final

from rankscope.show.figures import INK

SPHERE_SIZE: Final = 300
_STEPS: Final = 48
Vector = tuple[float, float, float]


def sphere_parameters() -> list[dict[str, Any]]:
    """The two angles from which the globe is seen; the page sets them."""
    return [{"name": "turn", "value": 0.6}, {"name": "tilt", "value": 0.35}]


def sphere_layers(token: dict[str, Any], shown: str) -> list[dict[str, Any]]:
    """The globe's lines, then ways and places of tokens; what is behind is fainter."""
    ways = {"detail": {"field": "token"}, "order": {"field": "layer"}, "color": token}
    tooltip = [{"field": "token"}, {"field": "layer"}]
    front = {"test": "datum.near >= 0", "value": 0.95}
    here = [{"joinaggregate": [{"op": "max", "field": "layer", "as": "last"}]}, {"filter": shown}]
    seen = [*here, *_seen("sx", "sy", "sz")]
    last = {"filter": "datum.layer == min(shown, datum.last)"}
    return [
        {
            "data": {"values": _graticule()},
            "transform": _seen("a", "b", "c"),
            "mark": {"type": "line", "strokeWidth": 1, "color": INK["axis"]},
            "encoding": {
                **_place(),
                "detail": {"field": "line"},
                "order": {"field": "step"},
                "opacity": {"value": 0.55},
            },
        },
        {
            "transform": seen,
            "mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.4},
            "encoding": {**_place(), **ways},
        },
        {
            "transform": [*seen, last],
            "mark": {
                "type": "point",
                "filled": True,
                "size": 70,
                "stroke": INK["paper"],
                "strokeWidth": 1,
            },
            "encoding": {
                **_place(),
                "color": token,
                "opacity": {"condition": front, "value": 0.35},
                "tooltip": tooltip,
            },
        },
    ]


def _place() -> dict[str, Any]:
    """Across and up, on axes that always hold the whole globe."""
    return {
        channel: {
            "field": field,
            "type": "quantitative",
            "axis": None,
            "scale": {"domain": [-1.08, 1.08]},
        }
        for channel, field in (("x", "across"), ("y", "up"))
    }


def _seen(x: str, y: str, z: str) -> list[dict[str, Any]]:
    """Turned about the upright axis, then tilted towards the reader."""
    ahead = f"(datum.{y} * cos(turn) - datum.{x} * sin(turn))"
    return [
        {"calculate": f"datum.{x} * cos(turn) + datum.{y} * sin(turn)", "as": "across"},
        {"calculate": f"datum.{z} * cos(tilt) + {ahead} * sin(tilt)", "as": "up"},
        {"calculate": f"datum.{z} * sin(tilt) - {ahead} * cos(tilt)", "as": "near"},
    ]


def _graticule() -> list[dict[str, Any]]:
    """Three great circles and two parallels: two half-axes and the middle of each."""
    wide, high = math.sqrt(0.75), 0.5
    circles: tuple[tuple[Vector, Vector, Vector], ...] = (
        ((1, 0, 0), (0, 1, 0), (0, 0, 0)),
        ((1, 0, 0), (0, 0, 1), (0, 0, 0)),
        ((0, 1, 0), (0, 0, 1), (0, 0, 0)),
        ((wide, 0, 0), (0, wide, 0), (0, 0, high)),
        ((wide, 0, 0), (0, wide, 0), (0, 0, -high)),
    )
    rows = []
    for line, (first, second, middle) in enumerate(circles):
        for step in range(_STEPS + 1):
            turn = 2 * math.pi * step / _STEPS
            a, b, c = (
                round(u * math.cos(turn) + v * math.sin(turn) + w, 4)
                for u, v, w in zip(first, second, middle, strict=True)
            )
            rows.append({"line": line, "step": step, "a": a, "b": b, "c": c})
    return rows
