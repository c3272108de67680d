"""LayerNorm: what a residual's fate is, in which format, and whether W2 and W3 notice."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope import report
from rankscope.experiments import layernorm_outcomes as told_by
from rankscope.experiments import layernorm_study as study
from rankscope.experiments import w2, w3
from rankscope.experiments.layernorm_cases import FACTORS as ALL
from rankscope.experiments.layernorm_cases import Setting, random_network
from rankscope.experiments.layernorm_outcomes import Searched
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


def table(**curves: list[list[float]]) -> pl.DataFrame:
    """A study's table: for each case the samples' curves, the same in every format."""
    rows = [
        (case, form, layer, sample, metric, value)
        for case, samples in curves.items()
        for form in ("scaled", "float64", "float32")
        for sample, curve in enumerate(samples)
        for layer, residual in enumerate(curve)
        for metric, value in (("log10_relative_residual", residual), ("stable_rank", 1.0 + sample))
    ]
    names = ("model", "variant", "layer", "sample", "metric", "value")
    return study.tables.frame(
        {n: list(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}
    )


LEVEL, FALLING = [0.0] * 9, [-0.5 * k for k in range(9)]


def test_only_scaled_arithmetic_sees_the_collapse_go_on(found) -> None:
    ends = told_by.outcomes(found.table)
    full, causal = ends["full"], ends["causal"]
    assert str(full.law).startswith("doubly exponential: each step is 3.00")
    assert max(full.last["scaled"]) < -1e15
    assert causal.stops["scaled"] == causal.stops["float64"] == (False,) * 3
    assert causal.stops["float32"] == (True,) * 3
    assert max(causal.last["scaled"]) < -12  # uniform causal attention halves it: 48 · log10(2)
    assert -8.5 < min(causal.last["float32"]) <= max(causal.last["float32"]) < -5.5


def test_residuals_are_those_of_the_frobenius_norm(found) -> None:
    x, mask = study.Texts(8, 8, 3, 0)()
    with torch.no_grad():
        y = random_network(SMALL, 1, 0)(x, mask)
    spread = torch.linalg.matrix_norm(y - y.mean(1, keepdim=True)) / torch.linalg.matrix_norm(y)
    for form in ("scaled", "float64"):
        rows = found.table.filter(
            model="full", variant=form, layer=1, metric="log10_relative_residual"
        )
        assert rows.sort("sample")["value"].to_list() == pytest.approx(spread.log10().tolist())


def test_tokens_that_stay_apart_are_followed_deeper_and_sit_on_two_poles(corner) -> None:
    poles = told_by.outcomes(corner.table)["poles"]
    assert poles.layers == 4 * 12
    x, mask = study.Texts(4, 16, 3, 0)()
    with torch.no_grad():
        states = random_network(POLES, 60, 0)(x, mask)
    stay = [bool((y - y[0]).abs().max() > 0.1) for y in states]
    assert poles.stops["scaled"] == tuple(stay)
    assert 0 < sum(stay) < 3
    assert poles.ranks == pytest.approx([1.0] * sum(stay), abs=1e-6)
    assert any(f"poles: {sum(stay)} of 3 samples stay apart" in told for told in corner.sentences)
    for y in states[torch.tensor(stay)]:
        signs = (y / y[0]).mean(-1)
        assert {round(s) for s in signs.tolist()} == {1, -1}
        torch.testing.assert_close(y, signs[:, None].round() * y[0])


def test_one_sample_that_stays_apart_is_not_lost_in_the_median() -> None:
    ends = told_by.outcomes(table(some=[FALLING, LEVEL, FALLING], every=[LEVEL] * 3))
    assert ends["some"].stops["scaled"] == (False, True, False)
    assert ends["some"].ranks == (2.0,)
    assert str(ends["some"]).startswith(
        "1 of 3 samples stay apart (stable rank 2.00); others: exponential: each layer multiplies "
        "the residual by 0.316; relative residual after 8 layers: scaled 0.0001 to 1"
    )
    assert str(ends["every"]).startswith("all 3 samples stay apart (stable rank 1.00, 2.00, 3.00);")


@pytest.mark.parametrize(
    ("log10", "stay"), [(LEVEL, True), (FALLING, False), ([-2.5] * 9, False), ([-1.5] * 9, True)]
)
def test_a_small_residual_has_no_level_to_stay_at(log10: list[float], stay: bool) -> None:
    assert told_by.stays(log10) is stay
    level = log10[0] == log10[-1]
    one = told_by.outcomes(table(case=[log10]))["case"]
    assert one.stops == {"scaled": (stay,), "float64": (level,), "float32": (level,)}


def test_search_counts_what_a_plain_run_counts(found) -> None:
    counted = {(one.variant, one.logits): one for one in told_by.searched(found.summary)}
    assert len(counted) == 2 * 2
    expected = 0
    for seed in range(2):
        x, mask = study.Texts(4, 16, 3, seed)()
        narrow = Setting(heads=1, width=4, tokens=16, logits=16.0, shared=True)
        with torch.no_grad():
            y = random_network(narrow, 48, seed)(x, mask)
        spread = torch.linalg.matrix_norm(y - y.mean(1, keepdim=True)) / torch.linalg.matrix_norm(y)
        expected += int((spread > 0.01).sum())
    one = counted["one layer repeated", 16.0]
    assert one == Searched("narrow", "one layer repeated", 16.0, 6, expected)
    assert 0 < counted["one layer repeated", 64.0].apart < 6
    drawn = found.summary.filter(pl.col("metric") == "share_still_apart")
    for variant, logits, share in drawn.select("variant", "setting", "median").iter_rows():
        assert share == pytest.approx(counted[variant, logits].apart / 6)


def test_counts_are_told_for_every_scale() -> None:
    ends = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    columns = {
        "model": ["net"] * 10,
        "variant": ["fresh"] * 6 + ["repeated"] * 2 + ["fresh"] * 2,
        "setting": [1.0] * 3 + [4.0] * 3 + [1.0] * 2 + [1.0, 4.0],
        "sample": [0, 1, 2, 0, 1, 2, 0, 1, 0, 0],
        "metric": ["still_apart"] * 8 + ["stable_rank_apart"] * 2,
        "value": [*ends, 1.5, 2.5],
    }
    summary = study.tables.summary(study.tables.frame(columns))
    assert list(told_by.counts(summary, 60)) == [
        "net, fresh, still apart after 60 layers: of 3 runs 2 at logits × 1, 1 at logits × 4; "
        "median stable rank of these 2.00.",
        "net, repeated, still apart after 60 layers: none of 2 runs at any scale of the logits.",
    ]


def test_a_search_is_summed_up() -> None:
    settings = [replace(SMALL, logits=scale) for scale in (1.0, 4.0, 16.0, 64.0)]
    apart = (0, 1, 2, 3)
    found = [
        (Searched("net", "fresh", setting.logits, 3, count), setting)
        for setting, count in zip(settings, apart, strict=True)
    ]
    first, second = told_by.search_domain(found, 60)
    assert first.startswith("A search over 4 settings, each with 3 runs of 60 layers")
    assert second == (
        "At least one run is still apart in 3 of 4 settings (logits × 1: 0 of 1, logits × 4: 1 of "
        "1, logits × 16: 1 of 1, logits × 64: 1 of 1); more than half of the runs in 2, always "
        "with logits × 16 or more; all runs in 1."
    )
    assert list(told_by.search_domain([], 60)) == []


def test_traits_are_what_sets_settings_apart() -> None:
    tried = [Setting(width=w, mask=m) for w in (4, 8, 64) for m in ("full", "causal")]
    assert told_by.traits(tried, tried) == ""
    assert told_by.traits([], tried) == ""
    assert told_by.traits(tried[:4], tried) == ", always with 8 features or less"
    assert told_by.traits(tried[2:4], tried) == ", always with 8 features"
    assert told_by.traits(tried[::2], tried) == ", always with full mask"
    repeated = [replace(tried[0], shared=True)]
    assert told_by.traits(repeated, [*tried[:2], *repeated]).endswith("one layer repeated")


def test_sentences_name_domain_and_noise(found) -> None:
    told = "\n".join(found.sentences)
    assert "Tokens collapse in every sample of all 2 cases." in told
    assert "float32 alone would have said that it stops in" in told
    assert "of the 6 samples in which it goes on (2 cases, 6 samples in all)" in told
    assert "narrow, fresh layers, still apart after 48 layers: " in told


@pytest.mark.parametrize(
    ("curves", "verdict", "domain"),
    [
        ([[FALLING] * 3] * 2, "fails", "Tokens collapse in every sample of all 2 cases."),
        (
            [[FALLING] * 3, [LEVEL, LEVEL, FALLING]],
            "depends",
            "Tokens collapse in every sample of 1 of the 2 cases; they stay apart in some samples "
            "of 1 cases and in all samples of 0, always with causal mask.",
        ),
        (
            [[LEVEL] * 3] * 2,
            "holds",
            "Tokens collapse in every sample of 0 of the 2 cases; they stay apart in some samples "
            "of 0 cases and in all samples of 2.",
        ),
    ],
)
def test_w2_is_judged_sample_by_sample(
    curves, verdict, domain, corner, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = table(**dict(zip(("full", "causal"), curves, strict=True)))
    given = replace(corner, table=found, summary=study.tables.summary(found))
    monkeypatch.setattr(study, "layernorm_study", lambda **_: given)
    claim = w2.w2(layers=4, factors=FACTORS, sweeps=SWEEPS)
    assert claim.verdict == verdict
    assert claim.reasons[0] == domain
    assert any("opposite poles" in why for why in claim.reasons) is (verdict != "fails")
    if verdict == "depends":
        assert claim.reasons[1].startswith("Of the 2 samples that stay apart 1 end")  # ranks 1, 2
    assert set(claim.summary["metric"]) == {"log10_relative_residual"}
    assert claim.summary["layer"].max() == 4
    split = {"full", "causal: 2 of 3 stay", "causal: 1 of 3 collapse"}
    drawn = {"fails": {"full"}, "depends": split, "holds": {"full", "causal"}}
    assert set(claim.summary["model"]) == drawn[verdict]
    if verdict == "depends":
        ends = claim.summary.filter(variant="scaled", layer=4).select("model", "median").rows()
        assert dict(ends) == {
            "full": -2.0,
            "causal: 2 of 3 stay": 0.0,
            "causal: 1 of 3 collapse": -2.0,
        }
    report.claim_chart(claim)


def test_no_two_cases_differ_by_the_scale_of_values_only() -> None:
    """LayerNorm removes it: weights × c are logits × c²."""
    settings = study.settings_of(ALL)
    assert len(set(settings.values())) == len(settings) == sum(map(len, ALL.values()))
    assert all(isinstance(setting.init, str) for setting in settings.values())


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


RING = w3.Run("ring", width=2, logits=0.0)
AROUND = replace(RING, start="around a circle")


def test_second_eigenvalues_by_hand() -> None:
    assert w3.second_eigenvalue(as_mask("full"), 5) == pytest.approx(0.0, abs=1e-12)
    assert w3.second_eigenvalue(as_mask("causal"), 5) == pytest.approx(0.5)
    ring = (1 + 2 * math.cos(2 * math.pi / w3.TOKENS)) / 3
    assert w3.second_eigenvalue(w3._MASKS["ring"], w3.TOKENS) == pytest.approx(ring)


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
    kept = (w3.Run("full"), w3.Run("causal"), w3.Run("causal", "layer"), RING)
    assert {RING, AROUND, *kept} <= {*w3.COVERED, *w3.CONTRASTS}
    monkeypatch.setattr(w3, "COVERED", kept)
    monkeypatch.setattr(w3, "CONTRASTS", (AROUND,))
    claim = w3.w3(layers=24)
    assert claim.verdict == "holds"
    laws = {run: w3._law(claim.summary, run) for run in (*kept, AROUND)}
    assert laws[w3.Run("full")].kind == "doubly exponential"
    assert 10 ** laws[w3.Run("causal")].rate == pytest.approx(0.5, abs=0.01)
    ring = (1 + 2 * math.cos(2 * math.pi / w3.TOKENS)) / 3
    assert 10 ** laws[RING].rate == pytest.approx(ring, abs=0.01)
    assert laws[AROUND].kind == "none"
    assert laws[AROUND].last > -0.01
    told = "\n".join(claim.reasons)
    assert "(uniform attention under this mask: 0.5)" in told
    assert "uniform attention): relative residual 1 after 24 layers; no collapse" in told
    assert sum(reason.startswith("beyond the claim") for reason in claim.reasons) == 1
    panels = claim.summary["model"].unique(maintain_order=True).to_list()
    assert panels == ["sphere", "LayerNorm", "beyond the claim: sphere, around a circle"]
    assert "24 layers, orthogonal values" in claim.provenance["spec"]


def test_w3_residuals_are_those_of_the_frobenius_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w3, "SEEDS", 1)
    monkeypatch.setattr(w3, "COVERED", (w3.Run("causal"),))
    monkeypatch.setattr(w3, "CONTRASTS", ())
    x = w3.start("half-space", 8, 0)
    spread = torch.linalg.matrix_norm(x - x.mean(1, keepdim=True)) / torch.linalg.matrix_norm(x)
    rows = w3.w3(layers=2).table.filter(layer=0, metric="log10_relative_residual").sort("sample")
    assert rows["value"].to_list() == pytest.approx(spread.log10().tolist())


def test_w3_fails_where_tokens_go_around_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w3, "SEEDS", 1)
    monkeypatch.setattr(w3, "COVERED", (AROUND,))
    monkeypatch.setattr(w3, "CONTRASTS", ())
    assert w3.w3(layers=12).verdict == "fails"


def test_w3_has_no_law_of_too_few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w3, "SEEDS", 1)
    monkeypatch.setattr(w3, "COVERED", (w3.Run("causal"),))
    monkeypatch.setattr(w3, "CONTRASTS", ())
    claim = w3.w3(layers=2)
    assert claim.verdict == "fails"
    assert "too few layers" in claim.reasons[0]


def test_w3_values_are_orthogonal() -> None:
    spec = Spec(1, 1, 8, init="orthogonal", bias=False)
    block = w3.Network.random(spec, dtype=torch.float64).blocks[0]
    whole = block.attention.output.weight @ block.attention.value.weight
    torch.testing.assert_close(whole @ whole.T, torch.eye(8, dtype=torch.float64))
    assert all(run.values == "orthogonal" for run in w3.COVERED)


def test_study_can_be_drawn(found) -> None:
    rows = found.summary.filter(pl.col("metric") == "log10_relative_residual")
    assert rows["model"].unique(maintain_order=True).to_list() == ["full", "causal"]
    assert rows["variant"].unique(maintain_order=True).to_list() == ["scaled", "float64", "float32"]
