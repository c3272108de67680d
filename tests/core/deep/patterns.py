"""Attention weights in mpmath's numbers, for every score, written straight from its definition."""

import math

import torch
from mpmath import mp, mpf
from torch import nn

from rankscope.core.network import (
    BucketedBiasScores,
    DisentangledScores,
    NormedHeads,
    RotaryScores,
    RotaryTable,
    Scores,
    SinusoidKeys,
)
from rankscope.core.network._content_scores import (
    GaussianKernelScores,
    LinearKernelScores,
    LinformerScores,
    SparsemaxScores,
)
from rankscope.core.network._position_scores import ALiBiScores, SinkScores

from .rows import Rows, Scene, Vector, by_head, exact, linear, normed, plus


def attention_weights(
    scores: Scores, queries: list[Rows], keys: list[Rows], scale: mpf, scene: Scene
) -> list[Rows]:
    """``P_h`` as ``[head][query][key]``, zero at keys a query may not see."""
    if type(scores) is LinformerScores:
        pairs = zip(queries, keys, strict=True)
        return [_linformer(scores.segments, q, k, scale) for q, k in pairs]
    if type(scores) is LinearKernelScores:
        queries, keys = ([_elu_plus_one(x) for x in part] for part in (queries, keys))
        raw, share = _products(queries, keys, mpf(1)), _share
    else:
        raw = _logits(scores, queries, keys, scale, scene)
        share = sparsemax if type(scores) is SparsemaxScores else softmax
    return [
        [_spread(share, row, seen) for row, seen in zip(head, scene.keys, strict=True)]
        for head in raw
    ]


def _spread(share, row: Vector, seen: list[int]) -> Vector:
    """One query's weights, shared out among the keys it sees."""
    found = dict(zip(seen, share([row[j] for j in seen]), strict=True))
    return [found.get(j, mpf(0)) for j in range(len(row))]


def _share(parts: Vector) -> Vector:
    total = mp.fsum(parts)
    return [p / total for p in parts]


def softmax(z: Vector) -> Vector:
    """``e^{z_j} / Σ e^z``; mpmath's exponents have no end, so nothing need be taken away."""
    return _share([mp.exp(v) for v in z])


def sparsemax(z: Vector) -> Vector:
    """``argmin ‖p − z‖`` over probability vectors: of ``max(z − τ, 0)`` the one that sums to one.

    τ is such that ``Σ max(z − τ, 0) = 1``; with the k largest above it, ``τ = (Σ of them − 1)/k``.
    Taken relative to the largest, beside which one may have no digits.
    """
    z = [v - max(z) for v in z]
    falling = sorted(z, reverse=True)
    for k in range(len(z), 0, -1):
        threshold = (mp.fsum(falling[:k]) - 1) / k
        if falling[k - 1] > threshold:
            return [max(v - threshold, mpf(0)) for v in z]
    raise AssertionError("the largest entry is always above its own threshold")


def _elu_plus_one(rows: Rows) -> Rows:
    return [[v + 1 if v > 0 else mp.exp(v) for v in x] for x in rows]


def _linformer(segments: int, queries: Rows, keys: Rows, scale: mpf) -> Rows:
    """Token p of n is in segment ``⌊p·segments/n⌋``; a segment's key is the mean of its tokens'."""
    count = len(keys)
    segment = [p * segments // count for p in range(count)]
    inside = {s: [p for p in range(count) if segment[p] == s] for s in segment}
    means = [
        [mp.fsum(column) / len(tokens) for column in zip(*(keys[p] for p in tokens), strict=True)]
        for tokens in inside.values()
    ]
    weights = []
    for q in queries:
        each = softmax([scale * mp.fdot(q, k) for k in means])
        of = dict(zip(inside, each, strict=True))
        weights.append([of[s] / len(inside[s]) for s in segment])
    return weights


def _logits(
    scores: Scores, queries: list[Rows], keys: list[Rows], scale: mpf, scene: Scene
) -> list[Rows]:
    """``[head][query][key]``, before masking."""
    if type(scores) is NormedHeads and not scores.last:
        queries, keys = _normed_heads(scores, queries, keys)
        return _logits(scores.then, queries, keys, scale, scene)
    if type(scores) is NormedHeads:
        queries, keys = _rotated(scores.then, queries, keys, scene)
        return _products(*_normed_heads(scores, queries, keys), scale)
    if type(scores) in (RotaryScores, RotaryTable):
        return _products(*_rotated(scores, queries, keys, scene), scale)
    if type(scores) is DisentangledScores:
        biases = _disentangled(scores, queries, keys, scene)
        return [
            plus(p, b, scores.scale)
            for p, b in zip(_products(queries, keys, scale), biases, strict=True)
        ]
    if type(scores) is BucketedBiasScores:
        position = scene.positions[scene.row : scene.row + 1, scene.real]
        buckets = scores._bucket(position[:, None, :] - position[:, :, None])[0].tolist()
        table = exact(scores.table.weight)
        biases = [[[table[b][h] for b in row] for row in buckets] for h in range(len(queries))]
        return [
            plus(p, b, 1.0) for p, b in zip(_products(queries, keys, scale), biases, strict=True)
        ]
    if type(scores) is SinusoidKeys:
        content = [_shifted(q, u) for q, u in zip(queries, exact(scores.content_bias), strict=True)]
        asking = [_shifted(q, v) for q, v in zip(queries, exact(scores.position_bias), strict=True)]
        biases = _distance_logits(scores, asking, scene)
        return [
            plus(p, b, 1.0) for p, b in zip(_products(content, keys, scale), biases, strict=True)
        ]
    if type(scores) is GaussianKernelScores:
        return _nearness(queries, keys, scale, mpf(scores.bandwidth))
    if type(scores) in (SinkScores, ALiBiScores):
        biases = _position_biases(scores, len(queries), scene)
        return [
            plus(p, b, 1.0) for p, b in zip(_products(queries, keys, scale), biases, strict=True)
        ]
    if type(scores) in (Scores, SparsemaxScores):
        return _products(queries, keys, scale)
    raise NotImplementedError(f"the oracle has no equation for scores {type(scores).__name__}.")


def _products(queries: list[Rows], keys: list[Rows], scale: mpf) -> list[Rows]:
    return [
        [[scale * mp.fdot(q, k) for k in key] for q in query]
        for query, key in zip(queries, keys, strict=True)
    ]


def _nearness(queries: list[Rows], keys: list[Rows], scale: mpf, bandwidth: mpf) -> list[Rows]:
    """``−scale ‖q − k‖² / (2 bandwidth²)``."""
    factor = -scale / (2 * bandwidth**2)
    return [
        [
            [factor * mp.fsum((a - b) ** 2 for a, b in zip(q, k, strict=True)) for k in ks]
            for q in qs
        ]
        for qs, ks in zip(queries, keys, strict=True)
    ]


def _position_biases(scores: SinkScores | ALiBiScores, heads: int, scene: Scene) -> list[Rows]:
    """The strength at the first tokens, or ``−slope_h |i − j|``; positions count real tokens."""
    place = range(len(scene.real))
    if type(scores) is SinkScores:
        row = [mpf(scores.strength) if j < scores.tokens else mpf(0) for j in place]
        return [[row for _ in place] for _ in range(heads)]
    return [[[-mpf(slope) * abs(i - j) for j in place] for i in place] for slope in scores.slopes]


def _shifted(rows: Rows, by: Vector) -> Rows:
    return [[a + b for a, b in zip(x, by, strict=True)] for x in rows]


def _normed_heads(
    scores: NormedHeads, queries: list[Rows], keys: list[Rows]
) -> tuple[list[Rows], list[Rows]]:
    return _normed_part(scores.query_norm, queries), _normed_part(scores.key_norm, keys)


def _normed_part(norm: nn.Module, heads: list[Rows]) -> list[Rows]:
    """Each head, or all heads side by side, each of those that serve several queries once."""
    width = len(heads[0][0])
    together = norm.weight.shape[-1] // width
    if together == 1:
        return [normed(norm)(rows) for rows in heads]
    copies = len(heads) // together
    different = heads[::copies]
    wide = [[v for rows in different for v in rows[token]] for token in range(len(heads[0]))]
    apart = by_head(normed(norm)(wide), together)
    return [apart[h // copies] for h in range(len(heads))]


def _rotated(
    scores: Scores, queries: list[Rows], keys: list[Rows], scene: Scene
) -> tuple[list[Rows], list[Rows]]:
    """Queries and keys with pairs of coordinates rotated by their position."""
    if type(scores) is RotaryTable:  # the last tokens have a row each, others stay
        (rows, pairs), start = scores.cos.shape, 0
        before = len(scene.real) - rows
        cos = [[mpf(1)] * pairs] * before + exact(scores.cos)
        sin = [[mpf(0)] * pairs] * before + exact(scores.sin)
    else:
        cos, sin = _turns(scores, scene)
        pairs, start = len(scores.frequencies), scores.start
    if getattr(scores, "interleaved", False):
        places = [(start + 2 * m, start + 2 * m + 1) for m in range(pairs)]
    else:
        places = [(start + m, start + m + pairs) for m in range(pairs)]
    return tuple([_turned(x, cos, sin, places) for x in part] for part in (queries, keys))


def _disentangled(
    scores: DisentangledScores, queries: list[Rows], keys: list[Rows], scene: Scene
) -> list[Rows]:
    """``q_i·K r(i−j) + k_j·Q r(i−j)`` of each head."""
    heads, place = len(queries), range(len(scene.real))
    table = exact(scores.embeddings()[: 2 * scores.span])
    far = [
        None if f is None else by_head(linear(f)(table), heads) for f in (scores.key, scores.query)
    ]

    def row(ahead: int) -> int:
        at = _deberta_bucket(ahead, scores.buckets, scores.farthest) + scores.span
        return min(max(at, 0), 2 * scores.span - 1)

    def logit(h: int, i: int, j: int) -> mpf:
        at, (as_key, as_query) = row(i - j), far
        content = mpf(0) if as_key is None else mp.fdot(queries[h][i], as_key[h][at])
        return content + (0 if as_query is None else mp.fdot(keys[h][j], as_query[h][at]))

    return [[[logit(h, i, j) for j in place] for i in place] for h in range(heads)]


def _deberta_bucket(ahead: int, buckets: int, farthest: int) -> int:
    """Near distances are themselves; far ones ``m + ⌈log(d/m)/log((far−1)/m) (m−1)⌉``, signed."""
    middle, size = buckets // 2, abs(ahead)
    if buckets <= 0 or size < middle:
        return ahead
    share = math.log(size / middle) / math.log((farthest - 1) / middle)
    return (middle + math.ceil(share * (middle - 1))) * (1 if ahead > 0 else -1)


def _turns(scores: RotaryScores, scene: Scene) -> tuple[Rows, Rows]:
    """Cosine and sine of each pair's angle at each token: float32 numbers, as the network's."""
    angles = scene.positions[:, None, :, None].float() * scores.frequencies
    angles = torch.cat((angles, angles), dim=-1)  # the same shape, hence the same rounding
    cos, sin = angles.cos() * scores.scaling, angles.sin() * scores.scaling
    pairs = len(scores.frequencies)
    here = scene.row, 0, scene.real, slice(0, pairs)
    return exact(cos[here]), exact(sin[here])


def _turned(rows: Rows, cos: Rows, sin: Rows, places: list[tuple[int, int]]) -> Rows:
    """The m-th pair of coordinates turns by the m-th angle; the others stay."""
    turned = []
    for x, c, s in zip(rows, cos, sin, strict=True):
        new = list(x)
        for m, (a, b) in enumerate(places):
            new[a], new[b] = x[a] * c[m] - x[b] * s[m], x[a] * s[m] + x[b] * c[m]
        turned.append(new)
    return turned


def _distance_logits(scores: SinusoidKeys, asking: list[Rows], scene: Scene) -> list[Rows]:
    """``scale · (q_i + v)·R s(i−j)`` with the network's own float32 sinusoids."""
    positions = scene.positions[scene.row].tolist()
    reach = len(positions)
    sinusoids = scores._sinusoids(torch.arange(-reach, reach + 1))
    keys = by_head(linear(scores.project)(exact(sinusoids)), len(asking))
    place = [positions[t] for t in scene.real]
    scale = mpf(scores.scale)
    return [
        [[scale * mp.fdot(a, key[place[i] - p + reach]) for p in place] for i, a in enumerate(rows)]
        for rows, key in zip(asking, keys, strict=True)
    ]
