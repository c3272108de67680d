"""The residual: how far the tokens are from being equal (docs/theory.md, section 2)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, overload

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import measurable, valid_counts
from rankscope.core.metrics._centers import mean_center, median_center, optimal_center
from rankscope.core.metrics._spectrum import Norm, matrix_norm
from rankscope.core.shapes import PerSample, TokenMask, Tokens
from rankscope.errors import InputError
from rankscope.numerals import short

Center = Literal["mean", "median", "optimal"]


class Certified(NamedTuple):
    """A residual, and a lower bound for every choice of the center.

    >>> import torch
    >>> from rankscope.core.metrics import residual
    >>> residual(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), norm="fro", certified=True)
    Certified(value=tensor(1.), lower_bound=tensor(1.))
    """

    value: PerSample
    lower_bound: PerSample


@overload
def residual(
    x: Tensor,
    *,
    norm: Norm = ...,
    center: Center = ...,
    relative: bool = ...,
    token_mask: Tensor | None = ...,
    certified: Literal[False] = ...,
    tolerance: float = ...,
) -> PerSample: ...


@overload
def residual(
    x: Tensor,
    *,
    norm: Norm = ...,
    center: Center = ...,
    relative: bool = ...,
    token_mask: Tensor | None = ...,
    certified: Literal[True],
    tolerance: float = ...,
) -> Certified: ...


@checked
def residual(
    x: Tensor,
    *,
    norm: Norm = "composite",
    center: Center = "mean",
    relative: bool = False,
    token_mask: Tensor | None = None,
    certified: bool = False,
    tolerance: float = 1e-4,
) -> PerSample | Certified:
    """The distance of the tokens from a rank-one matrix ``1cᵀ`` (Dong et al. 2021, section 2).

    >>> residual(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor(1.)

    ``x`` is ``(..., token, feature)``; the result has the leading axes. ``center`` says which ``c``
    is subtracted: the ``mean`` of the tokens (both papers' experiments), their ``median``, or the
    ``optimal`` one for the norm, found to a relative ``tolerance``. ``relative`` divides by the
    norm of ``x``; 0 / 0 is 0. With ``certified`` the result is a pair: the value and a lower bound
    for any center (for the mean and the median, too).
    Gradients flow through ``x``, except for the optimal center in the ``inf`` and ``composite``
    norms: there several rows tie for the largest sum, and the value has no gradient.
    """
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance={tolerance} is out of range; expected 0 < tolerance < 1.")
    x, token_mask = measurable(x, token_mask)
    searched = center == "optimal" and norm in ("inf", "composite")
    bound = None
    if searched:
        x = x.detach()
    if searched or certified:
        optimum = optimal_center(x, norm, token_mask, tolerance=tolerance)
        bound = optimum.lower_bound if certified else None
    # Where the optimum is known in closed form, its gradient is exact.
    if searched:
        row = optimum.center
    elif center == "median" or (center == "optimal" and norm == "one"):
        row = median_center(x, token_mask)
    else:
        row = mean_center(x, token_mask)
    value = _norm(subtract(x, row, token_mask), norm, x)
    if center == "optimal" or relative:
        norm_of_x = _norm(x, norm, x)
        if center == "optimal":
            value = torch.minimum(value, norm_of_x)  # zero is a center too; rounding may hide it
        if relative:
            value = ratio(value, norm_of_x)
            bound = None if bound is None else ratio(bound, norm_of_x)
    return value if bound is None else Certified(value, torch.minimum(bound, value).detach())


@checked
def dispersion(x: Tensor, *, token_mask: Tensor | None = None) -> PerSample:
    """``μ(X) = ‖X − 1x̄ᵀ‖_F`` (Wu et al. 2024, section 3): the Frobenius residual at the mean.

    >>> dispersion(torch.tensor([[3.0], [1.0]]))
    tensor(1.4142)
    """
    return residual(x, norm="fro", center="mean", token_mask=token_mask)


@checked
@dataclass(frozen=True, repr=False)
class Deviations:
    """Tokens and their deviations from the mean, computed once for several metrics.

    >>> import torch
    >>> from rankscope.core.metrics import deviations
    >>> found = deviations(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> found.rest
    tensor([[ 0.5000, -0.5000],
            [-0.5000,  0.5000]])
    >>> found.relative_residual()
    tensor(1.)
    """

    tokens: Tokens
    rest: Tokens

    def __repr__(self) -> str:
        shape, dtype = tuple(self.tokens.shape), self.tokens.dtype
        return f"Deviations of tokens {shape}, {dtype}, from their mean"

    @cached_property
    def _composite(self) -> PerSample:
        return _norm(self.rest, "composite", self.tokens)

    def residual(self) -> PerSample:
        """As ``residual(x)``."""
        return self._composite

    def relative_residual(self) -> PerSample:
        """As ``residual(x, relative=True)``."""
        return ratio(self._composite, _norm(self.tokens, "composite", self.tokens))

    def dispersion(self) -> PerSample:
        """As ``dispersion(x)``."""
        return _norm(self.rest, "fro", self.tokens)

    def relative_dispersion(self) -> PerSample:
        """As ``residual(x, norm="fro", relative=True)``."""
        return ratio(self.dispersion(), _norm(self.tokens, "fro", self.tokens))


@checked
def deviations(x: Tensor, *, token_mask: Tensor | None = None) -> Deviations:
    """Center the tokens at their mean once; the residuals are methods of the result.

    >>> deviations(torch.eye(2)).residual()
    tensor(1.)
    """
    x, token_mask = measurable(x, token_mask)
    return Deviations(x, subtract(x, mean_center(x, token_mask), token_mask))


def subtract(
    x: Tokens,
    center: Float[Tensor, "*batch feature"],
    token_mask: TokenMask | None,
    *,
    work: Tensor | None = None,
) -> Tokens:
    """The tokens minus a center; ``work`` is a buffer for the result."""
    r = torch.sub(x, center.unsqueeze(-2), out=work)
    return r if token_mask is None else torch.where(token_mask.unsqueeze(-1), r, r.new_zeros(()))


def _norm(m: Tokens, norm: Norm, x: Tokens) -> PerSample:
    """The norm of what is made of ``x``, if it fits; sums over many large entries may not."""
    size = matrix_norm(m, norm)
    if not bool(torch.isfinite(size.detach()).all()):
        largest = short(float(x.detach().abs().max()), digits=2)
        raise InputError(
            f"the norm of x overflows {x.dtype}: the largest entry is {largest}; scale x "
            "down, or compute in a wider dtype."
        )
    return size


def ratio(part: Tensor, total: Tensor) -> Tensor:
    return part / torch.where(total > 0, total, torch.ones_like(total))


@checked
def mean_cosine(
    x: Tensor, *, exclude: Sequence[int] = (), token_mask: Tensor | None = None
) -> PerSample:
    """Mean cosine over all pairs of different tokens; no diagonal, no absolute value.

    >>> mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]))
    tensor(0.3333)

    ``exclude`` drops positions (0 the first token, -1 the last; padding is not counted), for
    instance a CLS or BOS token, which often differs from the others. A zero token has cosine 0 with
    every other; a single token has cosine 1.
    """
    x, token_mask = measurable(x, token_mask)
    counted = _without(x, exclude, token_mask) if exclude else token_mask
    units = unit_rows(x, counted)
    return cosine_of_pairs(units.total.square().sum(-1), units.nonzero, units.tokens)


class UnitRows(NamedTuple):
    """The sum of the tokens' unit vectors, how many tokens there are, how many of them not zero,
    and the lengths of all of them."""

    total: Float[Tensor, "*batch feature"]
    nonzero: PerSample
    tokens: PerSample
    lengths: Float[Tensor, "*batch token"]


def unit_rows(x: Tokens, counted: TokenMask | None, *, work: Tensor | None = None) -> UnitRows:
    """The tokens that count, each divided by its length, added up without being formed.

    ``work`` is a buffer like ``x``.
    """
    # Scaling by the largest entry first keeps the squares inside the range of the dtype.
    plain = x.detach()
    largest = torch.maximum(plain.amax(-1, keepdim=True), -plain.amin(-1, keepdim=True))
    x = torch.div(x, torch.where(largest > 0, largest, torch.ones_like(largest)), out=work)
    length = torch.linalg.vector_norm(x, dim=-1)
    weight = torch.where(length > 0, 1 / torch.where(length > 0, length, 1.0), 0.0)
    nonzero = length > 0
    if counted is not None:
        weight, nonzero = weight * counted, nonzero & counted
    total = (weight.unsqueeze(-2) @ x).squeeze(-2)
    counts = nonzero.sum(-1).to(x.dtype), valid_counts(x, counted)
    return UnitRows(total, *counts, largest.squeeze(-1) * length)


def cosine_of_pairs(square: PerSample, nonzero: PerSample, count: PerSample) -> PerSample:
    """The mean cosine over pairs, given ``‖Σ x/‖x‖‖²``; 1 where there is only one token."""
    pairs = count * (count - 1)
    mean = (square - nonzero) / torch.where(pairs > 0, pairs, 1)
    return torch.where(pairs > 0, mean.clamp(-1, 1), torch.ones_like(mean))


def _without(x: Tokens, exclude: Sequence[int], token_mask: TokenMask | None) -> TokenMask:
    """The valid tokens less the excluded positions, counted among the valid ones."""
    if token_mask is None:
        token_mask = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    position = token_mask.cumsum(-1) - 1
    count = token_mask.sum(-1, keepdim=True)
    counted = token_mask
    for index in exclude:
        counted = counted & (position != (index if index >= 0 else count + index))
    if not bool(counted.any(-1).all()):
        raise InputError(
            f"exclude={list(exclude)} leaves no token in some sample; "
            f"the shortest has {int(count.min())} tokens."
        )
    return counted


@checked
def token_norm(x: Tensor, *, token_mask: Tensor | None = None) -> PerSample:
    """``‖X‖_F / √n``: the root mean square of the norms of the tokens.

    >>> token_norm(torch.tensor([[3.0, 4.0], [0.0, 5.0]]))
    tensor(5.)
    """
    x, token_mask = measurable(x, token_mask)
    count = math.sqrt(x.shape[-2]) if token_mask is None else valid_counts(x, token_mask).sqrt()
    return matrix_norm(x, "fro") / count
