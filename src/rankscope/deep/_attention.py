"""Attention on ``1xᵀ + eˢR`` (derived: docs/theory.md, section 5).

``P`` is row-stochastic, so ``P(1xᵀ + eˢR) = 1xᵀ + eˢPR``, and with ``P = 1qᵀ + e^λΔ`` the output is

    ``1(x + eˢRᵀq)ᵀ W + e^{s+λ} ΔRW``.

For plain scores and one support λ is ``2s``: that is the cubic step. Where queries see different
keys, or the scores depend on the pair of positions, λ is about 0 and the step is linear.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.deep._scaled_tensor import ScaledTensor, log_of_longest, scaled_sum, worst
from rankscope.deep._scores import split_attention
from rankscope.deep._split_attention import SplitAttention
from rankscope.deep._split_state import (
    SplitState,
    apply_linear,
    apply_linear_to_common,
    map_rows,
)
from rankscope.network import Attention, Visibility

Values = Float[Tensor, "batch head token width"]


@checked
def attend(attention: Attention, state: SplitState, visibility: Visibility) -> SplitState:
    """One layer of attention applied to a state."""
    value, output = attention.value, attention.output
    values = apply_linear(state, value.weight, value.bias)
    split = attention.split(values.mantissa, attention.kv_heads)
    weights = split_attention(attention, state, visibility)
    own = ScaledTensor.of(
        _join_heads(weights.own @ split, attention.removed),
        values.log_scale + weights.log,
        terms=values.log_scale + weights.log + log_of_longest(weights.own),
        lost=worst(values.deviation.lost, weights.lost),
    )
    deviation = map_rows(own, output.weight)
    common = _common(attention, values, split, weights)
    return SplitState(common, deviation, state.token_mask).recenter()


def _common(
    attention: Attention, values: SplitState, split: Values, weights: SplitAttention
) -> ScaledTensor:
    """``(x + eˢRᵀq) W``, what the queries agree on; silent heads say nothing."""
    output = attention.output
    each = attention.split(values.common.mantissa.unsqueeze(1), attention.kv_heads)
    passed = ScaledTensor.of(
        _join_heads(each, attention.removed).squeeze(1),
        values.common.log,
        lost=values.common.lost,
    )
    common = apply_linear_to_common(passed, output.weight, output.bias)
    shift = _join_heads(weights.shared @ split, attention.removed).squeeze(1)
    moved = ScaledTensor.of(shift, values.log_scale, lost=values.deviation.lost)
    return scaled_sum(common, map_rows(moved, output.weight))


def _join_heads(mixed: Values, removed: frozenset[int]) -> Float[Tensor, "batch token inner"]:
    """Heads side by side, the silent ones zero."""
    if removed:
        mixed = mixed.index_fill(1, torch.tensor(sorted(removed), device=mixed.device), 0.0)
    return mixed.transpose(1, 2).flatten(2)
