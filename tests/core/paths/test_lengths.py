"""Exact sums by length: against every single path, against the network, at awkward places."""

import math
from itertools import cycle

import pytest
import torch

from rankscope.core.metrics import dispersion, residual
from rankscope.core.network import ACTIVATIONS, Activation, Network, Spec
from rankscope.core.paths import (
    FrozenAttention,
    Path,
    chained_matrices,
    enumerate_paths,
    frozen_steps,
    head_shares,
    path_lengths,
    path_matrix,
    path_output,
    path_outputs,
    top_paths,
    truncate,
    truncations,
)
from rankscope.errors import InputError, KindError, ShapeError, UnsupportedModelError

from ...pairwise import pairwise
from .conftest import KINDS, batch

kinds = pytest.mark.parametrize("kind", KINDS)
MASK = torch.tensor([[True] * 5, [True, True, True, False, False]])


@kinds
def test_single_paths_of_each_length_sum_to_its_contribution(kind: str, lively) -> None:
    net, x = lively(KINDS[kind]), batch()
    found = path_lengths(net, x)
    for length in range(net.spec.layers + 1):
        paths = list(enumerate_paths(net.spec.layers, net.spec.heads, length=length))
        single = path_outputs(net, x, paths).sum(0)
        assert torch.allclose(single, found.contributions[length], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "case",
    pairwise(
        {"kind": tuple(KINDS), "count": ("attention", "mlp", "both"), "padded": (True, False)}
    ),
    ids=str,
)
def test_lengths_and_biases_sum_to_every_layer(case: dict, lively) -> None:
    net, x = lively(KINDS[case["kind"]]), batch()
    count, mask = case["count"], MASK if case["padded"] else None
    found = path_lengths(net, x, count=count, token_mask=mask)
    assert found.reconstruction_error < 1e-10
    assert len(found.errors) == net.spec.layers
    with torch.no_grad():
        kept = slice(None) if mask is None else mask
        output = net(x, mask)[kept]
    rebuilt = (found.contributions.sum(0) + found.bias)[kept]
    assert torch.allclose(rebuilt, output, rtol=1e-10, atol=1e-12)


@kinds
def test_reconstruction_follows_the_biases_on_their_own(kind: str, lively) -> None:
    """``bias`` is what is left over; the error would show if the biases led elsewhere."""
    net, x = lively(KINDS[kind]), batch()
    found = path_lengths(net, x, max_length=net.spec.layers)
    whole = path_lengths(net, x)
    assert torch.allclose(found.bias, whole.bias, rtol=1e-9, atol=1e-12)


def test_a_wrong_contribution_is_noticed(lively) -> None:
    from dataclasses import replace

    net, x = lively(KINDS["pre-norm"]), batch()
    found = path_lengths(net, x)
    spoiled = replace(found, sums=(*found.sums[:2], found.sums[2] * (1 + 1e-6)))
    assert spoiled.errors[:2] == pytest.approx(found.errors[:2], abs=1e-14)
    assert spoiled.reconstruction_error > 1e-8


def test_pure_attention_without_biases_by_hand() -> None:
    """Two layers, one head: P₂ P₁ X W₁ W₂, and nothing else."""
    net = Network.random(
        Spec(2, 1, 4, mlp_ratio=0.0, norm="none", skip=False, bias=False, init=0.5),
        dtype=torch.float64,
    )
    x = batch(width=4)
    found = path_lengths(net, x)
    first, second = (block.attention for block in net.blocks)

    def weights(attention) -> torch.Tensor:
        return attention.value.weight.T @ attention.output.weight.T

    def pattern(attention, y: torch.Tensor) -> torch.Tensor:
        logits = attention.query(y) @ attention.key(y).mT / 2.0
        return logits.softmax(-1)

    with torch.no_grad():
        p1 = pattern(first, x)
        p2 = pattern(second, p1 @ x @ weights(first))
        expected = p2 @ p1 @ x @ weights(first) @ weights(second)
    assert torch.allclose(found.contributions[2], expected, rtol=1e-12)
    assert not found.contributions[:2].any()
    assert torch.allclose(path_matrix(net, x, Path.of(0, 0)), p2 @ p1, rtol=1e-12)


def test_biases_of_pure_attention_are_the_same_for_all_tokens(lively) -> None:
    found = path_lengths(lively(KINDS["pure attention"]), batch())
    assert dispersion(found.bias).max() < 1e-12
    assert found.bias.abs().max() > 0.1


def test_shares_in_the_table_are_those_of_the_tensors(lively) -> None:
    net, x = lively(KINDS["post-norm"]), batch()
    found = path_lengths(net, x, token_mask=MASK)
    last = found.table.filter(layer=3)
    whole = residual(found.output, token_mask=MASK)
    for length, stream in enumerate(found.contributions):
        got = last.filter(metric="residual_share", length=length)["value"].to_list()
        expected = residual(stream, token_mask=MASK) / whole
        assert got == pytest.approx(expected.tolist(), rel=1e-9)
    summed = [last.filter(metric="projection", sample=s)["value"].sum() for s in (0, 1)]
    assert summed == pytest.approx([1.0, 1.0], rel=1e-9)
    first = found.table.filter(layer=0, metric="residual_share", length=0)["value"].to_list()
    assert first == pytest.approx([1.0, 1.0])


def test_padding_changes_no_share(lively) -> None:
    net, x = lively(KINDS["pre-norm"]), batch()
    alone = path_lengths(net, x[1:, :3]).table.filter(sample=0)["value"].to_list()
    together = path_lengths(net, x, token_mask=MASK).table.filter(sample=1)["value"].to_list()
    assert together == pytest.approx(alone, rel=1e-9, abs=1e-12)


@kinds
def test_truncation_at_full_length_is_the_network(kind: str, lively) -> None:
    net, x = lively(KINDS[kind]), batch()
    found = path_lengths(net, x)
    with torch.no_grad():
        assert torch.allclose(truncate(net, x, max_length=9), net(x), rtol=1e-10, atol=1e-12)
    for length, state in truncations(net, x, range(3)).items():
        expected = found.contributions[: length + 1].sum(0) + found.bias
        assert torch.allclose(state, expected, rtol=1e-9, atol=1e-12)


def test_what_was_left_out_is_said() -> None:
    net = Network.random(KINDS["pre-norm"], dtype=torch.float64)
    cut = path_lengths(net, batch(), max_length=1)
    assert not cut.complete
    assert cut.reconstruction_error != cut.reconstruction_error  # NaN
    assert path_lengths(net, batch(), max_length=3).complete


# Awkward places.


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_an_activation_exactly_at_zero(activation: str) -> None:
    spec = Spec(2, 2, 8, activation=activation, bias=False, init=0.5)
    net = Network.random(spec, dtype=torch.float64)
    with torch.no_grad():
        net.blocks[0].mlp.up.weight[:5] = 0.0
    found = path_lengths(net, batch())
    assert torch.isfinite(found.contributions).all()
    assert found.reconstruction_error < 1e-12


def test_a_dead_row_under_layer_norm() -> None:
    """A token whose features are all equal has no variance at all."""
    net = Network.random(KINDS["pre-norm"], dtype=torch.float64)
    x = batch()
    x[0, 2] = 3.0
    x[1, 0] = 0.0
    assert path_lengths(net, x).reconstruction_error < 1e-10


def test_zero_tokens_on_the_sphere() -> None:
    net = Network.random(KINDS["sphere"], dtype=torch.float64)
    x = batch()
    x[0, 2] = 0.0
    assert path_lengths(net, x).reconstruction_error < 1e-10


def test_one_hot_attention() -> None:
    net = Network.random(KINDS["pre-norm"], dtype=torch.float64)
    with torch.no_grad():
        for block in net.blocks:
            block.attention.query.weight *= 1e4
    assert path_lengths(net, batch()).reconstruction_error < 1e-10


def test_one_token() -> None:
    net = Network.random(KINDS["pre-norm"], dtype=torch.float64)
    assert path_lengths(net, batch(tokens=1)).reconstruction_error < 1e-10


def test_activations_that_cannot_be_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    softplus = Activation(torch.nn.functional.softplus, lambda z: 1 / (1 + math.exp(-z)))
    monkeypatch.setitem(ACTIVATIONS, "softplus", softplus)
    net = Network.random(Spec(1, 1, 4, activation="softplus"))
    with pytest.raises(UnsupportedModelError, match=r"'softplus' is 0\.69"):
        path_lengths(net, torch.zeros(1, 2, 4))


def test_wrong_paths_and_options() -> None:
    net, x = Network.random(KINDS["pre-norm"], dtype=torch.float64), batch()
    with pytest.raises(InputError, match="2 choices, the network 3 layers"):
        path_output(net, x, Path.of(0, 1))
    with pytest.raises(InputError, match="head 2, expected 0 to 1"):
        path_output(net, x, Path.of(0, 2, None))
    with pytest.raises(InputError, match="head 7"):
        path_matrix(net, x, Path.of(7, 0, 0))
    with pytest.raises(InputError, match="count='tokens'"):
        path_lengths(net, x, count="tokens")
    with pytest.raises(InputError, match="max_length=-1"):
        path_lengths(net, x, max_length=-1)
    with pytest.raises(InputError, match="out of range"):
        truncate(net, x, max_length=-1)
    for wrong in (1.5, "1", float("nan")):
        with pytest.raises(KindError, match="whole number"):
            path_lengths(net, x, max_length=wrong)
        with pytest.raises(KindError, match="whole number"):
            truncate(net, x, max_length=wrong)
    with pytest.raises(KindError, match="path is a tuple, expected a Path"):
        path_output(net, x, (0, 0, 0))
    with pytest.raises(ShapeError, match="batch axis"):
        path_matrix(net, x[0], Path.of(0, 0, 0))
    with pytest.raises(KindError, match=r"network\.float"):
        path_lengths(net.float().to(torch.bfloat16), x.bfloat16())


def test_budgets_that_do_not_fit() -> None:
    net, x = Network.random(KINDS["pre-norm"], dtype=torch.float64), batch()
    with pytest.raises(InputError, match="budget"):
        top_paths(net, x, count=5, budget=2)


# Heads, chains, the largest paths.


@kinds
def test_through_a_head_flow_all_paths_through_it(kind: str, lively) -> None:
    """Those that start in the tokens, found one by one, and those that start in a bias."""
    net, x = lively(KINDS[kind]), batch()
    if net.spec.bias:
        with torch.no_grad():  # a head's own value bias is no path; leave it out here
            for block in net.blocks:
                block.attention.value.bias.zero_()
    shares = head_shares(net, x)
    assert shares.contributions.shape[:2] == (net.spec.layers, net.spec.heads)
    paths = list(enumerate_paths(net.spec.layers, net.spec.heads))
    for layer in (0, net.spec.layers - 1):
        for head in range(net.spec.heads):
            through = [path for path in paths if path.choices[layer] == head]
            expected = path_outputs(net, x, through).sum(0) + from_biases(net, x, layer, head)
            got = shares.contributions[layer, head]
            assert torch.allclose(got, expected, rtol=1e-9, atol=1e-11)


@torch.no_grad()
def from_biases(net: Network, x: torch.Tensor, layer: int, head: int) -> torch.Tensor:
    """What starts in a bias before a head and flows through it to the output."""
    bias, flowing = torch.zeros_like(x), torch.zeros_like(x).unsqueeze(0)
    for step in frozen_steps(net, x):
        flowing = step(flowing)
        branch = next((b for b in step.branches if isinstance(b.part, FrozenAttention)), None)
        if step.layer == layer + 1 and branch is not None:
            own = branch.part.heads(branch.before(bias, biased=True))[head].unsqueeze(0)
            flowing = step.after(branch.inside(own))
        bias = step(bias.unsqueeze(0), biased=True).squeeze(0)
    return flowing.squeeze(0)


def test_chained_matrices_stay_stochastic_and_lose_rank(lively) -> None:
    net, x = lively(KINDS["post-norm"]), batch()
    chained = list(chained_matrices(net, x, Path.of(0, 1, 0)))
    assert len(chained) == 3
    for matrix in chained:
        assert torch.allclose(matrix.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    sizes = [residual(matrix).max().item() for matrix in chained]
    assert sizes == sorted(sizes, reverse=True)
    skipped = list(chained_matrices(net, x, Path.of(None, 1, None)))
    assert torch.equal(skipped[0], torch.eye(5, dtype=torch.float64).expand(2, 5, 5))
    assert torch.equal(skipped[2], skipped[1])


@kinds
def test_top_paths_are_those_of_brute_force(kind: str, lively) -> None:
    net, x = lively(KINDS[kind]), batch()
    every = list(enumerate_paths(net.spec.layers, net.spec.heads))
    values = dispersion(path_outputs(net, x, every)).norm(dim=-1)
    best = values.sort(descending=True)
    found = top_paths(net, x, count=4)
    assert found.proven
    assert found.values == pytest.approx(best.values[:4].tolist(), rel=1e-9)
    for path, value in zip(found.paths, found.values, strict=True):
        assert values[every.index(path)].item() == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("budget", [4096, 5])
def test_prefixes_continued_one_at_a_time_give_the_same_paths(
    budget: int, lively, monkeypatch
) -> None:
    net, x = lively(KINDS["parallel"]), batch()
    at_once = top_paths(net, x, count=4, budget=budget)
    monkeypatch.setattr("rankscope.core.paths._top._AT_ONCE", 1)
    one_by_one = top_paths(net, x, count=4, budget=budget)
    assert one_by_one.paths == at_once.paths
    assert one_by_one.values == pytest.approx(at_once.values, rel=1e-12)
    assert one_by_one.missed_at_most == pytest.approx(at_once.missed_at_most, rel=1e-12)


def test_little_memory_is_a_short_budget(lively, monkeypatch) -> None:
    net, x = lively(KINDS["parallel"]), batch()
    monkeypatch.setattr("rankscope.core.paths._top._MOST_BYTES", 1)
    assert repr(top_paths(net, x, count=2)) == repr(top_paths(net, x, count=2, budget=2))


@pytest.mark.parametrize(("kind", "budget"), list(zip(KINDS, cycle([2, 5]), strict=False)))
def test_a_short_budget_never_claims_too_much(kind: str, budget: int, lively) -> None:
    net, x = lively(KINDS[kind]), batch()
    every = list(enumerate_paths(net.spec.layers, net.spec.heads))
    values = dispersion(path_outputs(net, x, every)).norm(dim=-1)
    found = top_paths(net, x, count=2, budget=budget)
    found_ids = {every.index(path) for path in found.paths}
    missed = max(value.item() for i, value in enumerate(values) if i not in found_ids)
    assert missed <= max(found.missed_at_most, found.values[-1]) * (1 + 1e-9)
    if found.proven:
        expected = values.sort(descending=True).values[:2].tolist()
        assert found.values == pytest.approx(expected, rel=1e-9)


def test_a_budget_can_be_proven_enough() -> None:
    """With tiny weights skips carry all, and the bound shows it."""
    net = Network.random(
        Spec(3, 2, 8, mlp_ratio=0.0, norm="none", bias=False, init=1e-3), dtype=torch.float64
    )
    found = top_paths(net, batch(), count=1, budget=2)
    assert found.proven
    assert found.paths[0] == Path.of(None, None, None)


MEASURED = torch.tensor([[True, False, True, True, False], [False, True, True, True, True]])


def shares_by_hand(part, whole, kept):
    """Residual in the composite norm at the mean, Frobenius norm, projection, on kept tokens."""
    part, whole = part[kept], whole[kept]

    def composite(rows):
        rest = (rows - rows.mean(0)).abs()
        return float((rest.sum(0).max() * rest.sum(1).max()).sqrt())

    return {
        "residual_share": composite(part) / composite(whole),
        "norm_share": float(part.norm() / whole.norm()),
        "projection": float((part * whole).sum() / whole.square().sum()),
    }


@pytest.mark.parametrize(("kind", "padded"), list(zip(KINDS, cycle([False, True]), strict=False)))
def test_measured_tokens_alone_count_in_the_shares(kind, padded) -> None:
    token_mask = MASK if padded else None
    net, x = Network.random(KINDS[kind], dtype=torch.float64), batch()
    found = path_lengths(net, x, token_mask=token_mask, measured=MEASURED)
    seen = path_lengths(net, x, token_mask=token_mask)
    # The network sees all tokens, measured or not.
    assert torch.equal(found.contributions, seen.contributions)
    assert found.reconstruction_error == seen.reconstruction_error
    last = found.table.filter(layer=net.spec.layers)
    kept = MEASURED if token_mask is None else MEASURED & token_mask
    parts = {**dict(enumerate(found.contributions)), None: found.bias}
    for row in last.iter_rows(named=True):
        sample, part = row["sample"], parts[row["length"]]
        by_hand = shares_by_hand(part[sample], found.output[sample], kept[sample])
        assert row["value"] == pytest.approx(by_hand[row["metric"]], rel=1e-9, abs=1e-12)
    assert found.table.filter(layer=0, length=0)["value"].to_list() == pytest.approx([1.0] * 6)


@pytest.mark.parametrize("token_mask", [None, MASK], ids=["no padding", "padding"])
def test_measured_tokens_alone_count_in_the_shares_of_heads(token_mask) -> None:
    net, x = Network.random(KINDS["pre-norm"], dtype=torch.float64), batch()
    found = head_shares(net, x, token_mask=token_mask, measured=MEASURED)
    kept = MEASURED if token_mask is None else MEASURED & token_mask
    for row in found.table.iter_rows(named=True):
        sample, part = row["sample"], found.contributions[row["layer"] - 1, row["head"]]
        by_hand = shares_by_hand(part[sample], found.output[sample], kept[sample])
        assert row["value"] == pytest.approx(by_hand[row["metric"]], rel=1e-9, abs=1e-12)


def test_measured_everything_is_the_default_and_nothing_is_refused() -> None:
    net, x = Network.random(KINDS["pre-norm"], dtype=torch.float64), batch()
    every = torch.ones(5, dtype=torch.bool)
    assert path_lengths(net, x, measured=every).columns == path_lengths(net, x).columns
    for ask in (path_lengths, head_shares):
        with pytest.raises(InputError, match="measured leaves no token in sample"):
            ask(net, x, measured=~every)
        with pytest.raises(InputError, match="measured without padding leaves no token"):
            ask(net, x, token_mask=MASK, measured=torch.tensor([False] * 4 + [True]))
        with pytest.raises(KindError, match=r"measured is torch\.int64"):
            ask(net, x, measured=every.long())
