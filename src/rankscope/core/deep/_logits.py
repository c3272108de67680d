"""What every kind of score makes of a state ``1xᵀ + eˢR``: weights ``P = 1qᵀ + e^λΔ``.

Plain scores, ``q_i·k_j``: with ``q_i = q̄ + eˢδq_i`` and ``k_j = k̄ + eˢδk_j`` all terms that depend
on the query alone drop out of the softmax; ``eˢ q̄·δk_j`` is the same for all queries; only
``e^{2s} δq_i·δk_j`` is a query's own (docs/theory.md, section 5). A bias of keys joins the
former, a bias of pairs of positions the latter.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from rankscope.core.deep._scaled_tensor import (
    FARTHEST,
    ScaledTensor,
    bounded_exp,
    expand_like,
    log_of_largest,
    log_of_longest,
    scaled_sum,
    worst,
)
from rankscope.core.deep._split_attention import (
    Pattern,
    Shared,
    SplitAttention,
    split_around_top,
    split_softmax,
)
from rankscope.core.deep._split_state import SplitState, apply_linear
from rankscope.core.network import Attention, Visibility
from rankscope.core.shapes import PerSample
from rankscope.errors import InputError

Rows = Float[Tensor, "batch head token width"]
Visible = Bool[Tensor, "rows 1 1 key"]


@dataclass(frozen=True)
class SplitProjection:
    """Queries or keys by head: what all tokens have in common, and what is left of each."""

    common: ScaledTensor  # batch head 1 width
    own: ScaledTensor  # batch head token width

    def rows(self) -> ScaledTensor:
        """Both added up, in plain numbers with one exponent."""
        everywhere = self.common.mantissa.expand_as(self.own.mantissa)
        return scaled_sum(replace(self.common, mantissa=everywhere), self.own)


def project(attention: Attention, state: SplitState) -> tuple[SplitProjection, SplitProjection]:
    """Queries and keys; grouped keys are repeated so that every head has its own."""
    query = apply_linear(state, attention.query.weight, attention.query.bias)
    key = apply_linear(state, attention.key.weight, attention.key.bias)
    return _by_head(attention, query, attention.heads), _by_head(attention, key, attention.kv_heads)


def _by_head(attention: Attention, state: SplitState, heads: int) -> SplitProjection:
    common = attention.split(state.common.mantissa.unsqueeze(1), heads)
    own = attention.split(state.mantissa, heads)
    return SplitProjection(
        replace(state.common, mantissa=common), replace(state.deviation, mantissa=own)
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
    base = shared_logits(query.common, key.own) * scale
    log = query.own.log + key.own.log
    if of_keys is not None:
        base = base + of_keys
    if of_pairs is not None:
        mean = _mean_query(of_pairs, state)
        of_pairs = of_pairs - mean
        base = base + mean
        if not bool(of_pairs.any()):
            of_pairs = None  # a bias of keys after all
    visible, several = common_support(visibility, state)
    shown = base if visible is None else base.masked_fill(~visible, -math.inf)
    keys = key.own.mantissa
    terms = log + log_of_longest(query.own.mantissa) + log_of_longest(keys) + log_of(scale)
    lost = worst(query.own.lost, key.own.lost)
    if not several:  # what the keys have in common under q adds the same to all logits of a query
        keys = keys - shown.softmax(-1) @ keys
    own = (query.own.mantissa @ keys.mT) * scale
    if of_pairs is not None:
        own, log = own * expand_like(bounded_exp(log), own) + of_pairs, torch.zeros_like(log)
        terms = torch.maximum(terms, log_of_largest(of_pairs.expand_as(own)))
    if several:
        logits = base + own * expand_like(bounded_exp(log), own)
        return attention_of_several_supports(logits, visibility).with_terms(terms, lost)
    if of_pairs is not None:
        own = _without_row_constants(shown, own)
    return split_softmax(shown, own, log).with_terms(terms, lost)


def within_floats(query: SplitProjection, key: SplitProjection) -> SplitProjection:
    """Keys with which no logit is beyond all floats.

    Logits that would be are made smaller together, so that the same one stays the largest.
    """
    largest = torch.maximum(query.common.log, query.own.log) + key.own.log
    excess = (largest - FARTHEST).clamp(min=0.0)
    return replace(key, own=key.own.times_exp(-excess))


def refuse_overflow(*logs: PerSample) -> None:
    """Raise where numbers that are not homogeneous in their size would be beyond all floats."""
    if any(bool((log > FARTHEST).any()) for log in logs):
        raise InputError(
            "queries or keys are beyond 10^299, where this score is not worked out; make the "
            "weights smaller, or add a norm."
        )


def log_of(scale: float) -> float:
    """The logarithm of a factor's size; zero has one, too."""
    return math.log(abs(scale)) if scale else -math.inf


def shared_logits(query: ScaledTensor, key: ScaledTensor) -> Shared:
    """``q̄·δk_j``: logits that are the same for every query."""
    products = query.mantissa @ key.mantissa.mT
    return products * expand_like(bounded_exp(query.log + key.log), products)


def have_one_support(visibility: Visibility, state: SplitState) -> Bool[Tensor, "batch"]:
    """Whether all queries of a sample see the same keys; padding asks nothing."""
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
    """What the first query that is not padding has."""
    if state.token_mask is None or rows.shape[2] == 1:
        return rows[:, :, :1]
    first = state.token_mask.to(torch.uint8).argmax(-1)
    each = rows.expand(len(first), -1, -1, -1)
    return each[torch.arange(len(first), device=first.device), :, first].unsqueeze(2)


def common_support(visibility: Visibility, state: SplitState) -> tuple[Visible | None, bool]:
    """The keys every query sees, and whether queries differ in that."""
    if visibility.allowed is None or visibility.allowed.shape[-2] == 1:
        return visibility.allowed, False
    if not bool(have_one_support(visibility, state).all()):
        return None, True
    return first_query(visibility.allowed, state), False


def attention_of_several_supports(logits: Pattern, visibility: Visibility) -> SplitAttention:
    """Weights of queries that see different keys."""
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
    """Logits ``e^log · logits`` in which positions take part, so that no two queries agree."""
    visible, several = common_support(visibility, state)
    terms = log + log_of_largest(logits)
    if several:
        logits = logits * expand_like(bounded_exp(log), logits)
        return attention_of_several_supports(logits, visibility).with_terms(terms, lost)
    mean = _mean_query(logits, state)
    base = mean * expand_like(bounded_exp(log), mean)
    if visible is not None:
        base = base.masked_fill(~visible, -math.inf)
    own = _without_row_constants(base, logits - mean)
    return split_softmax(base, own, log).with_terms(terms, lost)


def _without_row_constants(base: Shared, own: Pattern) -> Pattern:
    return own - (own * base.softmax(-1)).sum(-1, keepdim=True)


def _mean_query(logits: Float[Tensor, "#batch #head query key"], state: SplitState) -> Tensor:
    """What the queries ask on average; padding asks nothing."""
    if state.token_mask is None:
        return logits.mean(-2, keepdim=True)
    asking = state.token_mask[:, None, :, None].to(logits.dtype)
    return (logits * asking).sum(-2, keepdim=True) / asking.sum(-2, keepdim=True)
