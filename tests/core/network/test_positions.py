"""Scores in which positions take part, against loops over pairs of tokens and against T5 itself."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from rankscope.core.masks import Causal, Full
from rankscope.core.network import (
    Attention,
    BucketedBiasScores,
    NormedHeads,
    RotaryScores,
    Scores,
    SinusoidKeys,
    Visibility,
)

TOKENS, WIDTH, HEADS, HEAD_WIDTH = 5, 8, 2, 6
SCALE = 0.4


def attention(scores, *, kv_heads=HEADS):
    torch.manual_seed(0)

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, dtype=torch.float64)

    return Attention(
        query=linear(WIDTH, HEADS * HEAD_WIDTH),
        key=linear(WIDTH, kv_heads * HEAD_WIDTH),
        value=linear(WIDTH, kv_heads * HEAD_WIDTH),
        output=linear(HEADS * HEAD_WIDTH, WIDTH),
        scores=scores,
        heads=HEADS,
        kv_heads=kv_heads,
        scale=SCALE,
    )


def heads_of(linear, x):
    """``(head, token, head_width)`` of one sample."""
    return linear(x).unflatten(-1, (HEADS, HEAD_WIDTH)).transpose(0, 1).detach().numpy()


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def rotary(pairs, scaling=1.0):
    return RotaryScores(100.0 ** (-torch.arange(pairs) / pairs), scaling=scaling)


def rotary_logit(scores, q, k, _head, i, j):
    """Coordinates p and p + pairs are one complex number, turned by its own speed."""
    speeds = scores.frequencies.double().numpy()
    pairs = len(speeds)
    total = q[2 * pairs :] @ k[2 * pairs :]
    for p in range(pairs):
        a, b = complex(q[p], q[p + pairs]), complex(k[p], k[p + pairs])
        turn = complex(math.cos(speeds[p] * (i - j)), math.sin(speeds[p] * (i - j)))
        total += scores.scaling**2 * (a * b.conjugate() * turn).real
    return SCALE * total


def sinusoid_keys(farthest=None):
    torch.manual_seed(1)
    return SinusoidKeys(
        content_bias=torch.randn(HEADS, HEAD_WIDTH, dtype=torch.float64),
        position_bias=torch.randn(HEADS, HEAD_WIDTH, dtype=torch.float64),
        project=nn.Linear(WIDTH, HEADS * HEAD_WIDTH, bias=False, dtype=torch.float64),
        width=WIDTH,
        scale=SCALE,
        farthest=farthest,
    )


def sinusoid_logit(scores, q, k, head, i, j):
    u, v = scores.content_bias[head].numpy(), scores.position_bias[head].numpy()
    apart = i - j
    if scores.farthest is not None:
        apart = max(-scores.farthest, min(scores.farthest, apart))
    angles = [apart / 10000 ** (2 * p / WIDTH) for p in range(WIDTH // 2)]
    s = torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles]).double()
    R_s = scores.project(s).unflatten(-1, (HEADS, HEAD_WIDTH))[head].detach().numpy()
    return SCALE * ((q + u) @ k + (q + v) @ R_s)


def bucketed(two_sided=True):
    torch.manual_seed(2)
    table = nn.Embedding(8, HEADS, dtype=torch.float64)
    return BucketedBiasScores(table, farthest=16, two_sided=two_sided)


def bucketed_logit(scores, q, k, head, i, j):
    """The first buckets are distances 0, 1 (0 to 3 one-sided); all of these five tokens fit."""
    if scores.two_sided:
        near = [0, 1, 2, 2, 2] if j <= i else [None, 5, 6, 6, 6]
    else:
        near = [0, 1, 2, 3, 4] if j <= i else [0] * 5
    bias = scores.table.weight[near[abs(i - j)], head].item()
    return SCALE * (q @ k) + bias


CASES = {
    "rotary": (rotary(3), rotary_logit),
    "partial rotary": (rotary(2), rotary_logit),
    "scaled rotary": (rotary(2, scaling=1.5), rotary_logit),
    "sinusoids": (sinusoid_keys(), sinusoid_logit),
    "clamped sinusoids": (sinusoid_keys(farthest=2), sinusoid_logit),
    "buckets": (bucketed(), bucketed_logit),
    "one-sided buckets": (bucketed(two_sided=False), bucketed_logit),
}


@pytest.mark.parametrize("name", CASES)
def test_pattern_by_hand_and_forward_agrees(name, tokens):
    scores, logit = CASES[name]
    part, x = attention(scores), tokens(1, TOKENS, WIDTH)
    seen = Visibility.of(Full(), TOKENS, None, x.device)
    q, k = heads_of(part.query, x[0]), heads_of(part.key, x[0])
    logits = np.array(
        [
            [
                [logit(scores, q[h, i], k[h, j], h, i, j) for j in range(TOKENS)]
                for i in range(TOKENS)
            ]
            for h in range(HEADS)
        ]
    )
    pattern = part.pattern(x, seen)
    # Angles are taken in float32 on purpose, hence no better than this.
    np.testing.assert_allclose(pattern[0].detach().numpy(), softmax(logits), rtol=0, atol=1e-6)
    assert not np.allclose(softmax(logits), softmax(SCALE * q @ k.swapaxes(1, 2)), atol=1e-3)

    values = part.value(x).unflatten(-1, (HEADS, HEAD_WIDTH))
    mixed = torch.einsum("bhqk,bkhf->bqhf", pattern, values).flatten(2)
    torch.testing.assert_close(part(x, seen), part.output(mixed), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mask", [Full(), Causal()], ids=str)
def test_padding_moves_no_position(mask, name, tokens):
    scores, _ = CASES[name]
    part, x = attention(scores), tokens(2, TOKENS, WIDTH)
    wide = nn.functional.pad(x, (0, 0, 3, 2), value=7.0)
    token_mask = torch.zeros(2, TOKENS + 5, dtype=torch.bool)
    token_mask[:, 3:-2] = True
    alone = part(x, Visibility.of(mask, TOKENS, None, x.device))
    among = part(wide, Visibility.of(mask, TOKENS + 5, token_mask, x.device))
    torch.testing.assert_close(among[:, 3:-2], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (16, 1000)])
def test_buckets_are_those_of_t5(buckets, farthest, two_sided):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    ahead = torch.arange(-2 * farthest, 2 * farthest + 1).reshape(1, 1, -1)
    ours = BucketedBiasScores(nn.Embedding(buckets, 1), farthest=farthest, two_sided=two_sided)
    theirs = t5.T5Attention._relative_position_bucket(
        ahead, bidirectional=two_sided, num_buckets=buckets, max_distance=farthest
    )
    assert torch.equal(ours._bucket(ahead), theirs)


def test_normed_heads_then_another_score(tokens):
    class Halved(nn.Module):
        def forward(self, x):
            return x / 2

    plain, x = rotary(3), tokens(1, TOKENS, WIDTH)
    seen = Visibility.of(Full(), TOKENS, None, x.device)
    normed = attention(NormedHeads(Halved(), nn.Identity(), plain))
    quarter = attention(plain)
    quarter.scale = SCALE / 2
    torch.testing.assert_close(normed.pattern(x, seen), quarter.pattern(x, seen))
    biased = attention(NormedHeads(nn.Identity(), nn.Identity(), bucketed()))
    assert torch.equal(biased.pattern(x, seen), attention(bucketed()).pattern(x, seen))


def test_rotary_with_shared_keys(tokens):
    """Grouped key heads are repeated before they turn, which changes nothing."""
    x = tokens(1, TOKENS, WIDTH)
    seen = Visibility.of(Full(), TOKENS, None, x.device)
    shared = attention(rotary(3), kv_heads=1)
    apart = attention(rotary(3))
    with torch.no_grad():
        for name in ("query", "key", "value", "output"):
            mine, theirs = getattr(apart, name), getattr(shared, name)
            times = len(mine.weight) // len(theirs.weight)
            mine.weight.copy_(theirs.weight.repeat(times, 1))
            mine.bias.copy_(theirs.bias.repeat(times))
    torch.testing.assert_close(shared(x, seen), apart(x, seen), rtol=0, atol=1e-12)


def test_angles_are_the_same_constants_in_every_dtype(tokens):
    scores = rotary(3)
    wide = copy.deepcopy(scores).double()
    q = tokens(1, HEADS, TOKENS, HEAD_WIDTH)
    positions = torch.arange(TOKENS)[None]
    assert torch.equal(scores.prepare(q, q, positions)[0], wide.prepare(q, q, positions)[0])
    assert scores.prepare(q.float(), q.float(), positions)[0].dtype == torch.float32


def test_the_plain_score_changes_nothing(tokens):
    q, k = tokens(1, HEADS, TOKENS, HEAD_WIDTH), tokens(1, HEADS, TOKENS, HEAD_WIDTH, seed=1)
    positions = torch.arange(TOKENS)[None]
    assert Scores().prepare(q, k, positions) == (q, k)
    assert Scores().bias(q, k, positions) is None
