"""Rotary embeddings and relative biases as descriptions that a spec takes."""

import math
from dataclasses import replace

import pytest
import torch

from rankscope import path_lengths, trace
from rankscope.core.network import Network, RelativeBias, Rotary, Spec, Visibility
from rankscope.errors import KindError, SpecError

KINDS = {
    "rotary": Rotary(base=20.0),
    "relative bias": RelativeBias(buckets=8, farthest=6, seed=1),
}


def spec(kind, **options):
    return Spec(2, 2, 8, init="lecun", mlp_ratio=1, scores=KINDS[kind], **options)


def pattern(net, x):
    seen = Visibility.of(net.spec.mask, x.shape[1], None, x.device)
    return net.blocks[0].attention.pattern(x, seen).detach()


def test_rotary_turns_every_pair_of_coordinates_by_its_own_angle(lively, tokens):
    net, x = lively(Spec(1, 1, 4, scores=Rotary(base=100.0))), tokens(1, 3, 4)
    attention = net.blocks[0].attention
    query, key = attention.query(x)[0].detach(), attention.key(x)[0].detach()
    logits = torch.empty(3, 3, dtype=torch.float64)
    for i in range(3):
        for j in range(3):
            total = 0.0
            for pair, angle in enumerate((1.0, 0.1)):  # 100^(−2·pair/4)
                q = complex(query[i, pair], query[i, pair + 2])
                k = complex(key[j, pair], key[j, pair + 2])
                turn = complex(math.cos((i - j) * angle), math.sin((i - j) * angle))
                total += (q * turn * k.conjugate()).real
            logits[i, j] = total / 2
    torch.testing.assert_close(pattern(net, x)[0, 0], logits.softmax(-1), rtol=0, atol=1e-6)


def test_a_relative_bias_is_one_number_for_each_bucket(lively, tokens):
    kind = RelativeBias(buckets=8, farthest=16, seed=3)
    net, x = lively(Spec(1, 2, 8, scores=kind, score_scale=0.0)), tokens(1, 7, 8)
    table = net.blocks[0].attention.scores.table.weight.detach()
    # Buckets 0 to 3 for keys before the query: distances 0, 1, 2–5, 6–16; 4 to 7 for those after.
    near = {0: 0, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2, 6: 3}
    for head in range(2):
        logits = torch.tensor(
            [[table[near[abs(j - i)] + 4 * (j > i), head] for j in range(7)] for i in range(7)]
        )
        torch.testing.assert_close(pattern(net, x)[0, head], logits.softmax(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mask", ["full", "causal", "window:1"])
@pytest.mark.parametrize("kind", KINDS)
def test_paths_and_traces_do_them(kind, mask, lively, tokens):
    net, x = lively(spec(kind, mask=mask)), tokens(2, 5, 8)
    token_mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]).bool()
    assert path_lengths(net, x, token_mask=token_mask).reconstruction_error < 1e-12
    names = ("relative_residual", "attention_entropy")
    table = trace(net, x, metrics=names, token_mask=token_mask).table
    assert table["value"].is_finite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_they_depend_on_the_pair_of_positions(kind, lively, tokens):
    net = lively(spec(kind))
    same = tokens(1, 1, 8).expand(1, 5, 8)
    p = pattern(net, same)[0, 0]
    assert not torch.allclose(p[0], p[1], atol=1e-3)
    torch.testing.assert_close(p.sum(-1), torch.ones(5).double())


def test_a_seed_means_one_relative_bias_in_every_dtype():
    state = torch.random.get_rng_state()
    one, two = (
        Network.random(spec("relative bias"), dtype=dtype)
        for dtype in (torch.float32, torch.float64)
    )
    assert torch.equal(state, torch.random.get_rng_state())
    tables = [net.blocks[1].attention.scores.table.weight for net in (one, two)]
    assert [table.dtype for table in tables] == [torch.float32, torch.float64]
    assert torch.equal(tables[0].double(), tables[1])
    other = replace(KINDS["relative bias"], seed=2).build(2, 4).table.weight
    assert not torch.equal(other, tables[0])
    assert torch.equal(
        one.blocks[0].attention.query.weight.double().float(),
        two.blocks[0].attention.query.weight.float(),
    )


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Rotary(base=0), SpecError, "base=0 must be greater"),
        (lambda: Rotary(base="10"), KindError, "base='10' is a str"),
        (lambda: Rotary(base=math.inf), SpecError, "base=inf .* finite"),
        (lambda: Network.random(Spec(1, 2, 6, scores=Rotary())), SpecError, "head_width=3 is odd"),
        (lambda: RelativeBias(buckets=2), SpecError, "buckets=2 .* 4 or more"),
        (lambda: RelativeBias(buckets=7), SpecError, "buckets=7 is odd"),
        (lambda: RelativeBias(buckets=32, farthest=8), SpecError, "farthest=8 .* 9 or more"),
        (lambda: RelativeBias(seed=-1), SpecError, "seed=-1"),
        (lambda: RelativeBias(seed=1.0), KindError, "seed=1.0 is a float"),
    ],
)
def test_wrong_descriptions(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_descriptions_are_values():
    assert Rotary() == Rotary(base=10000) == Rotary(base=10000.0)
    assert len({Rotary(), Rotary(base=2.0), RelativeBias(), RelativeBias(seed=1)}) == 4
    assert str(Rotary()) == "rotary"
    assert str(Rotary(base=500000)) == "rotary(base 500000)" == str(Rotary(base=5e5))
    assert str(RelativeBias()) == "relative bias(32 buckets to 128, seed 0)"
