"""By how much a row-wise MLP can increase the differences between tokens.

Dong et al. 2021, corollary 3.2; the constant is derived here. A map of single rows takes the center
c to ``f(c)``, and the secant slopes of an activation lie in an interval,
``[φ'_min, φ'_max] = [m − w, m + w]``. So with ``s = x − c``

    ``f(x) − f(c) = s W₁ diag(g) W₂``,  ``|g_u − m| ≤ w``,  hence  ``|f(x) − f(c)| ≤ |s| M``

entry by entry, ``M = |αI + m W₁W₂| + w |W₁||W₂|`` for an MLP with a skip of scale α. For all rows
at once ``|f(X) − 1f(c)ᵀ| ≤ |X − 1cᵀ| M``, so the 1-norm grows by ``‖M‖₁`` at most, the ∞-norm by
``‖M‖∞``, and the composite by ``‖M‖₁,∞``: that is the λ of the corollary. Without a skip it is at
most ``L ‖ |W₁||W₂| ‖₁,∞`` with ``L = max|φ'|``, the simpler choice, because ``|m| + w = L``.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.network import MLP, IdentityMLP
from rankscope.core.network import activation as record_of
from rankscope.core.shapes import PerSample
from rankscope.errors import InputError

Gain = Float[Tensor, "*batch feature feature"]


def slope_range(activation: str) -> tuple[float, float]:
    """The smallest and the largest slope of an activation, which bound all secant slopes, too.

    >>> slope_range("relu")
    (0.0, 1.0)
    """
    slopes = record_of(activation).slopes
    if slopes is None:
        raise InputError(f"no slopes of the activation {activation!r} are known.")
    return slopes


def row_gain(mlp: MLP | IdentityMLP | None, *, width: int, skip: float = 0.0) -> Gain | None:
    """M of a plain MLP with its skip, for all inputs; None if it is gated.

    A gated MLP multiplies two functions of its input, so no M is valid for all inputs
    (see ``gated_gain``).
    """
    identity = torch.eye(width, dtype=torch.float64)
    if mlp is None:
        return identity
    if isinstance(mlp, IdentityMLP):
        return (1 + skip) * identity
    if mlp.gate is not None:
        return None
    low, high = slope_range(mlp.activation)
    middle, half = (low + high) / 2, (high - low) / 2
    up, down = _matrix(mlp.up.weight), _matrix(mlp.down.weight)
    straight = skip * identity + middle * (up @ down)
    return straight.abs() + half * (up.abs() @ down.abs())


def gated_gain(
    mlp: MLP, center: Float[Tensor, "batch feature"], radius: PerSample, *, skip: float = 0.0
) -> Gain:
    """M of a gated MLP for rows within ``radius`` of ``center`` in the sum of absolute differences.

    Derived: ``φ(g)u − φ(g₀)u₀ = (φ(g) − φ(g₀)) u + φ(g₀)(u − u₀)`` for gates g and values u, where
    ``|u| ≤ U = |u₀| + radius · max|W_u|`` column by column; so
    ``M = αI + (L |W_g| diag(U) + |W_u| diag|φ(g₀)|) |W₂|``.
    """
    assert mlp.gate is not None, "a plain MLP has a gain for all inputs: row_gain"
    up, gate, down = (_matrix(part.weight) for part in (mlp.up, mlp.gate, mlp.down))
    value, opening = center @ up, center @ gate
    if mlp.up.bias is not None:
        value = value + _matrix(mlp.up.bias)
    if mlp.gate.bias is not None:
        opening = opening + _matrix(mlp.gate.bias)
    farthest = value.abs() + radius[:, None] * up.abs().amax(0)
    steepest = max(map(abs, slope_range(mlp.activation)))
    moved = steepest * gate.abs() * farthest[:, None, :]
    scaled = up.abs() * record_of(mlp.activation)(opening).abs()[:, None, :]
    identity = torch.eye(len(up), dtype=torch.float64)
    return skip * identity + (moved + scaled) @ down.abs()


def _matrix(weight: Tensor) -> Tensor:
    """A stored weight as the matrix of ``x ↦ xW``, or a bias; in float64 on the CPU."""
    plain = weight.detach().cpu().double()
    return plain.T if plain.ndim == 2 else plain
