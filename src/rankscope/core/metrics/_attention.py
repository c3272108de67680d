"""Attention metrics: functions of ``(..., head, query, key)`` tensors, or of scores.

Each takes the matrices after the softmax and, if there is padding, the ``(..., token)`` mask used
to compute them, and returns one value per head, shape ``(..., head)``. Alternatively it takes
``AttentionScores``, which hold their token mask; then no matrix is materialised unless stated.
"""

from typing import Final

import torch
from torch import Tensor

from rankscope.arguments import Count, Seed, checked
from rankscope.core.checks import stochastic, valid_counts
from rankscope.core.metrics._attention_scores import AttentionScores, from_matrix, refuse_long
from rankscope.core.metrics._attention_sweeps import (
    Bracket,
    dobrushin_bracket,
    first_weight,
    high_pass,
    log_score_ranges,
    singular_bracket,
)
from rankscope.core.metrics._spectrum import matrix_norm, second, svdvals, svdvals_or_nan
from rankscope.core.shapes import PerHead
from rankscope.errors import InputError

Attention = Tensor | AttentionScores
_ROW_BLOCKS: Final = 4


@checked
def attention_entropy(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """Mean entropy of the rows, in nats: 0 when one-hot, ``log n`` when uniform.

    >>> attention_entropy(torch.full((1, 2, 2), 0.5))
    tensor([0.6931])

    A learned sink is one more outcome.
    """
    if isinstance(attention, AttentionScores):
        return _own_mask(attention, token_mask).summary.entropy
    p, token_mask = stochastic(attention, token_mask)
    rows = -torch.special.xlogy(p, torch.where(p > 0, p, 1.0)).sum(-1)
    entropy: PerHead = rows.sum(-1) / _tokens(p, token_mask)
    return entropy


@checked
def dobrushin(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """The ergodicity coefficient ``τ(P) = ½ max_{i,i'} Σ_j |P_ij − P_i'j|`` of Dobrushin.

    >>> dobrushin(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    tensor([0.5000])

    0 if all rows agree, so that one layer makes all tokens equal; 1 if two rows share no key. It
    materialises the matrices, also for scores; ``dobrushin_bounds`` does not.
    """
    if isinstance(attention, AttentionScores):
        refuse_long(_own_mask(attention, token_mask), "dobrushin", "dobrushin_bounds")
        p = attention.matrix(sink=True)
        rows: Tensor | None = p.sum(-1) != 0  # rows that do not count are zero
    else:
        p, token_mask = stochastic(attention, token_mask)
        rows = None if token_mask is None else token_mask.unsqueeze(-2)
    farthest = 0.5 * _farthest_rows(p, rows)
    return attention.sound(farthest) if isinstance(attention, AttentionScores) else farthest


def _farthest_rows(p: Tensor, rows: Tensor | None) -> PerHead:
    """The largest 1-norm of the difference of two rows that count; each pair is computed once."""
    step = max(1, -(-p.shape[-2] // _ROW_BLOCKS))
    farthest = []
    for start in range(0, p.shape[-2], step):
        distance = torch.cdist(p[..., start : start + step, :], p[..., start:, :], p=1.0)
        if rows is not None:
            some, others = rows[..., start : start + step], rows[..., start:]
            distance = torch.where(some.unsqueeze(-1) & others.unsqueeze(-2), distance, 0.0)
        farthest.append(distance.amax((-2, -1)))
    return torch.stack(farthest).amax(0)


@checked
def second_singular_value(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """``σ₂(P)``: the largest factor on differences between tokens; 0 for a single token.

    >>> second_singular_value(torch.eye(2).unsqueeze(0))
    tensor([1.])

    It materialises the matrices, also for scores; ``second_singular_bounds`` does not.
    """
    if isinstance(attention, AttentionScores):
        refuse_long(_own_mask(attention, token_mask), "σ₂", "second_singular_bounds")
        return attention.sound(second(svdvals_or_nan(attention.matrix())))
    p, _ = stochastic(attention, token_mask)
    return second(svdvals(p))


@checked
def high_pass_ratio(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """``‖P − 11ᵀP/n‖_F / ‖11ᵀP/n‖_F``: how much the attention of queries differs.

    >>> high_pass_ratio(torch.eye(2).unsqueeze(0))
    tensor([1.0000])

    The denominator is the common part of all queries (DC), the numerator the rest (high-pass); 0
    if all rows agree, ``√(n−1)`` for the identity.
    """
    if isinstance(attention, AttentionScores):
        return high_pass(_own_mask(attention, token_mask))
    p, token_mask = stochastic(attention, token_mask)
    tokens = _tokens(p, token_mask)
    common = p.sum(-2) / tokens.unsqueeze(-1)
    rest = p - common.unsqueeze(-2)
    if token_mask is not None:
        rest = torch.where(token_mask[..., None, :, None], rest, rest.new_zeros(()))
    shared: PerHead = tokens.sqrt() * torch.linalg.vector_norm(common, dim=-1)
    return matrix_norm(rest, "fro") / shared


@checked
def renyi_entropy(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """Mean Rényi entropy of order 2 of the rows, ``−log Σ_j P_ij²``, in nats.

    >>> renyi_entropy(torch.full((1, 2, 2), 0.5))
    tensor([0.6931])

    Never more than the entropy, and equal to it for a row that is uniform over what it sees. With
    scores s it is ``2 log Σ exp s − log Σ exp 2s``. A learned sink is one more outcome.
    """
    scores, shape = _scores(attention, token_mask)
    return scores.summary.renyi.view(shape)


@checked
def largest_weight(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """Mean over the queries of the largest weight any key gets, ``max_j P_ij``.

    >>> largest_weight(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    tensor([0.7500])

    1 if every query attends to one key. The weight on a learned sink does not count.
    """
    scores, shape = _scores(attention, token_mask)
    return scores.summary.largest.view(shape)


@checked
def sink_mass(
    attention: Attention, *, tokens: Count = 1, token_mask: Tensor | None = None
) -> PerHead:
    """Mean over the queries of the weight on the first tokens and on a learned sink, together.

    >>> sink_mass(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    tensor([0.7500])

    The first ``tokens`` are the first that are not padding (Xiao et al. 2024 call them sinks, and
    keep four).
    """
    scores, shape = _scores(attention, token_mask)
    first = scores.summary.first
    if tokens > 1:
        first = scores.once(f"first {tokens}", lambda: first_weight(scores, tokens))
    return (first + scores.summary.sink).view(shape)


@checked
def score_gamma(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """``γ = √(Σ_i D_i / max_i D_i)``, D_i the range of query i's scores minus the mean query's.

    >>> score_gamma(torch.tensor([[[0.5, 0.5], [0.2, 0.8]]]))
    tensor([1.4142])

    From 1 (one query stands out) to ``√n`` (all differ alike); Dong et al. 2021, docs/theory.md,
    section 4. The mean query is that of the mean token. The range is over the visible keys; with
    hidden keys the scores are needed, since a zero weight does not determine its score.
    """
    scores, shape = _scores(attention, token_mask)
    if scores.is_matrix:
        zero = scores.matrix().eq(0) & scores.real_queries()[:, None, :, None]
        if scores.token_mask is not None:
            zero = zero & scores.token_mask[:, None, None, :]
        if bool(zero.any()):
            raise InputError(
                "score_gamma is undefined for a matrix with zeros (from a mask, sparse weights or "
                "rounding); pass AttentionScores of queries and keys, or omit score_gamma."
            )
    return scores.sound(gamma(log_score_ranges(scores))).view(shape)


@checked
def dobrushin_bounds(attention: Attention, *, token_mask: Tensor | None = None) -> Bracket:
    """Lower and upper bounds on Dobrushin's ``τ(P)`` without comparing all pairs.

    >>> dobrushin_bounds(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    Bracket(lower=tensor([0.5000]), upper=tensor([0.5000]))

    Up to rounding; the upper bound is never more than twice the lower one. A learned sink is one
    more key.
    """
    scores, shape = _scores(attention, token_mask)
    bounds = scores.once("dobrushin", lambda: dobrushin_bracket(scores))
    return Bracket(*(bound.view(shape) for bound in bounds))


@checked
def dobrushin_lower(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """The lower bound of ``dobrushin_bounds``.

    >>> import torch
    >>> from rankscope.core.metrics import dobrushin_lower
    >>> dobrushin_lower(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    tensor([0.5000])
    """
    return dobrushin_bounds(attention, token_mask=token_mask).lower


@checked
def dobrushin_upper(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """The upper bound of ``dobrushin_bounds``.

    >>> import torch
    >>> from rankscope.core.metrics import dobrushin_upper
    >>> dobrushin_upper(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    tensor([0.5000])
    """
    return dobrushin_bounds(attention, token_mask=token_mask).upper


@checked
def second_singular_bounds(
    attention: Attention, *, seed: Seed = 0, token_mask: Tensor | None = None
) -> Bracket:
    """Lower and upper bounds on ``σ₂(P)``, from powers of PᵀP applied to eight seeded vectors.

    >>> bounds = second_singular_bounds(torch.eye(3).unsqueeze(0))
    >>> bounds.lower.round(decimals=3), bounds.upper.round(decimals=3)
    (tensor([1.]), tensor([1.]))

    Both hold up to rounding for any vectors. The lower bound converges to σ₂; the gap to the upper
    bound depends on the sum of squares of the singular values after the eighth.
    """
    scores, shape = _scores(attention, token_mask)
    bounds = scores.once(f"singular values {seed}", lambda: singular_bracket(scores, seed))
    return Bracket(*(bound.view(shape) for bound in bounds))


@checked
def second_singular_lower(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """The lower bound of ``second_singular_bounds``, with seed 0.

    >>> import torch
    >>> from rankscope.core.metrics import second_singular_lower
    >>> second_singular_lower(torch.eye(3)[None]).round(decimals=3)
    tensor([1.])
    """
    return second_singular_bounds(attention, token_mask=token_mask).lower


@checked
def second_singular_upper(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """The upper bound of ``second_singular_bounds``, with seed 0.

    >>> import torch
    >>> from rankscope.core.metrics import second_singular_upper
    >>> second_singular_upper(torch.eye(3)[None]).round(decimals=3)
    tensor([1.])
    """
    return second_singular_bounds(attention, token_mask=token_mask).upper


def gamma(log_differences: Tensor) -> PerHead:
    """``γ = √(Σ_i D_i / max_i D_i)``, from 1 (one query dominates) to √n (all differ alike)."""
    most = log_differences.amax(-1, keepdim=True)
    shares = (log_differences - most).exp().sum(-1)
    return torch.where(most.squeeze(-1).isneginf(), 1.0, shares).sqrt()


def _scores(
    attention: Attention, token_mask: Tensor | None
) -> tuple[AttentionScores, tuple[int, ...]]:
    """The attention as scores, and the shape of the result."""
    if isinstance(attention, AttentionScores):
        return _own_mask(attention, token_mask), attention.shape[:2]
    p, token_mask = stochastic(attention, token_mask)
    *batch, heads, queries, keys = p.shape
    if token_mask is not None:
        token_mask = token_mask.reshape(-1, keys)
    return from_matrix(p.reshape(-1, heads, queries, keys), token_mask), (*batch, heads)


def _own_mask(attention: AttentionScores, token_mask: Tensor | None) -> AttentionScores:
    """The scores unchanged; raises if a token mask is given in addition to theirs."""
    if token_mask is not None:
        raise InputError(
            "AttentionScores hold their token mask; set it there: "
            "dataclasses.replace(scores, token_mask=...)."
        )
    return attention


def _tokens(p: Tensor, token_mask: Tensor | None) -> Tensor:
    """Valid tokens per sample, with a head axis of one to divide per-head values by."""
    return valid_counts(p[..., 0, :, :], token_mask).unsqueeze(-1)
