"""Weights that are no softmax over tokens, on a state ``1xᵀ + eˢR`` (derived)."""

import math

import torch
from torch import Tensor

from rankscope.deep._logits import (
    SplitProjection,
    attention_from_products,
    common_support,
    project,
    shared_logits,
)
from rankscope.deep._scaled_tensor import ScaledTensor, bounded_exp, expand_like
from rankscope.deep._split_attention import Pattern, SplitAttention
from rankscope.deep._split_state import SplitState
from rankscope.network import (
    Attention,
    LinformerScores,
    Visibility,
    hide,
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
    """``w_ij ∝ f_i·g_j`` with features ``f_i = f̄ + δf_i`` and ``g_j = ḡ + δg_j``.

    Relative to ``q_j ∝ f̄·g_j``, and but for a factor of the query alone, a weight is 1 plus

        ``(δf_i·δg_j  f̄·ḡ − δf_i·ḡ  f̄·δg_j) / (f̄·g_j  f_i·ḡ)``,

    in which only products of two deviations are left.
    """
    f, g = (_features(part) for part in project(attention, state))
    near, far = f.common.mantissa, g.common.mantissa  # both in plain units, see _features
    own_f, own_g = f.own.mantissa, g.own.mantissa
    size_f, size_g = (expand_like(bounded_exp(part.own.log), own_f) for part in (f, g))
    both = (near * far).sum(-1, keepdim=True)
    f_far = own_f @ far.mT  # batch head query 1
    near_g = near @ own_g.mT  # batch head 1 key
    visible, several = common_support(visibility, state)
    products = both + near_g * size_g
    # Features that underflow leave nothing to compare with; then plain numbers show the rest.
    asked = both + f_far * size_f
    if several or not (bool((products > 0).all()) and bool((asked > 0).all())):
        exact = products + (f_far + own_f @ own_g.mT * size_g) * size_f
        return _without_shared(attention.scores.weights(exact, visibility))
    gain = (own_f @ own_g.mT * both - f_far * near_g) / (products * asked)
    shown = products if visible is None else products.masked_fill(~visible, 0.0)
    shared = shown / shown.sum(-1, keepdim=True)
    mean = (gain * shared).sum(-1, keepdim=True)
    log = f.own.log + g.own.log
    return SplitAttention(
        shared, (gain - mean) * shared / (1 + expand_like(bounded_exp(log), mean) * mean), log
    )


def _features(part: SplitProjection) -> SplitProjection:
    """Features of queries or keys, and by how much each token's differ from the common ones."""
    a = part.common.at(0.0)
    h, size = part.own.mantissa, expand_like(bounded_exp(part.own.log), part.own.mantissa)
    step = h * size
    below = (a <= 0) & (a + step <= 0) & (step.abs() < 1)
    above = (a >= 0) & (a + step >= 0)
    seen = size > _SEEN
    divisor = torch.where(seen, size, 1.0)
    rate = torch.where(seen, torch.expm1(step.clamp(max=1.0)) / divisor, h)
    plain = torch.where(seen, (_elu(a + step) - _elu(a)) / divisor, h)
    change = torch.where(above, h, torch.where(below, a.clamp(max=0).exp() * rate, plain))
    return SplitProjection(
        ScaledTensor(positive_feature(a), torch.zeros_like(part.own.log)),
        ScaledTensor(change, part.own.log),
    )


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
