"""The figures that take longer: path lengths, the prediction, the bounds."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from torch import Tensor

from rankscope.core.deep import deep_trace
from rankscope.core.network import Network
from rankscope.core.paths import path_lengths
from rankscope.core.prediction import predict
from rankscope.core.theory import bounds
from rankscope.core.tracing import trace
from rankscope.show.lab._rows import Rows, by_layer

DRAWS: Final = {False: 8, True: 3}
"""Networks of which a prediction is made; fewer where layers share weights and all are drawn."""
ROUNDING: Final = 1e-12
"""A relative residual below which float64 has too few digits of it left to be divided up."""
_CURVES: Final = {
    "log10_residual": "measured",
    "log10_sharp_bound": "sharp, this layer",
    "log10_data_bound": "data, this layer",
    "log10_a_priori_bound": "a priori, this layer",
    "log10_depth_bound": "Dong et al. 2021, all layers",
}
"""Which bounds are drawn, and their names in the legend."""


def _paths(network: Network, x: Tensor, notes: dict[str, str]) -> Rows:
    """What paths of each length carry in the last layer, unless all they carry is rounding."""
    left = by_layer(trace(network, x, metrics="relative_residual"), "relative_residual")
    if min(left.values()) < ROUNDING:
        notes["paths"] = (
            "In float64 the tokens have become equal but for rounding, so paths have no shares "
            "in what tells them apart."
        )
        return []
    columns = path_lengths(network, x).columns
    names = ("layer", "length", "metric", "value")
    last = network.spec.layers
    return [
        {"length": length, "share": value}
        for layer, length, metric, value in zip(*(columns[n] for n in names), strict=True)
        if layer == last and metric == "residual_share" and length is not None
    ]


def _prediction(network: Network, x: Tensor, notes: dict[str, str]) -> Rows:
    """The band of random networks like this one, and this one, in the Frobenius norm."""
    found = predict(network.spec, x[0], draws=DRAWS[network.spec.shared_layers])
    if "doubt" in found.notes:
        notes["prediction_doubt"] = found.notes["doubt"]
    band = found.band("log10_relative_dispersion")
    measured = by_layer(deep_trace(network, x, norm="fro"), "log10_relative_residual")
    curves = zip(*(each.tolist() for each in band), strict=True)
    return [
        {"layer": layer, "mean": mean, "low": low, "high": high, "measured": measured[layer]}
        for layer, (mean, low, high) in enumerate(curves)
    ]


def _bounds(network: Network, x: Tensor, notes: dict[str, str]) -> Rows:
    """Each bound by layer beside the residual; why there is none is noted."""
    found = bounds(network, x)
    reasons = {layer.why_not: layer.layer for layer in reversed(found.layers) if layer.why_not}
    for reason, layer in reasons.items():
        notes["bounds"] = f"From layer {layer} on no bound applies: {reason}."
    return [
        {"layer": layer.layer, "curve": words, "value": value}
        for layer in found.layers
        if not layer.why_not
        for name, words in _CURVES.items()
        if math.isfinite(value := float(getattr(layer, name)[0]))
    ]


SLOW: Final[Mapping[str, Callable[[Network, Tensor, dict[str, str]], Rows]]] = {
    "paths": _paths,
    "prediction": _prediction,
    "bounds": _bounds,
}
"""The rows of each chart; reasons and doubts are noted."""
