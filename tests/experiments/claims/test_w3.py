"""Tokens on the sphere: where they start, at which rate they agree, and when they do not."""

import math
from dataclasses import replace

import pytest
import torch

from rankscope import tables
from rankscope.core.masks import as_mask
from rankscope.core.network import Network, Spec
from rankscope.core.theory import law
from rankscope.experiments import kit
from rankscope.experiments.claims import w3
from rankscope.experiments.claims.w3 import ENTRY, Config, HalfSpaceRun, laws
from rankscope.experiments.depths import RELATIVE_DISPERSION

from ..shown import can_be_shown, steps_of

RING = HalfSpaceRun("ring", width=2, logits=0.0)
AROUND = replace(RING, start="around a circle")
AROUND_NAME = str(AROUND).removeprefix("beyond the claim: ")
ONE = Config(layers=12, draws=1, samples=2, covered=(HalfSpaceRun("causal"),), contrasts=())
RATE = (1 + 2 * math.cos(2 * math.pi / ONE.tokens)) / 3
"""The second eigenvalue of averaging with two neighbours around a ring."""


def test_second_eigenvalues_by_hand() -> None:
    assert w3.second_eigenvalue(as_mask("full"), 5) == pytest.approx(0.0, abs=1e-12)
    assert w3.second_eigenvalue(as_mask("causal"), 5) == pytest.approx(0.5)
    ring = w3.mask_of("ring", ONE.tokens)
    assert w3.second_eigenvalue(ring, ONE.tokens) == pytest.approx(RATE)


def test_starts_are_on_the_sphere_and_in_a_half_space_or_not() -> None:
    half, pairs, around = (
        w3.start(ONE, kind, width, 3)
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


def test_it_holds_at_the_derived_rates_and_not_around_the_ring() -> None:
    kept = (HalfSpaceRun("full"), HalfSpaceRun("causal"), RING)
    centered = HalfSpaceRun("causal", "layer")
    assert set(kept) <= set(Config().covered)
    assert {AROUND, centered} <= set(Config().contrasts)
    assert all(run.norm != "layer" for run in Config().covered)
    config = replace(ONE, layers=24, covered=kept, contrasts=(centered, AROUND))
    found, seen = steps_of(ENTRY.run, config)
    assert len(seen) == 5
    can_be_shown(found)
    assert found.verdict == "holds"
    by_run = laws(config, found.table)
    assert by_run[HalfSpaceRun("full")].kind == "doubly exponential"
    assert 10 ** by_run[HalfSpaceRun("causal")].rate == pytest.approx(0.5, abs=0.01)
    assert 10 ** by_run[RING].rate == pytest.approx(RATE, abs=0.01)
    assert by_run[AROUND].kind == "none"
    assert by_run[AROUND].last > -0.01
    covered, other = found.sentences
    assert (
        covered
        == f"Tokens end at one point in {len(kept)} of {len(kept)} runs that the claim covers."
    )
    assert other == "Tokens end at one point in 1 of 2 runs that the claim does not cover."
    assert str(found.beyond) == f"Supported except for: {AROUND_NAME}"
    rows = {row[:2]: row[2:] for row in found.listings[0].rows}
    assert len(rows) == len(kept) + 2
    assert rows["sphere", "causal"][-1] == pytest.approx(0.5)
    around = rows[AROUND.panel, "ring (2 features, uniform attention)"]
    assert (around[0], around[1], around[-1]) == ("1", "no collapse", None)
    panels = found.table["model"].unique(maintain_order=True).to_list()
    outside = ["beyond the claim: LayerNorm", "beyond the claim: sphere, around a circle"]
    assert panels == ["sphere", *outside]


def test_residuals_are_those_of_the_frobenius_norm() -> None:
    x = w3.start(ONE, "half-space", 8, 0)
    spread = torch.linalg.matrix_norm(x - x.mean(1, keepdim=True)) / torch.linalg.matrix_norm(x)
    found, _ = steps_of(ENTRY.run, replace(ONE, layers=2))
    rows = found.table.filter(layer=0, metric="log10_relative_dispersion").sort("sample")
    assert rows["value"].to_list() == pytest.approx(spread.log10().tolist())


def test_it_fails_where_tokens_go_around_a_ring() -> None:
    found, _ = steps_of(ENTRY.run, replace(ONE, covered=(AROUND,)))
    assert found.verdict == "fails"


def test_there_is_no_law_of_too_few_layers() -> None:
    found, _ = steps_of(ENTRY.run, replace(ONE, layers=2))
    assert found.verdict == "not tried"
    assert found.sentences[-1].startswith("Too few layers, or too uneven, to see a law: sphere")


LEVEL, FALLING = [0.0] * 13, [-0.3 * layer for layer in range(13)]


@pytest.mark.parametrize(
    ("causal", "window", "verdict"),
    [
        (FALLING, FALLING, "holds"),
        (FALLING, LEVEL, "depends"),
        (LEVEL, LEVEL, "fails"),
        ([*FALLING[:-1], -math.inf], FALLING, "holds"),  # all tokens equal
    ],
)
def test_every_verdict_can_be_reached(causal, window, verdict) -> None:
    config = replace(
        ONE,
        covered=(HalfSpaceRun("causal"), HalfSpaceRun("window:2")),
        contrasts=(HalfSpaceRun("full"),),
    )
    rows = [
        ("sphere", mask, layer, 0, RELATIVE_DISPERSION, value)
        for mask, curve in {"causal": causal, "window:2": window, "full": LEVEL}.items()
        for layer, value in enumerate(curve)
    ]
    names = ("model", "variant", "layer", "sample", "metric", "value")
    table = tables.frame(dict(zip(names, zip(*rows, strict=True), strict=True)))
    found = kit.conclude(ENTRY, config, kit.Measured(table))
    assert found.verdict == verdict
    assert "sphere, full" in str(found.beyond) or found.beyond.verdict == "fails"
    fallen = 2 - (causal, window).count(LEVEL)
    assert (
        found.sentences[0]
        == f"Tokens end at one point in {fallen} of 2 runs that the claim covers."
    )


@pytest.mark.parametrize(
    ("factor", "near"), [(0.5, True), (0.515, True), (0.53, False), (0.4, False)]
)
def test_the_measured_rate_is_compared_with_the_derived_one(factor: float, near: bool) -> None:
    curve = [math.log10(factor) * layer for layer in range(13)]
    rows = [("sphere", "causal", layer, 0, RELATIVE_DISPERSION, v) for layer, v in enumerate(curve)]
    table = tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)
    found = kit.conclude(ENTRY, ONE, kit.Measured(table))
    assert found.verdict == "holds"  # exponentially, at whatever rate
    assert found.beyond.verdict == ("holds" if near else "fails")


def test_a_law_between_the_two_is_a_collapse(monkeypatch: pytest.MonkeyPatch) -> None:
    between = law([-0.5 * layer * (layer + 1) for layer in range(13)])
    assert between.kind == "between"
    monkeypatch.setattr(w3, "laws", lambda config, _: dict.fromkeys(config.runs, between))
    table = tables.from_rows(("metric", "value"), [(RELATIVE_DISPERSION, 0.0)])
    assert kit.conclude(ENTRY, ONE, kit.Measured(table)).verdict == "holds"


def test_values_are_orthogonal() -> None:
    spec = Spec(1, 1, 8, init="orthogonal", bias=False)
    block = Network.random(spec, dtype=torch.float64).blocks[0]
    whole = block.attention.output.weight @ block.attention.value.weight
    torch.testing.assert_close(whole @ whole.T, torch.eye(8, dtype=torch.float64))
    assert all(one.values == "orthogonal" for one in Config().covered)


def test_several_draws_are_samples_of_one_run() -> None:
    found, _ = steps_of(ENTRY.run, replace(ONE, draws=2))
    assert set(found.table["sample"]) == {0, 1, 2, 3}
