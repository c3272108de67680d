"""How each score of the table in ``network`` acts on a state ``1xᵀ + eˢR``."""

import math
from collections.abc import Callable
from typing import Final

import torch

from rankscope.core.deep._kernels import (
    linear_kernel_attention,
    linformer_attention,
    sparsemax_attention,
)
from rankscope.core.deep._logits import (
    attention_from_logits,
    attention_from_products,
    have_one_support,
    project,
    refuse_overflow,
    shared_logits,
)
from rankscope.core.deep._scaled_tensor import bounded_exp, expand_like, worst
from rankscope.core.deep._split_attention import SplitAttention, merge
from rankscope.core.deep._split_state import SplitState
from rankscope.core.network import Attention, GaussianKernelScores, Visibility, score_entry
from rankscope.errors import UnsupportedModelError

_TOLD_APART = 1e-7
"""Queries whose weights differ by less than this are lost in plain numbers."""


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


def _in_plain_numbers(
    attention: Attention, state: SplitState, visibility: Visibility
) -> SplitAttention:
    """Any softmax: right as long as positions tell the queries apart by more than rounding."""
    logits = attention.logits(state.tensor(), visibility)
    found = attention_from_logits(logits, torch.zeros_like(state.log_scale), state, visibility)
    if _too_close(found, state):
        raise UnsupportedModelError(
            f"the score {type(attention.scores).__name__} hardly depends on the pair of positions "
            "here, so its queries agree to more digits than plain numbers have; scaled arithmetic "
            "has rules of its own for the scores of rankscope.core.network alone."
        )
    return found


def _too_close(found: SplitAttention, state: SplitState) -> bool:
    small = state.log_scale - state.common.log < math.log(_TOLD_APART)
    apart = found.own.abs().flatten(1).amax(1)
    return bool((small & (apart < _TOLD_APART)).any())


RULES: Final[dict[str, Callable[[Attention, SplitState, Visibility], SplitAttention]]] = {
    "products": _plain,
    "turn": _rotary,
    "bias": _biased,
    "gaussian": _gaussian,
    "linear kernel": linear_kernel_attention,
    "linformer": linformer_attention,
    "sparsemax": sparsemax_attention,
}
"""What the entries of scores in ``rankscope.core.network`` name as their rules."""
