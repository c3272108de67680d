"""Rows of mpmath's numbers: one vector per token, and the maps that act on each row alike.

Weights are float64 numbers taken as exact; every map takes and gives lists of ``mpf``, at the
precision in force when it is called.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from mpmath import mp, mpf
from torch import Tensor, nn

from rankscope.core.network import OffsetNorm, Projection, Sphere, View

Vector = list[mpf]
Rows = list[Vector]  # one vector per token
RowMap = Callable[[Rows], Rows]


@dataclass(frozen=True)
class Scene:
    """Which tokens of one sample are real, and what each of them may see."""

    real: list[int]
    keys: list[list[int]]  # of each real token: which real tokens it attends to
    positions: Tensor  # as the network's visibility holds them: (rows, token), padding included
    row: int  # of this sample there


def same(x: Rows) -> Rows:
    return x


def plus(x: Rows, y: Rows, scale: float) -> Rows:
    """``x + scale · y``."""
    by = mpf(scale)
    return [[a + by * b for a, b in zip(p, q, strict=True)] for p, q in zip(x, y, strict=True)]


def exact(numbers: Tensor) -> list:
    """A tensor as nested lists of mpf; float64 fits into every precision used here."""
    if numbers.ndim > 1:
        return [exact(part) for part in numbers]
    return [mpf(v) for v in numbers.detach().double().tolist()]


def linear(projection: Projection) -> RowMap:
    """``x ↦ x Wᵀ + b``, row by row."""
    scale = getattr(projection, "scale", 1.0)
    if isinstance(projection, View):  # from what is stored: (x Wᵀ + b) ∘ scale
        stored = getattr(projection.source, projection.bias_name, None)
        weight = exact(projection.pick.weight(getattr(projection.source, projection.name)))
        bias = None if stored is None else exact(projection.pick.bias(stored))
    else:
        weight = exact(projection.weight)
        bias = None if projection.bias is None else exact(projection.bias)
    bias = [mpf(0)] * len(weight) if bias is None else bias
    scales = exact(scale) if isinstance(scale, Tensor) else [mpf(scale)] * len(weight)
    weight = [[s * w for w in row] for s, row in zip(scales, weight, strict=True)]
    bias = [s * b for s, b in zip(scales, bias, strict=True)]
    return lambda rows: [
        [mp.fdot(w, x) + b for w, b in zip(weight, bias, strict=True)] for x in rows
    ]


def normed(norm: nn.Module) -> RowMap:
    """LayerNorm ``g (x − x̄)/√(var + ε) + b``, RMSNorm ``g x/√(x²‾ + ε)``, or ``x/‖x‖₂``."""
    if isinstance(norm, nn.Identity):
        return same
    if isinstance(norm, Sphere):
        return lambda rows: [_over(x, mp.sqrt(mp.fdot(x, x))) if any(x) else x for x in rows]
    if isinstance(norm, OffsetNorm):
        centered, gain = norm.centers, [1 + w for w in exact(norm.offset)]
        width = len(gain)
    elif isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        (width,) = norm.normalized_shape
        centered = isinstance(norm, nn.LayerNorm)
        gain = [mpf(1)] * width if norm.weight is None else exact(norm.weight)
    else:
        raise NotImplementedError(f"the oracle has no equation for {type(norm).__name__}.")
    eps = mpf(torch.finfo(torch.float64).eps if norm.eps is None else norm.eps)
    shift = getattr(norm, "bias", None)
    bias = [mpf(0)] * width if shift is None else exact(shift)

    def one(x: Vector) -> Vector:
        mean = mp.fsum(x) / width if centered else mpf(0)
        x = [v - mean for v in x]
        scaled = _over(x, mp.sqrt(mp.fdot(x, x) / width + eps))
        return [g * v + b for g, v, b in zip(gain, scaled, bias, strict=True)]

    return lambda rows: [one(x) for x in rows]


def _over(x: Vector, by: mpf) -> Vector:
    return [v / by for v in x]


def by_head(rows: Rows, heads: int) -> list[Rows]:
    size = len(rows[0]) // heads
    return [[x[h * size : (h + 1) * size] for x in rows] for h in range(heads)]
