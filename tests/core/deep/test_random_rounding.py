"""Rounding at random: by how much, of what, and what it shows."""

import torch

from rankscope.core.deep._doubts import RandomRounding
from rankscope.streams import stream

ULP = 2.0**-52


def rounding(seed=0):
    return RandomRounding(stream(seed, "test"))


def test_results_are_off_by_their_last_digit_and_differ_from_each_other(tokens):
    x, y = tokens(400), tokens(400, seed=1)
    for act in (torch.add, torch.mul, torch.div, torch.sub, lambda a, _: (a / 9).exp()):
        with rounding():
            found = act(x, y)
        off = (found / act(x, y) - 1).abs()
        assert 0 < off.amax() <= 2 * ULP
        assert (off == 0).any()  # some are rounded as ever


def test_what_rounds_nothing_is_left_alone(tokens):
    x, few = tokens(50), torch.arange(5)
    with rounding():
        found = [x - x, 2 * x, x / 4, x + 0.0, x * 1.0, torch.where(x > 0, x, 0.0), x.clamp(max=1)]
        whole = few + few
    expected = [x - x, 2 * x, x / 4, x, x, torch.where(x > 0, x, 0.0), x.clamp(max=1)]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(whole, 2 * few)
    assert torch.equal((x[:4].float() / 3), x[:4].float() / 3)


def test_sums_show_what_cancelled_in_them():
    rows = torch.tensor([[1.0, -1.0, 1e-9]], dtype=torch.float64).repeat(30, 1)
    ones = torch.ones(3, 1, dtype=torch.float64)
    with rounding():
        found = [(rows @ ones).flatten(), rows.sum(1), 3 * rows.mean(1)]
    for sums in found:
        assert 1e-8 < (sums / 1e-9 - 1).abs().amax() < 1e-6


def test_in_place_results_are_rounded_in_place(tokens):
    x = tokens(100)
    y = x.clone()
    with rounding():
        same = y.div_(3)
    assert same is y
    assert 0 < (y / (x / 3) - 1).abs().amax() <= 2 * ULP


def test_infinities_and_streams(tokens):
    ends = torch.tensor([torch.inf, -torch.inf], dtype=torch.float64)
    with rounding():
        assert torch.equal(ends * 3, ends)
    x = tokens(30)
    found = []
    for seed in (0, 0, 1):
        with rounding(seed):
            found.append(x / 3)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
