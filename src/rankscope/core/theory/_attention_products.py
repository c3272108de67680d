"""How fast attention reduces differences between tokens, bounded and measured, and the limit.

Attention matrices are ``(..., query, key)`` and row-stochastic; layers multiply from the left,
``P⁽ᵗ⁾ … P⁽¹⁾``. Every layer multiplies the differences between tokens by at most its ergodicity
coefficient τ, and ``τ(PQ) ≤ τ(P) τ(Q)``.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import Count, checked
from rankscope.core.checks import real, stochastic, valid_mask
from rankscope.core.masks import Mask, as_mask
from rankscope.core.metrics import dobrushin
from rankscope.core.tabular import Tabular
from rankscope.core.theory._graph_search import Digraph, closed_classes
from rankscope.errors import InputError, KindError, ShapeError
from rankscope.numerals import plural, power_of_ten, span_of

if TYPE_CHECKING:
    import polars


def normalize_rows(
    attention: Tensor, token_mask: Tensor | None, *, name: str
) -> Float[Tensor, "*batch query key"]:
    """A checked matrix in float64 whose rows sum to one, and to zero at padding."""
    if attention.ndim < 2:
        got = tuple(attention.shape)
        raise ShapeError(f"{name} is {got}, expected a tensor (..., query, key).")
    p, _ = stochastic(attention.unsqueeze(-3), token_mask)
    p = p.squeeze(-3).double()
    return p / torch.where(p.sum(-1, keepdim=True) > 0, p.sum(-1, keepdim=True), 1.0)


@checked
@dataclass(frozen=True, repr=False)
class Ergodicity(Tabular):
    """τ of each layer's matrix, and log τ of the product of the layers up to it.

    >>> import torch
    >>> from rankscope.core.theory import ergodicity
    >>> halves = ergodicity([torch.tensor([[1.0, 0.0], [0.5, 0.5]])] * 3)
    >>> halves.coefficients.tolist(), float(halves.rate)
    ([0.5, 0.5, 0.5], 0.5)

    Both are ``(layer, ...)``; ``log_products`` are natural logarithms and keep their digits far
    below float64's 10⁻¹⁶. ``rate`` is the geometric mean, over the layers, of the factor by which
    each layer multiplied the differences.
    """

    coefficients: Float[Tensor, "layer *batch"]
    log_products: Float[Tensor, "layer *batch"]

    @property
    def products(self) -> Float[Tensor, "layer *batch"]:
        return self.log_products.exp()

    @property
    def rate(self) -> Float[Tensor, "*batch"]:
        return (self.log_products[-1] / len(self.log_products)).exp()

    @property
    def table(self) -> "polars.DataFrame":
        """By layer and sample (the other axes, flattened): τ, and log₁₀ τ of the product."""
        from rankscope import tables

        logs = self.log_products / math.log(10)
        by_metric = {"dobrushin": self.coefficients, "log10_product_ergodicity": logs}
        rows = [
            (layer, sample, metric, value)
            for metric, values in by_metric.items()
            for layer, row in enumerate(values.reshape(len(values), -1).tolist(), start=1)
            for sample, value in enumerate(row)
        ]
        return tables.from_rows(("layer", "sample", "metric", "value"), rows)

    def __repr__(self) -> str:
        shape = tuple(self.coefficients.shape[1:])
        batch, most = (f", batch {shape}", "at most ") if shape else ("", "")
        taus = span_of(float(self.coefficients.min()), float(self.coefficients.max()))
        rates = span_of(float(self.rate.min()), float(self.rate.max()))
        last = power_of_ten(float(self.log_products[-1].max()) / math.log(10), digits=3)
        return (
            f"Ergodicity({plural(len(self.coefficients), 'layer')}{batch}; τ of a layer {taus}, "
            f"of the product {most}{last}; rate {rates})"
        )


@checked
def ergodicity(matrices: Iterable[Tensor], *, token_mask: Tensor | None = None) -> Ergodicity:
    """τ of every attention matrix, first layer first, and of the running products.

    >>> ergodicity([torch.tensor([[1.0, 0.0], [0.5, 0.5]])] * 2).products
    tensor([0.5000, 0.2500], dtype=torch.float64)

    ``token_mask`` is ``(..., token)`` with the same axes before it as the matrices. **Derived:**
    with ``P⁽ᵗ⁾…P⁽¹⁾ = 1qᵀ + eˢΔ`` the next layer gives ``1qᵀ + eˢPΔ``, rows of Δ sum to zero, and τ
    depends on Δ alone; so Δ is centered and rescaled in every layer and never lost in the rounding
    of q. τ is ``dobrushin``'s: the rows of ``(1 + Δ)/n`` are distributions if no entry of Δ exceeds
    1. Where the rows of a layer's own matrix agree to float64's last place, its τ is known only to
    rounding: near 10⁻¹⁶, not exactly 0.
    """
    coefficients, logs = [], []
    delta: Tensor | None = None
    scale = torch.tensor(0.0)
    for layer, matrix in enumerate(matrices):
        p = normalize_rows(matrix, token_mask, name=f"the matrix of layer {layer + 1}")
        if delta is not None and p.shape != delta.shape:
            raise ShapeError(
                f"layer {layer + 1} has a matrix of shape {tuple(p.shape)}, the layers before it "
                f"{tuple(delta.shape)}; give matrices of the same tokens."
            )
        mask = torch.ones(p.shape[:-1], dtype=torch.bool)
        if token_mask is not None:
            mask = valid_mask(token_mask, tuple(p.shape[:-1]))
        mask = mask.to(p.device)
        coefficients.append(_tau(p, mask))
        # Only differences between rows of P act on Δ: what all rows share would add only rounding.
        difference = _subtract_mean_row(p, mask)
        delta = difference if delta is None else difference @ delta
        delta, grown = _rescale(delta, mask)
        scale = scale + grown
        tokens = mask.sum(-1).double()
        shifted = torch.where(_valid_pairs(mask), (1 + delta) / tokens[..., None, None], 0.0)
        logs.append(_tau(shifted, mask).log() + tokens.log() + scale)
    if not coefficients:
        raise InputError("no attention matrices were given; expected at least one layer.")
    return Ergodicity(torch.stack(coefficients), torch.stack(logs))


def _valid_pairs(mask: Tensor) -> Tensor:
    return mask.unsqueeze(-1) & mask.unsqueeze(-2)


def _tau(p: Tensor, mask: Tensor) -> Tensor:
    return dobrushin(p.unsqueeze(-3), token_mask=mask).squeeze(-1)


def _subtract_mean_row(p: Tensor, mask: Tensor) -> Tensor:
    mean = p.sum(-2, keepdim=True) / mask.sum(-1)[..., None, None]
    return torch.where(_valid_pairs(mask), p - mean, 0.0)


def _rescale(delta: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Δ, centered again, scaled to a largest entry of one, and the logarithm of that factor.

    Rows of Δ sum to zero. Where those of P agree to the last place, Δ is only rounding,
    whose rows would no longer sum to zero once scaled up: so the sums are subtracted as well.
    """
    delta = _subtract_mean_row(delta, mask)
    sums = delta.sum(-1, keepdim=True)
    delta = torch.where(_valid_pairs(mask), delta - sums / mask.sum(-1)[..., None, None], 0.0)
    largest = delta.abs().amax((-2, -1))
    return delta / torch.where(largest > 0, largest, 1.0)[..., None, None], largest.log()


@checked
def a_priori_rate(epsilon: Tensor | float, radius: float) -> Tensor:
    """The largest factor on the differences per layer, ``(1 − ε^r)^{1/r}`` (Wu et al. 2024).

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
    """The logarithm of the least share of a difference that a layer removes (``a_priori_rate``).

    >>> a_priori_log_loss(0.5, 1), a_priori_log_loss(0.5, math.inf)
    (-0.693..., -inf)

    Minus infinity where nothing is guaranteed: no center, or weights of zero.
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
    if allowed.dtype != torch.bool:
        got = allowed.dtype
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
def second_eigenvalue(mask: "str | Mask", tokens: Count) -> float:
    """The factor on differences per layer of uniform attention under a mask (derived).

    >>> second_eigenvalue("causal", 4)
    0.5

    It is the second largest modulus among the eigenvalues of the matrix that averages over the
    tokens each token may attend to: in the long run, every layer multiplies the differences
    between tokens by it. A single token has no differences: 0.
    """
    allowed = as_mask(mask).matrix(tokens).double()
    return float(second_modulus(allowed / allowed.sum(-1, keepdim=True)))


@checked
def second_modulus(attention: Tensor) -> Tensor:
    """The second largest modulus among the eigenvalues of ``(..., query, key)`` matrices.

    >>> second_modulus(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor(0.5000, dtype=torch.float64)

    A single token has no differences: 0. NumPy computes them, because PyTorch's routine may not
    converge where many eigenvalues are zero; those of a triangular matrix are exact, as they would
    not be if 1 was removed from the matrix first.
    """
    p = normalize_rows(attention, None, name="attention").detach()
    if p.shape[-1] == 1:
        return p.new_zeros(p.shape[:-2])
    sizes = torch.from_numpy(np.abs(np.linalg.eigvals(p.cpu().numpy())))
    return sizes.sort(-1, descending=True).values[..., 1]


_LARGE, _TINY = 1e100, 1e-290


@checked
def perron_weights(attention: Tensor) -> Tensor:
    """The left Perron vector π = πP: the weight of each position in the collapsed state.

    >>> perron_weights(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    tensor([0.3333, 0.6667], dtype=torch.float64)

    Matrices are ``(..., query, key)``, weights ``(..., key)``, zero outside the closed class. With
    more than one closed class there is no single vector, and that is an error: see
    ``class_weights``. In a class whose period is above 1, powers of P tend to π only on average. A
    weight of exactly 0 is no edge.
    """
    p = normalize_rows(attention, None, name="attention")
    weights = [class_weights(matrix) for matrix in p.reshape(-1, *p.shape[-2:])]
    classes = max(map(len, weights), default=1)
    if classes > 1:
        raise InputError(
            f"the attention has {classes} closed classes of tokens, each with its own limit, "
            "so there is no single vector; class_weights returns one per class."
        )
    return torch.stack([vectors[0] for vectors in weights]).view(p.shape[:-1])


@checked
def class_weights(attention: Tensor) -> tuple[Tensor, ...]:
    """One Perron vector for each closed class of a single ``(query, key)`` matrix.

    >>> [weights.tolist() for weights in class_weights(torch.eye(2))]
    [[1.0, 0.0], [0.0, 1.0]]

    By elimination without a subtraction (Grassmann, Taksar and Heyman 1985), so that small weights
    have as many digits as large ones, unless they are too small for a float next to the largest.
    """
    if attention.ndim != 2:
        raise ShapeError(
            f"attention has shape {tuple(attention.shape)}, expected one (query, key) matrix; "
            "take one of the batch."
        )
    p = normalize_rows(attention, None, name="attention").detach()
    p = torch.where(p < _TINY, 0.0, p)  # their reciprocals would be infinite
    query, key = p.cpu().nonzero().T.contiguous().numpy()
    weights = []
    for members in closed_classes(Digraph.from_pairs(query, key, len(p))):
        at = torch.from_numpy(members).to(p.device)
        padded = p.new_zeros(len(p))
        padded[at] = _stationary_weights(p[at][:, at])
        weights.append(padded)
    return tuple(weights)


@checked
def limit_weights(
    matrices: Sequence[Tensor], classes: Sequence[Sequence[int]]
) -> tuple[Tensor, ...]:
    """For each closed class, the weight of each position's input in its tokens after all layers.

    >>> [weights.tolist() for weights in limit_weights([torch.eye(2)] * 3, [[0], [1]])]
    [[1.0, 0.0], [0.0, 1.0]]

    The mean of the class's rows in the product of all ``(query, key)`` matrices, the first first.
    """
    if not matrices:
        raise InputError("no matrices were given; expected at least one layer.")
    first = matrices[0]
    for matrix in matrices:
        real(matrix, name="matrices", axes="(query, key)", least=2)
        if matrix.ndim != 2 or (matrix.shape, matrix.dtype) != (first.shape, first.dtype):
            raise ShapeError(
                f"matrices have shapes {tuple(first.shape)} and {tuple(matrix.shape)}; expected "
                "square matrices of one size and dtype."
            )
    tokens = len(first)
    if any(not 0 <= member < tokens for members in classes for member in members):
        raise InputError(f"classes must hold tokens from 0 to {tokens - 1}.")
    if tokens != first.shape[1] or not all(classes):
        raise ShapeError("limit_weights expects square matrices and non-empty classes.")
    rows = torch.zeros(len(classes), tokens).to(first)
    for row, members in zip(rows, classes, strict=True):
        row[list(members)] = 1 / len(members)
    for matrix in reversed(matrices):  # from the left: a few rows times a matrix
        rows = rows @ matrix
    return tuple(rows)


def _stationary_weights(p: Float[Tensor, "query key"]) -> Float[Tensor, "key"]:
    """Eliminate the last state repeatedly, then restore the weights one by one."""
    p = p.clone()
    for last in range(len(p) - 1, 0, -1):
        p[:last, last] /= p[last, :last].sum()
        p[:last, :last] += p[:last, last, None] * p[last, :last]
    weights = p.new_ones(len(p))
    for state in range(1, len(p)):
        weights[state] = weights[:state] @ p[:state, state]
        if weights[state] > _LARGE:  # later states may carry almost all the weight
            weights[: state + 1] /= weights[state].clone()
    return weights / weights.sum()
