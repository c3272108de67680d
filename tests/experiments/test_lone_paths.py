"""Paths run by themselves: against a loop over tokens, and sums against single paths."""

import math

import pytest
import torch

from rankscope import Network, Spec
from rankscope.core.paths import Path, enumerate_paths
from rankscope.experiments.lone_paths import lone_paths, plain_norm, summed
from rankscope.streams import stream


def network(**more):
    """Post-norm attention whose biases and gains count."""
    made = Network.random(Spec(3, 2, 6, norm_place="post", **({"mlp_ratio": 0.0} | more))).double()
    with torch.no_grad():
        for number, each in enumerate(made.parameters()):
            noise = torch.randn(each.shape, generator=stream(0, "more", number))
            each.add_(noise.double(), alpha=0.5)
    return made


def inputs(batch=2, tokens=4):
    return torch.randn(batch, tokens, 6, generator=stream(1, "x")).double()


def normed(row):
    mean = sum(row) / len(row)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in row) / len(row))
    return [(value - mean) / deviation for value in row]


def by_hand(block, rows, head):
    """One sequence through one head, number by number, in plain Python."""
    attention = block.attention

    def linear(module, row):
        weight, bias = module.weight.tolist(), module.bias.tolist()
        return [
            sum(w * x for w, x in zip(line, row, strict=True)) + b
            for line, b in zip(weight, bias, strict=True)
        ]

    own = slice(3 * head, 3 * head + 3)
    query, key, value = (
        [linear(part, row)[own] for row in rows]
        for part in (attention.query, attention.key, attention.value)
    )
    out = []
    for q in query:
        logits = [sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(3) for k in key]
        total = sum(map(math.exp, logits))
        mixed = [
            sum(math.exp(logit) / total * v[c] for logit, v in zip(logits, value, strict=True))
            for c in range(3)
        ]
        weight, bias = attention.output.weight.tolist(), attention.output.bias.tolist()
        out.append(
            normed(
                [
                    sum(w * m for w, m in zip(line[own], mixed, strict=True)) + b
                    for line, b in zip(weight, bias, strict=True)
                ]
            )
        )
    return out


def test_each_path_is_a_state_of_its_own():
    """Attention and norm anew in each layer it goes through; skipped layers do nothing."""
    made, x = network(), inputs()
    ends = dict(lone_paths(made, x))
    assert set(ends) == {path.choices for path in enumerate_paths(3, 2)}
    assert torch.equal(ends[None, None, None], x)
    for choices in ((None, 1, None), (0, None, 1), (1, 0, 1)):
        for sample in range(2):
            rows = x[sample].tolist()
            for layer, head in enumerate(choices):
                if head is not None:
                    rows = by_hand(made.blocks[layer], rows, head)
            assert torch.allclose(ends[choices][sample], torch.tensor(rows).double(), atol=1e-9)


def test_skip_gain_and_shift_of_the_norms_play_no_part():
    made, x = network(), inputs()
    before = dict(lone_paths(made, x))
    with torch.no_grad():
        for block in made.blocks:
            for norm in block.norms.values():
                norm.weight.mul_(3.0)
                norm.bias.add_(1.0)
    after = dict(lone_paths(made, x))
    assert all(torch.equal(before[choices], after[choices]) for choices in before)


def test_an_mlp_follows_with_its_skip_and_norm():
    made, x = network(mlp_ratio=1.0), inputs()
    ends = dict(lone_paths(made, x))
    rows = torch.tensor(by_hand(made.blocks[1], x[0].tolist(), 1)).double()
    block = made.blocks[1]
    expected = block.norms["mlp"](rows + block.mlp(rows[None])[0])
    assert torch.allclose(ends[None, 1, None][0], expected, atol=1e-9)


def test_padding_changes_nothing():
    made, x = network(), inputs()
    longer = torch.cat([x, torch.full((2, 2, 6), 7.0).double()], 1)
    mask = torch.tensor([[True] * 4 + [False] * 2] * 2)
    padded = dict(lone_paths(made, longer, mask))
    for choices, state in lone_paths(made, x):
        assert torch.allclose(padded[choices][:, :4], state, atol=1e-12)


def test_sums_are_of_single_paths_each_as_often_as_drawn():
    made, x = network(), inputs()
    ends = dict(lone_paths(made, x))
    one, two = Path((0, None, None)), Path((None, None, 1))
    states = summed(made, x, {"some": [[one, two, one], [two]]}, everything="all")
    first = 2 * ends[one.choices] + ends[two.choices]
    assert torch.allclose(states["some"][0], plain_norm(first))
    assert torch.allclose(states["some"][1], plain_norm(ends[two.choices]))
    for length in range(4):
        total = sum(ends[path.choices] for path in enumerate_paths(3, 2, length=length))
        assert torch.allclose(states["all"][length], plain_norm(total))


def test_the_plain_norm_has_mean_zero_and_variance_one():
    assert plain_norm(torch.tensor([[1.0, 3.0]])).tolist() == [pytest.approx([-1.0, 1.0])]
