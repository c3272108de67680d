"""Attention on ``1xᵀ + eˢR`` (derived: docs/theory.md, section 5).

``P`` is row-stochastic, so ``P(1xᵀ + eˢR) = 1xᵀ + eˢPR``, and with ``P = 1qᵀ + e^λΔ`` the output is

    ``1(x + eˢRᵀq)ᵀ W + e^{s+λ} ΔRW``.

For plain scores and one support λ is ``2s``: that is the cubic step. Where queries see different
keys, or the scores depend on the pair of positions, λ is about 0 and the step is linear.
"""

from dataclasses import replace
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.deep._logits import common_support, first_query
from rankscope.core.deep._scaled_tensor import (
    ScaledTensor,
    bounded_exp,
    expand_like,
    log_of_longest,
    rescale,
    scaled_sum,
    worst,
)
from rankscope.core.deep._scores import split_attention
from rankscope.core.deep._split_attention import SplitAttention
from rankscope.core.deep._split_state import (
    SplitState,
    apply_linear,
    apply_linear_to_common,
    log_typical_output,
    map_rows,
)
from rankscope.core.network import Attention, Visibility

Values = Float[Tensor, "batch head token width"]


class MixedHeads(NamedTuple):
    """What the heads hand on, side by side: what each token gets of its own, and all get alike."""

    own: ScaledTensor  # batch token inner
    passed: ScaledTensor
    """The values' common row, which no weights change."""
    moved: ScaledTensor
    """What the queries agree to take of the values' deviations."""

    def state(self, token_mask: Tensor | None) -> SplitState:
        """All of it as a state, before any output projection."""
        return SplitState(scaled_sum(self.passed, self.moved), self.own, token_mask).recenter()


@checked
def attend(attention: Attention, state: SplitState, visibility: Visibility) -> SplitState:
    """One layer of attention applied to a state."""
    output = attention.output.weight
    size = log_typical_output(output)
    weights = split_attention(attention, state, visibility)
    mixed = mix_heads(attention, state, weights, visibility)
    passed = apply_linear_to_common(mixed.passed, output, attention.output.bias, size)
    common = scaled_sum(passed, map_rows(mixed.moved, output, size))
    deviation = map_rows(mixed.own, output, size)
    return SplitState(common, deviation, state.token_mask).recenter()


def mix_heads(
    attention: Attention, state: SplitState, weights: SplitAttention, visibility: Visibility
) -> MixedHeads:
    """``P_h X W_V,h`` of all heads: ``(x + eˢRᵀq) W`` in common; silent heads say nothing.

    The rows of centred attention sum to zero, so that nothing of x passes.
    """
    if attention.centered:
        weights = _center(weights, state, visibility)
    value = attention.value
    values = apply_linear(state, value.weight, value.bias)
    split = attention.split(values.mantissa, attention.kv_heads)
    own = rescale(
        attention.join(weights.own @ split),
        values.log_scale + weights.log,
        terms=values.log_scale + weights.log + log_of_longest(weights.own),
        lost=worst(values.deviation.lost, weights.lost),
    )
    row = values.common.mantissa.unsqueeze(1)
    each = attention.split(row * 0.0 if attention.centered else row, attention.kv_heads)
    passed = rescale(
        attention.join(each).squeeze(1),
        values.common.log,
        lost=values.common.lost,
    )
    shift = attention.join(weights.shared @ split).squeeze(1)
    terms = values.log_scale if attention.centered else None
    lost = values.deviation.lost
    moved = rescale(shift, values.log_scale, terms=terms, lost=lost)
    return MixedHeads(own, passed, moved)


def _center(weights: SplitAttention, state: SplitState, visibility: Visibility) -> SplitAttention:
    """The same weights, less the uniform ones over the keys that each query sees."""
    uniform = visibility.uniform(weights.shared.dtype)
    _, several = common_support(visibility, state)
    if not several:
        return replace(weights, shared=weights.shared - first_query(uniform, state))
    mean = uniform.mean(-2, keepdim=True)
    own = weights.own * expand_like(bounded_exp(weights.log), weights.own) - (uniform - mean)
    return replace(weights, shared=weights.shared - mean, own=own, log=weights.log * 0.0)
