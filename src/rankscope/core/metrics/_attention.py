"""What attention does to tokens: functions of ``(..., head, query, key)`` tensors, or of scores.

Each takes the softmaxed matrices and, where there is padding, the ``(..., token)`` mask they were
computed with, and answers per head, shape ``(..., head)``. Or it takes ``AttentionScores``, which
have a token mask of their own, and holds no matrix unless it says so.
"""

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import stochastic, valid_counts
from rankscope.core.metrics._attention_scores import AttentionScores, refuse_long
from rankscope.core.metrics._attention_sweeps import high_pass
from rankscope.core.metrics._norms import matrix_norm
from rankscope.core.metrics._spectrum import second, svdvals, svdvals_or_nan
from rankscope.core.shapes import PerHead
from rankscope.errors import InputError

Attention = Tensor | AttentionScores


@checked
def attention_entropy(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """Mean entropy of the rows, in nats: 0 when one-hot, ``log n`` when uniform.

    >>> import torch
    >>> from rankscope.core.metrics import attention_entropy
    >>> attention_entropy(torch.full((1, 2, 2), 0.5))
    tensor([0.6931])

    A learned sink is one more outcome.
    """
    if isinstance(attention, AttentionScores):
        return own_mask(attention, token_mask).summary.entropy
    p, token_mask = stochastic(attention, token_mask)
    rows = -torch.special.xlogy(p, torch.where(p > 0, p, 1.0)).sum(-1)
    entropy: PerHead = rows.sum(-1) / _tokens(p, token_mask)
    return entropy


@checked
def dobrushin(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """The ergodicity coefficient ``τ(P) = ½ max_{i,i'} Σ_j |P_ij − P_i'j|`` of Dobrushin.

    >>> import torch
    >>> from rankscope.core.metrics import dobrushin
    >>> dobrushin(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    tensor([0.5000])

    0 when all rows agree, so that one layer makes all tokens alike; 1 when two rows share no key.
    Of scores too, it needs the matrices; ``dobrushin_bounds`` do not.
    """
    if isinstance(attention, AttentionScores):
        refuse_long(own_mask(attention, token_mask), "dobrushin", "dobrushin_bounds")
        return attention.sound(_farthest(attention.matrix(sink=True), attention.counted()))
    p, token_mask = stochastic(attention, token_mask)
    return _farthest(p, None if token_mask is None else token_mask.unsqueeze(-2))


def _farthest(p: Tensor, rows: Tensor | None) -> PerHead:
    """The greatest distance of two of the rows, in total variation."""
    distance = torch.cdist(p, p, p=1.0)
    if rows is not None:
        distance = torch.where(rows.unsqueeze(-1) & rows.unsqueeze(-2), distance, 0.0)
    return 0.5 * distance.amax((-2, -1))


@checked
def second_singular_value(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """``σ₂(P)``: what one application leaves of the differences at most; 0 for a single token.

    >>> import torch
    >>> from rankscope.core.metrics import second_singular_value
    >>> second_singular_value(torch.eye(2).unsqueeze(0))
    tensor([1.])

    Of scores too, it needs the matrices; ``second_singular_bounds`` do not.
    """
    if isinstance(attention, AttentionScores):
        refuse_long(own_mask(attention, token_mask), "σ₂", "second_singular_bounds")
        return attention.sound(second(svdvals_or_nan(attention.matrix())))
    p, _ = stochastic(attention, token_mask)
    return second(svdvals(p))


@checked
def high_pass_ratio(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """``‖P − 11ᵀP/n‖_F / ‖11ᵀP/n‖_F``: how far the queries disagree about where to look.

    >>> import torch
    >>> from rankscope.core.metrics import high_pass_ratio
    >>> high_pass_ratio(torch.eye(2).unsqueeze(0))
    tensor([1.0000])

    The second factor is what all queries have in common (the DC part), the first what they do not
    (the high-pass part); 0 when all rows agree, ``√(n−1)`` for the identity.
    """
    if isinstance(attention, AttentionScores):
        return high_pass(own_mask(attention, token_mask))
    p, token_mask = stochastic(attention, token_mask)
    tokens = _tokens(p, token_mask)
    common = p.sum(-2) / tokens.unsqueeze(-1)
    rest = p - common.unsqueeze(-2)
    if token_mask is not None:
        rest = torch.where(token_mask[..., None, :, None], rest, rest.new_zeros(()))
    shared: PerHead = tokens.sqrt() * torch.linalg.vector_norm(common, dim=-1)
    return matrix_norm(rest, "fro") / shared


def own_mask(attention: AttentionScores, token_mask: Tensor | None) -> AttentionScores:
    """The scores as they are; a token mask beside their own is refused."""
    if token_mask is not None:
        raise InputError(
            "AttentionScores have a token mask of their own; give it there: "
            "dataclasses.replace(scores, token_mask=...)."
        )
    return attention


def _tokens(p: Tensor, token_mask: Tensor | None) -> Tensor:
    """Valid tokens per sample, with a head axis of one to divide per-head values by."""
    return valid_counts(p[..., 0, :, :], token_mask).unsqueeze(-1)
