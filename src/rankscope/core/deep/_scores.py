"""How each score of the table in ``network`` acts on a state ``1xᵀ + eˢR`` (derived)."""

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
"""Queries whose weights differ by less than this are lost in plain numbers."""
_SEEN = 1e-200
"""Steps below are linear to the last digit, and floats that small may lack digits to divide by."""
_UNKNOWN = 1e3
_LEAST_GAIN = -1 + 1e-15
"""A weight is positive, whatever rounding says."""


def split_attention(
    attention: Attention, state: SplitState, visibility: Visibility
) -> SplitAttention:
    """The attention weights of a state."""
    entry = score_entry(attention.scores)
    if entry.deep is None:
        raise UnsupportedModelError(
            f"the score {entry.words} is not one that scaled arithmetic (rankscope.deep_trace) can "
            "follow; it can be used in a forward pass (rankscope.trace) and paths "
            "(rankscope.path_lengths)."
        )
    act = RULES[entry.rule] if entry.rule else _in_plain_numbers
    if visibility.allowed is None or visibility.allowed.shape[-2] == 1:
        return act(attention, state, visibility)
    alike = have_one_support(visibility, state)
    every, some = torch.stack([alike.all(), alike.any()]).tolist()
    if every or not some:
        return act(attention, state, visibility)
    # Padding may leave one sample with queries that see the same and another with some that do not.
    parts = [
        (chosen, act(attention, state.select(chosen), visibility.select(chosen)))
        for chosen in (alike, ~alike)
    ]
    return merge(parts)


def _plain(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    return attention_from_products(*project(attention, state), attention.scale, state, visibility)


def _rotary(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """A rotation is linear, so it acts on mantissas."""
    query, key = (part.rows() for part in project(attention, state))
    turned = attention.scores.prepare(query.mantissa, key.mantissa, visibility.positions)
    logits = (turned[0] @ turned[1].mT) * attention.scale
    lost = worst(query.lost, key.lost)
    return attention_from_logits(logits, query.log + key.log, state, visibility, lost)


def _biased(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """Biases that depend on positions alone, of keys or of pairs."""
    query, key = project(attention, state)
    bias = attention.scores.bias(query.own.mantissa, key.own.mantissa, visibility.positions)
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
    largest = torch.maximum(key.common.log, query.own.log), query.common.log
    refuse_overflow(torch.maximum(torch.maximum(*largest), key.own.log) + key.own.log)
    own = key.own.mantissa.square().sum(-1).unsqueeze(2)
    lengths = (
        shared_logits(key.common, key.own)
        + own * expand_like(bounded_exp(2 * key.own.log), own) / 2
    )
    return attention_from_products(query, key, scale, state, visibility, of_keys=-scale * lengths)


def _linformer(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """Pooled keys are keys like others: a softmax over segments, each spread over its tokens."""
    scores = attention.scores
    assert isinstance(scores, LinformerScores)
    scores.refuse_masks(visibility)
    pool = scores.pooling(visibility, state.mantissa.dtype)
    filled = (pool.sum(-1) > 0).unsqueeze(-2)  # rows 1 1 segment
    query, key = project(attention, state)
    mean = ScaledTensor.of(
        pool @ key.own.mantissa, key.own.log, terms=key.own.log, lost=key.own.lost
    )
    pooled = SplitProjection(key.common, mean)
    among = Visibility(visibility.positions, filled)
    found = attention_from_products(query, pooled, attention.scale, state, among)
    return SplitAttention(found.shared @ pool, found.own @ pool, found.log, found.lost)


def _linear_kernel(
    attention: Attention, state: SplitState, visibility: Visibility
) -> SplitAttention:
    """``w_ij ∝ f_i·g_j`` with the positive features f of queries and g of keys.

    Queries, keys or both may be close to what all tokens have in common; then products of their
    deviations are all that tells weights apart (``_weights_near_common``). Where both are far from
    it, ``log f_i·g_j`` is a logit like others.
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
    return merge([(chosen, found.only(chosen)) for chosen, found in ways])


@dataclass(frozen=True)
class _Features:
    """Features of queries or keys, as logarithms: those of what all tokens have in common, each
    token's, and by how much the two differ, in units of ``e^own.log``.

    Differences of logarithms keep every feature's digits, however small it is beside others.
    """

    common: Tensor  # batch head 1 width
    logs: Tensor  # batch head token width
    own: ScaledTensor
    far: Bool[Tensor, "batch"]

    @classmethod
    def of(cls, part: SplitProjection) -> "_Features":
        """With ``φ(z) = 1 + z`` above zero and ``e^z`` below."""
        refuse_overflow(part.common.log, part.own.log)
        a = part.common.at(0.0)
        h, size = part.own.mantissa, expand_like(bounded_exp(part.own.log), part.own.mantissa)
        z = a + h * size
        seen = size > _SEEN
        divisor = torch.where(seen, size, 1.0)
        positive = torch.where(seen, torch.log1p(h * size / (1 + a)) / divisor, h / (1 + a))
        logs, common = log_positive_feature(z), log_positive_feature(a)
        # Across zero the two logarithms have different signs, so that none takes from the other.
        across = torch.where(seen, (logs - common) / divisor, h)
        above, below = (a >= 0) & (z >= 0), (a <= 0) & (z <= 0)
        own = torch.where(above, positive, torch.where(below, h, across))
        far = (own * size).abs().flatten(1).amax(1) > 1
        # Features weigh the digits of others as no single sum shows: always to be checked.
        lost = worst(part.common.lost, part.own.lost, _UNKNOWN)
        return cls(common, logs, ScaledTensor(own, part.own.log, lost), far)

    def growth(self) -> Tensor:
        """``(e^own − 1)``, each feature's beside the common one, in units of ``e^own.log``."""
        own, size = self.own.mantissa, expand_like(bounded_exp(self.own.log), self.own.mantissa)
        seen = size > _SEEN
        return torch.where(
            seen, torch.expm1((own * size).clamp(max=1.0)) / torch.where(seen, size, 1.0), own
        )


def _weights_near_common(
    query: _Features,
    key: _Features,
    visible: Bool[Tensor, "rows 1 1 key"] | None,
    *,
    swapped: bool = False,
) -> SplitAttention:
    """For keys near what they have in common, or ``swapped`` for such queries.

    Let ``c ∝ f̄∘ḡ`` be what each feature counts for at the common point and ``c_i ∝ f_i∘ḡ`` for one
    query: a softmax over features, ``c_i = c + Δ_i``. Relative to ``q_j ∝ f̄·g_j`` and but for a
    factor of the query alone a weight is ``1 + Δ_i·(g_j/ḡ − 1) / Σ c∘g_j/ḡ``.
    """
    mixed, near = (key, query) if swapped else (query, key)
    counts = split_softmax(query.common + key.common, mixed.own.mantissa, mixed.own.log)
    growth, log = near.growth(), counts.log + near.own.log
    size = expand_like(bounded_exp(near.own.log), growth)
    total = 1 + (counts.shared * growth).sum(-1, keepdim=True) * size
    gain = (counts.own @ growth.mT) / total.mT
    terms = log + log_of_longest(counts.own) + log_of_longest(growth)
    gain = gain.mT if swapped else gain
    size = expand_like(bounded_exp(log), gain)
    seen = size > _SEEN
    own = torch.where(
        seen, torch.log1p((gain * size).clamp(min=_LEAST_GAIN)) / torch.where(seen, size, 1.0), gain
    )
    base = (query.common + key.logs).logsumexp(-1).unsqueeze(-2)
    base = base if visible is None else base.masked_fill(~visible, -math.inf)
    own = own - (own * base.softmax(-1)).sum(-1, keepdim=True)
    return split_softmax(base, own, log).with_terms(terms, worst(query.own.lost, key.own.lost))


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
    lost = worst(query.own.lost, key.own.lost)
    return attention_from_logits(pairs, torch.zeros_like(state.log_scale), state, visibility, lost)


def _sparsemax(attention: Attention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """Within one support S sparsemax is linear: ``P_ij − q_j = D_ij − mean_S D_i``.

    A query whose own logits are strong enough to change the support differs from the rest by
    amounts that plain numbers show.
    """
    query, key = project(attention, state)
    key = within_floats(query, key)
    base = shared_logits(query.common, key.own) * attention.scale
    own = (query.own.mantissa @ key.own.mantissa.mT) * attention.scale
    log = query.own.log + key.own.log
    logits = base + own * expand_like(bounded_exp(log), own)
    terms = log + log_of_longest(query.own.mantissa) + log_of_longest(key.own.mantissa)
    terms = terms + log_of(attention.scale)
    lost = worst(query.own.lost, key.own.lost)
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
    within = torch.where(inside, own, 0.0)
    count = inside.sum(-1, keepdim=True)  # a single key has all weight, whatever its logit
    change = torch.where(inside & (count > 1), own - within.sum(-1, keepdim=True) / count, 0.0)
    exact = sparsemax(logits)
    same = ((exact > 0) == inside).flatten(1).all(1)
    own = torch.where(expand_like(same, own), change, exact - shared)
    return SplitAttention(shared, own, torch.where(same, log, 0.0)).with_terms(terms, lost)


def _in_plain_numbers(
    attention: Attention, state: SplitState, visibility: Visibility
) -> SplitAttention:
    """Any softmax: right as long as positions tell the queries apart by more than rounding."""
    logits = attention.logits(state.tensor(), visibility)
    weights = attention_from_logits(logits, torch.zeros_like(state.log_scale), state, visibility)
    small = state.log_scale - state.common.log < math.log(_TOLD_APART)
    apart = weights.own.abs().flatten(1).amax(1)
    if bool((small & (apart < _TOLD_APART)).any()):
        raise UnsupportedModelError(
            f"the score {type(attention.scores).__name__} hardly depends on the pair of positions "
            "here, so its queries agree to more digits than plain numbers have; scaled arithmetic "
            "has rules of its own for the scores of rankscope.core.network alone."
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
"""What the entries of scores in ``rankscope.core.network`` name as their rules."""
