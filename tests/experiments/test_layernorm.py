"""LayerNorm: what a residual's fate is, in which format, and whether W2 and W3 notice."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope.experiments import layernorm_study as study
from rankscope.experiments import w2, w3
from rankscope.experiments.layernorm_cases import Setting, random_network
from rankscope.masks import as_mask
from rankscope.network import Spec

SMALL = Setting(heads=2, width=8, tokens=8)
POLES = Setting(heads=1, width=4, logits=64.0, tokens=16, shared=True)
FACTORS = {"few": {"full": SMALL, "causal": Setting(heads=2, width=8, tokens=8, mask="causal")}}
SWEEPS = {"narrow": Setting(heads=1, width=4, tokens=16)}


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "SCALES", (16.0, 64.0))
        return study.layernorm_study(layers=48, factors=FACTORS, sweeps=SWEEPS, seeds=2)


@pytest.fixture(scope="module")
def corner():
    """A collapsing case and one in which the tokens end on two poles."""
    factors = {"corner": {"full": SMALL, "poles": POLES}}
    return study.layernorm_study(layers=12, factors=factors, sweeps={})


@pytest.mark.parametrize(
    ("log10", "fate"),
    [
        ([0.0] * 8, "stops"),
        ([-0.3 * k for k in range(8)], "collapses"),
        ([-0.3 * min(k, 40) for k in range(100)], "stops"),
        ([-0.01 * k for k in range(100)], "collapses"),
        ([0.2 * math.sin(3.7 * k) for k in range(100)], "stops"),
        ([-(3.0**k) for k in range(20)], "collapses"),
        ([0.0, -3.0, *[-math.inf] * 6], "collapses"),
    ],
)
def test_fate(log10: list[float], fate: str) -> None:
    assert study.fate(log10) == fate


def test_scatter_is_not_taken_for_double_exponents() -> None:
    falling = [-0.3 * k for k in range(37)] + [-11.0, -11.1, -11.4, -12.3]
    assert study.law(falling).growth == pytest.approx(3)  # what the last steps alone would say
    assert study.long_law(falling).kind == "exponential"
    assert study.long_law(falling).rate == pytest.approx((-12.3 + 6.0) / 20)
    assert study.long_law([-(3.0**k) for k in range(12)]).kind == "doubly exponential"
    assert study.long_law([0.0, -1.0, -math.inf]).kind == "equal"
    assert study.long_law([-1e-6 * 3.0**k for k in range(8)]).kind == "none"  # far from small yet


def test_only_scaled_arithmetic_sees_the_collapse_go_on(found) -> None:
    ends = study.outcomes(found.summary)
    full, causal = ends["full"], ends["causal"]
    assert full.law.startswith("doubly exponential: each step is 3.00")
    assert full.last["scaled"] < -1e15
    assert causal.fate == {"scaled": "collapses", "float64": "collapses", "float32": "stops"}
    assert causal.last["scaled"] < -12  # uniform causal attention halves it: 48 · log10(2) = 14.4
    assert -8.5 < causal.last["float32"] < -5.5


def test_tokens_that_stay_apart_are_followed_deeper_and_sit_on_two_poles(corner) -> None:
    poles = study.outcomes(corner.summary)["poles"]
    assert poles.fate["scaled"] == "stops"
    assert poles.layers == 4 * 12
    assert any(told.startswith("poles: stays apart") for told in corner.sentences)
    assert poles.rank == pytest.approx(1.0, abs=1e-6)
    x, mask = study.Texts(4, 16, 3, 0)()
    with torch.no_grad():
        y = random_network(POLES, 60, 0)(x, mask)[0]
    signs = (y / y[0]).mean(-1)
    assert {round(s) for s in signs.tolist()} == {1, -1}
    torch.testing.assert_close(y, signs[:, None].round() * y[0])


def test_search_counts_what_a_plain_run_counts(found) -> None:
    shares = study.shares(found.summary)
    assert set(shares) == {("narrow", "fresh layers"), ("narrow", "one layer repeated")}
    expected = []
    for seed in range(2):
        x, mask = study.Texts(4, 16, 3, seed)()
        narrow = Setting(heads=1, width=4, tokens=16, logits=16.0, shared=True)
        with torch.no_grad():
            y = random_network(narrow, 48, seed)(x, mask)
        spread = torch.linalg.matrix_norm(y - y.mean(1, keepdim=True)) / torch.linalg.matrix_norm(y)
        expected.append((spread > 0.01).double().mean().item())
    assert shares["narrow", "one layer repeated"][16.0] == pytest.approx(sum(expected) / 2)
    assert 0 < shares["narrow", "one layer repeated"][64.0] < 1


@pytest.mark.parametrize(
    ("by_scale", "says"),
    [
        ((0.0, 1.0, 0.6), "most runs stay apart from logits × 4 on; at any scale at most 100% do"),
        ((0.0, 1.0, 0.3), "at logits × 16 no majority stays apart; at any scale at most 100% do"),
        ((0.6, 1.0, 1.0), "most runs stay apart from logits × 1 on; at any scale at most 100% do"),
    ],
)
def test_boundary_is_where_most_stay_apart_from_there_on(by_scale, says: str) -> None:
    columns = {
        "model": ["net"] * 3,
        "variant": ["fresh"] * 3,
        "setting": [1.0, 4.0, 16.0],
        "sample": [0] * 3,
        "metric": ["share_still_apart"] * 3,
        "value": list(by_scale),
    }
    (told,) = study.boundaries(study.tables.summary(study.tables.frame(columns)))
    assert told == f"net, fresh: {says}."


def test_sentences_name_boundary_and_noise(found) -> None:
    told = "\n".join(found.sentences)
    assert "float32 alone would have said that it stops in" in told
    assert "of the 2 cases in which it goes on" in told
    assert "narrow, fresh layers: " in told


def test_w2_is_judged_by_scaled_arithmetic_alone(
    corner, found, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = corner.summary.filter(pl.col("model") == "poles")
    for summary, verdict in (
        (found.summary, "fails"),
        (corner.summary, "depends"),
        (only, "holds"),
    ):
        given = replace(corner, summary=summary)
        monkeypatch.setattr(study, "layernorm_study", lambda given=given, **_: given)
        claim = w2.w2()
        assert claim.verdict == verdict
        assert set(claim.summary["metric"]) == {"log10_relative_residual"}
        if verdict == "depends":
            assert any("1 out of 1 end with tokens on two opposite" in why for why in claim.reasons)


def test_w2_counts_its_steps() -> None:
    ticks: list[int] = []
    options = {"layers": 4, "factors": FACTORS, "sweeps": SWEEPS, "seeds": 1}
    w2.w2(on_case=lambda: ticks.append(1), **options)
    assert len(ticks) == w2.steps(FACTORS, SWEEPS) == 3


def test_settings_reach_the_network() -> None:
    bare = random_network(SMALL, 2, 0)
    full = random_network(Setting(heads=2, width=8, biases=2.0, gains=0.5, logits=3.0), 2, 0)
    first = full.blocks[0]
    assert first.attention.query.bias.std() > 0.5
    assert bool((bare.blocks[0].attention.query.bias == 0).all())
    assert bool((first.norms["attention"].weight > 0).all())
    assert first.norms["attention"].weight.std() > 0.1
    assert full.spec.score_scale == pytest.approx(3 / 2)
    assert full.spec.skips == (0.0, 0.0)
    deeper = random_network(Setting(heads=2, width=8, biases=2.0), 4, 0)
    again = random_network(Setting(heads=2, width=8, biases=2.0), 2, 0)
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, deeper.state_dict()[name])


def test_second_eigenvalues_by_hand() -> None:
    assert w3.second_eigenvalue(as_mask("full"), 5) == pytest.approx(0.0, abs=1e-12)
    assert w3.second_eigenvalue(as_mask("causal"), 5) == pytest.approx(0.5)
    around = w3.CONTRASTS["sphere, ring, around a circle"].mask
    ring = (1 + 2 * math.cos(2 * math.pi / w3.TOKENS)) / 3
    assert w3.second_eigenvalue(around, w3.TOKENS) == pytest.approx(ring)


def test_starts_are_on_the_sphere_and_in_a_half_space_or_not() -> None:
    half, pairs, around = (
        w3.start(kind, width, 3)
        for kind, width in (("half-space", 8), ("opposite pairs", 8), ("around a circle", 2))
    )
    for x in (half, pairs, around):
        torch.testing.assert_close(x.norm(dim=-1), torch.ones(x.shape[:2], dtype=x.dtype))
    from scipy.optimize import linprog

    def in_half_space(x: torch.Tensor) -> bool:
        """Whether some v has x v >= 1 for every token."""
        rows = -x.numpy()
        v = linprog([0] * x.shape[1], rows, [-1.0] * len(rows), bounds=(None, None))
        return bool(v.success)

    assert all(in_half_space(x) for x in half)
    assert not any(in_half_space(x) for x in (*pairs, *around))


def test_w3_holds_at_the_derived_rates_and_not_around_the_ring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(w3, "SEEDS", 1)
    monkeypatch.setattr(w3, "_SAMPLES", 2)
    kept = ("sphere, full", "sphere, causal", "LayerNorm, causal", "sphere, ring")
    monkeypatch.setattr(w3, "COVERED", {name: w3.COVERED[name] for name in kept})
    around = "sphere, ring, around a circle"
    monkeypatch.setattr(w3, "CONTRASTS", {around: w3.CONTRASTS[around]})
    claim = w3.w3(layers=24)
    assert claim.verdict == "holds"
    laws = {
        name: study.long_law(study.medians(claim.summary, study.RELATIVE, variant=name))
        for name in (*kept, around)
    }
    assert laws["sphere, full"].kind == "doubly exponential"
    assert 10 ** laws["sphere, causal"].rate == pytest.approx(0.5, abs=0.01)
    ring = (1 + 2 * math.cos(2 * math.pi / w3.TOKENS)) / 3
    assert 10 ** laws["sphere, ring"].rate == pytest.approx(ring, abs=0.01)
    assert laws["sphere, ring, around a circle"].kind == "none"
    assert laws["sphere, ring, around a circle"].last > -0.01
    told = "\n".join(claim.reasons)
    assert "(uniform attention under this mask: 0.5)" in told
    assert "around a circle: relative residual 1 after 24 layers; no collapse" in told
    assert sum(reason.startswith("Beyond the claim") for reason in claim.reasons) == 1


def test_w3_fails_where_tokens_go_around_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w3, "SEEDS", 1)
    around = "sphere, ring, around a circle"
    monkeypatch.setattr(w3, "COVERED", {around: w3.CONTRASTS[around]})
    monkeypatch.setattr(w3, "CONTRASTS", {})
    assert w3.w3(layers=12).verdict == "fails"


def test_w3_values_are_orthogonal() -> None:
    spec = Spec(1, 1, 8, init="orthogonal", bias=False)
    block = w3.Network.random(spec, dtype=torch.float64).blocks[0]
    whole = block.attention.output.weight @ block.attention.value.weight
    torch.testing.assert_close(whole @ whole.T, torch.eye(8, dtype=torch.float64))
    assert all(run.values == "orthogonal" for run in w3.COVERED.values())


def test_study_can_be_drawn(found) -> None:
    rows = found.summary.filter(pl.col("metric") == "log10_relative_residual")
    assert rows["model"].unique(maintain_order=True).to_list() == ["full", "causal"]
    assert rows["variant"].unique(maintain_order=True).to_list() == ["scaled", "float64", "float32"]
