"""Scores of one's own: honoured alike by the fused kernel and by the attention matrices."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rankscope.core.masks import Causal, Window
from rankscope.core.network import ScoreKind, Scores, Spec, Visibility


@dataclass(frozen=True)
class Alibi:
    """``−slope_h · |i − j|``, a bias of positions that differs from head to head."""

    slope: float

    def build(self, heads, head_width):
        del head_width
        return AlibiScores(self.slope, heads)


class AlibiScores(Scores):
    def __init__(self, slope, heads):
        super().__init__()
        self.slopes = [slope / (head + 1) for head in range(heads)]

    def bias(self, query, key, positions):
        del key
        away = (positions[:, :, None] - positions[:, None, :]).abs()
        slopes = torch.tensor(self.slopes, dtype=query.dtype)
        return -slopes[None, :, None, None] * away[:, None]


@dataclass(frozen=True)
class Rotary:
    """Queries and keys turned by an angle of their position, two features at a time."""

    base: float

    def build(self, heads, head_width):
        del heads
        return RotaryScores(self.base, head_width)


class RotaryScores(Scores):
    def __init__(self, base, head_width):
        super().__init__()
        self.speed = base ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)

    def prepare(self, query, key, positions):
        angle = (positions[:, :, None] * self.speed)[:, None]  # rows, 1, token, pair
        return turned(query, angle), turned(key, angle)


def turned(x, angle):
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


KINDS = {"alibi": Alibi(0.8), "rotary": Rotary(10.0)}
MASKS = {"full": "full", "causal": Causal(), "window": Window(before=1, after=2)}


def spec(scores, *, mask="full", kv_heads=2):
    return Spec(
        1, 4, 8, head_width=4, kv_heads=kv_heads, scores=scores, mask=mask, norm="none",
        mlp_ratio=0, skip=False, init="lecun",
    )  # fmt: skip


def logits_by_hand(attention, x, kind, *, kv_heads):
    """``scale · q'ᵢ·k'ⱼ + biasᵢⱼ`` for each head of one sample, in loops."""
    q, k = attention.query(x), attention.key(x)
    heads, width, n = 4, 4, len(x)
    logits = np.zeros((heads, n, n))
    for h in range(heads):
        group = h // (heads // kv_heads)
        qh = q[:, h * width : (h + 1) * width].detach().numpy()
        kh = k[:, group * width : (group + 1) * width].detach().numpy()
        for i in range(n):
            for j in range(n):
                if isinstance(kind, Rotary):
                    logits[h, i, j] = rotated_product(qh[i], kh[j], i - j, kind.base) / 2
                else:
                    logits[h, i, j] = qh[i] @ kh[j] / 2 - kind.slope / (h + 1) * abs(i - j)
    return logits


def rotated_product(q, k, distance, base):
    """``Re Σ_p q_p k̄_p e^{iθ_p·distance}``, pairs as complex numbers: only the distance matters."""
    total = 0.0
    for p in range(len(q) // 2):
        theta = base ** (-2 * p / len(q)) * distance
        a, b = complex(q[2 * p], q[2 * p + 1]), complex(k[2 * p], k[2 * p + 1])
        total += (a * b.conjugate() * complex(math.cos(theta), math.sin(theta))).real
    return total


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", KINDS)
def test_own_scores_by_hand_and_forward_is_pattern_times_values(
    name, mask, kv_heads, lively, tokens
):
    net = lively(spec(KINDS[name], mask=MASKS[mask], kv_heads=kv_heads))
    attention = net.blocks[0].attention
    x = tokens(2, 5, 8)
    seen = Visibility.of(net.spec.mask, 5, None, x.device)
    pattern = attention.pattern(x, seen)

    allowed = net.spec.mask.matrix(5).numpy()
    for sample in range(2):
        logits = logits_by_hand(attention, x[sample], KINDS[name], kv_heads=kv_heads)
        weights = np.exp(logits) * allowed
        expected = weights / weights.sum(-1, keepdims=True)
        np.testing.assert_allclose(pattern[sample].detach().numpy(), expected, rtol=0, atol=1e-12)

    values = attention.value(x).unflatten(-1, (kv_heads, 4)).repeat_interleave(4 // kv_heads, 2)
    mixed = torch.einsum("bhqk,bkhf->bqhf", pattern, values).flatten(2)
    torch.testing.assert_close(net(x), attention.output(mixed), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_own_scores_change_the_output(name, lively, tokens):
    x = tokens(1, 5, 8)
    assert not torch.allclose(lively(spec(KINDS[name]))(x), lively(spec("dot"))(x), atol=1e-3)


def test_scores_are_built_for_each_layer_from_heads_and_head_width(lively):
    asked = []

    @dataclass(frozen=True)
    class Asking:
        def build(self, heads, head_width):
            asked.append((heads, head_width))
            return Scores()

    lively(Spec(3, 4, 8, head_width=5, scores=Asking()))
    assert asked == [(4, 5)] * 3


def test_learned_scores_are_parameters_of_the_network(lively, tokens):
    """A score with weights: they are saved, moved and trained like all others."""

    @dataclass(frozen=True)
    class Learned:
        def build(self, heads, head_width):
            del head_width
            scores = LearnedScores()
            scores.table = torch.nn.Parameter(torch.ones(heads, dtype=torch.float64))
            return scores

    net = lively(spec(Learned()))
    assert "blocks.0.attention.scores.table" in net.state_dict()
    net(tokens(1, 4, 8)).square().sum().backward()
    assert net.blocks[0].attention.scores.table.grad.abs().min() > 0


class LearnedScores(Scores):
    def bias(self, query, key, positions):
        del query, key
        away = (positions[:, :, None] - positions[:, None, :]).to(self.table.dtype)
        return self.table[None, :, None, None] * away[:, None]


def test_kinds_are_recognised():
    assert isinstance(KINDS["alibi"], ScoreKind)
    assert not isinstance("dot", ScoreKind)


class Squared(Scores):
    """Weights in proportion to squared logits: nothing a softmax could make."""

    fused = False

    def weights(self, logits, sight):
        allowed = logits.square() * sight.allowed
        return allowed / allowed.sum(-1, keepdim=True)


def test_own_weights_are_honoured_by_pattern_and_forward(lively, tokens):
    @dataclass(frozen=True)
    class SquaredKind:
        def build(self, heads, head_width):
            del heads, head_width
            return Squared()

    net = lively(spec(SquaredKind(), mask=Causal(), kv_heads=4))
    attention, x = net.blocks[0].attention, tokens(1, 5, 8)
    q, k, v = (
        part(x)[0].unflatten(-1, (4, 4))
        for part in (attention.query, attention.key, attention.value)
    )
    products = torch.einsum("qhf,khf->hqk", q, k).square().tril()
    expected = products / products.sum(-1, keepdim=True)
    pattern = attention.pattern(x, Visibility.of(net.spec.mask, 5, None, x.device))[0]
    torch.testing.assert_close(pattern, expected, rtol=0, atol=1e-12)
    mixed = torch.einsum("hqk,khf->qhf", expected, v).flatten(1)
    torch.testing.assert_close(net(x)[0], attention.output(mixed), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["dot", *KINDS])
def test_softmax_scores_never_make_their_matrices(name, lively, tokens, monkeypatch):
    """Forward stays on the fused kernel; ``weights`` is for those who ask for the pattern."""

    def refuse(*_):
        raise AssertionError("forward held an attention matrix")

    monkeypatch.setattr(Scores, "weights", refuse)
    assert lively(spec(KINDS.get(name, name)))(tokens(1, 5, 8)).isfinite().all()
