"""The attention figures that a monitor records: entropy, logits and sinks, without matrices.

All queries are used while there are few weights, evenly spaced ones otherwise. On a CPU, a pass
over the logits in chunks that stay in the cache costs 0.8 to 1.3 times PyTorch's fused attention
(128 to 4,096 tokens; up to 2.1 times with a cap or a bias) and gives every figure. The fused
attention with the keys as values would give the entropy, ``LSE − scale·⟨q, PK⟩``, but the logits
need a second pass: 1.6 to 1.8 times, with errors four times as large.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.arguments import Count, checked
from rankscope.core.metrics._attention_rows import STEPS, select_queries
from rankscope.core.metrics._attention_scores import AttentionScores, fused_here
from rankscope.core.shapes import PerHead

_MOST_WEIGHTS = {"cpu": 1 << 27, "cuda": 1 << 24}
"""Beyond this number of weights of a layer, queries are sampled: 0.4 s on one core of a CPU."""
_CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
"""The size of the logits of one chunk; on a CPU, 16 MiB take up to twice as long."""
_FAR_BELOW = -1e30
"""Added to hidden logits: their weights are 0, and unlike infinity it can be multiplied by 0."""


@dataclass(frozen=True, eq=False)
class AttentionProbe:
    """Figures of the attention of one layer, per sample and head, on the device of the scores.

    ``entropy`` is the mean entropy of a query's weights, in nats, where a learned sink is one more
    outcome. ``max_logit`` is the largest absolute logit ``cap(scale · q·k) + bias``, ``deviation``
    the standard deviation of the logits of a query over its visible keys, mean over queries, and
    ``sink`` the mean weight on the first real key and a learned sink, together.

    If ``sampled``, they are of evenly spaced queries: ``max_logit`` is a lower bound, the others
    are means of these queries. (Where a GPU kernel computes ``entropy`` and ``sink``, these two are
    of all queries in any case.)
    """

    entropy: PerHead
    max_logit: PerHead
    deviation: PerHead
    sink: PerHead
    sampled: bool


@checked
def probe_attention(scores: AttentionScores, *, rows: Count = 64) -> AttentionProbe:
    """Entropy, largest logit, deviation of logits and sink weight of every head.

    >>> q, k = torch.zeros(1, 2, 4, 8), torch.zeros(1, 1, 4, 8)
    >>> probe_attention(AttentionScores(query=q, key=k, scale=0.5)).sink
    tensor([[0.2500, 0.2500]])

    Padding is left out, as a query and as a key, whether or not the model masks it; so are queries
    that see no key. A head without other queries is NaN, and so is one that uses a NaN or, unless
    a cap bounds it, an infinity; nothing raises or waits for the device.

    If the matrices have more than 2²⁷ entries (2²⁴ on a GPU), ``rows`` queries of each sample are
    used, in the middle of as many equal stretches of its real tokens, hence the same ones in every
    call. Computed in float32 at least, without autocast. The entropy of one query is off by up to
    1e-6, 6e-6 and 4e-5 where logits have a standard deviation of 1, 10 and 100 (float32 and float64
    compared, 1,024 keys); the mean over queries by less than 1e-6.
    """
    device = scores.query.device.type
    batch, heads, queries, keys = scores.shape
    most = _MOST_WEIGHTS.get(device, _MOST_WEIGHTS["cpu"])
    sampled = batch * heads * queries * keys > most and queries > rows
    with torch.autocast(device, enabled=False):
        used = scores
        if sampled:
            middle = torch.full((rows,), STEPS // 2, device=scores.query.device)
            used = _hide_padding(select_queries(scores, middle), scores.token_mask)
        # Converted once; otherwise each chunk would convert all keys.
        query, key = used.query.to(used.dtype), used.key.to(used.dtype)
        used = replace(used, query=query, key=key)
        if fused_here(scores):
            max_logit, deviation = _reduce(*_figures(used, None))
            summary = _hide_padding(scores, scores.token_mask).summary
            entropy, sink = summary.entropy, summary.first + summary.sink
        else:
            first = scores.first_keys(1).to(torch.uint8).argmax(-1)
            entropy, sink, max_logit, deviation = _reduce(*_figures(used, first))
    return AttentionProbe(entropy, max_logit, deviation, sink, sampled)


@torch.no_grad()
def visible_keys(scores: AttentionScores, token_mask: Tensor | None = None) -> Tensor:
    """The number of keys that each query sees, ``(batch, head, query)``; 0 for padding.

    ``token_mask`` says which keys are real, unless the scores do.
    """
    if scores.token_mask is None and token_mask is not None:
        batch, _, _, keys = scores.shape
        if token_mask.shape == (batch, keys):
            scores = replace(scores, token_mask=token_mask.to(scores.key.device, torch.bool))
    counts = scores.zeros(*scores.shape[:3])
    for part in _chunks(scores):
        counts[..., part] = _visible(scores, part, scores.span(part)).sum(-1)
    return counts


def _reduce(rows: Tensor, counted: Tensor) -> tuple[Tensor, ...]:
    """Figures of each head, from ``(figure, batch, head, query)``: the largest logit, and means."""
    rows = torch.where(counted, rows, 0.0)
    number = counted.sum(-1)
    largest = torch.where(number > 0, rows[-2].amax(-1), torch.nan)
    means = rows.sum(-1) / number
    return (*means[:-2], largest, means[-1])


def _figures(scores: AttentionScores, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """Figures of each query, ``(figure, batch, head, query)``, and which queries count.

    Entropy, sink weight, largest logit and deviation, where ``first`` is the place of the first
    real key of each sample; the last two alone if it is None.
    """
    batch, heads, queries, _ = scores.shape
    rows = scores.zeros(2 if first is None else 4, batch, heads, queries)
    counted = torch.zeros(batch, heads, queries, dtype=torch.bool, device=rows.device)
    for part in _chunks(scores):
        keys = scores.span(part)
        visible = _visible(scores, part, keys)
        logits, top = _shifted_logits(scores, part, keys, visible)
        count = visible.sum(-1)
        counted[..., part] = count > 0
        rows[-2, ..., part] = torch.maximum(top.abs(), (top + logits.amin(-1)).abs())
        # Relative to the largest logit, the mean is a few deviations, so that little cancels.
        mean = logits.sum(-1) / count
        square = torch.linalg.vector_norm(logits, dim=-1).square() / count
        rows[-1, ..., part] = (square - mean.square()).clamp(min=0.0).sqrt()
        if first is not None:
            weights = logits.exp().mul_(visible)
            sink = None if scores.sinks is None else scores.sinks.to(top.dtype)[:, None] - top
            rows[:2, ..., part] = _weight_figures(logits, weights, first - keys.start, sink)
        del logits  # before the next is made
    return rows, counted


def _chunks(scores: AttentionScores) -> Iterator[slice]:
    batch, heads, queries, keys = scores.shape
    most = _CHUNK_BYTES.get(scores.query.device.type, _CHUNK_BYTES["cpu"])
    size = max(1, most // (batch * heads * keys * scores.dtype.itemsize))
    for start in range(0, queries, size):
        yield slice(start, min(start + size, queries))


def _shifted_logits(
    scores: AttentionScores, queries: slice, keys: slice, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits less the largest visible one of their query, 0 where hidden; and that largest one."""
    logits = scores.product(scores.query[:, :, queries], keys)
    bias = scores.bias_of(queries, keys)
    if bias is not None:
        logits.add_(bias.masked_fill(bias.isneginf(), 0.0))
    # Multiplied and added in place, which is ten times as fast on a CPU as filling by a mask.
    logits.add_((1.0 - visible) * _FAR_BELOW)
    top = logits.amax(-1)
    return logits.sub_(top.unsqueeze(-1)).mul_(visible), top


def _weight_figures(logits: Tensor, weights: Tensor, first: Tensor, sink: Tensor | None) -> Tensor:
    """Entropy and sink weight of each query, from weights that are not normalised.

    ``first`` is the place of the first key, negative if it is out of sight, ``sink`` the logit of
    the learned sink less the largest logit of a key.
    """
    total = weights.sum(-1)
    place = first[:, None, None, None]
    on_first = torch.take_along_dim(weights, place.clamp(min=0), -1).masked_fill(place < 0, 0.0)
    on_first = on_first.squeeze(-1) / total
    entropy = total.log() - weights.mul_(logits).sum(-1) / total
    if sink is None:
        return torch.stack((entropy, on_first))
    # Two outcomes, keys or sink, and then which key: entropies add up.
    log_total = total.log()
    log_all = torch.logaddexp(log_total, sink)
    on_keys, on_sink = (log_total - log_all).exp(), (sink - log_all).exp()
    entropy = torch.special.entr(on_keys) + torch.special.entr(on_sink) + on_keys * entropy
    return torch.stack((entropy, on_keys * on_first + on_sink))


def _visible(scores: AttentionScores, queries: slice, keys: slice) -> Tensor:
    """1 where a key is visible and neither it nor the query is padding; broadcast but for keys."""
    seen = scores.seen(queries, keys)
    if seen is None:
        seen = torch.ones(1, dtype=torch.bool, device=scores.query.device)
    bias = scores.bias_of(queries, keys)
    if bias is not None:
        seen = seen & ~bias.isneginf()
    if scores.token_mask is not None:
        real = scores.real_queries()[:, None, queries, None]
        seen = seen & real & scores.token_mask[:, None, None, keys]
    return seen.to(scores.dtype).expand(*seen.shape[:-1], keys.stop - keys.start)


def _hide_padding(scores: AttentionScores, token_mask: Tensor | None) -> AttentionScores:
    """The scores with padding keys hidden by the mask."""
    if token_mask is None:
        return scores
    real = token_mask[:, None, None, :]
    return replace(scores, mask=real if scores.mask is None else scores.mask & real)
