"""Weights that are no softmax over tokens, on a state ``1xᵀ + eˢR`` (derived)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from rankscope.deep._logits import (
    SplitProjection,
    attention_from_logits,
    attention_from_products,
    common_support,
    project,
    shared_logits,
)
from rankscope.deep._scaled_tensor import ScaledTensor, bounded_exp, expand_like
from rankscope.deep._split_attention import Pattern, SplitAttention, merge
from rankscope.deep._split_state import SplitState
from rankscope.network import (
    Attention,
    LinformerScores,
    Visibility,
    hide,
    log_positive_feature,
    pooling,
    positive_feature,
    sparsemax,
)

_SEEN = 1e-200
"""Steps below are linear to the last digit, and floats that small may lack digits to divide by."""


def linformer_attention(
    attention: Attention, state: SplitState, visibility: Visibility
) -> SplitAttention:
    """Pooled keys are keys like others: a softmax over segments, each spread over its tokens."""
    scores = attention.scores
    assert isinstance(scores, LinformerScores)
    scores.refuse_masks(visibility)
    pool = pooling(visibility, scores.segments, state.mantissa.dtype)
    filled = (pool.sum(-1) > 0).unsqueeze(-2)  # rows 1 1 segment
    query, key = project(attention, state)
    pooled = SplitProjection(key.common, ScaledTensor.of(pool @ key.own.mantissa, key.own.log))
    among = Visibility(visibility.positions, filled)
    found = attention_from_products(query, pooled, attention.scale, state, among)
    return SplitAttention(found.shared @ pool, found.own @ pool, found.log)


def linear_kernel_attention(
    attention: Attention, state: SplitState, visibility: Visibility
) -> SplitAttention:
    """``w_ij ∝ f_i·g_j`` with the positive features f of queries and g of keys.

    Queries, keys or both may be close to what all tokens have in common; then products of their
    deviations are all that tells weights apart (``_weights_near_common``). Where both are far from
    it, or features underflow, ``log f_i·g_j`` is a logit like others.
    """
    query, key = (_Features.of(part) for part in project(attention, state))
    visible, several = common_support(visibility, state)
    near = ~(query.far & key.far) & _positive(query, key)
    if several or attention.scale <= 0 or not bool(near.any()):
        return _weights_from_logs(attention, query, key, state, visibility)
    found = _weights_near_common(query, key, visible)
    if bool(near.all()):
        return found
    logs = _weights_from_logs(attention, query, key, state, visibility)
    return merge([(near, found.only(near)), (~near, logs.only(~near))])


@dataclass(frozen=True)
class _Features:
    """Features of queries or keys: of what all tokens have in common, the logarithms of each
    token's, and what is left of those beside the common ones, in units of ``e^own.log``.

    Where a step from the common point is longer than 1 (``far``), features may be smaller than the
    common ones by more digits than a float has; there ``own`` holds each token's features whole.
    """

    common: Tensor  # batch head 1 width
    logs: Tensor  # of each token's, batch head token width
    own: ScaledTensor
    far: Bool[Tensor, "batch"]

    @classmethod
    def of(cls, part: SplitProjection) -> "_Features":
        a = part.common.at(0.0)
        h, size = part.own.mantissa, expand_like(bounded_exp(part.own.log), part.own.mantissa)
        step = h * size
        z = a + step
        each, far = positive_feature(z), (step.abs() > 1).flatten(1).any(1)
        seen = size > _SEEN
        divisor = torch.where(seen, size, 1.0)
        rate = torch.where(seen, torch.expm1(step.clamp(max=1.0)) / divisor, h)
        plain = torch.where(seen, (_elu(z) - _elu(a)) / divisor, h)
        above, below = (a >= 0) & (z >= 0), (a <= 0) & (z <= 0)
        change = torch.where(above, h, torch.where(below, a.clamp(max=0).exp() * rate, plain))
        own = torch.where(expand_like(far, each), each, change)
        unit = torch.where(far, 0.0, part.own.log)
        return cls(positive_feature(a), log_positive_feature(z), ScaledTensor(own, unit), far)

    def along(self, other: Tensor) -> Tensor:
        """``other·f_i`` for every token, from whichever form keeps the digits."""
        steps = other @ self.own.mantissa.mT
        size = expand_like(bounded_exp(self.own.log), steps)
        both = (other * self.common).sum(-1, keepdim=True)
        return torch.where(expand_like(self.far, steps), steps, both + steps * size)


def _positive(query: _Features, key: _Features) -> Bool[Tensor, "batch"]:
    """Whether there is something left to divide by: no product with a common feature underflows."""
    asked, offered = key.along(query.common), query.along(key.common)
    return (asked > _SEEN).flatten(1).all(1) & (offered > _SEEN).flatten(1).all(1)


def _weights_near_common(
    query: _Features, key: _Features, visible: Bool[Tensor, "rows 1 1 key"] | None
) -> SplitAttention:
    """Relative to ``q_j ∝ f̄·g_j``, and but for a factor of the query alone, a weight is 1 plus

        ``(n_i·δg_j) (f̄·ḡ) / (f̄·g_j  f_i·ḡ)``,  ``n_i = δf_i − f̄ (δf_i·ḡ)/(f̄·ḡ)``.

    ``n_i`` is the same with ``f_i`` for ``δf_i``, and ``n_i·ḡ = 0``, so that ``g_j`` will do for
    ``δg_j``.
    """
    f, g = query.common, key.common
    both = (f * g).sum(-1, keepdim=True)
    own = query.own.mantissa
    normal = own - f * ((own @ g.mT) / both)
    products, asked = key.along(f), query.along(g).mT
    gain = (normal @ key.own.mantissa.mT) * both / (products * asked)
    shown = products if visible is None else products.masked_fill(~visible, 0.0)
    shared = shown / shown.sum(-1, keepdim=True)
    mean = (gain * shared).sum(-1, keepdim=True)
    log = query.own.log + key.own.log
    return SplitAttention(
        shared, (gain - mean) * shared / (1 + expand_like(bounded_exp(log), mean) * mean), log
    )


def _weights_from_logs(
    attention: Attention,
    query: _Features,
    key: _Features,
    state: SplitState,
    visibility: Visibility,
) -> SplitAttention:
    """The softmax of ``log f_i·g_j``, feature by feature, so that nothing underflows."""
    pairs = query.logs[..., 0].unsqueeze(-1) + key.logs[..., 0].unsqueeze(-2)
    for feature in range(1, query.logs.shape[-1]):
        one, other = query.logs[..., feature], key.logs[..., feature]
        pairs = torch.logaddexp(pairs, one.unsqueeze(-1) + other.unsqueeze(-2))
    if attention.scale <= 0:  # then the network prefers no key to another
        pairs = torch.zeros_like(pairs)
    return attention_from_logits(pairs, torch.zeros_like(state.log_scale), state, visibility)


def _elu(z: Tensor) -> Tensor:
    """The feature less one, which would drown numbers near zero."""
    return torch.where(z > 0, z, torch.expm1(z))


def _without_shared(weights: Pattern) -> SplitAttention:
    """Queries that agree on nothing."""
    return SplitAttention(
        torch.zeros_like(weights[:, :, :1]), weights, torch.zeros_like(weights[:, 0, 0, 0])
    )


def sparsemax_attention(
    attention: Attention, state: SplitState, visibility: Visibility
) -> SplitAttention:
    """Within one support S sparsemax is linear: ``P_ij − q_j = D_ij − mean_S D_i``.

    A query whose own logits are strong enough to change the support differs from the rest by
    amounts that plain numbers show.
    """
    query, key = project(attention, state)
    base = shared_logits(query.common, key.own) * attention.scale
    own = (query.own.mantissa @ key.own.mantissa.mT) * attention.scale
    log = query.own.log + key.own.log
    logits = base + own * expand_like(bounded_exp(log), own)
    visible, several = common_support(visibility, state)
    if several:
        return _without_shared(sparsemax(hide(logits, visibility)))
    if visible is not None:
        base = base.masked_fill(~visible, -math.inf)
        logits = logits.masked_fill(~visible, -math.inf)
    shared = sparsemax(base)
    inside = shared > 0
    within = torch.where(inside, own, 0.0)
    change = torch.where(
        inside, own - within.sum(-1, keepdim=True) / inside.sum(-1, keepdim=True), 0.0
    )
    exact = sparsemax(logits)
    same = ((exact > 0) == inside).flatten(1).all(1)
    own = torch.where(expand_like(same, own), change, exact - shared)
    return SplitAttention(shared, own, torch.where(same, log, 0.0))
