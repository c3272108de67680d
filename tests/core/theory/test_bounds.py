"""Bounds as users get them: true, chained rightly, and silent where they do not apply."""

import importlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankscope.core.deep import SplitState, deep_trace
from rankscope.core.masks import Window
from rankscope.core.network import Network, Scores, Spec
from rankscope.core.theory import Bounds, bounds
from rankscope.core.theory._bounds import BOUNDS, MEASURED, Obstacle
from rankscope.core.theory._layer_bounds import (
    SCORE_LIMIT,
    find_best_center,
    head_weights,
    sharp_bound,
)
from rankscope.core.tracing import Provenance, Trace

PURE = {"skip": False, "norm": "none", "init": 0.3}
TEN = math.log(10)


@pytest.fixture
def bench(monkeypatch):
    """The benchmark that draws random networks, as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return importlib.import_module("bounds")


def test_no_random_network_is_above_a_bound_and_broken_bounds_are_caught(bench):
    found = bench.check(200, 5, whole_every=25)
    true = [name for name in found.ratios if "broken" not in name]
    assert {*bench.PROMISED, "MLP, at its center", "sharp, at the mean"} <= set(true)
    assert {name: found.violations(name) for name in true if found.violations(name)} == {}
    for name in ("sharp with tanh(D/8)", "sharp without the sum over queries"):
        assert found.violations(f"broken: {name}") > 30
    assert found.tightness("sharp, at its center")[2] > 0.9  # nothing smaller would be true


def test_networks_made_to_come_close_catch_what_random_ones_do_not(bench):
    ratios = bench.close_calls()
    for name in ("spotlight", "cross"):
        assert ratios[name]["data"] <= 1
        assert ratios[name]["sharp"] == pytest.approx(1.0, abs=2e-3)
        assert ratios[name]["sharp"] <= 1
        assert ratios[name]["data without γ"] > 1
    assert ratios["cross"]["data, heads added after the root"] > 1
    assert ratios["cross"]["sharp, heads added after the root"] > 5


def test_every_layer_and_the_whole_depth(lively, tokens):
    net = lively(Spec(4, 2, 6, mlp_ratio=2.0, **PURE))
    found = bounds(net, 0.05 * tokens(2, 5, 6))
    assert found.applies
    assert found.why_not == ""
    assert [layer.layer for layer in found.layers] == [1, 2, 3, 4]
    for before, after in zip(found.layers, found.layers[1:], strict=False):
        assert torch.equal(before.log10_residual, after.log10_input_residual)
    for layer in found.layers:
        for name in BOUNDS:
            assert bool((getattr(layer, name) >= layer.log10_residual).all()), name
        # a data bound chained is no better than one that knows this layer's true input
        assert bool((layer.log10_depth_data_bound >= layer.log10_data_bound - 1e-12).all())
        assert bool((layer.gamma >= 1).all())
        assert bool((layer.gamma <= math.sqrt(5)).all())
    assert torch.equal(found.log10_depth_bound, found.layers[-1].log10_depth_bound)
    assert float(found.layers[-1].log10_residual.max()) < -60  # far below what float64 could see


def test_the_theorem_is_told_from_its_factors(lively, tokens):
    """``(4γβλ·scale)^{(3^L − 1)/2} ‖res‖^{3^L}`` from the figures of the answer itself."""
    net = lively(Spec(3, 2, 4, mlp_ratio=2.0, **PURE), seed=3)
    found = bounds(net, 0.02 * tokens(1, 4, 4))
    factor = math.log10(4 * net.spec.score_scale) + max(
        math.log10(layer.gamma.item() * layer.beta.item() * layer.lipschitz.item())
        for layer in found.layers
    )
    want = (3**3 - 1) / 2 * factor + 3**3 * found.layers[0].log10_input_residual.item()
    got = found.log10_depth_bound.item()
    assert want - 1e-9 <= got <= want + 3 * 13 * 1e-4 / TEN  # the centers' slack, no more
    first = found.layers[0]
    one = (
        math.log10(4 * net.spec.score_scale) + (first.gamma * first.beta * first.lipschitz).log10()
    )
    torch.testing.assert_close(first.log10_depth_bound, first.log10_a_priori_bound)
    torch.testing.assert_close(first.log10_a_priori_bound, one + 3 * first.log10_input_residual)
    assert first.informative.tolist() == [float(one) + 2 * first.log10_input_residual.item() < 0]


def test_informative_means_less_than_the_input_not_less_than_one(lively, tokens):
    net, x = lively(Spec(1, 2, 4, mlp_ratio=0.0, **PURE)), tokens(1, 5, 4)
    first = bounds(net, 0.01 * x).layers[0]
    factor = first.log10_a_priori_bound - 3 * first.log10_input_residual
    assert factor > 0
    for share, informative in ((2.5, False), (1.8, True)):  # the criterion is at half the factor
        size = 0.01 * 10 ** float(-factor / share - first.log10_input_residual)
        layer = bounds(net, size * x).layers[0]
        assert layer.log10_a_priori_bound < 0
        assert layer.informative.tolist() == [informative]


def test_chains_pay_for_centers_that_are_not_the_best(lively, tokens, monkeypatch):
    """As if a center e times better might exist in every layer: the first one need not care."""
    net, x = lively(Spec(3, 2, 4, mlp_ratio=0.0, **PURE)), 0.02 * tokens(1, 4, 4)
    known = bounds(net, x).layers
    module = importlib.import_module("rankscope.core.theory._layer_bounds")
    monkeypatch.setattr(
        module,
        "find_best_center",
        lambda *state: find_best_center(*state)._replace(slack=torch.ones(1)),
    )
    doubtful = bounds(net, x).layers
    factors = [
        math.log(4 * net.spec.score_scale * layer.gamma.item() * layer.beta.item())
        + 3 * (layer.layer > 1)
        for layer in known
    ]
    start = known[0].log10_input_residual.item() * TEN
    for depth, (one, other) in enumerate(zip(known, doubtful, strict=True), start=1):
        want = (3**depth - 1) / 2 * max(factors[:depth]) + 3**depth * start
        assert other.log10_depth_bound.item() * TEN == pytest.approx(want)
        paid = (other.log10_depth_data_bound - one.log10_depth_data_bound).item() * TEN
        assert paid == pytest.approx(depth - 1, abs=1e-3)
        assert torch.equal(one.log10_sharp_bound, other.log10_sharp_bound)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"skip": True}, "skip"),
        ({"skip": 0.1}, "skip"),
        ({"norm": "layer"}, "norm"),
        ({"parallel": True}, "parallel MLP"),
        ({"mask": "causal"}, "mask causal"),
        ({"layer_masks": ["full", Window(before=1, after=1)]}, "window"),
    ],
)
def test_out_of_reach_is_said_and_no_number_given(lively, tokens, options, why):
    net = lively(Spec(2, 2, 4, **{**PURE, **options}))
    found = bounds(net, 0.1 * tokens(2, 5, 4))
    assert not found.applies
    assert why in found.why_not
    assert any(why in sentence for sentence in found.sentences)
    last = found.layers[-1]
    assert not last.applies
    assert all(bool(getattr(last, name).isnan().all()) for name in BOUNDS)
    assert bool(last.log10_residual.isfinite().all())
    assert not bool(last.informative.any())
    first = found.layers[0]
    assert first.applies == ("layer_masks" in options)
    assert bool(first.log10_data_bound.isfinite().all()) == first.applies


def test_scores_other_than_products_are_out_of_reach(lively, tokens, monkeypatch):
    class Shifted(Scores):
        def bias(self, query, key, positions):
            del query, key
            return -(positions[:, :, None] - positions[:, None, :]).abs()[:, None].double()

    net = lively(Spec(1, 2, 4, mlp_ratio=0.0, **PURE))
    net.blocks[0].attention.scores = Shifted()
    # Scaled arithmetic need not know such scores; the reason must come out all the same.
    module = importlib.import_module("rankscope.core.theory._bounds")
    monkeypatch.setattr(module, "deep_trace", plain_trace)
    assert "Shifted" in bounds(net, tokens(1, 4, 4)).why_not


def plain_trace(network, x, *, token_mask, on_state):
    for state in [x, *network.states(x, token_mask)]:
        on_state(SplitState.of(state.detach(), token_mask))
    return Trace({"layer": [], "sample": [], "metric": [], "value": []}, Provenance("plain"))


def test_a_condition_that_does_not_hold_is_said_for_its_samples(lively, tokens):
    net = lively(Spec(1, 2, 4, mlp_ratio=0.0, **PURE))
    x = tokens(2, 5, 4)
    x[1] *= 30
    found = bounds(net, 0.3 * x)
    layer = found.layers[0]
    assert layer.applies
    assert layer.condition.tolist() == [True, False]
    assert (
        layer.log10_score_difference[1] > math.log10(SCORE_LIMIT) > layer.log10_score_difference[0]
    )
    for name in ("log10_a_priori_bound", "log10_data_bound", "log10_depth_bound"):
        assert getattr(layer, name).isnan().tolist() == [False, True]
    assert bool((layer.log10_sharp_bound >= layer.log10_residual).all())
    assert not found.applies
    assert "1 of 2 samples" in found.why_not
    assert any("1.2564" in sentence for sentence in found.sentences)


def test_a_gated_mlp_has_data_bounds_only(lively, tokens):
    net = lively(Spec(3, 2, 4, mlp_ratio=2.0, gated=True, activation="silu", **PURE))
    found = bounds(net, 0.1 * tokens(2, 5, 4))
    assert "gated" in found.why_not
    for layer in found.layers:
        assert layer.applies
        for name in ("log10_data_bound", "log10_sharp_bound", "log10_depth_data_bound"):
            assert bool((getattr(layer, name) >= layer.log10_residual).all())
        for name in ("log10_a_priori_bound", "log10_depth_bound", "log10_depth_input_bound"):
            assert bool(getattr(layer, name).isnan().all())


def test_an_mlp_multiplies_bounds_by_its_gain(lively, tokens):
    """The identity in its place, with its skip of ½, is a factor 1.5."""
    net = lively(
        Spec(
            1,
            2,
            4,
            mlp_ratio=2.0,
            mlp_as="identity",
            norm="none",
            init=0.3,
            attention_skip=False,
            mlp_skip=0.5,
        )
    )
    x = 0.1 * tokens(1, 5, 4)
    with_it, bare = bounds(net, x).layers[0], bounds(net.without("mlp"), x).layers[0]
    assert with_it.lipschitz.item() == pytest.approx(1.5)
    for name in BOUNDS:
        raised = getattr(with_it, name) - getattr(bare, name)
        assert raised.item() == pytest.approx(math.log10(1.5))


def test_padding_and_single_precision_change_nothing(lively, tokens):
    net, x = lively(Spec(2, 2, 4, **PURE)), 0.1 * tokens(1, 5, 4)
    plain = bounds(net, x)
    padded = torch.cat([x, torch.full((1, 3, 4), math.nan).double()], 1)
    masked = bounds(net, padded, token_mask=torch.tensor([[True] * 5 + [False] * 3]))
    for name in (*MEASURED, *BOUNDS):
        for one, other in zip(plain.layers, masked.layers, strict=True):
            torch.testing.assert_close(
                getattr(one, name), getattr(other, name), rtol=1e-6, atol=1e-6
            )
    single = bounds(net.float(), x.float())
    torch.testing.assert_close(single.log10_depth_bound, plain.log10_depth_bound, rtol=1e-5, atol=0)


def test_one_token_and_equal_tokens_have_nothing_left(lively, tokens):
    net = lively(Spec(2, 2, 4, mlp_ratio=0.0, **PURE))
    for x in (tokens(1, 1, 4), tokens(1, 1, 4).expand(1, 3, 4)):
        for layer in bounds(net, x).layers:
            assert layer.log10_residual.tolist() == [-math.inf]
            for name in BOUNDS:
                assert getattr(layer, name).tolist() == [-math.inf], name


def test_sharp_bounds_are_reported_as_computed(lively, tokens):
    net, x = lively(Spec(1, 2, 4, mlp_ratio=0.0, **PURE)), tokens(1, 5, 4)
    state = SplitState.of(x)
    at = find_best_center(state.x, state.mantissa, state.log_scale).tokens
    want = sharp_bound(head_weights(net.blocks[0].attention), at).composite / TEN
    torch.testing.assert_close(bounds(net, x).layers[0].log10_sharp_bound, want)


def test_networks_from_matrices_are_covered(tokens):
    matrix = 0.1 * tokens(3, 1, 4, 4)
    assert bounds(Network.from_matrices(matrix, matrix, head_width=4), tokens(1, 5, 4)).applies


def test_the_table_has_a_row_for_all_and_null_where_nothing_is_known(lively, tokens):
    net = lively(Spec(2, 2, 4, **{**PURE, "layer_masks": ["full", "causal"]}))
    table = bounds(net, 0.1 * tokens(3, 5, 4)).table
    assert table.columns == ["layer", "sample", "metric", "value"]
    assert table.height == 2 * 3 * (len(MEASURED) + len(BOUNDS) + 1)
    unknown = table.filter(table["value"].is_null())
    assert unknown["layer"].unique().to_list() == [2]
    assert set(unknown["metric"]) == {*BOUNDS, *MEASURED[2:], "condition"}
    assert table["value"].is_nan().sum() == 0


def test_sentences_say_what_was_measured_and_its_bounds(lively, tokens):
    net = lively(Spec(3, 1, 4, mlp_ratio=0.0, **PURE))
    words = bounds(net, 0.01 * tokens(2, 5, 4)).sentences
    assert len(words) == 6
    assert words[0].startswith("γ ")
    assert "shrinks in layers 1, 2, 3" in words[0]
    assert "residual is 10^−" in words[1]
    assert all("at most 10^−" in line for line in words[2:])
    assert not any("says nothing" in line for line in words)
    assert "theorem of Dong et al. 2021" in words[2]
    loud = bounds(net, 3 * tokens(1, 5, 4)).sentences
    assert any("differ by at most 1.2564" in line for line in loud)
    assert any("is not informative in 1 of 1 samples" in line for line in loud)


def test_doubts_about_residuals_are_told_and_marked():
    """Tokens saturate on one of them: what is between them is not kept."""
    spec = Spec.pure_attention(4, 1, 4, init=2.0, mask="causal")
    net = Network.random(spec, seed=5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    stark = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    found = bounds(net, torch.cat([1e-3 * stark, stark]))
    deep = deep_trace(net, torch.cat([1e-3 * stark, stark]))
    note = deep.provenance.notes["doubt"]
    assert found.sentences[-1] == f"Note: {note}."
    assert f"Note: {note}." in found._repr_html_()
    assert repr(found).endswith("; residuals in doubt)")
    table = found.table
    doubted = deep.table.filter("doubt", metric="log10_residual").select("layer", "sample").rows()
    assert doubted
    own = table.filter("doubt", metric="log10_residual").select("layer", "sample").rows()
    assert sorted(own) == sorted(doubted)
    of_input = table.filter("doubt", metric="log10_input_residual").select("layer", "sample").rows()
    assert sorted(of_input) == sorted((layer + 1, s) for layer, s in doubted if layer < 4)
    assert table.filter("doubt", metric="log10_depth_input_bound").is_empty()
    calm = bounds(net, 1e-3 * stark)
    assert calm.doubts == ()
    assert "doubt" not in calm.table.columns
    assert "doubt" not in repr(calm) + calm._repr_html_() + "".join(calm.sentences)


@pytest.mark.parametrize(("layers", "samples"), [(1, 1), (6, 8)])
def test_a_short_repr(lively, tokens, layers, samples):
    found = bounds(lively(Spec(layers, 1, 4, mlp_ratio=0.0, **PURE)), 0.01 * tokens(samples, 5, 4))
    size = "1 layer, 1 sample" if layers == 1 else f"{layers} layers, {samples} samples"
    assert f"Bounds({size}; residual 0." in repr(found)
    assert "by Dong et al. 2021)" in repr(found)
    assert len(repr(found)) < 300
    assert len(repr(found.layers[0])) < 300
    assert repr(found.layers[0]).startswith("LayerBounds(layer 1; residual ")


def test_a_repr_says_briefly_why_nothing_applies(lively, tokens):
    net, x = lively(Spec(2, 2, 4, **PURE | {"skip": True})), 0.1 * tokens(2, 5, 4)
    found = bounds(net, x)
    assert "does not apply (layer 1: a skip" in repr(found)
    assert "no bound: a skip" in repr(found.layers[0])
    long_words = Obstacle("mask", "word " * 500)
    long = replace(found.layers[0], obstacle=long_words, obstacle_a_priori=long_words)
    for short in (repr(Bounds((long,))), repr(long)):
        assert len(short) < 600
        assert "…" in short


def test_a_table_for_notebooks(lively, tokens):
    (one,) = bounds(lively(Spec(1, 1, 4, mlp_ratio=0.0, **PURE)), 0.01 * tokens(2, 5, 4)).layers
    html = Bounds(tuple(replace(one, layer=layer) for layer in range(1, 41)))._repr_html_()
    assert "<b>Residual and its bounds (maximum over 2 samples" in html
    assert "Dong et al. 2021, all layers" in html
    assert html.count("<tr>") == html.count("</tr>") == 1 + 12 + 1
    assert ">40</td>" in html
    assert ">20</td>" not in html
    assert "does not apply" not in html
    assert "http" not in html
    assert len(html) < 10_000


def test_a_table_for_notebooks_escapes_what_it_shows(lively, tokens):
    net = lively(Spec(2, 2, 4, **{**PURE, "layer_masks": ["full", "causal"]}))
    found = bounds(net, 0.1 * tokens(3, 5, 4))
    script = Obstacle("norm", "<script>alert(1)</script>")
    odd = replace(found.layers[1], obstacle_a_priori=script)
    html = Bounds((found.layers[0], odd))._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert html.count(">–</td>") == 6  # the second layer has no bound
