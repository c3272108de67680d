"""Taylor coefficients of the activations, by arithmetic on truncated power series.

``coefficients(name, a)`` holds ``φ^(k)(a)/k!`` for k = 0, 1, …. The point ``a`` is common to all
tokens, so this is cheap however high the order. ReLU has no series and needs none.
"""

import math

import torch
from torch import Tensor

from rankscope.errors import UnsupportedModelError

Series = list[Tensor]

ORDER = 12
"""Terms kept: enough for sixteen digits where |h| is at most ``REACH``."""
REACH = 1 / 32


def coefficients(name: str, a: Tensor) -> Series:
    """The first ``ORDER + 1`` Taylor coefficients of an activation at ``a``.

    >>> [float(c) for c in coefficients("silu", torch.tensor(0.0, dtype=torch.float64))[:3]]
    [0.0, 0.5, 0.25]
    """
    match name:
        case "gelu":
            gate = _normal_distribution(a)
        case "silu":
            gate = _half_plus_half_tanh([a / 2, torch.full_like(a, 0.5)])
        case "gelu_tanh":
            gate = _half_plus_half_tanh(_gelu_tanh_argument(a))
        case _:
            raise UnsupportedModelError(f"the activation {name!r} has no Taylor series here.")
    # φ(a + h) = (a + h) · gate(a + h)
    return [a * gate[0], *(a * gate[k] + gate[k - 1] for k in range(1, ORDER + 1))]


def _normal_distribution(a: Tensor) -> Series:
    """``Φ(a + h)``: its derivative is ``e^{−(a+h)²/2}/√(2π)``, whose series is an exponential's."""
    density = [torch.exp(-a * a / 2) / math.sqrt(2 * math.pi)]
    for k in range(1, ORDER):  # y' = −(a + h) y
        before = density[k - 2] if k > 1 else torch.zeros_like(a)
        density.append(-(a * density[k - 1] + before) / k)
    return [_normal(a), *(density[k - 1] / k for k in range(1, ORDER + 1))]


def _normal(a: Tensor) -> Tensor:
    """``Φ(a)`` with all digits in its tail, where ``½(1 + erf)`` has none."""
    return torch.erfc(-a * math.sqrt(0.5)) / 2


def _half_plus_half_tanh(argument: Series) -> Series:
    """``½(1 + tanh g)``, which solves ``y' = 2 y (1 − y) g'``."""
    zero = torch.zeros_like(argument[0])
    slope = [k * argument[k] for k in range(1, len(argument))]
    y = [torch.sigmoid(2 * argument[0])]
    other = [torch.sigmoid(-2 * argument[0])]  # 1 − y, without cancellation where y is near 1
    for k in range(1, ORDER + 1):
        product = [_coefficient(y, other, j) for j in range(k)]
        term = zero
        for j, factor in enumerate(slope[:k]):
            term = term + factor * product[k - 1 - j]
        y.append(2 * term / k)
        other.append(-y[k])
    return y


def exactly(name: str, z: Tensor) -> Tensor:
    """An activation as its formula says, to the last digit also where it is tiny.

    >>> float(exactly("gelu", torch.tensor(-9.0, dtype=torch.float64)))
    -1.0158...e-18
    """
    match name:
        case "gelu":
            return z * _normal(z)
        case "gelu_tanh":
            return z * torch.sigmoid(2 * _gelu_tanh_argument(z)[0])
        case "silu":
            return z * torch.sigmoid(z)
        case _:
            return torch.relu(z)


def _gelu_tanh_argument(a: Tensor) -> Series:
    """``√(2/π) (z + 0.044715 z³)`` at ``z = a + h``."""
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    return [
        scale * (a + cubic * a**3),
        scale * (1 + 3 * cubic * a**2),
        scale * 3 * cubic * a,
        torch.full_like(a, scale * cubic),
    ]


def _coefficient(one: Series, other: Series, k: int) -> Tensor:
    """The k-th coefficient of a product."""
    out = one[0] * other[k]
    for j in range(1, k + 1):
        out = out + one[j] * other[k - j]
    return out
