"""Chains of bounds over many layers, against the recursion and by hand."""

import math

import torch

from rankscope.core.network import Spec
from rankscope.core.theory.residual_bounds import LogParts, head_weights, norm_bound
from rankscope.core.theory.residual_bounds._depth import (
    CubicBound,
    chain_cubic_bounds,
    chain_data_bounds,
    chain_norm_bounds,
)

PURE = {"skip": False, "norm": "none", "init": 0.3}


def test_the_closed_form_is_the_recursion():
    factors, start = [0.3, -1.0, 0.7], torch.tensor([-2.0, 0.4]).double()
    layers = [CubicBound(torch.full((2,), k).double(), torch.ones(2).bool()) for k in factors]
    found = chain_cubic_bounds(layers, start)
    for depth in (1, 2, 3):
        value = start
        for _ in range(depth):
            value = max(factors[:depth]) + 3 * value
        torch.testing.assert_close(found[depth - 1], value)


def test_no_depth_is_too_deep_for_the_theorem():
    one = CubicBound(torch.tensor([1.0, 1.0, -math.inf, 1.0]).double(), torch.ones(4).bool())
    found = chain_cubic_bounds([one] * 1000, torch.tensor([-3.0, 3.0, 3.0, -math.inf]).double())[-1]
    assert found[0] < -1e299
    assert found[1] > 1e299
    assert found[2:].tolist() == [-math.inf, -math.inf]


def test_a_condition_that_fails_once_ends_the_chain():
    good, bad = torch.ones(1).bool(), torch.zeros(1).bool()
    layers = [CubicBound(torch.zeros(1).double(), condition) for condition in (good, bad, good)]
    found = chain_cubic_bounds(layers, torch.full((1,), -1.0).double())
    assert found[0].tolist() == [-3.0]
    assert all(bool(value.isnan()) for value in found[1:])
    nan, one = torch.full((1,), math.nan).double(), torch.ones(1).double()
    chained = chain_data_bounds([one, nan, one], [0 * one, one, one], one)
    assert [value.item() for value in chained][:1] == [2.0]
    assert all(bool(value.isnan()) for value in chained[1:])


def test_chains_by_hand(lively):
    one = torch.ones(1).double()
    assert [v.item() for v in chain_data_bounds([2 * one, 3 * one], [0 * one, 0.5 * one], one)] == [
        3.0,
        6.5,
    ]
    weights = [
        head_weights(b.attention) for b in lively(Spec(2, 2, 3, head_width=2, **PURE)).blocks
    ]
    norms, count = LogParts(-one, -2 * one), torch.tensor([4])
    gain = 2 * torch.eye(3).double()
    step = norm_bound(weights[0], norms, count)
    twice = norm_bound(weights[1], LogParts(step.one + math.log(2), step.inf + math.log(2)), count)
    found = chain_norm_bounds([(weights[0], gain), (weights[1], gain)], norms, count)
    torch.testing.assert_close(found[1], twice.composite + math.log(2))
