"""Studies and claims about depth, on networks small enough for tests."""

import math
from dataclasses import replace
from itertools import pairwise

import polars as pl
import pytest
import torch

from rankscope.errors import InputError
from rankscope.experiments import bound_study, d2, d3, d4, deep_study, n1, w1, w4, widths
from rankscope.experiments.laws import Law, medians
from rankscope.experiments.mask_study import layers_to, mask_study
from rankscope.masks import from_edges
from rankscope.metrics import residual
from rankscope.network import Network, Spec

PURE = Spec(6, 2, 8, mlp_ratio=0.0, norm="none", skip=False, init="lecun")


@pytest.fixture
def small(monkeypatch):
    """Fewer layers and networks than the claims take."""
    monkeypatch.setattr(d2, "LAYERS", 6)
    monkeypatch.setattr(d2, "HEADS", (1, 2))
    monkeypatch.setattr(d2, "INITS", ("lecun",))
    monkeypatch.setattr(d3, "LAYERS", 6)
    monkeypatch.setattr(d3, "GAINS", (0.5, 2.0))
    monkeypatch.setattr(d4, "LAYERS", 6)
    monkeypatch.setattr(d4, "STRENGTHS", (0.0, 1.0))
    monkeypatch.setattr(n1, "LAYERS", 20)
    monkeypatch.setattr(w1, "LAYERS", 24)
    monkeypatch.setattr(w1, "WINDOWS", ("window:16", "window:4"))
    monkeypatch.setattr(w1, "OTHERS", ("causal",))
    monkeypatch.setattr(w1, "WITHOUT_CENTER", ("block:16",))
    monkeypatch.setattr(w4, "TOKENS", (2, 3))
    monkeypatch.setattr(w4, "SEARCHED", (2,))
    monkeypatch.setattr(w4, "DRAWS", 40)


@pytest.mark.parametrize(
    ("run", "module"),
    [(d2.d2, d2), (d3.d3, d3), (d4.d4, d4), (n1.n1, n1), (w1.w1, w1), (w4.w4, w4)],
)
@pytest.mark.usefixtures("small")
def test_the_claims_hold_and_report_every_step(run, module):
    calls = []
    checked = run(on_network=lambda: calls.append(1))
    assert checked.verdict == "holds", checked.reasons
    assert len(calls) == module.steps()
    assert checked.id.lower() == module.__name__.rsplit(".", 1)[-1]
    assert checked.metric in checked.summary["metric"].to_list()


@pytest.mark.usefixtures("small")
def test_w1_depends_where_a_larger_radius_of_another_family_is_faster(monkeypatch):
    monkeypatch.setattr(w1, "LAYERS", 40)
    # Both of radius 12, and one of them halves it in the end.
    monkeypatch.setattr(w1, "OTHERS", ("causal-window:4", "window:2"))
    checked = w1.w1()
    assert checked.verdict == "depends"
    told = checked.reasons
    assert told[0].startswith("4 of 4 masks with a center collapse exponentially; 1 of 1 without")
    assert told[1] == (
        "Radius and rate, two-sided windows: in 1 of 1 pairs of different radius the larger one is "
        "slower."
    )
    assert told[2].startswith("Radius and rate, all masks with a center: in 3 of 5 pairs")
    assert "against it most clearly window(-4, +0), radius 12, × 0.6" in told[2]
    assert "beside window(-4, +4), radius 6" in told[2]
    assert told[3].startswith("So the radius orders masks of one family")
    assert "1 head, width 64, 40 layers" in checked.provenance["spec"]


@pytest.mark.usefixtures("small")
def test_d2_fails_where_nothing_is_cubic(monkeypatch):
    def causal(heads, init, seed):
        spec = Spec(6, heads, 64, mlp_ratio=0.0, norm="none", skip=False, init=init, mask="causal")
        return Network.random(spec, seed=seed)

    monkeypatch.setattr(d2, "_network", causal)
    assert d2.d2().verdict == "fails"


@pytest.mark.usefixtures("small")
def test_d2_fails_where_a_bound_is_broken(monkeypatch):
    monkeypatch.setattr(d2, "_above", lambda found: (1, len(found.layers)))
    assert d2.d2().verdict == "fails"


@pytest.mark.usefixtures("small")
def test_d4_fails_for_networks_that_lose_what_they_should_keep(monkeypatch):
    true = d4._network

    def shrinking(strength, seed):
        network = true(strength, seed)
        return network._variant(replace(network.spec, skip=0.5))

    monkeypatch.setattr(d4, "_network", shrinking)
    assert d4.d4().verdict != "holds"


@pytest.mark.usefixtures("small")
def test_w4_says_which_equilibria_are_stable(monkeypatch):
    checked = w4.w4()
    told = " ".join(checked.reasons)
    assert "all unstable, spectral radius 16 to 16" in told  # growth to the power of n − 1
    assert "(stable, rank 2)" in told
    monkeypatch.setattr(w4, "_EQUAL", 0.0)  # nothing is equal to the last digit and below
    assert w4.w4().verdict == "fails"


@pytest.mark.usefixtures("small")
def test_n1_fails_where_a_pairwise_score_is_none(monkeypatch):
    monkeypatch.setattr(n1, "_PAIRWISE", {"called pairwise": "dot"})
    monkeypatch.setattr(n1, "_MASKED", {})
    assert n1.n1().verdict == "depends"


def test_a_deep_study_shows_all_three_formats(tokens):
    network = Network.random(PURE, seed=3)
    calls = []
    x = tokens(3, 5, 8).float()
    found = deep_study.deep_study(network, x, batch_size=2, on_batch=lambda: calls.append(1))
    assert len(calls) == deep_study.passes(2)
    curves = {
        name: medians(found.summary, "log10_residual", variant=name)
        for name in ("scaled", "float64", "float32")
    }
    plain = [
        residual(state).log10().median().item() for state in network.double().states(x.double())
    ]
    assert curves["float64"][1:] == pytest.approx(plain)
    assert curves["scaled"][:3] == pytest.approx(curves["float64"][:3], abs=1e-6)
    assert curves["scaled"][-1] < -100
    assert curves["float64"][-1] > -40 or curves["float64"][-1] == -math.inf  # bit for bit equal
    assert "doubly exponential" in found.sentences[0]
    assert any(sentence.startswith("In float32") for sentence in found.sentences)


def test_a_study_with_skips_says_that_nothing_collapses(lively, tokens):
    found = deep_study.deep_study(lively(Spec(8, 2, 8)), tokens(2, 5, 8))
    assert "no collapse" in found.sentences[0]
    assert "follows it to the last layer" in found.sentences[1]


def test_width_study_finds_the_power_of_the_initialisation():
    """C goes like the product of four weight matrices: the fourth power of their scale."""
    found = widths.width_study(sweeps={"init_scale": (0.125, 0.25)}, seeds=2)
    settings = found.summary.sort("setting")["mean"].to_list()
    assert (settings[1] - settings[0]) / math.log10(2) == pytest.approx(4, abs=0.2)
    assert len(found.table) == 4 == widths.cases({"init_scale": (0.125, 0.25)}, 2)
    with pytest.raises(InputError, match="nonsense"):
        widths.width_study(sweeps={"nonsense": (1,)})


def test_a_bound_study_keeps_the_measured_below_its_bounds(tokens):
    network = Network.random(Spec(3, 2, 8, mlp_ratio=0.0, norm="none", skip=False, init=0.1))
    found = bound_study.bound_study(network.double(), tokens(1, 5, 8))
    rows = found.table.filter(pl.col("metric") == "log10_residual")
    measured = rows.filter(pl.col("variant") == bound_study.MEASURED)
    assert measured["layer"].to_list() == [0, 1, 2, 3]
    for name in set(bound_study.CURVES.values()) - {bound_study.MEASURED}:
        bound = rows.filter(pl.col("variant") == name)
        both = measured.join(bound, on=["layer", "sample"])
        assert len(both) == 3
        assert (both["value"] <= both["value_right"]).all()
    assert found.sentences


def test_masks_side_by_side(tokens):
    network = Network.random(PURE, seed=1, dtype=torch.float64)
    x = tokens(2, 16, 8)
    found = mask_study(network, x, masks=["full", "window:2", "block:8"], depth=9)
    names = found.table["variant"].unique(maintain_order=True).to_list()
    assert names == ["full", "window(-2, +2)", "block(8)"]
    depths = found.table.filter(pl.col("metric") == "log10_relative_residual")
    assert depths["layer"].max() == 9
    told = " ".join(found.sentences)
    assert "block(8) does not collapse: its graph has no center but 2 closed classes" in told
    assert "radius 4, diameter 8" in told
    assert "to lose what full loses in 2" in told
    # The product of the layers' matrices bounds what is left of any difference.
    product = medians(found.summary, "log10_product_ergodicity", variant="window(-2, +2)")
    assert all(a >= b - 1e-12 for a, b in pairwise(product))
    assert product[-1] < -0.01
    weights = found.table.filter(
        (pl.col("metric") == "perron_weight") & (pl.col("variant") == "full")
    )
    assert weights["value"].sum() == pytest.approx(1)


def test_masks_are_compared_on_real_tokens_only(tokens):
    network = Network.random(PURE, seed=1, dtype=torch.float64)
    x = tokens(1, 6, 8)
    mask = torch.tensor([[False, True, True, True, True, False]])
    one = mask_study(network, x, mask, masks=["causal"])
    other = mask_study(network, x[:, 1:5], masks=["causal"])
    assert one.sentences == other.sentences


def test_masks_written_alike_are_all_compared(tokens):
    network = Network.random(PURE, seed=1, dtype=torch.float64).without_heads((0, 1))
    alike = [from_edges(4, [(i, i) for i in range(4)]), from_edges(4, [(0, i) for i in range(4)])]
    found = mask_study(network, tokens(1, 4, 8), masks=[*alike, alike[0]])
    names = found.table["variant"].unique(maintain_order=True).to_list()
    assert names == ["edges(4 tokens, 4 edges)", "edges(4 tokens, 4 edges) (another)"]
    assert "4 closed classes" in found.sentences[0]


def test_masks_of_nothing_are_refused(tokens):
    network = Network.random(PURE, dtype=torch.float64)
    with pytest.raises(InputError, match="no list of masks"):
        mask_study(network, tokens(1, 4, 8), masks=[])
    with pytest.raises(InputError, match="depth=0"):
        mask_study(network, tokens(1, 4, 8), masks=["full"], depth=0)


@pytest.mark.parametrize(
    ("target", "words"),
    [(-2.0, "needs 2 layers"), (-1.0, "needs 1 layer"), (-9.0, "would need about 9 layers")],
)
def test_layers_to_a_target(target, words):
    found = Law("exponential", 1.0, -1.0, -3.0)
    assert layers_to([0.0, -1.0, -2.0, -3.0], target, found).startswith(words)


def test_layers_to_a_target_out_of_reach():
    found = Law("none", math.nan, 0.0, 0.0)
    assert "more than 2 layers" in layers_to([0.0, 0.0, 0.0], -1.0, found)
