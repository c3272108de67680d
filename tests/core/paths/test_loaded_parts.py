"""Paths of networks with parts that only loaded models have: exact sums, and a bound that holds."""

from dataclasses import replace

import pytest
import torch

from rankscope.core.metrics import dispersion
from rankscope.core.network import Network
from rankscope.core.paths import (
    Path,
    enumerate_paths,
    frozen_steps,
    head_shares,
    path_lengths,
    path_matrix,
    path_outputs,
    top_paths,
    truncate,
)
from rankscope.core.paths._top import _gain

from ..loaded_parts import PARTS, network
from .conftest import KINDS, batch

parts = pytest.mark.parametrize("name", PARTS)
MASK = torch.tensor([[True] * 5, [False, True, True, True, False]])


@pytest.mark.parametrize("padded", [False, True])
@parts
def test_lengths_and_biases_sum_to_every_layer(name: str, padded: bool, lively) -> None:
    net, x, mask = network(name, lively, layers=3), batch(), MASK if padded else None
    found = path_lengths(net, x, token_mask=mask, count="both")
    assert found.reconstruction_error < 1e-10
    kept = slice(None) if mask is None else mask
    with torch.no_grad():
        states = list(net.states(x, mask))
    rebuilt = found.contributions.sum(0) + found.bias
    torch.testing.assert_close(rebuilt[kept], states[-1][kept], rtol=1e-10, atol=1e-12)
    for layers in (1, 2):  # every layer, as the last one of a shorter network
        first = Network(replace(net.spec, layers=layers), list(net.blocks)[:layers])
        found = path_lengths(first, x, token_mask=mask)
        rebuilt = found.contributions.sum(0) + found.bias
        torch.testing.assert_close(rebuilt[kept], states[layers - 1][kept], rtol=1e-10, atol=1e-12)


@parts
def test_single_paths_of_each_length_sum_to_its_contribution(name: str, lively) -> None:
    net, x = network(name, lively), batch()
    found = path_lengths(net, x)
    for length in range(3):
        paths = list(enumerate_paths(2, net.spec.heads, length=length))
        single = path_outputs(net, x, paths).sum(0)
        torch.testing.assert_close(single, found.contributions[length], rtol=1e-10, atol=1e-12)
    whole = truncate(net, x, max_length=2)
    torch.testing.assert_close(whole, net(x), rtol=1e-10, atol=1e-12)


@parts
def test_the_paths_through_a_head_sum_to_its_share(name: str, lively) -> None:
    """Without biases on the way, which belong to the heads that add them."""
    net, x = network(name, lively), batch()
    with torch.no_grad():
        for where, weight in net.named_parameters():
            if where.endswith("bias") and ".gate" not in where and ".scores." not in where:
                weight.zero_()
    paths = list(enumerate_paths(2, net.spec.heads))
    outputs = path_outputs(net, x, paths)
    found = head_shares(net, x)
    for layer in range(2):
        for head in range(net.spec.heads):
            through = [index for index, path in enumerate(paths) if path.choices[layer] == head]
            torch.testing.assert_close(
                found.contributions[layer, head], outputs[through].sum(0), rtol=1e-10, atol=1e-12
            )


@parts
def test_top_paths_are_those_of_brute_force(name: str, lively) -> None:
    net, x = network(name, lively), batch()
    every = list(enumerate_paths(2, net.spec.heads))
    values = dispersion(path_outputs(net, x, every)).norm(dim=-1)
    found = top_paths(net, x, count=4)
    assert found.proven
    best = values.sort(descending=True).values[:4]
    assert found.values == pytest.approx(best.tolist(), rel=1e-9)
    short = top_paths(net, x, count=2, budget=2)
    kept = {every.index(path) for path in short.paths}
    missed = max(value.item() for index, value in enumerate(values) if index not in kept)
    assert missed <= max(short.missed_at_most, short.values[-1]) * (1 + 1e-9)


def largest_norm(step, x: torch.Tensor) -> float:
    """The exact operator norm of the worst choice in a step: around attention, or one head."""
    unit = torch.eye(x.numel(), dtype=x.dtype).unflatten(-1, x.shape)  # one stream per entry
    around = step.skip * unit
    for branch in step.branches:
        if branch.kind == "mlp":
            around = around + branch(unit)
    ways = [around]
    if step.attention is not None:
        branch, part = step.attention
        heads = torch.stack([part.heads(stream) for stream in branch.before(unit)], 1)
        ways += [branch.inside(head) for head in heads]
    return max(float(torch.linalg.matrix_norm(step.after(way).flatten(1), ord=2)) for way in ways)


def check_gains(net: Network) -> None:
    x = batch()[:1]
    with torch.no_grad():
        for step in frozen_steps(net, x):
            assert largest_norm(step, x) <= _gain(step) * (1 + 1e-9)


@parts
def test_no_step_increases_a_stream_by_more_than_its_bound(name: str, lively) -> None:
    net = network(name, lively)
    check_gains(net)
    check_gains(net.without("skip", "mlp", "norm"))  # heads alone, not hidden by larger ways


def test_the_bound_counts_both_matrices_of_latent_values(lively) -> None:
    """The norm between them undoes a scale of the first, not that of the second."""
    net = network("latent projections", lively).without("skip", "mlp", "norm")
    with torch.no_grad():
        for block in net.blocks:
            block.attention.value.down.weight.mul_(30)
            block.attention.value.up.weight.mul_(0.1)
    check_gains(net)


@pytest.mark.parametrize("kind", KINDS)
def test_nor_does_one_of_a_described_network(kind: str, lively) -> None:
    check_gains(lively(KINDS[kind]))


def test_the_bound_counts_negative_weights(lively) -> None:
    """Sharp attention less uniform attention: entries of a column cancel in its sum."""
    net = lively(KINDS["centred, output norm"]).without("norm")
    with torch.no_grad():
        for block in net.blocks:
            block.attention.query.weight.mul_(30)
            block.attention.value.weight.copy_(torch.eye(8))
            block.attention.output.weight.copy_(torch.eye(8))
    check_gains(net)


def test_rows_of_a_chain_of_sinks_sum_below_one(lively) -> None:
    net, x = network("learned sinks", lively), batch()
    first, second = (path_matrix(net, x, path) for path in (Path.of(0, None), Path.of(0, 1)))
    assert first.sum(-1).max() < 1
    assert bool((second.sum(-1) < first.sum(-1).amax(-1, keepdim=True)).all())


def test_units_at_exactly_zero_pass_nothing(lively) -> None:
    """``relu(z)²/z`` is 0/0 there."""
    net = network("relu2", lively)
    with torch.no_grad():
        for block in net.blocks:
            block.mlp.up.weight.zero_()
            block.mlp.up.bias.zero_()
    found = path_lengths(net, batch())
    assert found.contributions.isfinite().all()
    assert found.reconstruction_error < 1e-10
