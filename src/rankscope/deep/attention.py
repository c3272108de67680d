"""Attention on ``1xᵀ + eˢR`` (derived, theory section 5).

``P`` is row-stochastic, so ``P(1xᵀ + eˢR) = 1xᵀ + eˢPR``, and with ``P = 1qᵀ + e^λΔ`` the output is

    ``1(x + eˢRᵀq)ᵀ W + e^{s+λ} ΔRW``.

For plain scores and one support λ is ``2s``: that is the cubic step. Where queries see different
keys, or the scores depend on the pair of positions, λ is about 0 and the step is linear.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.deep.lifted import Lifted, total
from rankscope.deep.scaled import Scaled, mapped, through
from rankscope.deep.scores import weighing
from rankscope.deep.weighing import Weighing
from rankscope.network import Attention, Sight

Values = Float[Tensor, "batch head token width"]


def attended(attention: Attention, state: Scaled, sight: Sight) -> Scaled:
    """One layer of attention applied to a state."""
    value, output = attention.value, attention.output
    values = mapped(state, value.weight, value.bias)
    split = attention.split(values.mantissa, attention.kv_heads)
    weights = weighing(attention, state, sight)
    own = _joined(weights.own @ split, attention.removed)
    deviation = Lifted.of(own @ output.weight.T, values.log_scale + weights.log)
    common = _common(attention, values, split, weights)
    return Scaled(common, deviation, state.token_mask).centred()


def _common(attention: Attention, values: Scaled, split: Values, weights: Weighing) -> Lifted:
    """``(x + eˢRᵀq) W``, what the queries agree on; silent heads say nothing."""
    output = attention.output
    each = attention.split(values.common.mantissa.unsqueeze(1), attention.kv_heads)
    passed = Lifted.of(_joined(each, attention.removed).squeeze(1), values.common.log)
    common = through(passed, output.weight, output.bias)
    shift = _joined(weights.shared @ split, attention.removed).squeeze(1) @ output.weight.T
    return total(common, Lifted.of(shift, values.log_scale))


def _joined(mixed: Values, removed: frozenset[int]) -> Float[Tensor, "batch token inner"]:
    """Heads side by side, the silent ones zero."""
    if removed:
        mixed = mixed.index_fill(1, torch.tensor(sorted(removed), device=mixed.device), 0.0)
    return mixed.transpose(1, 2).flatten(2)
