"""Truncated power series: the first coefficients of functions at a point, by arithmetic on them.

A series holds ``f^(k)(a)/k!`` for k = 0 … ``ORDER`` at every entry of a tensor ``a``.
"""

import math

import torch
from torch import Tensor

Series = list[Tensor]

ORDER = 12
"""Terms kept: enough for sixteen digits at steps up to 1/32."""


def times_argument(gate: Series, a: Tensor) -> Series:
    """``z g(z)`` at ``z = a + h``, from the series of g."""
    every = torch.stack(gate)
    return [a * gate[0], *(a * every[1:] + every[:-1])]


def normal_cdf(a: Tensor) -> Tensor:
    """``Φ(a)`` with all digits in its tail, where ``½(1 + erf)`` has none."""
    return torch.erfc(-a * math.sqrt(0.5)) / 2


def normal_cdf_series(a: Tensor) -> Series:
    """``Φ(a + h)``: its derivative is ``e^{−(a+h)²/2}/√(2π)``, whose series is an exponential's."""
    density = [torch.exp(-a * a / 2) / math.sqrt(2 * math.pi)]
    minus_a = -a
    for k in range(1, ORDER):  # y' = −(a + h) y
        grown = minus_a * density[k - 1]
        density.append((grown - density[k - 2] if k > 1 else grown) / k)
    count = torch.arange(1, ORDER + 1, dtype=a.dtype, device=a.device)
    return [normal_cdf(a), *(torch.stack(density) / count.view(-1, *(1,) * a.ndim))]


def logistic_series(argument: Series) -> Series:
    """``½(1 + tanh g)`` of a polynomial g, which solves ``y' = 2 y (1 − y) g'``."""
    zero = torch.zeros_like(argument[0])
    slope = [k * argument[k] for k in range(1, len(argument))]
    y = [torch.sigmoid(2 * argument[0])]
    other = [torch.sigmoid(-2 * argument[0])]  # 1 − y, without cancellation where y is near 1
    product: Series = []
    for k in range(1, ORDER + 1):
        product.append(_product_coefficient(y, other, k - 1))
        term = zero
        for j, factor in enumerate(slope[:k]):
            term = term + factor * product[k - 1 - j]
        y.append(2 * term / k)
        other.append(-y[k])
    return y


def _product_coefficient(one: Series, other: Series, k: int) -> Tensor:
    """The k-th coefficient of a product."""
    out = one[0] * other[k]
    for j in range(1, k + 1):
        out = out + one[j] * other[k - j]
    return out
