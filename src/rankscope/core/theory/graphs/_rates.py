"""How fast masked attention forgets: what a graph guarantees, and the eigenvalues of a matrix.

Attention matrices are ``(..., query, key)`` and row-stochastic.
"""

import math

import numpy as np
import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.masks import Mask, as_mask
from rankscope.core.theory.graphs._stochastic import normalize_rows
from rankscope.errors import InputError, KindError, ShapeError


@checked
def a_priori_rate(epsilon: Tensor | float, radius: float) -> Tensor:
    """The most that a layer leaves of the differences, ``(1 − ε^r)^{1/r}`` (Wu et al. 2024).

    >>> a_priori_rate(0.5, 1)
    tensor(0.5000, dtype=torch.float64)

    Their result on masked attention. It needs every allowed weight to be at least ε in every layer
    and a center of eccentricity r that attends to itself (``GraphFacts.contracts_after``): then
    every product of r layers has weights of at least ε^r in that center's column. An infinite
    radius guarantees nothing and gives 1; radius 0 is a single token and gives 0.
    """
    return torch.exp(-torch.exp(a_priori_log_decay(epsilon, radius)))


@checked
def a_priori_log_decay(epsilon: Tensor | float, radius: float) -> Tensor:
    """``log(−log rate)`` of ``a_priori_rate``, which distinguishes rates that all round to 1.

    >>> a_priori_log_decay(1e-3, 1000)
    tensor(-6914.6630, dtype=torch.float64)

    After t layers the bound is ``exp(−t e^x)`` with x the value returned.
    """
    if isinstance(epsilon, Tensor) and epsilon.is_complex():
        raise KindError(f"epsilon has dtype {epsilon.dtype}, expected real numbers.")
    eps = torch.as_tensor(epsilon, dtype=torch.float64)
    if not bool(((eps >= 0) & (eps <= 1)).all()):
        raise InputError(f"epsilon is {epsilon}; a smallest weight lies between 0 and 1.")
    if not (radius == math.inf or (radius >= 0 and radius == int(radius))):
        raise InputError(f"radius is {radius}; expected a whole number of layers, or infinity.")
    if radius in (0, math.inf):
        return torch.full_like(eps, math.inf if radius == 0 else -math.inf)
    power = radius * eps.log()
    # −log(1 − eˣ) is eˣ (1 + eˣ/2 + …): below −40 the rest is lost in rounding, and eˣ may be 0.
    near = power.clamp(min=-40.0)
    exact = torch.where(near > -0.7, -(-torch.expm1(near)).log(), -torch.log1p(-near.exp())).log()
    return torch.where(power < -40.0, power, exact) - math.log(radius)


@checked
def a_priori_log_loss(epsilon: float, radius: float) -> float:
    """The logarithm of what a layer loses at least of any difference, by ``a_priori_rate``.

    >>> a_priori_log_loss(0.5, 1), a_priori_log_loss(0.5, math.inf)
    (-0.693..., -inf)

    Minus infinity where nothing is promised: no center, or weights of zero.
    """
    if math.isinf(radius) or epsilon <= 0:
        return -math.inf
    decay = float(a_priori_log_decay(epsilon, radius))
    # What is left is exp(−eˣ); for small eˣ what is lost is eˣ to every digit.
    return math.log(-math.expm1(-math.exp(decay))) if decay > -30 else decay


@checked
def smallest_allowed_weight(attention: Tensor, allowed: Tensor) -> Tensor:
    """ε: the smallest weight of ``(..., query, key)`` matrices on a pair that the mask allows.

    >>> from rankscope.core.masks import Causal
    >>> smallest_allowed_weight(torch.tensor([[1.0, 0.0], [0.2, 0.8]]), Causal().matrix(2))
    tensor(0.2000, dtype=torch.float64)
    """
    p = normalize_rows(attention, None, name="attention")
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        got = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
        raise KindError(f"allowed is {got}, expected a boolean matrix such as mask.matrix(tokens).")
    try:
        allowed = allowed.to(p.device).expand_as(p)
    except RuntimeError:
        raise ShapeError(
            f"allowed has shape {tuple(allowed.shape)}, the attention {tuple(p.shape)}; "
            "they must agree in (query, key)."
        ) from None
    return torch.where(allowed, p, math.inf).amin((-2, -1))


@checked
def second_eigenvalue(mask: "str | Mask", tokens: int) -> float:
    """The factor per layer by which uniform attention under a mask forgets differences (derived).

    >>> second_eigenvalue("causal", 4)
    0.5

    It is the second largest modulus among the eigenvalues of the matrix that averages over the
    tokens each token may attend to: in the long run, every layer multiplies the differences
    between tokens by it. A single token has no differences: 0.
    """
    allowed = as_mask(mask).matrix(whole("tokens", tokens, least=1)).double()
    return float(second_modulus(allowed / allowed.sum(-1, keepdim=True)))


@checked
def second_modulus(attention: Tensor) -> Tensor:
    """The second largest modulus among the eigenvalues of ``(..., query, key)`` matrices.

    >>> second_modulus(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor(0.5000, dtype=torch.float64)

    A single token has no differences: 0. NumPy finds them, because PyTorch's routine may not
    converge where many eigenvalues are zero; those of a triangular matrix are exact, as they would
    not be if 1 was removed from the matrix first.
    """
    p = normalize_rows(attention, None, name="attention").detach()
    if p.shape[-1] == 1:
        return p.new_zeros(p.shape[:-2])
    sizes = torch.from_numpy(np.abs(np.linalg.eigvals(p.cpu().numpy())))
    return sizes.sort(-1, descending=True).values[..., 1]
