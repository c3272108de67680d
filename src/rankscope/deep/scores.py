"""Which score acts in which way on a state ``1xᵀ + eˢR``; only here are they told apart by type."""

import math
from collections.abc import Callable
from typing import Final

import torch
from jaxtyping import Bool
from torch import Tensor

from rankscope.deep.kernels import linear_kernel, linformer, sparsemaxed
from rankscope.deep.lifted import along, power
from rankscope.deep.logits import agreed, from_logits, from_products, one_support, projected
from rankscope.deep.scaled import Scaled
from rankscope.deep.weighing import Weighing, merged
from rankscope.errors import UnsupportedModelError
from rankscope.network import Attention, Sight
from rankscope.network.patterns import (
    ALiBiScores,
    GaussianKernelScores,
    LinearKernelScores,
    LinformerScores,
    SinkScores,
    SparsemaxScores,
)
from rankscope.network.positions import BucketedBias, Rotary
from rankscope.network.scores import Scores

_TOLD_APART = 1e-7
"""Queries whose weights differ by less than this are lost in plain numbers."""


def weighing(attention: Attention, state: Scaled, sight: Sight) -> Weighing:
    """The attention weights of a state; only here are scores told apart by their type."""
    act = ACTIONS.get(type(attention.scores), _in_plain_numbers)
    alike = one_support(sight, state)
    if alike.all() or not alike.any():
        return act(attention, state, sight)
    # Padding may leave one sample with queries that see the same and another with some that do not.
    parts = [
        (chosen, act(attention, state.only(chosen), _only(sight, chosen)))
        for chosen in (alike, ~alike)
    ]
    return merged(parts)


def _only(sight: Sight, chosen: Bool[Tensor, "batch"]) -> Sight:
    positions = sight.positions if len(sight.positions) == 1 else sight.positions[chosen]
    allowed = sight.allowed
    if allowed is not None and len(allowed) > 1:
        allowed = allowed[chosen]
    return Sight(positions, allowed)


def _plain(attention: Attention, state: Scaled, sight: Sight) -> Weighing:
    return from_products(*projected(attention, state), attention.scale, state, sight)


def _rotary(attention: Attention, state: Scaled, sight: Sight) -> Weighing:
    """A rotation is linear, so it acts on mantissas."""
    query, key = (part.rows() for part in projected(attention, state))
    turned = attention.scores.prepare(query.mantissa, key.mantissa, sight.positions)
    logits = (turned[0] @ turned[1].mT) * attention.scale
    return from_logits(logits, query.log + key.log, state, sight)


def _biased(attention: Attention, state: Scaled, sight: Sight) -> Weighing:
    """Biases that depend on positions alone, of keys or of pairs."""
    query, key = projected(attention, state)
    bias = attention.scores.bias(query.own.mantissa, key.own.mantissa, sight.positions)
    assert bias is not None
    kind = "of_keys" if bias.shape[-2] == 1 else "of_pairs"
    return from_products(
        query, key, attention.scale, state, sight, **{kind: bias.to(state.mantissa)}
    )


def _gaussian(attention: Attention, state: Scaled, sight: Sight) -> Weighing:
    """``q·k − ‖k‖²/2``: the length of a key is a bias of keys; what tells them apart is
    ``−k̄·δk_j − ‖δk_j‖²/2``.
    """
    scores = attention.scores
    assert isinstance(scores, GaussianKernelScores)
    scale = attention.scale / scores.bandwidth**2
    query, key = projected(attention, state)
    own = key.own.mantissa.square().sum(-1).unsqueeze(2)
    lengths = agreed(key.common, key.own) + own * along(power(2 * key.own.log), own) / 2
    return from_products(query, key, scale, state, sight, of_keys=-scale * lengths)


def _in_plain_numbers(attention: Attention, state: Scaled, sight: Sight) -> Weighing:
    """Any other score: right as long as positions tell the queries apart by more than rounding."""
    scores = attention.scores
    if not scores.fused:
        raise UnsupportedModelError(
            f"the score {type(scores).__name__} makes weights of its own, which scaled arithmetic "
            "does not know."
        )
    logits = attention.logits(state.tensor(), sight)
    found = from_logits(logits, torch.zeros_like(state.log_scale), state, sight)
    if _too_close(found, state):
        raise UnsupportedModelError(
            f"the score {type(scores).__name__} hardly depends on the pair of positions here, so "
            "its queries agree to more digits than plain numbers have; scaled arithmetic knows "
            "plain, rotary and biased scores in that case."
        )
    return found


def _too_close(found: Weighing, state: Scaled) -> bool:
    small = state.log_scale - state.common.log < math.log(_TOLD_APART)
    apart = found.own.abs().flatten(1).amax(1)
    return bool((small & (apart < _TOLD_APART)).any())


ACTIONS: Final[dict[type[Scores], Callable[[Attention, Scaled, Sight], Weighing]]] = {
    Scores: _plain,
    Rotary: _rotary,
    BucketedBias: _biased,
    ALiBiScores: _biased,
    SinkScores: _biased,
    GaussianKernelScores: _gaussian,
    LinearKernelScores: linear_kernel,
    LinformerScores: linformer,
    SparsemaxScores: sparsemaxed,
}
