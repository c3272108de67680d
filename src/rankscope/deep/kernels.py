"""Weights that are no softmax over tokens, on a state ``1xᵀ + eˢR`` (derived)."""

import math

import torch
from torch import Tensor

from rankscope.deep.lifted import Lifted, along, power
from rankscope.deep.logits import (
    Projected,
    agreed,
    from_products,
    projected,
    support,
)
from rankscope.deep.scaled import Scaled
from rankscope.deep.weighing import Pattern, Weighing
from rankscope.network import Attention, Sight
from rankscope.network.patterns import LinformerScores, pooling, positive_feature, sparsemax
from rankscope.network.scores import hide

_SEEN = 1e-200
"""Steps below are linear to the last digit, and floats that small may lack digits to divide by."""


def linformer(attention: Attention, state: Scaled, sight: Sight) -> Weighing:
    """Pooled keys are keys like others: a softmax over segments, each spread over its tokens."""
    scores = attention.scores
    assert isinstance(scores, LinformerScores)
    scores.check(sight)
    pool = pooling(sight, scores.segments, state.mantissa.dtype)
    filled = (pool.sum(-1) > 0).unsqueeze(-2)  # rows 1 1 segment
    query, key = projected(attention, state)
    pooled = Projected(key.common, Lifted.of(pool @ key.own.mantissa, key.own.log))
    among = Sight(sight.positions, filled)
    found = from_products(query, pooled, attention.scale, state, among)
    return Weighing(found.shared @ pool, found.own @ pool, found.log)


def linear_kernel(attention: Attention, state: Scaled, sight: Sight) -> Weighing:
    """``w_ij ∝ f_i·g_j`` with features ``f_i = f̄ + δf_i`` and ``g_j = ḡ + δg_j``.

    Relative to ``q_j ∝ f̄·g_j``, and but for a factor of the query alone, a weight is 1 plus

        ``(δf_i·δg_j  f̄·ḡ − δf_i·ḡ  f̄·δg_j) / (f̄·g_j  f_i·ḡ)``,

    in which only products of two deviations are left.
    """
    f, g = (_features(part) for part in projected(attention, state))
    near, far = f.common.mantissa, g.common.mantissa  # both in plain units, see _features
    own_f, own_g = f.own.mantissa, g.own.mantissa
    size_f, size_g = (along(power(part.own.log), own_f) for part in (f, g))
    both = (near * far).sum(-1, keepdim=True)
    f_far = own_f @ far.mT  # batch head query 1
    near_g = near @ own_g.mT  # batch head 1 key
    visible, several = support(sight, state)
    products = both + near_g * size_g
    # Features that underflow leave nothing to compare with; then plain numbers show the rest.
    asked = both + f_far * size_f
    if several or not (bool((products > 0).all()) and bool((asked > 0).all())):
        exact = products + (f_far + own_f @ own_g.mT * size_g) * size_f
        return _unshared(attention.scores.weights(exact, sight))
    gain = (own_f @ own_g.mT * both - f_far * near_g) / (products * asked)
    shown = products if visible is None else products.masked_fill(~visible, 0.0)
    shared = shown / shown.sum(-1, keepdim=True)
    mean = (gain * shared).sum(-1, keepdim=True)
    log = f.own.log + g.own.log
    return Weighing(shared, (gain - mean) * shared / (1 + along(power(log), mean) * mean), log)


def _features(part: Projected) -> Projected:
    """Features of queries or keys, and by how much each token's differ from the common ones."""
    a = part.common.at(0.0)
    h, size = part.own.mantissa, along(power(part.own.log), part.own.mantissa)
    step = h * size
    below = (a <= 0) & (a + step <= 0) & (step.abs() < 1)
    above = (a >= 0) & (a + step >= 0)
    seen = size > _SEEN
    divisor = torch.where(seen, size, 1.0)
    rate = torch.where(seen, torch.expm1(step.clamp(max=1.0)) / divisor, h)
    plain = torch.where(seen, (_elu(a + step) - _elu(a)) / divisor, h)
    change = torch.where(above, h, torch.where(below, a.clamp(max=0).exp() * rate, plain))
    return Projected(
        Lifted(positive_feature(a), torch.zeros_like(part.own.log)), Lifted(change, part.own.log)
    )


def _elu(z: Tensor) -> Tensor:
    """The feature less one, which would drown numbers near zero."""
    return torch.where(z > 0, z, torch.expm1(z))


def _unshared(weights: Pattern) -> Weighing:
    """Queries that agree on nothing."""
    return Weighing(
        torch.zeros_like(weights[:, :, :1]), weights, torch.zeros_like(weights[:, 0, 0, 0])
    )


def sparsemaxed(attention: Attention, state: Scaled, sight: Sight) -> Weighing:
    """Within one support S sparsemax is linear: ``P_ij − q_j = D_ij − mean_S D_i``.

    A query whose own logits are strong enough to change the support differs from the rest by
    amounts that plain numbers show.
    """
    query, key = projected(attention, state)
    base = agreed(query.common, key.own) * attention.scale
    own = (query.own.mantissa @ key.own.mantissa.mT) * attention.scale
    log = query.own.log + key.own.log
    logits = base + own * along(power(log), own)
    visible, several = support(sight, state)
    if several:
        return _unshared(sparsemax(hide(logits, sight)))
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
    own = torch.where(along(same, own), change, exact - shared)
    return Weighing(shared, own, torch.where(same, log, 0.0))
