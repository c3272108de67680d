"""What is known of a design before it is trained: figures of the law of its random networks."""

import math
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from rankscope.core.network import Spec
from rankscope.core.prediction import Prediction, predict
from rankscope.core.shapes import Hidden

ALIKE, OWN = "nearly alike", "own tokens"
"""Where exponents are taken: at tokens that hardly differ, where the paper takes them, or at the
task's own."""
STARTS = (ALIKE, OWN)
ANGLE, GRADIENT = "angle exponent", "gradient exponent"
DISTANCE = "exponents from zero"
_NEARLY: Final = 1e-4
"""How much of their differences tokens that are nearly alike keep."""


def predicted_figures(spec: Spec, x: Hidden, *, draws: int, seed: int) -> dict[str, float]:
    """Every figure of a design; ``x`` are the task's own tokens, embedded."""
    starts = {ALIKE: nearly_alike(x), OWN: x}
    found = {
        name: predict(spec, start, draws=draws, seed=seed, gradients=True)
        for name, start in starts.items()
    }
    figures: dict[str, float] = {}
    for name, prediction in found.items():
        angle, gradient = angle_exponent(prediction), gradient_exponent(prediction)
        figures |= {
            f"{ANGLE}, {name}": angle,
            f"{GRADIENT}, {name}": gradient,
            f"{DISTANCE}, {name}": math.hypot(angle, gradient),
        }
    return figures | {name: of(found[OWN]) for name, of in _OTHERS.items()}


def nearly_alike(x: Hidden) -> Hidden:
    """Tokens with hardly any difference left, of the same root mean square length."""
    x = x.detach().double()
    mean = x.mean(-2, keepdim=True)
    close = mean + _NEARLY * (x - mean)
    before, after = (each.square().sum((-2, -1), keepdim=True) for each in (x, close))
    return close * (before / after).sqrt()


def angle_exponent(prediction: Prediction) -> float:
    """The rate per layer of the logarithm of the angles between tokens: below 0 they close.

    Small angles go as the relative dispersion, whose logarithm is exact however small it is.
    """
    return math.log(10) * _per_layer(prediction.values["log10_relative_dispersion"])


def gradient_exponent(prediction: Prediction) -> float:
    """The rate per layer, backwards, of the logarithm of the gradient: above 0 it explodes."""
    return -_per_layer(_log(prediction.values["state_gradient"]))


def last_dispersion(prediction: Prediction) -> float:
    """The decimal logarithm of the relative dispersion after the last layer."""
    return float(prediction.values["log10_relative_dispersion"][-1].mean())


def mean_entropy(prediction: Prediction) -> float:
    """The attention entropy, mean of all layers."""
    return float(prediction.values["attention_entropy"][1:].mean())


def norm_growth(prediction: Prediction) -> float:
    """The rate per layer of the logarithm of the tokens' length."""
    return _per_layer(_log(prediction.values["token_norm"]))


def query_against_value(prediction: Prediction) -> float:
    """The logarithm of the queries' gradients over the values', mean of all layers."""
    queries, values = (prediction.values[f"{name}_gradient"][1:] for name in ("query", "value"))
    return float((_log(queries) - _log(values)).mean())


_OTHERS: Final[Mapping[str, Callable[[Prediction], float]]] = {
    "last dispersion": last_dispersion,
    "attention entropy": mean_entropy,
    "norm growth": norm_growth,
    "query over value gradients": query_against_value,
}


def _log(values: Tensor) -> Tensor:
    """Logarithms; of zero that of the least float, so that designs keep an order."""
    return values.clamp(min=torch.finfo(values.dtype).tiny).log()


def _per_layer(logarithms: Tensor) -> float:
    """How much the mean over networks grows from the input to the last layer, per layer."""
    return float((logarithms[-1] - logarithms[0]).mean()) / (len(logarithms) - 1)
