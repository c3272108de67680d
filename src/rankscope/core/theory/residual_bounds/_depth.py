"""Bounds on the residual after many layers, from bounds on each.

Dong et al. 2021, theorems 2.2 and 2.3. All of them are about the residual at the best center. A
layer's bound is about its output at a center of its own, which is no better than the best one; the
next layer starts from the best center that was found, which is worse than the true best by a known
factor at most: the ``slack``. It is a logarithm, about 1e-4 or less, and zero for the first layer,
where any center can be used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rankscope.core.shapes import PerSample
from rankscope.core.theory.residual_bounds._layer import HeadWeights, LogParts, norm_bound


@dataclass(frozen=True)
class CubicBound:
    """One layer's bound ``residual ≤ e^log_factor · residual³``, valid where ``condition`` is."""

    log_factor: PerSample
    condition: torch.Tensor


def chain_cubic_bounds(layers: Sequence[CubicBound], log_residual: PerSample) -> list[PerSample]:
    """``log(κ^{(3^l − 1)/2} ‖res(X)‖^{3^l})`` after l = 1, 2, … layers.

    Dong et al. 2021, theorems 2.2 and 2.3. κ is the largest factor ``4γβλ·scale`` of the first l
    layers. NaN from the first layer on whose condition is not met.
    """
    bounds = []
    largest = torch.full_like(log_residual, -math.inf)
    valid = torch.ones_like(log_residual, dtype=torch.bool)
    power = 1.0
    for layer in layers:
        largest, valid = torch.maximum(largest, layer.log_factor), valid & layer.condition
        power = min(power * 3, 1e300)  # beyond that, no float could represent the exponent anyway
        # One product, because two could be infinite with opposite signs.
        value = power * (log_residual + largest / 2) - largest / 2
        value = torch.where(largest.isneginf() | log_residual.isneginf(), -math.inf, value)
        bounds.append(torch.where(valid, value, math.nan))
    return bounds


def chain_data_bounds(
    gains: Sequence[PerSample], slacks: Sequence[PerSample], log_residual: PerSample
) -> list[PerSample]:
    """Each layer's gain, from its measured score differences, on the bound of the layer before it.

    A gain is the logarithm of ``2√(ΣD · max D)‖W‖λ``; it is NaN where the condition is not met, and
    so are all bounds from there on.
    """
    bounds: list[PerSample] = []
    value = log_residual
    for gain, slack in zip(gains, slacks, strict=True):
        value = value + gain + slack
        bounds.append(value)
    return bounds


def chain_norm_bounds(
    layers: Sequence[tuple[HeadWeights, torch.Tensor]], norms: LogParts, counts: torch.Tensor
) -> list[PerSample]:
    """What follows from the norms of the input alone (derived): no condition, no slack.

    Each layer's ``norm_bound`` is the input of the next. For small residuals it is
    ``√n/√2 · β·scale·‖R‖³`` per layer, less than a fifth of the cubic bound with ``γ = √n``.
    """
    bounds = []
    for weights, gain in layers:
        norms = norm_bound(weights, norms, counts).times(gain)
        bounds.append(norms.composite)
    return bounds
