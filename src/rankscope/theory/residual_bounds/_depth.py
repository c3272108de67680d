"""Bounds on the residual after many layers, from bounds on each (D, theorems 2.2 and 2.3).

All of them are about the residual at the best center. A layer's bound speaks about its output at a
center of its own, which is no better than the best one; the next layer starts from the best center
that was found, which is worse than the best there is by a known factor at most: the ``slack``. It
is a logarithm, about 1e-4 or less, and zero for the first layer, where any center will do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rankscope.shapes import PerSample
from rankscope.theory.residual_bounds._layer import HeadWeights, LogParts, unseen_bound


@dataclass(frozen=True)
class Cubic:
    """One layer of D's theorem: ``residual ≤ e^log_factor · residual³``, where it ``holds``."""

    log_factor: PerSample
    holds: torch.Tensor


def theorem_depth(layers: Sequence[Cubic], log_residual: PerSample) -> list[PerSample]:
    """``log(κ^{(3^l − 1)/2} ‖res(X)‖^{3^l})`` after l = 1, 2, … layers (D, theorems 2.2 and 2.3).

    κ is the largest factor ``4γβHλ·scale`` of the first l layers. NaN from the first layer on whose
    condition does not hold.
    """
    bounds = []
    most = torch.full_like(log_residual, -math.inf)
    good = torch.ones_like(log_residual, dtype=torch.bool)
    power = 1.0
    for layer in layers:
        most, good = torch.maximum(most, layer.log_factor), good & layer.holds
        power = min(power * 3, 1e300)  # beyond, the exponent is out of any float's reach anyway
        # One product, for two of them could be infinite with opposite signs.
        value = power * (log_residual + most / 2) - most / 2
        value = torch.where(most.isneginf() | log_residual.isneginf(), -math.inf, value)
        bounds.append(torch.where(good, value, math.nan))
    return bounds


def data_depth(
    gains: Sequence[PerSample], slacks: Sequence[PerSample], log_residual: PerSample
) -> list[PerSample]:
    """Measured score differences, chained bounds: each layer's gain on the bound before it.

    A gain is the logarithm of ``2√(ΣD · max D)‖W‖λ``; it is NaN where the condition failed, and so
    are all bounds from there on.
    """
    bounds: list[PerSample] = []
    value = log_residual
    for gain, slack in zip(gains, slacks, strict=True):
        value = value + gain + slack
        bounds.append(value)
    return bounds


def unseen_depth(
    layers: Sequence[tuple[HeadWeights, torch.Tensor]], norms: LogParts, counts: torch.Tensor
) -> list[PerSample]:
    """What can be said from the norms of the input alone (derived): no condition, no slack.

    Each layer's ``unseen_bound`` is put into the next. With small residuals it is
    ``√n/√2 · β·scale·‖R‖³`` per layer, less than a fifth of D's with ``γ = √n``.
    """
    bounds = []
    for weights, gain in layers:
        norms = unseen_bound(weights, norms, counts).times(gain)
        bounds.append(norms.composite)
    return bounds
