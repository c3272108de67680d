"""Activations: one record each, with everything that other packages need.

A new activation is a record and its entry in ``ACTIVATIONS``. A feature that needs a missing field
raises an error: paths need ``limit_at_zero``, bounds ``slopes``, scaled arithmetic a ``scaled``
form.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from rankscope.arguments import checked, short
from rankscope.errors import SpecError

Series = list[Tensor]

ORDER = 12
"""Number of terms: sixteen digits at steps up to 1/32."""


@dataclass(frozen=True)
class SelfGated:
    """``φ(z) = z g(z)`` with a smooth gate, ``g(z) + g(−z) = 1``: GELU, SiLU and the like.

    Then ``φ(z) = relu(z) + φ(−|z|)``, and far from 1 φ is homogeneous to all digits. ``series`` is
    that of the gate at a point; ``exact`` is φ by its formula, to the last digit also where tiny.

    >>> from rankscope.core.network import activation
    >>> import torch
    >>> gelu = activation("gelu").scaled
    >>> print(f"{float(gelu.exact(torch.tensor(-9.0, dtype=torch.float64))):.5e}")
    -1.01573e-18
    """

    series: Callable[[Tensor], Series]
    exact: Callable[[Tensor], Tensor]

    def coefficients(self, a: Tensor) -> Series:
        """The first Taylor coefficients of φ at ``a``.

        >>> from rankscope.core.network import activation
        >>> import torch
        >>> silu = activation("silu").scaled
        >>> [float(c) for c in silu.coefficients(torch.tensor(0.0, dtype=torch.float64))[:3]]
        [0.0, 0.5, 0.25]
        """
        return _times_argument(self.series(a), a)


@dataclass(frozen=True)
class PiecewiseLinear:
    """Slope ``left`` below zero and ``right`` above: ReLU and leaky ReLU."""

    left: float
    right: float

    def exact(self, z: Tensor) -> Tensor:
        """φ itself."""
        return self.left * z + (self.right - self.left) * relu(z)


@dataclass(frozen=True)
class Squared:
    """The square of another activation."""

    of: str


@checked
@dataclass(frozen=True)
class Activation:
    """An elementwise function, with the properties that other packages need.

    >>> import torch
    >>> from rankscope.core.network import Activation
    >>> double = Activation(lambda z: 2 * z, lambda z: 2.0, limit_at_zero=2.0, slopes=(2.0, 2.0))
    >>> double(torch.ones(2)), double.lipschitz
    (tensor([2., 2.]), 2.0)

    ``function`` is used by the forward pass, ``derivative`` is its slope. ``limit_at_zero`` is the
    limit of φ(z)/z, the gate with which paths freeze an MLP; None if φ(0) is not zero. ``slopes``
    are the smallest and the largest derivative. ``scaled`` defines how it acts on ``1xᵀ + eˢR``.
    """

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[float], float]
    limit_at_zero: float | None = None
    slopes: tuple[float, float] | None = None
    scaled: SelfGated | PiecewiseLinear | Squared | None = None

    def __call__(self, z: Tensor) -> Tensor:
        return self.function(z)

    @property
    def lipschitz(self) -> float | None:
        """The Lipschitz constant; None if the slopes are unknown."""
        return None if self.slopes is None else max(map(abs, self.slopes))


def activation(name: str) -> Activation:
    """The record of an activation; unknown names raise an error.

    >>> from rankscope.core.network import activation
    >>> activation("relu").lipschitz
    1.0
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise SpecError(f"activation{short(name)} is unknown; choose one of {known}.")
    return ACTIVATIONS[name]


def _gelu_slope(z: float) -> float:
    """``Φ(z) + z Φ'(z)``."""
    bell = z * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + math.erf(z / math.sqrt(2))) + bell


def _gelu_tanh_slope(z: float) -> float:
    """Of ``½z(1 + tanh u)``, ``u = √(2/π)(z + 0.044715 z³)``."""
    root = math.sqrt(2 / math.pi)
    t = math.tanh(root * (z + 0.044715 * z**3))
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * root * (1 + 3 * 0.044715 * z * z)


def _silu_slope(z: float, rate: float = 1.0) -> float:
    """``σ(1 + cz(1 − σ))`` with ``σ = σ(cz)``."""
    s = 1 / (1 + math.exp(-rate * z))
    return s * (1 + rate * z * (1 - s))


def _silu(rate: float, function: Callable[[Tensor], Tensor]) -> Activation:
    """``z σ(cz)`` of rate c."""
    form = SelfGated(
        lambda a: _logistic_series([a * (rate / 2), torch.full_like(a, rate / 2)]),
        lambda z: z * torch.sigmoid(rate * z),
    )
    return _self_gated(function, partial(_silu_slope, rate=rate), form)


def _relu_slope(z: float) -> float:
    """The slope of ReLU; zero at the kink, as in PyTorch."""
    return 1.0 if z > 0 else 0.0


def _self_gated(
    function: Callable[[Tensor], Tensor], derivative: Callable[[float], float], form: SelfGated
) -> Activation:
    """Derived: ``φ'(z) + φ'(−z) = 1``, and φ' has one maximum on the positive axis."""
    greatest = _greatest(derivative)
    slopes = 1 - greatest, greatest
    return Activation(function, derivative, derivative(0.0), slopes, form)


def _greatest(slope: Callable[[float], float]) -> float:
    """The maximum on [0, 8] by golden section.

    Comparing values finds the place to eight digits only, and the value, which is flat there, to
    all sixteen.
    """
    golden = (math.sqrt(5) - 1) / 2
    low, high = 0.0, 8.0
    while high - low > 1e-9:
        left, right = high - golden * (high - low), low + golden * (high - low)
        if slope(left) < slope(right):
            low = left
        else:
            high = right
    return slope((low + high) / 2)


# Truncated power series: ``f^(k)(a)/k!`` for k = 0 … ``ORDER`` at every entry of a tensor ``a``.


def _times_argument(gate: Series, a: Tensor) -> Series:
    """``z g(z)`` at ``z = a + h``, from the series of g."""
    every = torch.stack(gate)
    return [a * gate[0], *(a * every[1:] + every[:-1])]


def _normal_cdf(a: Tensor) -> Tensor:
    """``Φ(a)`` with all digits in its tail, where ``½(1 + erf)`` has none."""
    return torch.erfc(-a * math.sqrt(0.5)) / 2


def _normal_cdf_series(a: Tensor) -> Series:
    """``Φ(a + h)``: its derivative is ``e^{−(a+h)²/2}/√(2π)``, whose series is an exponential's."""
    density = [torch.exp(-a * a / 2) / math.sqrt(2 * math.pi)]
    minus_a = -a
    for k in range(1, ORDER):  # y' = −(a + h) y
        grown = minus_a * density[k - 1]
        density.append((grown - density[k - 2] if k > 1 else grown) / k)
    count = torch.arange(1, ORDER + 1, dtype=a.dtype, device=a.device)
    return [_normal_cdf(a), *(torch.stack(density) / count.view(-1, *(1,) * a.ndim))]


def _logistic_series(argument: Series) -> Series:
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


def _gelu_tanh_argument(a: Tensor) -> Series:
    """``√(2/π) (z + 0.044715 z³)`` at ``z = a + h``."""
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    return [
        scale * (a + cubic * a**3),
        scale * (1 + 3 * cubic * a**2),
        scale * 3 * cubic * a,
        torch.full_like(a, scale * cubic),
    ]


ACTIVATIONS: dict[str, Activation] = {
    "gelu": _self_gated(
        gelu, _gelu_slope, SelfGated(_normal_cdf_series, lambda z: z * _normal_cdf(z))
    ),
    "gelu_tanh": _self_gated(
        partial(gelu, approximate="tanh"),
        _gelu_tanh_slope,
        SelfGated(
            lambda a: _logistic_series(_gelu_tanh_argument(a)),
            lambda z: z * torch.sigmoid(2 * _gelu_tanh_argument(z)[0]),
        ),
    ),
    "relu": Activation(relu, _relu_slope, 0.0, (0.0, 1.0), PiecewiseLinear(0.0, 1.0)),
    "relu2": Activation(
        lambda z: relu(z).square(), lambda z: 2 * max(z, 0.0), 0.0, scaled=Squared("relu")
    ),
    "silu": _silu(1.0, silu),
    "quick_gelu": _silu(1.702, lambda z: z * torch.sigmoid(1.702 * z)),
}
