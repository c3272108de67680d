"""How figures go on at the end of a network: read off the second half of its layers."""

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
from jaxtyping import Float
from torch import Tensor

FASTER: Final = 1.5
"""What the later steps of a logarithm are of the earlier, from which it goes faster than
exponentially: 1 if it is exponential, 3 for the fall of pure attention."""
CLEARLY: Final = 2.0
"""How many times as many squares another straight line has to leave before a law is told."""
LEVEL: Final = 1.1
"""A factor over the second half of the layers, within which (or its inverse) a figure is level."""
FEWEST: Final = 4
"""Layers in the second half without which no law can be told."""

Law = Literal["level", "exponential", "faster than exponential", "polynomial", "unclear"]


@dataclass(frozen=True)
class Trend:
    """How a positive figure goes on: by which law, and its constants under either.

    ``rate`` is what a layer multiplies it by, as a natural logarithm; ``power`` that of the layer
    it goes like.
    """

    law: Law
    rate: float
    power: float

    @property
    def factor(self) -> float:
        """What a layer multiplies it by; infinite where no float can tell."""
        return math.exp(self.rate) if self.rate < 700 else math.inf


def trend(logs: Float[Tensor, "layer"]) -> Trend:
    """The trend of one curve, given by its natural logarithms, over the second half of its layers.

    >>> import torch
    >>> layers = torch.arange(9.0)
    >>> trend(-0.2 * layers).law, trend(-0.1 * 3**layers).law, trend(layers.log()).law
    ('exponential', 'faster than exponential', 'polynomial')

    Exponential or polynomial: whichever of two straight lines, over the layers and over their
    logarithms, comes clearly closer.
    """
    start = _middle(len(logs))
    half = logs[start:].double()
    layers = torch.arange(start, start + len(half), dtype=torch.float64)
    if not bool(half.isfinite().all()):  # all tokens equal, or beyond every float
        return Trend("unclear", *([float(half[-1])] * 2))
    (rate, by_layer), (power, by_power) = (_line(x, half) for x in (layers, layers.log()))
    return Trend(_law(half, rate, by_layer, by_power), rate, power)


def changes(sizes: Float[Tensor, "layer curve"]) -> Float[Tensor, "curve"]:
    """The factor of each curve over the second half of its layers.

    What has left the range of floats has gone on growing or shrinking; what was zero from the start
    has 1.
    """
    before, after = sizes[_middle(len(sizes))], sizes[-1]
    factor = torch.where(before == after, 1.0, after / before)
    factor = torch.where((after == 0) & (sizes[0] > 0), 0.0, factor)
    return torch.where(after.isinf(), math.inf, factor)


def _middle(count: int) -> int:
    """Where the second half of layers 0 to ``count − 1`` begins, at 1 or later."""
    return max(1, count // 2)


def _law(half: Float[Tensor, "half"], rate: float, by_layer: float, by_power: float) -> Law:
    steps = half.diff()
    if abs(rate) * len(steps) < math.log(LEVEL):
        return "level"
    if len(half) < FEWEST:
        return "unclear"
    few = len(steps) // 2
    earlier, later = (float(part.mean()) for part in (steps[:few], steps[len(steps) - few :]))
    if earlier * later > 0 and abs(later) > FASTER * abs(earlier):
        return "faster than exponential"
    if CLEARLY * by_layer < by_power:
        return "exponential"
    return "polynomial" if CLEARLY * by_power < by_layer else "unclear"


def _line(x: Float[Tensor, "half"], y: Float[Tensor, "half"]) -> tuple[float, float]:
    """The slope of the straight line through some points, and the squares it leaves."""
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x)) if len(x) > 1 else 0.0
    return slope, float(((y - slope * x) ** 2).sum())
