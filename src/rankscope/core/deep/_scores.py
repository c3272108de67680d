"""How each score in ``rankscope.core.network`` acts on a state ``1xᵀ + eˢR`` (derived)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Bool
from torch import Tensor

from rankscope.core.deep._scaled_tensor import (
    ScaledTensor,
    bounded_exp,
    expand_like,
    log_of_longest,
    worst,
)
from rankscope.core.deep._split_attention import (
    SplitAttention,
    SplitProjection,
    attention_from_logits,
    attention_from_products,
    common_support,
    have_one_support,
    log_of,
    merge,
    project,
    refuse_overflow,
    shared_logits,
    split_softmax,
    within_floats,
)
from rankscope.core.deep._split_state import SplitState
from rankscope.core.network import (
    Attention,
    GaussianKernelScores,
    LinformerScores,
    Visibility,
    log_positive_feature,
    score_entry,
    sparsemax,
)
from rankscope.errors import UnsupportedModelError

_TOLD_APART = 1e-7
"""Queries whose weights differ by less than this cannot be distinguished in plain float64."""
_SEEN = 1e-200
"""Steps below this are linear to all digits, and such small floats may lack digits for a division.
"""
_UNKNOWN = 1e3
_LEAST_GAIN = -1 + 1e-15
"""The smallest weight; rounding could give zero."""


def split_attention(
    attention: Attention, state: SplitState, visibility: Visibility
) -> SplitAttention:
    """The attention weights of a state."""
    entry = score_entry(attention.scores)
    if entry.deep is None:
        raise UnsupportedModelError(
            f"scaled arithmetic (rankscope.deep_trace) does not support the score {entry.words}; "
            "use rankscope.trace or rankscope.path_lengths."
        )
    act = RULES[entry.rule] if entry.rule else _in_plain_numbers
    if visibility.allowed is None or visibility.allowed.shape[-2] == 1:
        return act(attention, state, visibility)
    alike = have_one_support(visibility, state)
    every, some = torch.stack([alike.all(), alike.any()]).tolist()
    if every or not some:
        return act(attention, state, visibility)
    # Padding may make queries of one sample see the same keys and those of another different keys.
    parts = [
        (chosen, act(attention, state.select(chosen), visibility.select(chosen)))
        for chosen in (alike, ~alike)
    ]
    return merge(parts)


def _plain(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    return attention_from_products(*project(attention, state), attention.scale, state, visibility)


def _rotary(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """Rotary positions: a rotation is linear, so it acts on mantissas."""
    query, key = (part.rows() for part in project(attention, state))
    turned = attention.scores.prepare(query.mantissa, key.mantissa, visibility.positions)
    logits = (turned[0] @ turned[1].mT) * attention.scale
    lost = worst(query.lost, key.lost)
    return attention_from_logits(logits, query.log + key.log, state, visibility, lost)


def _biased(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """Biases that depend only on positions, of keys or of pairs."""
    query, key = project(attention, state)
    bias = attention.scores.bias(query.delta.mantissa, key.delta.mantissa, visibility.positions)
    assert bias is not None
    kind = "of_keys" if bias.shape[-2] == 1 else "of_pairs"
    return attention_from_products(
        query, key, attention.scale, state, visibility, **{kind: bias.to(state.mantissa)}
    )


def _gaussian(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """``q·k − ‖k‖²/2``: the length of a key is a bias of keys; what tells them apart is
    ``−k̄·δk_j − ‖δk_j‖²/2``.
    """
    scores = attention.scores
    assert isinstance(scores, GaussianKernelScores)
    scale = attention.scale / scores.bandwidth**2
    query, key = project(attention, state)
    largest = torch.maximum(key.common.log, query.delta.log), query.common.log
    refuse_overflow(torch.maximum(torch.maximum(*largest), key.delta.log) + key.delta.log)
    delta = key.delta.mantissa.square().sum(-1).unsqueeze(2)
    lengths = (
        shared_logits(key.common, key.delta)
        + delta * expand_like(bounded_exp(2 * key.delta.log), delta) / 2
    )
    return attention_from_products(query, key, scale, state, visibility, of_keys=-scale * lengths)


def _linformer(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """Pooled keys act like keys: a softmax over segments, each spread over its tokens."""
    scores = attention.scores
    assert isinstance(scores, LinformerScores)
    scores.refuse_masks(visibility)
    pool = scores.pooling(visibility, state.mantissa.dtype)
    filled = (pool.sum(-1) > 0).unsqueeze(-2)  # rows 1 1 segment
    query, key = project(attention, state)
    mean = ScaledTensor.of(
        pool @ key.delta.mantissa, key.delta.log, terms=key.delta.log, lost=key.delta.lost
    )
    pooled = SplitProjection(key.common, mean)
    among = Visibility(visibility.positions, filled)
    weights = attention_from_products(query, pooled, attention.scale, state, among)
    return SplitAttention(weights.shared @ pool, weights.delta @ pool, weights.log, weights.lost)


def _linear_kernel(
    attention: Attention, state: SplitState, visibility: Visibility
) -> SplitAttention:
    """``w_ij ∝ f_i·g_j`` with the positive features f of queries and g of keys.

    Queries, keys or both may be close to their common row; then the weights differ only by products
    of deviations (``_weights_near_common``). If both are far from it, ``log f_i·g_j`` is an
    ordinary logit.
    """
    query, key = (_Features.of(part) for part in project(attention, state))
    visible, several = common_support(visibility, state)
    near = ~(query.far & key.far)
    if several or attention.scale <= 0 or not bool(near.any()):
        return _weights_from_logs(attention, query, key, state, visibility)
    ways = [
        (~key.far, _weights_near_common(query, key, visible)),
        (key.far & near, _weights_near_common(query, key, visible, swapped=True)),
    ]
    if not bool(near.all()):
        ways.append((~near, _weights_from_logs(attention, query, key, state, visibility)))
    return merge([(chosen, weights.only(chosen)) for chosen, weights in ways])


@dataclass(frozen=True)
class _Features:
    """Features of queries or keys, as logarithms: those of what all tokens have in common, each
    token's, and by how much the two differ, in units of ``e^delta.log``.

    Differences of logarithms keep every feature's digits, however small it is beside others.
    """

    common: Tensor  # batch head 1 width
    logs: Tensor  # batch head token width
    delta: ScaledTensor
    far: Bool[Tensor, "batch"]

    @classmethod
    def of(cls, part: SplitProjection) -> "_Features":
        """With ``φ(z) = 1 + z`` above zero and ``e^z`` below."""
        refuse_overflow(part.common.log, part.delta.log)
        a = part.common.at(0.0)
        h, size = (
            part.delta.mantissa,
            expand_like(bounded_exp(part.delta.log), part.delta.mantissa),
        )
        z = a + h * size
        seen = size > _SEEN
        divisor = torch.where(seen, size, 1.0)
        positive = torch.where(seen, torch.log1p(h * size / (1 + a)) / divisor, h / (1 + a))
        logs, common = log_positive_feature(z), log_positive_feature(a)
        # Across zero the two logarithms have different signs, so they do not cancel.
        across = torch.where(seen, (logs - common) / divisor, h)
        above, below = (a >= 0) & (z >= 0), (a <= 0) & (z <= 0)
        delta = torch.where(above, positive, torch.where(below, h, across))
        far = (delta * size).abs().flatten(1).amax(1) > 1
        # Features weigh the digits of others in a way that no single sum shows: always check.
        lost = worst(part.common.lost, part.delta.lost, _UNKNOWN)
        return cls(common, logs, ScaledTensor(delta, part.delta.log, lost), far)

    def growth(self) -> Tensor:
        """``e^δ − 1`` of each feature with its deviation δ, in units of ``e^delta.log``."""
        delta, size = (
            self.delta.mantissa,
            expand_like(bounded_exp(self.delta.log), self.delta.mantissa),
        )
        seen = size > _SEEN
        return torch.where(
            seen, torch.expm1((delta * size).clamp(max=1.0)) / torch.where(seen, size, 1.0), delta
        )


def _weights_near_common(
    query: _Features,
    key: _Features,
    visible: Bool[Tensor, "rows 1 1 key"] | None,
    *,
    swapped: bool = False,
) -> SplitAttention:
    """The weights if keys are close to their common row, or with ``swapped`` if queries are.

    Let ``c ∝ f̄∘ḡ`` be the weight of each feature at the common point and ``c_i ∝ f_i∘ḡ`` that for
    one query: a softmax over features, ``c_i = c + Δ_i``. Relative to ``q_j ∝ f̄·g_j``, and up to a
    factor that depends only on the query, a weight is ``1 + Δ_i·(g_j/ḡ − 1) / Σ c∘g_j/ḡ``.
    """
    mixed, near = (key, query) if swapped else (query, key)
    counts = split_softmax(query.common + key.common, mixed.delta.mantissa, mixed.delta.log)
    growth, log = near.growth(), counts.log + near.delta.log
    size = expand_like(bounded_exp(near.delta.log), growth)
    total = 1 + (counts.shared * growth).sum(-1, keepdim=True) * size
    gain = (counts.delta @ growth.mT) / total.mT
    terms = log + log_of_longest(counts.delta) + log_of_longest(growth)
    gain = gain.mT if swapped else gain
    size = expand_like(bounded_exp(log), gain)
    seen = size > _SEEN
    delta = torch.where(
        seen, torch.log1p((gain * size).clamp(min=_LEAST_GAIN)) / torch.where(seen, size, 1.0), gain
    )
    base = (query.common + key.logs).logsumexp(-1).unsqueeze(-2)
    base = base if visible is None else base.masked_fill(~visible, -math.inf)
    delta = delta - (delta * base.softmax(-1)).sum(-1, keepdim=True)
    return split_softmax(base, delta, log).with_terms(
        terms, worst(query.delta.lost, key.delta.lost)
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
        of_query, of_key = query.logs[..., feature], key.logs[..., feature]
        pairs = torch.logaddexp(pairs, of_query.unsqueeze(-1) + of_key.unsqueeze(-2))
    if attention.scale <= 0:  # then all keys have equal weight
        pairs = torch.zeros_like(pairs)
    lost = worst(query.delta.lost, key.delta.lost)
    return attention_from_logits(pairs, torch.zeros_like(state.log_scale), state, visibility, lost)


def _sparsemax(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """Within one support S sparsemax is linear: ``P_ij − q_j = D_ij − mean_S D_i``.

    If the deviation of a query changes the support, plain float64 resolves the difference.
    """
    query, key = project(attention, state)
    key = within_floats(query, key)
    base = shared_logits(query.common, key.delta) * attention.scale
    delta = (query.delta.mantissa @ key.delta.mantissa.mT) * attention.scale
    log = query.delta.log + key.delta.log
    logits = base + delta * expand_like(bounded_exp(log), delta)
    terms = log + log_of_longest(query.delta.mantissa) + log_of_longest(key.delta.mantissa)
    terms = terms + log_of(attention.scale)
    lost = worst(query.delta.lost, key.delta.lost)
    visible, several = common_support(visibility, state)
    if several:
        weights, zero = sparsemax(visibility.hide(logits)), torch.zeros_like(log)
        agreed = torch.zeros_like(weights[:, :, :1])  # nothing
        return SplitAttention(agreed, weights, zero).with_terms(terms, lost)
    if visible is not None:
        base = base.masked_fill(~visible, -math.inf)
        logits = logits.masked_fill(~visible, -math.inf)
    shared = sparsemax(base)
    inside = shared > 0
    within = torch.where(inside, delta, 0.0)
    count = inside.sum(-1, keepdim=True)  # a single key has all the weight, whatever its logit
    change = torch.where(inside & (count > 1), delta - within.sum(-1, keepdim=True) / count, 0.0)
    exact = sparsemax(logits)
    same = ((exact > 0) == inside).flatten(1).all(1)
    delta = torch.where(expand_like(same, delta), change, exact - shared)
    return SplitAttention(shared, delta, torch.where(same, log, 0.0)).with_terms(terms, lost)


def _in_plain_numbers(
    attention: Attention, state: SplitState, visibility: Visibility
) -> SplitAttention:
    """Any softmax in plain float64; correct if queries differ by more than rounding."""
    logits = attention.logits(state.tensor(), visibility)
    weights = attention_from_logits(logits, torch.zeros_like(state.log_scale), state, visibility)
    small = state.log_scale - state.common.log < math.log(_TOLD_APART)
    apart = weights.delta.abs().flatten(1).amax(1)
    if bool((small & (apart < _TOLD_APART)).any()):
        raise UnsupportedModelError(
            f"the score {type(attention.scores).__name__} hardly depends on the pair of positions "
            "here, so its queries agree to all digits of float64; scaled arithmetic supports such "
            "cases only for the scores of rankscope.core.network."
        )
    return weights


RULES: Final[dict[str, Callable[[Attention, SplitState, Visibility], SplitAttention]]] = {
    "products": _plain,
    "turn": _rotary,
    "bias": _biased,
    "gaussian": _gaussian,
    "linear kernel": _linear_kernel,
    "linformer": _linformer,
    "sparsemax": _sparsemax,
}
"""The rules that the scores in ``rankscope.core.network`` refer to by name."""
