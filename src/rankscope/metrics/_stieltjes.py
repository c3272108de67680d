"""Sums over singular values from bidiagonal matrices, between proven bounds, with no decomposition.

For ``0 < r < 1``, ``λʳ = (sin πr/π) ∫ eʳˣ λ/(λ + eˣ) dx``; at ``r = ½`` and its derivative there,

    σ = (1/π) ∫ e^{x/2} φ(x) dx,    σ log σ = (1/2π) ∫ x e^{x/2} φ(x) dx,    φ = λ/(λ + eˣ),

and the trapezoidal rule in x is exact to ``e^{−2π²}`` with steps of one. For a start vector, φ is a
Stieltjes continued fraction in its ``α²`` and ``β²``: positive numbers alone, so that nothing
cancels. Cut off after ``α`` it is Gauss's rule, cut off before it is Gauss and Radau's with a node
at zero; the truth lies between them (Golub and Meurant 2010, section 6).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.metrics._golub_kahan import Bidiagonal

_FROM, _TO = -50, 30  # x: singular values from e⁻²⁵ of ‖X‖_F, and a tail beyond the largest

Counts = Float[Tensor, "batch node"]
PerStart = Float[Tensor, "batch start node"]


class Bracket(NamedTuple):
    """Lower and upper bounds of φ at every node."""

    low: PerStart
    high: PerStart


def nodes(like: Tensor) -> Float[Tensor, "node"]:
    """Where φ is evaluated, as logarithms of eigenvalues relative to ``‖X‖_F²``."""
    return torch.arange(_FROM, _TO + 1, dtype=torch.float64, device=like.device)


def fractions(found: Bidiagonal, energy: Float[Tensor, "batch"]) -> Bracket:
    """φ of every start's spectral measure, times the square of its length."""
    scale = torch.where(energy > 0, energy, 1.0).double()[:, None, None]
    alpha, beta = found.alpha.double().square() / scale, found.beta.double().square() / scale
    t = nodes(alpha).exp()
    weight = found.weight.double()[..., None]
    last = alpha[..., -1:]
    low, high = (_fraction(alpha, beta, t, t + end) for end in (torch.zeros_like(last), last))
    return Bracket(weight * low, weight * high)


def _fraction(alpha: Tensor, beta: Tensor, t: Tensor, tail: Tensor) -> PerStart:
    """``α₁²/(t D₁ + α₁²)`` with ``D_j = 1 + β_j²/y_{j+1}`` and ``y_j = t + α_j²/D_j``."""
    y = tail
    for step in range(alpha.shape[-1] - 2, -1, -1):
        d = 1 + beta[..., step, None] / y
        y = t + alpha[..., step, None] / d
    # y₁ = t + α₁²/D₁, so that φ = (y₁ − t)/y₁; written so that small parts keep their digits.
    first = alpha[..., :1]
    if alpha.shape[-1] == 1:
        return (tail - t) / tail
    return first / (t * d + first)


def weights(x: Float[Tensor, "node"]) -> tuple[Tensor, Tensor]:
    """What φ at every node counts for in ``Σσ`` and in ``Σσ log σ``."""
    plain = (x / 2).exp() / math.pi
    return plain, plain * x / 2


def entropy(phi: Counts) -> Float[Tensor, "batch"]:
    """``H(σ/Σσ) = log S − T/S`` with ``S = Σσ`` and ``T = Σσ log σ``."""
    total, mixed = _sums(phi)
    return total.log() - mixed / total


def entropy_gradient(phi: Counts) -> Counts:
    """The derivative of the entropy by φ at every node: ``(w/S)(1 + T/S − x/2)``."""
    total, mixed = _sums(phi)
    x = nodes(phi)
    return weights(x)[0] / total[:, None] * (1 + mixed / total)[:, None] - (
        weights(x)[1] / total[:, None]
    )


def entropy_bounds(low: Counts, high: Counts) -> tuple[Tensor, Tensor]:
    """The least and the largest entropy of any φ between two others.

    The derivative changes sign once, at ``x = 2(1 + T/S)``: the largest entropy has ``high`` to the
    left of it and ``low`` to the right, the least the other way round. Few rounds settle where.
    """
    found = []
    for left, right in ((low, high), (high, low)):
        phi = (low + high) / 2
        for _ in range(6):
            phi = torch.where(entropy_gradient(phi) > 0, left, right)
        found.append(entropy(phi))
    return found[0], found[1]


def _sums(phi: Counts) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch"]]:
    x = nodes(phi)
    plain, mixed = weights(x)
    total = (phi * plain).sum(-1)
    return torch.where(total > 0, total, 1.0), (phi * mixed).sum(-1)
