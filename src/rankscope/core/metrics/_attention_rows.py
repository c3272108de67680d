"""Attention figures of some queries in place of all: means over rows with their standard errors."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from rankscope.arguments import Count, Seed, checked
from rankscope.core.metrics._attention_scores import MOST_STRAY, AttentionScores, row_figures
from rankscope.core.shapes import PerHead
from rankscope.streams import stream

STEPS = 1 << 20
"""The places within a stretch of queries, from which one is chosen."""


class RowMean(NamedTuple):
    """The mean of a figure over some queries, and the standard error of that mean; 0 if of all."""

    value: PerHead
    error: PerHead


class SampledAttention(NamedTuple):
    """Metrics of attention that are means over queries, from some of them, by metric."""

    attention_entropy: RowMean
    renyi_entropy: RowMean
    largest_weight: RowMean
    sink_mass: RowMean


@checked
def sample_attention(
    scores: AttentionScores, *, rows: Count = 64, seed: Seed = 0
) -> SampledAttention:
    """The metrics of attention that are means over queries, from ``rows`` queries of each sample.

    >>> q, k = torch.zeros(1, 2, 4, 8), torch.zeros(1, 1, 4, 8)
    >>> sample_attention(AttentionScores(query=q, key=k, scale=0.5)).sink_mass
    RowMean(value=tensor([[0.2500, 0.2500]]), error=tensor([[0., 0.]]))

    A quarter of them are the first real queries: under a causal mask these few hold much of a sum,
    and a draw that missed them would be far off without a sign of it. The other queries are divided
    into equal stretches and one is drawn from each, so that all are drawn equally often and the
    mean is unbiased. The error is that of independent draws (infinite if fewer than two see a key):
    too large if figures change along the sequence, too small if few queries hold most of a sum and
    are not drawn. For random logits of standard deviation 1 and 2,048 tokens, less than 1 % of the
    means are off by more than 4 errors, but 4 % of sink masses under a causal mask. All heads, and
    calls with one seed and length, use the same queries. NaN where real queries attend to padding,
    among those used.
    """
    number = min(rows, scores.shape[2])
    first = number // 4
    within = torch.randint(STEPS, (number - first,), generator=stream(seed, "attention rows"))
    # Without waiting for the device, which a copy does by default.
    within = within.to(scores.query.device, non_blocking=True)
    figures, counted = row_figures(select_queries(scores, within, first), scores)
    entropy, renyi, largest, on_first, on_sink, stray = torch.where(counted, figures, 0.0)
    values = torch.stack((entropy, renyi, largest, on_first + on_sink))
    real = scores.real_queries().sum(-1)[:, None, None]
    is_first = torch.arange(number, device=real.device) < first
    for_each = ((real - first) / (number - first)).to(values.dtype)  # queries that a drawn one is
    weight = torch.where(is_first | (real <= number), 1.0, for_each) * counted
    total = weight.sum(-1)
    means = (weight * values).sum(-1) / total
    drawn = counted & ~is_first
    count = drawn.sum(-1)
    middle = torch.where(drawn, values, 0.0).sum(-1) / count
    away = torch.where(drawn, values - middle.unsqueeze(-1), 0.0).square().sum(-1)
    share = (weight * drawn).sum(-1) / total
    errors = torch.where(count > 1, share * (away / ((count - 1) * count)).sqrt(), torch.inf)
    errors = torch.where(real.squeeze(-1) <= number, 0.0, errors)
    means = torch.where(stray.amax(-1) <= MOST_STRAY, means, torch.nan)
    return SampledAttention(*map(RowMean, means, errors))


def select_queries(scores: AttentionScores, within: Tensor, first: int = 0) -> AttentionScores:
    """The scores of the ``first`` real queries of a sample, and of one from each of equal stretches
    of the others.

    ``within`` are their places in the stretches, from 0 to ``STEPS`` − 1. A sample with fewer real
    queries has them all, followed by rows that see nothing. One mask hides what the model hides;
    there is no token mask, since the queries are no longer the last tokens.
    """
    stretches = len(within)
    number = first + stretches
    real = scores.real_queries()
    count = real.sum(-1, keepdim=True)
    place = torch.arange(number, device=real.device)
    drawn = (place[:stretches] * STEPS + within) * (count - first) // (stretches * STEPS)
    drawn = torch.cat((place[:first].expand(len(count), -1), first + drawn), -1)
    place = torch.where(count > number, drawn, place)  # among the real queries
    in_order = (~real).to(torch.uint8).argsort(dim=-1, stable=True)
    chosen = in_order.gather(-1, place)[:, None, :, None]  # batch or 1, 1, query, 1

    def rows_of(tensor: Tensor) -> Tensor:
        return tensor if tensor.shape[2] == 1 else torch.take_along_dim(tensor, chosen, 2)

    seen = (place < count)[:, None, :, None].expand(-1, -1, -1, scores.shape[3])
    ahead = torch.arange(scores.shape[3], device=real.device) - chosen
    ahead = ahead - (scores.shape[3] - scores.shape[2])
    if scores.causal:
        seen = seen & (ahead <= 0)
    if scores.window is not None:
        seen = seen & (ahead.abs() < scores.window)
    if scores.mask is not None:
        seen = seen & rows_of(scores.mask)
    return replace(
        scores, query=rows_of(scores.query), mask=seen, causal=False, window=None, token_mask=None,
        bias=None if scores.bias is None else rows_of(scores.bias),
    )  # fmt: skip
