"""Attention metrics that need further passes over the weights."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rankscope.core.metrics._attention_scores import AttentionScores, WeightChunk
from rankscope.core.metrics._spectrum import svdvals_or_nan
from rankscope.core.shapes import PerHead
from rankscope.streams import stream

_PROBES, _ROUNDS = 8, 12


class Bracket(NamedTuple):
    """A lower and an upper bound on a value, for every head, up to rounding.

    >>> import torch
    >>> from rankscope.core.metrics import dobrushin_bounds
    >>> lower, upper = dobrushin_bounds(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    >>> bool((lower <= upper).all())
    True
    """

    lower: PerHead
    upper: PerHead


def first_weight(attention: AttentionScores, count: int) -> PerHead:
    """The mean weight of real queries on the first ``count`` real keys."""
    first = attention.first_keys(count)[:, None, :, None]
    total, counted = attention.zeros(*attention.shape[:2]), attention.zeros(*attention.shape[:2])
    for part in attention.chunks():
        on_first = (part.p @ first[..., part.keys, :].to(part.p.dtype)).squeeze(-1)
        total += torch.where(part.counted, on_first, 0.0).sum(-1)
        counted += part.counted.sum(-1)
        del part
    return attention.sound(total / counted)


def high_pass(attention: AttentionScores) -> PerHead:
    """``‖P − 11ᵀP/n‖_F / ‖11ᵀP/n‖_F`` over the queries that count, in two passes.

    One pass, from the sum of squares, would lose digits if queries nearly agree.
    """
    batch, heads, _, keys = attention.shape
    common = attention.zeros(batch, heads, keys)
    count = common.new_zeros(batch, heads)
    for part in attention.chunks():
        counted = part.counted.to(common.dtype)
        common[..., part.keys] += (counted.unsqueeze(-2) @ part.p).squeeze(-2)
        count += counted.sum(-1)
        del part
    common = common / count.unsqueeze(-1)
    rest = torch.zeros_like(count)
    for part in attention.chunks():
        away = common.unsqueeze(-2).expand(*part.p.shape[:3], -1).clone()
        away[..., part.keys] -= part.p
        rest += torch.where(part.counted, away.square().sum(-1), 0.0).sum(-1)
    ratio = (rest / count).sqrt() / torch.linalg.vector_norm(common, dim=-1)
    return attention.sound(ratio)


def dobrushin_bracket(attention: AttentionScores) -> Bracket:
    """Bounds on Dobrushin's τ from the distances of all rows to a few, which need no pairs.

    Below: any two rows are no farther apart than the farthest two. From the last query that counts
    one goes to the row farthest from it, and from there once more. Above: ``1 − Σ_j min_i P_ij``,
    because two rows share at least what all of them do; and the two greatest distances to one row
    added up, by the triangle inequality, which is at most twice the lower bound. A learned sink
    counts as one more key.
    """
    upper = 1 - _shared_weight(attention)
    lower = torch.zeros_like(upper)
    row, sink = _last_row(attention)
    for _ in range(3):
        distances, row, sink = _sweep(attention, row, sink)
        lower = torch.maximum(lower, distances[..., 0])
        upper = torch.minimum(upper, distances.sum(-1))
    return Bracket(attention.sound(lower), attention.sound(upper.clamp(0.0, 1.0)))


def _shared_weight(attention: AttentionScores) -> PerHead:
    """The sum, over keys and sink, of the smallest weight from any query."""
    least = attention.zeros(*attention.shape[:2], attention.shape[3] + 1).fill_(1.0)
    for part in attention.chunks():
        p = part.p.masked_fill(~part.counted.unsqueeze(-1), 1.0).amin(-2)
        unseen = torch.where(part.counted.any(-1), 0.0, 1.0).to(p.dtype).unsqueeze(-1)
        sink = unseen
        if part.sink is not None:
            sink = part.sink.masked_fill(~part.counted, 1.0).amin(-1, True)
        start, stop = part.keys.start, part.keys.stop
        outside = ((slice(start), unseen), (slice(stop, -1), unseen))
        for keys, weight in (*outside, (part.keys, p), (slice(-1, None), sink)):
            least[..., keys] = torch.minimum(least[..., keys], weight)
    return least.sum(-1)


def _last_row(attention: AttentionScores) -> tuple[Tensor, Tensor]:
    """The weights of the last query that counts, and what the sink takes of them."""
    row = attention.zeros(*attention.shape[:2], attention.shape[3])
    sink = row.new_zeros(row.shape[:2])
    for part in attention.chunks():
        order = torch.arange(1, part.counted.shape[-1] + 1, device=row.device)
        where = (part.counted * order).argmax(-1)
        row, sink = _row_at(where, part, row, sink, part.counted.any(-1))
    return row, sink


def _sweep(attention: AttentionScores, row: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two greatest distances to a row, in total variation, and the row farthest from it."""
    best = row.new_full((*row.shape[:-1], 2), 0.0)
    far, far_sink = row.clone(), sink.clone()
    for part in attention.chunks():
        outside = row.sum(-1) - row[..., part.keys].sum(-1)
        apart = (part.p - row[..., None, part.keys]).abs().sum(-1) + outside.unsqueeze(-1)
        if part.sink is not None:
            apart = apart + (part.sink - sink.unsqueeze(-1)).abs()
        apart = torch.where(part.counted, apart / 2, 0.0)
        top, where = apart.max(-1)
        far, far_sink = _row_at(where, part, far, far_sink, ~(top <= best[..., 0]))
        best = torch.cat((best, apart), -1).topk(2, dim=-1).values
    return best, far, far_sink


def _row_at(
    where: Tensor, part: WeightChunk, row: Tensor, sink: Tensor, heads: Tensor
) -> tuple[Tensor, Tensor]:
    """A row and its sink, replaced in some heads by those of the query at ``where``."""
    query = torch.zeros_like(row)
    index = where[..., None, None].expand(*where.shape, 1, part.p.shape[-1])
    query[..., part.keys] = part.p.gather(2, index).squeeze(2)
    if part.sink is not None:
        query_sink = part.sink.gather(2, where.unsqueeze(-1)).squeeze(-1)
        sink = torch.where(heads, query_sink, sink)
    return torch.where(heads.unsqueeze(-1), query, row), sink


def singular_bracket(attention: AttentionScores, seed: int) -> Bracket:
    """Bounds on ``σ₂(P)`` by powers of PᵀP on a few seeded vectors.

    Below: the second singular value of ``PV``, V orthonormal, is never more than that of P. Above,
    with θ the singular values of PV: ``σ₂² ≤ θ₂² + ‖P − PVVᵀ‖²_F``, since ``PPᵀ`` is ``PV(PV)ᵀ``
    and the square of that rest. P is what multiplies the values: a learned sink is no column of it.
    """
    batch, heads, queries, keys = attention.shape
    count = min(_PROBES, queries, keys)
    draw = torch.randn(keys, count, generator=stream(seed, "attention probes"), dtype=torch.float64)
    v = draw.to(attention.query.device, attention.dtype).expand(batch, heads, keys, count)
    for _ in range(_ROUNDS):
        v = torch.linalg.qr(v).Q
        v = _times(attention, v)[1]
    v = torch.linalg.qr(v).Q
    image = _times(attention, v)[0]
    theta = svdvals_or_nan(image)
    if count == 1:
        zero = torch.zeros_like(theta[..., 0])
        return Bracket(attention.sound(zero), attention.sound(zero))
    # ‖P − PVVᵀ‖²_F; the difference of ‖P‖² and ‖PV‖² would lose its digits.
    missed = attention.zeros(batch, heads)
    for part in attention.chunks():
        rest = (part.p @ v[..., part.keys, :]) @ v.mT
        rest[..., part.keys] -= part.p
        missed += torch.where(part.counted, rest.square().sum(-1), 0.0).sum(-1)
    lower = theta[..., 1]
    return Bracket(attention.sound(lower), attention.sound((lower.square() + missed).sqrt()))


def _times(attention: AttentionScores, v: Tensor) -> tuple[Tensor, Tensor]:
    """``PV`` and ``PᵀPV`` in one pass, rows that do not count being zero."""
    image, back = attention.zeros(*attention.shape[:3], v.shape[-1]), torch.zeros_like(v)
    for part in attention.chunks():
        here = (part.p @ v[..., part.keys, :]) * part.counted.unsqueeze(-1)
        back[..., part.keys, :] += part.p.mT @ here
        image[..., part.queries, :] = here
        del part, here
    return image, back


def log_score_ranges(attention: AttentionScores) -> Tensor:
    """``log D_i``: how far the scores of query i differ, what all queries share taken out.

    ``E_ij = s_ij − mean_i s_ij`` with the mean of all real queries, seen or not: of plain products
    that is ``(q_i − q̄)·k_j``, the theory's ``R W_QK Rᵀ`` about the mean token, up to what is
    constant along a row (docs/theory.md, section 4). Of a bias the mean is over the queries that
    see the key. The range is over the keys that query i sees; minus infinity for queries that do
    not count.
    """
    shared = _mean_capped(attention) if attention.softcap is not None else None
    tilt = _mean_bias(attention)
    mean = attention.query.to(attention.dtype)
    if attention.token_mask is None:
        mean = mean.mean(2, keepdim=True)
    else:
        real = attention.real_queries()[:, None, :, None].to(mean.dtype)
        mean = (mean * real).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp(min=1)
    ranges = attention.zeros(*attention.shape[:3])
    for part in attention.chunks():
        query = attention.query[:, :, part.queries].to(attention.dtype)
        if shared is None:
            apart = attention.product(query - mean, part.keys)
        else:
            apart = attention.product(query, part.keys) - shared[..., None, part.keys]
        bias = attention.bias_of(part.queries, part.keys)
        if bias is not None and tilt is not None:
            apart = apart + bias - (tilt[..., part.keys] if tilt.shape[-1] > 1 else tilt)
        seen = ~part.shifted.isneginf()
        high = torch.where(seen, apart, -math.inf).amax(-1)
        low = torch.where(seen, apart, math.inf).amin(-1)
        ranges[..., part.queries] = torch.where(part.counted, (high - low).log(), -math.inf)
        del part, apart, seen
    return ranges


def _mean_capped(attention: AttentionScores) -> Tensor:
    """The mean over all real queries of the capped scores of each key."""
    batch, heads, _, keys = attention.shape
    every = slice(0, keys)
    total = attention.zeros(batch, heads, keys)
    real = attention.real_queries()
    for part in attention.chunks():
        scores = attention.product(attention.query[:, :, part.queries], every)
        here = real[:, None, None, part.queries].to(scores.dtype)
        total += (here @ scores).squeeze(-2)
    return total / real.sum(-1).expand(batch)[:, None, None]


def _mean_bias(attention: AttentionScores) -> Tensor | None:
    """The mean bias of each key over the queries that see it; None where all have the same."""
    if attention.bias is None or attention.bias.shape[-2] == 1:
        return None
    total = count = attention.zeros()
    batch, heads, queries, keys = attention.shape
    every, size = slice(0, keys), max(1, (16 << 20) // (batch * heads * keys))
    for start in range(0, queries, size):
        rows = slice(start, min(start + size, queries))
        bias = attention.bias_of(rows, every)
        assert bias is not None
        seen = ~bias.isneginf() & attention.real_queries()[:, None, rows, None]
        allowed = attention.seen(rows, every)
        seen = seen if allowed is None else seen & allowed
        total = total + torch.where(seen, bias, 0.0).sum(-2, keepdim=True)
        count = count + seen.sum(-2, keepdim=True)
    return total / count.clamp(min=1)
