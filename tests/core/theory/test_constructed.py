"""Claim 3.1 of Dong et al. 2021: a lower bound for all layers, from what is not written to."""

import math

import mpmath
import pytest
import torch

from rankscope.core.masks import Full
from rankscope.core.metrics import matrix_norm, residual
from rankscope.core.network import Network, Visibility
from rankscope.core.theory import (
    TwoHeadLayer,
    _constructed,
    bounds,
    departure,
    expanding_network,
    residual_preserving_network,
    worst_departure_layer,
)
from rankscope.core.theory._constructed import Grouped, least_residual
from rankscope.core.theory._layer_bounds import HeadWeights, head_weights, log_paper_beta
from rankscope.errors import InputError, KindError


def last(net, x):
    return net(x).detach()


@pytest.mark.parametrize("strength", [0.0, 0.3, 5.0])
@pytest.mark.parametrize(
    ("norm", "center"),
    [
        ("composite", "mean"),
        ("composite", "optimal"),
        ("one", "median"),
        ("inf", "mean"),
        ("fro", "mean"),
        ("spectral", "mean"),
    ],
)
def test_the_kept_features_bound_every_layer_from_below(tokens, strength, norm, center):
    net = residual_preserving_network(40, 5, kept=3, heads=2, strength=strength, values=0.3, seed=4)
    x = tokens(3, 7, 5)
    floor = residual(x[..., :3], norm=norm, center=center, certified=True).lower_bound
    if center == "mean":
        floor = residual(x[..., :3], norm=norm, center=center) * (1 - 1e-12)
    for state in list(net.states(x))[:: 1 if center == "mean" else 13]:
        assert bool((residual(state, norm=norm, center=center) >= floor).all())


def test_the_other_features_are_written_to(tokens):
    net, x = residual_preserving_network(3, 5, kept=3), tokens(2, 7, 5)
    y = last(net, x)
    assert torch.equal(y[..., :3], x[..., :3])
    assert float((y - x)[..., 3:].abs().min()) > 1e-6


def test_with_room_to_write_the_whole_residual_is_kept(tokens):
    net, x = residual_preserving_network(30, 6, kept=3, values=0.5, seed=2), tokens(3, 5, 6)
    x[..., 3:] = 0.7
    assert bool((residual(last(net, x)) >= residual(x)).all())


def test_uniform_attention_changes_no_residual(tokens):
    net, x = (
        residual_preserving_network(30, 4, kept=0, strength=0.0, values=0.2, seed=3),
        tokens(3, 5, 4),
    )
    y = last(net, x)
    assert float((y - x).abs().min()) > 1e-6
    torch.testing.assert_close(residual(y), residual(x), rtol=1e-10, atol=0)


def test_without_the_skip_the_same_weights_collapse(tokens):
    net, x = residual_preserving_network(8, 5, kept=3, strength=0.3), tokens(2, 7, 5)
    gone = residual(last(net.without("skip"), x)) / residual(x[..., :3])
    assert float(gone.max()) < 1e-8


def test_the_proof_needs_the_columns_that_are_not_written():
    """Write −0.9 times what each token attends to, which is itself, and the residual falls."""
    x = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)
    matrix = torch.full((1, 1, 1, 1), 1.0, dtype=torch.float64)
    breaking = Network.from_matrices(8 * matrix, -0.9 * matrix, head_width=1, skip=True)
    assert float(residual(last(breaking, x)) / residual(x)) < 0.2


def test_different_parameters_are_different_networks(tokens):
    x = tokens(1, 5, 4)
    outputs = [
        last(residual_preserving_network(2, 4, kept=2, strength=s, values=v, seed=d), x)
        for s, v, d in [(1.0, 1.0, 0), (1.001, 1.0, 0), (1.0, 1.001, 0), (1.0, 1.0, 1)]
    ]
    for i, one in enumerate(outputs):
        for other in outputs[:i]:
            assert not torch.allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"kept": 5}, InputError, "kept=5 is out of range; expected 0 to 4"),
        ({"kept": -1}, InputError, "kept=-1 is out of range"),
        ({"kept": True}, KindError, "kept=True is a bool, expected a whole number"),
        ({"kept": 1.0}, KindError, r"kept=1\.0 is a float"),
        ({"kept": 1, "strength": float("nan")}, InputError, "strength=nan is out of range"),
        ({"kept": 1, "values": float("inf")}, InputError, "values=inf is out of range"),
    ],
)
def test_bad_parameters_are_answered_with_a_sentence(wrong, error, words):
    with pytest.raises(error, match=words):
        residual_preserving_network(2, 4, **wrong)


@pytest.mark.parametrize("beta", [1.0, 1e-3])
def test_every_layer_keeps_the_order_of_each_column_and_brings_no_two_entries_closer(tokens, beta):
    x = tokens(3, 7, 4)
    network = expanding_network(6, 4, beta=beta, strength=2.0)
    for after in network.states(x):
        old, order = x.sort(1)
        new = after.gather(1, order)
        assert bool((new.diff(dim=1) > old.diff(dim=1)).all())
        x = after


@pytest.mark.parametrize("norm", ["one", "inf", "composite", "fro"])
def test_no_layer_lowers_the_residual_at_the_best_center(tokens, norm):
    """The least it may be after a layer against the most it may have been before it."""
    x = tokens(4, 6, 3)
    for after in expanding_network(5, 3, beta=0.3).states(x):
        before, now = (
            residual(each, norm=norm, center="optimal", certified=True, tolerance=1e-6)
            for each in (x, after)
        )
        assert bool((now.lower_bound >= before.value).all())
        x = after


def test_an_expansion_is_more_than_a_larger_residual(tokens):
    """Negative values contract: the tests above can fail."""
    x = tokens(4, 6, 3)
    network = expanding_network(1, 3, beta=0.3)
    with torch.no_grad():
        network.blocks[0].attention.value.weight.neg_()
    assert bool((residual(network(x), norm="fro") < residual(x, norm="fro")).all())


def test_beta_is_the_largest_product_of_weights_and_attention_sees_the_tokens(tokens):
    beta, strength = 1e-5, 3.0
    network = expanding_network(4, 5, beta=beta, strength=strength, seed=2)
    for block in network.blocks:
        weights = head_weights(block.attention)
        largest = (log_paper_beta(weights).exp() / 5).item()
        assert beta / 4 <= largest <= beta
        assert strength / 2 <= weights.query_key.abs().max().item() <= strength
    network.blocks[0].attention.value.weight.data *= 1e5
    x = tokens(1, 4, 5)
    added = (network.blocks[0](x, Visibility.of(Full(), 4, None, torch.device("cpu"))) - x)[0]
    assert added.std(0).min() > 1e-3  # tokens receive different rows


def test_what_is_no_size_is_refused():
    for wrong in ({"beta": 0.0}, {"beta": -1.0}, {"beta": 1.0, "strength": float("inf")}):
        with pytest.raises(InputError, match="is out of range"):
            expanding_network(1, 2, **wrong)
    assert expanding_network(1, 2, beta=1.0, seed=1).spec.skip == 1.0


@pytest.mark.parametrize(("width", "tokens"), [(40, 12), (9, 30), (200, 5)])
def test_groups_give_what_whole_matrices_give(width, tokens):
    """Every number of the layer from the dense network, by functions that know no groups."""
    made = TwoHeadLayer(width, tokens)
    network, x = made.dense()
    (layer,) = bounds(network, x).layers
    assert layer.condition.all()
    assert 10 ** layer.log10_input_residual.item() == pytest.approx(made.rest.composite, rel=1e-6)
    assert layer.gamma.item() == pytest.approx(made.gamma) == 1.0
    assert 10 ** layer.log10_score_difference.item() == pytest.approx(0.05)
    assert 10 ** layer.log10_a_priori_bound.item() == pytest.approx(made.proved_bound, rel=1e-6)
    ratio = (layer.paper_beta / layer.beta).item()
    assert made.paper_bound / made.proved_bound == pytest.approx(ratio)
    best = residual(network(x), center="optimal", certified=True, tolerance=1e-6)
    assert best.lower_bound.item() * (1 - 1e-9) <= made.residual <= best.value.item() * (1 + 1e-9)


def test_tokens_that_are_alike_are_counted_in_every_softmax(monkeypatch):
    """With a weak preference for tokens 1 and 2 the others have weight, too."""
    monkeypatch.setattr(_constructed, "_PREFERENCE", 0.5)
    made = TwoHeadLayer(12, 9)
    network, x = made.dense()
    y, rows = network(x)[0].detach(), made.output.dense()
    torch.testing.assert_close(y - y[-1], rows - rows[-1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("width", "ratio"), [(10_000, 0.862), (20_000, 1.007), (30_000, 1.100)])
def test_the_ratio_agrees_with_its_formula_in_other_arithmetic(width, ratio):
    """``v = 2bδ(e_o + 1/√d)``, ``δ = ½ tanh(D/2)``, the center at its first corner."""
    with mpmath.workdps(30):
        d, b, n, spread = mpmath.mpf(width), mpmath.mpf(width - 3), 1500, mpmath.mpf("0.05")
        size = 2 * b * mpmath.tanh(spread / 2) / 2
        tall, flat = size * (1 + 1 / mpmath.sqrt(d)), size / mpmath.sqrt(d)
        rows = tall + (d - 1) * flat
        lowest = tall * (rows - (d - 1) * (tall - flat) / (n - 2))
        kappa = spread / (4 * b / mpmath.sqrt(2))
        bound = 4 * 2 * kappa * mpmath.sqrt(b) * (2 * (b + 2)) ** mpmath.mpf(1.5) / mpmath.sqrt(2)
        want = float(mpmath.sqrt(lowest) / bound)
    made = TwoHeadLayer(width, n)
    assert made.residual / made.paper_bound == pytest.approx(want, rel=1e-6)
    assert made.residual / made.paper_bound == pytest.approx(ratio, abs=5e-4)


def test_the_corrected_constant_is_never_exceeded_and_the_papers_grows_past_one():
    ratios = []
    for width in (10, 100, 10_000, 1_000_000):
        made = TwoHeadLayer(width, width)
        assert made.residual < made.proved_bound / math.sqrt(32)
        ratios.append(made.residual / made.paper_bound)
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(2.796, abs=5e-4)


@pytest.mark.parametrize("tokens", [3, 4, 7, 60])
@pytest.mark.parametrize("counts", [(1, 1, 1), (1, 5, 30), (2, 1, 9)])
def test_the_best_center_of_one_token_among_equal_ones(counts, tokens):
    row = torch.tensor([-3.0, 0.5, 0.125]).double()
    groups = torch.tensor(counts).double()
    x = torch.zeros(tokens, sum(counts), dtype=torch.float64)
    x[0] = row.repeat_interleave(groups.long())
    best = residual(x, center="optimal", certified=True, tolerance=1e-7)
    found = least_residual(row, groups, tokens)
    assert best.lower_bound.item() * (1 - 1e-9) <= found <= best.value.item() * (1 + 1e-9)


def test_grouped_matrices_are_matrices():
    rows, columns, inner = (torch.tensor(each).double() for each in ([2, 1], [1, 3], [4, 1, 2]))
    left = Grouped(torch.tensor([[1.0, -2, 0], [3, 0.5, 4]]).double(), rows, inner)
    right = Grouped(torch.tensor([[1.0, -2], [3, 0.5], [0, 7]]).double(), inner, columns)
    torch.testing.assert_close(left.times(right).dense(), left.dense() @ right.dense())
    for name in ("one", "inf", "composite"):
        assert getattr(left, name) == pytest.approx(matrix_norm(left.dense(), name).item())


def test_sizes_without_room_for_the_construction_are_refused():
    for size in ((4, 10), (10, 4)):
        with pytest.raises(InputError, match="out of range"):
            TwoHeadLayer(*size)


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0])
@pytest.mark.parametrize("causal", [False, True])
def test_departures_agree_with_forty_digits(size: float, causal: bool) -> None:
    """From the logits of whole tokens, in which nothing is taken apart."""
    generator = torch.Generator().manual_seed(3)
    rest, center, bias, matrix = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((4, 3), (3,), (1, 3), (1, 3, 3))
    )
    rest = size * rest
    weights = HeadWeights(matrix, matrix, bias, torch.zeros(3).double(), 0.7)
    visible = torch.ones(4, 4).tril().bool() if causal else None
    found = departure(weights, rest, center, visible)
    with mpmath.workdps(40):
        w, r, c, b = (mpmath.matrix(each.tolist()) for each in (matrix[0], rest, center, bias[0]))
        exact = mpmath.mpf(0.7)
        for i in range(4):
            keys = range(i + 1) if causal else range(4)
            query = (c + r[i, :].T).T * w + b.T
            at_center = c.T * w + b.T
            p, q = (
                [mpmath.exp(exact * (each * (c + r[j, :].T))[0]) for j in keys]
                for each in (query, at_center)
            )
            own = [exact * (r[i, :] * w * r[j, :].T)[0] for j in keys]
            assert found.spread[0, i].item() == pytest.approx(float(max(own) - min(own)))
            for j in keys:
                want = (p[j] / mpmath.fsum(p)) / (q[j] / mpmath.fsum(q)) - 1
                got = found.relative[0, i, j].item()
                assert got == pytest.approx(float(want), rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("spread", [0.01, 1.0, 2.0])
def test_the_worst_layer_is_as_bad_as_can_be(spread: float) -> None:
    found = departure(*worst_departure_layer(spread, 40.0))
    assert found.spread.max().item() == pytest.approx(spread)
    assert found.relative.max().item() == pytest.approx(math.expm1(spread))
    some = departure(*worst_departure_layer(spread, 0.0))  # a key of weight 1/3
    assert some.relative.max().item() == pytest.approx(
        math.exp(spread) / (1 + math.expm1(spread) / 3) - 1
    )
