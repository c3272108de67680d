"""Attention weights as ``P = 1qᵀ + e^λ Δ``: what all queries agree on, and what each adds to it.

Derived (docs/theory.md, section 5). ``q`` is the softmax of logits that are the same for every
query; a query adds ``D`` of its own, and then

    ``P_ij − q_j = q_j (expm1 D_ij − m_i) / (1 + m_i)``,  ``m_i = Σ_j q_j expm1 D_ij``,

with no two large numbers subtracted. ``D`` may be ``e^λ`` times numbers of moderate size, with λ
far below what a float can hold; then so is ``P − 1qᵀ``.

Plain scores, ``q_i·k_j``: with ``q_i = q̄ + eˢδq_i`` and ``k_j = k̄ + eˢδk_j`` all terms that depend
on the query alone drop out of the softmax; ``eˢ q̄·δk_j`` is the same for all queries; only
``e^{2s} δq_i·δk_j`` is a query's own. A bias of keys joins the former, a bias of pairs of positions
the latter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rankscope.core.deep._scaled_tensor import (
    FARTHEST,
    ScaledTensor,
    bounded_exp,
    cancelled,
    expand_like,
    log_of_largest,
    log_of_longest,
    scaled_sum,
    worst,
)
from rankscope.core.deep._split_state import SplitState, apply_linear
from rankscope.core.network import Attention, Visibility
from rankscope.core.shapes import PerSample
from rankscope.errors import InputError

Shared = Float[Tensor, "batch head 1 key"]
Pattern = Float[Tensor, "batch head query key"]
Top = Int[Tensor, "batch head 1 1"]

_SMALL = 0.5
"""Up to here ``expm1`` of all differences is taken in units of ``e^λ``; above, as it is."""
_VANISHING = 1e-17
_NEGLIGIBLE = -200.0


@dataclass(frozen=True)
class SplitAttention:
    """``P = 1qᵀ + e^log Δ``; ``lost`` as that of a ``ScaledTensor``, for Δ."""

    shared: Shared
    delta: Pattern
    log: PerSample
    lost: PerSample | float = 0.0

    def with_terms(self, terms: PerSample, lost: PerSample | float = 0.0) -> "SplitAttention":
        """Account for logits that are sums of terms of this size (a logarithm).

        Errors of logits are errors of Δ times the largest q; large logits cost each weight as many
        digits as they have before the decimal point.
        """
        error = terms + log_of_largest(self.shared)
        size = self.log + log_of_largest(self.delta)
        error = torch.where(size.isneginf(), size, error)  # queries that agree exactly lose nothing
        fewer = cancelled(error, size)
        return replace(self, lost=worst(lost, fewer, terms.clamp(min=0.0)))

    def only(self, chosen: Bool[Tensor, "batch"]) -> "SplitAttention":
        """Some of the samples."""
        lost = self.lost[chosen] if isinstance(self.lost, Tensor) else self.lost
        return SplitAttention(self.shared[chosen], self.delta[chosen], self.log[chosen], lost)


def split_softmax(base: Shared, delta: Pattern, log: PerSample) -> SplitAttention:
    """The softmax of ``base_j + e^log delta_ij``; ``base`` is minus infinity at hidden keys.

    A constant that ``delta`` adds to all keys of a query drops out of the softmax, but its
    rounding errors do not: callers subtract it.
    """
    size = bounded_exp(log)
    largest = delta.abs().flatten(1).amax(1) * size
    log_shared = base.log_softmax(-1)
    top = log_shared.argmax(-1, keepdim=True)
    unit = _unit_beside(log_shared, top)
    # All decisions in one GPU synchronisation.
    most, least, lowest = torch.stack([largest.amax(), largest.amin(), unit.amin()]).tolist()
    if most < _SMALL:
        delta, lifted = (
            (delta, log_shared) if lowest == 0 else _beside(delta, log_shared, top, unit)
        )
        gain = _growth(delta, size, largest) if most > _VANISHING else delta
        return _small(log_shared, lifted, gain, size, log, unit)
    if not least < _SMALL:
        return _large(log_shared, top, delta * expand_like(size, delta))
    small = largest < _SMALL
    return merge(
        [(some, split_softmax(base[some], delta[some], log[some])) for some in (small, ~small)]
    )


def merge(parts: Sequence[tuple[Bool[Tensor, "batch"], SplitAttention]]) -> SplitAttention:
    """Combine the weights of disjoint sets of samples."""
    chosen, first = parts[0]
    shared = first.shared.new_empty(len(chosen), *first.shared.shape[1:])
    delta = first.delta.new_empty(len(chosen), *first.delta.shape[1:])
    log, lost = (first.log.new_empty(len(chosen)) for _ in range(2))
    for some, part in parts:
        shared[some], delta[some], log[some], lost[some] = (
            part.shared,
            part.delta,
            part.log,
            part.lost,
        )
    return SplitAttention(shared, delta, log, lost)


def _beside(
    delta: Pattern, log_shared: Shared, top: Top, unit: PerSample
) -> tuple[Pattern, Shared]:
    """The weights of the other keys if one key gets nearly all the weight."""
    delta = delta - delta.gather(-1, top.expand(*delta.shape[:-1], 1))
    alone = expand_like(unit != 0, log_shared)
    return delta, torch.where(alone, log_shared.scatter(-1, top, -torch.inf), log_shared)


def _growth(delta: Pattern, size: PerSample, largest: PerSample) -> Pattern:
    """``expm1(tE)/t``, which is E as ``t → 0``."""
    seen = largest > _VANISHING  # below, the limit is exact, and t may be too small for a division
    t = expand_like(torch.where(seen, size, 1.0), delta)
    return torch.where(expand_like(seen, delta), torch.expm1(delta * t) / t, delta)


def _small(
    log_shared: Shared,
    lifted: Shared,
    gain: Pattern,
    size: PerSample,
    log: PerSample,
    unit: PerSample,
) -> SplitAttention:
    """Δ for small differences, in units of ``e^log``."""
    shared, lifted = log_shared.exp(), (lifted - expand_like(unit, lifted)).exp()
    mean = (gain * lifted).sum(-1, keepdim=True)
    delta = (gain * lifted - mean * shared) / (1 + expand_like(size * unit.exp(), mean) * mean)
    return SplitAttention(shared, delta, log + unit)


def _large(log_shared: Shared, top: Top, delta: Pattern) -> SplitAttention:
    """``_small`` for differences of any size, including those that saturate the softmax.

    Weights relative to the shared ones, ``w_ij = q_j e^{D_ij}``, may overflow; every row is divided
    by its largest entry and ``w − q`` is summed, so that rows that agree to many digits still
    differ by the right amount. D is relative to the key with the largest q, whose weight does not
    change, so the sum of all w is at least that weight and nothing cancels.
    """
    shared = log_shared.exp()
    delta = delta - delta.gather(-1, top.expand(*delta.shape[:-1], 1))
    exponent = log_shared + delta
    unit = _unit_beside(torch.maximum(exponent, log_shared), top)
    lifted = (log_shared - expand_like(unit, log_shared)).exp()
    highest = exponent.amax(-1, keepdim=True).clamp(min=0.0)
    fade = (-highest).exp()
    moderate = torch.expm1(delta.clamp(max=1.0)) * lifted * fade
    strong = (exponent - highest - expand_like(unit, delta)).exp() - lifted * fade
    gain = torch.where(delta < 1, moderate, strong)
    gain = torch.where(log_shared.isneginf() | (delta == 0), 0.0, gain)
    mean = gain.sum(-1, keepdim=True)
    delta = (gain - shared * mean) / (fade + mean * expand_like(unit.exp(), mean))
    return SplitAttention(shared, delta, unit)


def split_around_top(logits: Pattern) -> SplitAttention:
    """Any softmax as the weight of its most attended key, and what each query takes from it.

    For queries that see different keys and share nothing else: if one key gets nearly all weight,
    the weights of the other keys stay exact, however small.
    """
    log = logits.log_softmax(-1)
    top = log.exp().mean(-2, keepdim=True).argmax(-1, keepdim=True)
    everywhere = top.expand(*log.shape[:-1], 1)
    unit = _unit_beside(log, top)
    delta = (log - expand_like(unit, log)).exp().scatter(-1, everywhere, 0.0)
    delta = delta.scatter(-1, everywhere, -delta.sum(-1, keepdim=True))
    shared = torch.zeros_like(log[:, :, :1]).scatter(-1, top, 1.0)
    return SplitAttention(shared, delta, unit)


def _unit_beside(log: Pattern, top: Top) -> PerSample:
    """The logarithm of the largest weight other than the top key's, if it is negligible; else 0."""
    beside = log.scatter(-1, top.expand(*log.shape[:-1], 1), -torch.inf).flatten(1).amax(1)
    return torch.where((beside < _NEGLIGIBLE) & ~beside.isneginf(), beside, 0.0)


@dataclass(frozen=True)
class SplitProjection:
    """Queries or keys by head: the part common to all tokens, and the deviations."""

    common: ScaledTensor  # batch head 1 width
    delta: ScaledTensor  # batch head token width

    def rows(self) -> ScaledTensor:
        """The sum of both parts, in plain numbers with one exponent."""
        everywhere = self.common.mantissa.expand_as(self.delta.mantissa)
        return scaled_sum(replace(self.common, mantissa=everywhere), self.delta)


def project(attention: Attention, state: SplitState) -> tuple[SplitProjection, SplitProjection]:
    """Queries and keys; grouped keys are repeated for every head."""
    query = apply_linear(state, attention.query.weight, attention.query.bias)
    key = apply_linear(state, attention.key.weight, attention.key.bias)
    return _by_head(attention, query, attention.heads), _by_head(attention, key, attention.kv_heads)


def _by_head(attention: Attention, state: SplitState, heads: int) -> SplitProjection:
    common = attention.split(state.common.mantissa.unsqueeze(1), heads)
    delta = attention.split(state.mantissa, heads)
    return SplitProjection(
        replace(state.common, mantissa=common), replace(state.deviation, mantissa=delta)
    )


def attention_from_products(
    query: SplitProjection,
    key: SplitProjection,
    scale: float,
    state: SplitState,
    visibility: Visibility,
    *,
    of_keys: Float[Tensor, "#batch #head 1 key"] | None = None,
    of_pairs: Float[Tensor, "#batch #head query key"] | None = None,
) -> SplitAttention:
    """The softmax of ``scale·q·k`` and biases of keys or of pairs of positions."""
    key = within_floats(query, key)
    base = shared_logits(query.common, key.delta) * scale
    log = query.delta.log + key.delta.log
    if of_keys is not None:
        base = base + of_keys
    if of_pairs is not None:
        mean = _mean_query(of_pairs, state)
        of_pairs = of_pairs - mean
        base = base + mean
        if not bool(of_pairs.any()):
            of_pairs = None  # in effect a bias of keys
    visible, several = common_support(visibility, state)
    shown = base if visible is None else base.masked_fill(~visible, -math.inf)
    keys = key.delta.mantissa
    terms = log + log_of_longest(query.delta.mantissa) + log_of_longest(keys) + log_of(scale)
    lost = worst(query.delta.lost, key.delta.lost)
    if not several:  # what the keys have in common under q adds the same to all logits of a query
        keys = keys - shown.softmax(-1) @ keys
    delta = (query.delta.mantissa @ keys.mT) * scale
    if of_pairs is not None:
        delta, log = (
            delta * expand_like(bounded_exp(log), delta) + of_pairs,
            torch.zeros_like(log),
        )
        terms = torch.maximum(terms, log_of_largest(of_pairs.expand_as(delta)))
    if several:
        logits = base + delta * expand_like(bounded_exp(log), delta)
        return attention_of_several_supports(logits, visibility).with_terms(terms, lost)
    if of_pairs is not None:
        delta = _without_row_constants(shown, delta)
    return split_softmax(shown, delta, log).with_terms(terms, lost)


def within_floats(query: SplitProjection, key: SplitProjection) -> SplitProjection:
    """Scale keys so that no logit overflows.

    All logits are scaled together, so the largest stays the largest.
    """
    largest = torch.maximum(query.common.log, query.delta.log) + key.delta.log
    excess = (largest - FARTHEST).clamp(min=0.0)
    return replace(key, delta=key.delta.times_exp(-excess))


def refuse_overflow(*logs: PerSample) -> None:
    """Raise if numbers that are not homogeneous in their size would overflow."""
    if any(bool((log > FARTHEST).any()) for log in logs):
        raise InputError(
            "queries or keys exceed 10^299, the limit for this score; use smaller weights or add a "
            "norm."
        )


def log_of(scale: float) -> float:
    """The logarithm of the size of a factor; that of zero is minus infinity."""
    return math.log(abs(scale)) if scale else -math.inf


def shared_logits(query: ScaledTensor, key: ScaledTensor) -> Shared:
    """``q̄·δk_j``: logits that are the same for every query."""
    products = query.mantissa @ key.mantissa.mT
    return products * expand_like(bounded_exp(query.log + key.log), products)


def have_one_support(visibility: Visibility, state: SplitState) -> Bool[Tensor, "batch"]:
    """Whether all queries of a sample see the same keys; padding is ignored."""
    batch = len(state.mantissa)
    allowed = visibility.allowed
    if allowed is None or allowed.shape[-2] == 1:
        return torch.ones(batch, dtype=torch.bool, device=state.device)
    differs = (allowed != first_query(allowed, state)).any(-1).squeeze(1)
    if state.token_mask is not None:
        differs = differs & state.token_mask
    return (~differs.any(-1)).expand(batch)


def first_query(
    rows: Shaped[Tensor, "rows 1 #query key"], state: SplitState
) -> Shaped[Tensor, "rows 1 1 key"]:
    """The values of the first query that is not padding."""
    if state.token_mask is None or rows.shape[2] == 1:
        return rows[:, :, :1]
    first = state.token_mask.to(torch.uint8).argmax(-1)
    expanded = rows.expand(len(first), -1, -1, -1)
    return expanded[torch.arange(len(first), device=first.device), :, first].unsqueeze(2)


def common_support(
    visibility: Visibility, state: SplitState
) -> tuple[Bool[Tensor, "rows 1 1 key"] | None, bool]:
    """The keys that every query sees, and whether queries see different keys."""
    if visibility.allowed is None or visibility.allowed.shape[-2] == 1:
        return visibility.allowed, False
    if not bool(have_one_support(visibility, state).all()):
        return None, True
    return first_query(visibility.allowed, state), False


def attention_of_several_supports(logits: Pattern, visibility: Visibility) -> SplitAttention:
    """The weights of queries that see different keys."""
    if visibility.allowed is not None:
        logits = logits.masked_fill(~visibility.allowed, -math.inf)
    return split_around_top(logits)


def attention_from_logits(
    logits: Pattern,
    log: PerSample,
    state: SplitState,
    visibility: Visibility,
    lost: PerSample | float = 0.0,
) -> SplitAttention:
    """Weights from logits ``e^log · logits`` that depend on positions: no two queries agree."""
    visible, several = common_support(visibility, state)
    terms = log + log_of_largest(logits)
    if several:
        logits = logits * expand_like(bounded_exp(log), logits)
        return attention_of_several_supports(logits, visibility).with_terms(terms, lost)
    mean = _mean_query(logits, state)
    base = mean * expand_like(bounded_exp(log), mean)
    if visible is not None:
        base = base.masked_fill(~visible, -math.inf)
    delta = _without_row_constants(base, logits - mean)
    return split_softmax(base, delta, log).with_terms(terms, lost)


def _without_row_constants(base: Shared, delta: Pattern) -> Pattern:
    return delta - (delta * base.softmax(-1)).sum(-1, keepdim=True)


def _mean_query(logits: Float[Tensor, "#batch #head query key"], state: SplitState) -> Tensor:
    """The mean query, without padding."""
    if state.token_mask is None:
        return logits.mean(-2, keepdim=True)
    asking = state.token_mask[:, None, :, None].to(logits.dtype)
    return (logits * asking).sum(-2, keepdim=True) / asking.sum(-2, keepdim=True)
