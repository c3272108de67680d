"""Norms on ``1xᵀ + eˢR`` (derived).

Let ``v`` be the square a norm divides by (the variance, the mean square, the squared length) of the
common row x, after centering where the norm centers, and split each deviation into its part along x
and the rest: ``eˢR_i = p_i x + N_i``. Then row i becomes

    ``x(1 + c_i)/σ + N_i/σ_i``,  ``σ² = v + ε``,  ``σ_i² = (1+p_i)² v + n_i + ε``,

    ``(1 + c_i)² = 1 + (ε p_i(2+p_i) − n_i)/σ_i²``  with  ``n_i`` the square of ``N_i``.

The identity ``(1+p)²(v+ε) − ((1+p)²v + n + ε) = ε p(2+p) − n`` takes away the terms that would
cancel: a norm removes a deviation along x to first order, and what is left of it is exact.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.deep._scaled_tensor import (
    ScaledTensor,
    bounded_exp,
    cancelled,
    expand_like,
    in_units,
    rescale,
    scaled_sum,
    unchecked,
    worst,
)
from rankscope.core.deep._split_state import SplitState, same_for_all
from rankscope.core.network import NormRule, norm_rule
from rankscope.core.shapes import Hidden, PerSample

_CLEAR = 1e-2
"""The common row must be at least this fraction of the largest row for the expansion around it."""
_FARTHEST_EPS = 500.0
_ROUNDING = 1e-14


@checked
def apply_norm(norm: nn.Module, state: SplitState) -> SplitState:
    """Apply a norm to a state.

    >>> import torch
    >>> from rankscope.core.deep import SplitState, apply_norm
    >>> norm = torch.nn.RMSNorm(2, eps=0, dtype=torch.float64)
    >>> x = torch.tensor([[[3.0, 0.0], [0.0, 5.0]]], dtype=torch.float64)
    >>> torch.allclose(apply_norm(norm, SplitState.of(x)).tensor(), norm(x))
    True
    """
    rule = norm_rule(norm, state.mantissa.dtype)
    if rule is None:
        return state
    common, deviation = state.common, state.deviation
    if rule.centers:
        common, deviation = (
            rescale(_without_mean(part.mantissa), part.log, terms=part.log, lost=part.lost)
            for part in (common, deviation)
        )
    out = _rescale(SplitState(common, deviation, state.token_mask), rule)
    return _affine(out, rule.gain, rule.bias).recenter()


def _without_mean(rows: Float[Tensor, "*row feature"]) -> Float[Tensor, "*row feature"]:
    """Subtract the mean, taken of differences to one feature: a constant row becomes zero."""
    rows = rows - rows[..., :1]
    return rows - rows.mean(-1, keepdim=True)


def _rescale(state: SplitState, rule: NormRule) -> SplitState:
    """Divide every row by its σ, in units in which the larger of x and eˢR is about 1."""
    unit = state.unit()
    x, s = in_units(state.common, unit).unsqueeze(1), state.deviation.log - unit
    exponent = torch.full_like(unit, math.log(rule.eps) if rule.eps else -math.inf) - 2 * unit
    # A state far smaller than ε is divided by √ε; the exponent holds what a float cannot.
    beyond = (exponent - _FARTHEST_EPS).clamp(min=0.0)
    small_eps = expand_like((exponent - beyond).exp(), x)
    count = x.shape[-1] if rule.square == "mean" else 1
    v = _square(x, x, count)
    rest = state.mantissa
    rows = x + rest * expand_like(bounded_exp(s), rest)
    squares = _square(rows, rows, count)
    # A row in which both parts cancel is zero to all its digits, and stays zero.
    gone = squares <= _ROUNDING**2 * (
        v + _square(rest, rest, count) * expand_like(bounded_exp(2 * s), rest)
    )
    rows, squares = torch.where(gone, 0.0, rows), torch.where(gone, 0.0, squares)
    if state.token_mask is not None:
        gone = gone & state.token_mask.unsqueeze(-1)
    none_gone = ~gone.any(1, keepdim=True)
    clear = ((v > _CLEAR**2 * squares.amax(1, keepdim=True)) & none_gone).flatten()
    # Rescaled rows are smaller by e^unit: the logarithm restarts at zero.
    unsure = torch.as_tensor(state.common.lost, device=unit.device).expand_as(unit) == math.inf
    common, deviation = _expand_around_common(x, rest, s, v, small_eps, count, unsure)
    if not bool(clear.all()):
        common, deviation = _choose(clear, (common, deviation), _plain(rows, squares, small_eps))
    lost = _lost(state, s, deviation, squares + small_eps)
    common, deviation = (
        unchecked(part.mantissa, part.log - beyond / 2, lost) for part in (common, deviation)
    )
    return SplitState(common, deviation, state.token_mask)


def _lost(
    state: SplitState, s: PerSample, delta: ScaledTensor, squares: Float[Tensor, "batch token 1"]
) -> PerSample | float:
    """Digits lost in short rows, which are sums of larger ones, and along the common row.

    ``squares`` are in units in which the larger part is about 1.
    """
    if state.token_mask is not None:
        squares = torch.where(state.token_mask.unsqueeze(-1), squares, 1.0)
    shortest, longest = (0.5 * end.flatten().log() for end in (squares.amin(1), squares.amax(1)))
    before = worst(state.common.lost, state.deviation.lost)
    return worst(before, (-shortest).clamp(min=0.0), cancelled(s - longest, delta.log))


def _expand_around_common(
    x: Float[Tensor, "batch 1 feature"],
    rest: Hidden,
    s: Float[Tensor, "batch"],
    v: Float[Tensor, "batch 1 1"],
    eps: Float[Tensor, "batch 1 1"],
    count: int,
    unsure: Bool[Tensor, "batch"],
) -> tuple[ScaledTensor, ScaledTensor]:
    """Common row and deviations after the norm, expanded around the common row before it.

    ``unsure`` are samples whose common row has lost a term that was added to it.
    """
    size = expand_like(bounded_exp(s), rest)
    safe = torch.where(v > 0, v, 1.0)
    along_x = _square(x, rest, count) / safe
    beside = rest - along_x * x
    more = _square(x, beside, count) / safe  # rounding leaves a small part along x; repeat
    along_x, beside = along_x + more, beside - more * x
    # If deviations are along x, as for values of rank one, the part orthogonal to x is rounding,
    # which must not exceed the effect of ε.
    size_of = [part.abs().flatten(1).amax(1) for part in (beside, rest)]
    # If the common row is inaccurate, so is the orthogonal part: it is kept, and random rounding
    # moves it.
    resolved = (size_of[0] > _ROUNDING * size_of[1]) | unsure
    beside = torch.where(expand_like(resolved, rest) | (eps == 0), beside, 0.0)
    n = _square(beside, beside, count)
    p = along_x * size
    grows = 1 + p
    row_square = grows.square() * v + n * size.square() + eps
    sigma = (v + eps).sqrt()
    # The change of the square is y times e^s, separated so that e^s may underflow.
    y = (eps * along_x * (2 + p) - n * size) / row_square
    change = y * size
    grown = torch.expm1(0.5 * torch.log1p(change))
    tiny = change.abs() < 1e-8
    c = torch.where(tiny, y * (0.5 - 0.125 * change), grown / torch.where(size > 0, size, 1.0))
    c = torch.where(grows < 0, (-(1 + change).clamp(min=0).sqrt() - 1) / size, c)
    deviation = x * (c / sigma) + beside / row_square.sqrt()
    return rescale((x / sigma).squeeze(1)), rescale(deviation, s)


def _plain(
    rows: Hidden, squares: Float[Tensor, "batch token 1"], eps: Float[Tensor, "batch 1 1"]
) -> tuple[ScaledTensor, ScaledTensor]:
    """Normalise each row by itself, if rows have little in common and no difference is lost."""
    divisor = (squares + eps).sqrt()
    out = rescale(rows / torch.where(divisor > 0, divisor, 1.0))
    nothing = ScaledTensor(torch.zeros_like(rows[:, 0]), torch.full_like(out.log, -math.inf))
    return nothing, out


def _choose(
    mask: Tensor, yes: tuple[ScaledTensor, ScaledTensor], no: tuple[ScaledTensor, ScaledTensor]
) -> tuple[ScaledTensor, ScaledTensor]:
    """Choose between two states, sample by sample."""

    def either(a: ScaledTensor, b: ScaledTensor) -> ScaledTensor:
        mantissa = torch.where(expand_like(mask, a.mantissa), a.mantissa, b.mantissa)
        return ScaledTensor(mantissa, torch.where(mask, a.log, b.log))

    return either(yes[0], no[0]), either(yes[1], no[1])


def _affine(state: SplitState, gain: Tensor | None, bias: Tensor | None) -> SplitState:
    common, deviation = state.common, state.deviation
    if gain is not None:
        common, deviation = (
            rescale(part.mantissa * gain, part.log, lost=part.lost) for part in (common, deviation)
        )
    if bias is not None:
        common = scaled_sum(common, same_for_all(bias, common))
    return SplitState(common, deviation, state.token_mask)


def _square(
    left: Float[Tensor, "batch #token feature"],
    right: Float[Tensor, "batch #token feature"],
    count: int,
) -> Float[Tensor, "batch #token 1"]:
    """The inner product of a norm: a sum, or a mean over ``count`` features."""
    return (left * right).sum(-1, keepdim=True) / count
