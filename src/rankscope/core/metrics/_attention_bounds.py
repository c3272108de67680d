"""More of what attention does to tokens: figures that need no pair of queries and no spectrum."""

import torch
from torch import Tensor

from rankscope.arguments import Count, Seed, checked
from rankscope.core.checks import stochastic
from rankscope.core.metrics._attention import Attention, own_mask
from rankscope.core.metrics._attention_scores import AttentionScores, from_matrix
from rankscope.core.metrics._attention_summary import first_weight
from rankscope.core.metrics._attention_sweeps import (
    Bracket,
    dobrushin_bracket,
    log_score_ranges,
    singular_bracket,
)
from rankscope.core.shapes import PerHead
from rankscope.errors import InputError


@checked
def renyi_entropy(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """Mean Rényi entropy of order 2 of the rows, ``−log Σ_j P_ij²``, in nats.

    >>> import torch
    >>> from rankscope.core.metrics import renyi_entropy
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

    >>> import torch
    >>> from rankscope.core.metrics import largest_weight
    >>> largest_weight(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    tensor([0.7500])

    1 when every query looks at one key. What a learned sink takes is no key's.
    """
    scores, shape = _scores(attention, token_mask)
    return scores.summary.largest.view(shape)


@checked
def sink_mass(
    attention: Attention, *, tokens: Count = 1, token_mask: Tensor | None = None
) -> PerHead:
    """Mean over the queries of the weight on the first tokens and on a learned sink, together.

    >>> import torch
    >>> from rankscope.core.metrics import sink_mass
    >>> sink_mass(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    tensor([0.7500])

    The first ``tokens`` are the first that are not padding (Xiao et al. 2024 call them sinks, and
    keep four).
    """
    scores, shape = _scores(attention, token_mask)
    first = scores.summary.first
    if tokens > 1:
        name = f"weight on the first {tokens}"
        if name not in scores.found:
            scores.found[name] = scores.sound(first_weight(scores, tokens))
        first = scores.found[name]
    return (first + scores.summary.sink).view(shape)


@checked
def score_gamma(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """``γ = √(Σ_i D_i / max_i D_i)``, D_i the range of query i's scores less what all share.

    >>> import torch
    >>> from rankscope.core.metrics import score_gamma
    >>> score_gamma(torch.tensor([[[0.5, 0.5], [0.2, 0.8]]]))
    tensor([1.4142])

    From 1 (one query stands out) to ``√n`` (all differ alike); Dong et al. 2021, docs/theory.md,
    section 4. What all share is the score of the mean query, the center being the mean token. Of a
    query that sees not every key, the range is over the keys it sees; that takes the scores, since
    a matrix with zeros does not tell what they were.
    """
    scores, shape = _scores(attention, token_mask)
    if scores.is_matrix:
        _refuse_zeros(scores)
    return scores.sound(gamma(log_score_ranges(scores))).view(shape)


@checked
def dobrushin_bounds(attention: Attention, *, token_mask: Tensor | None = None) -> Bracket:
    """What Dobrushin's coefficient ``τ(P)`` is at least and at most, without comparing all pairs.

    >>> import torch
    >>> from rankscope.core.metrics import dobrushin_bounds
    >>> dobrushin_bounds(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    Bracket(lower=tensor([0.5000]), upper=tensor([0.5000]))

    Up to rounding; the upper bound is never more than twice the lower one. A learned sink is one
    more key.
    """
    scores, shape = _scores(attention, token_mask)
    if "dobrushin" not in scores.found:
        scores.found["dobrushin"] = dobrushin_bracket(scores)
    return Bracket(*(each.view(shape) for each in scores.found["dobrushin"]))


@checked
def dobrushin_lower(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """The lower of ``dobrushin_bounds``.

    >>> import torch
    >>> from rankscope.core.metrics import dobrushin_lower
    >>> dobrushin_lower(torch.eye(3).unsqueeze(0))
    tensor([1.])
    """
    return dobrushin_bounds(attention, token_mask=token_mask).lower


@checked
def dobrushin_upper(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """The upper of ``dobrushin_bounds``.

    >>> import torch
    >>> from rankscope.core.metrics import dobrushin_upper
    >>> dobrushin_upper(torch.eye(3).unsqueeze(0))
    tensor([1.])
    """
    return dobrushin_bounds(attention, token_mask=token_mask).upper


@checked
def second_singular_bounds(
    attention: Attention, *, seed: Seed = 0, token_mask: Tensor | None = None
) -> Bracket:
    """What ``σ₂(P)`` is at least and at most, by powers of PᵀP on eight seeded vectors.

    >>> import torch
    >>> from rankscope.core.metrics import second_singular_bounds
    >>> p = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]])
    >>> bounds = second_singular_bounds(p)
    >>> torch.allclose(bounds.lower, torch.ones(1)) and torch.allclose(bounds.upper, torch.ones(1))
    True

    Both hold up to rounding for any vectors. The lower one converges to σ₂; the upper one is as far
    away as the singular values beyond the eighth, squared and added up, leave it.
    """
    scores, shape = _scores(attention, token_mask)
    name = f"singular values, seed {seed}"
    if name not in scores.found:
        scores.found[name] = singular_bracket(scores, seed)
    return Bracket(*(each.view(shape) for each in scores.found[name]))


@checked
def second_singular_lower(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """The lower of ``second_singular_bounds``, with seed 0.

    >>> import torch
    >>> from rankscope.core.metrics import second_singular_lower
    >>> second_singular_lower(torch.full((1, 2, 2), 0.5)) < 1e-6
    tensor([True])
    """
    return second_singular_bounds(attention, token_mask=token_mask).lower


@checked
def second_singular_upper(attention: Attention, *, token_mask: Tensor | None = None) -> PerHead:
    """The upper of ``second_singular_bounds``, with seed 0.

    >>> import torch
    >>> from rankscope.core.metrics import second_singular_upper
    >>> second_singular_upper(torch.full((1, 2, 2), 0.5)) < 1e-3
    tensor([True])
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
    """Scores of matrices too, and the shape of the answer."""
    if isinstance(attention, AttentionScores):
        return own_mask(attention, token_mask), attention.shape[:2]
    p, token_mask = stochastic(attention, token_mask)
    *batch, heads, queries, keys = p.shape
    if token_mask is not None:
        token_mask = token_mask.reshape(-1, keys)
    return from_matrix(p.reshape(-1, heads, queries, keys), token_mask), (*batch, heads)


def _refuse_zeros(scores: AttentionScores) -> None:
    """Where weights are all that is known, a zero does not tell what the score was."""
    zero = scores.matrix().eq(0) & scores.real_queries()[:, None, :, None]
    padding = scores.padding_keys()
    if padding is not None:
        zero = zero & ~padding[:, None, None, :]
    if bool(zero.any()):
        raise InputError(
            "score_gamma of a matrix with zeros (from a mask, from sparse weights, or rounded) is "
            "not defined; give AttentionScores made of queries and keys, or leave score_gamma out."
        )
