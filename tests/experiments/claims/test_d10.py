"""LayerNorm beside no norm: fate, law and speed, each asked on its own."""

import math
import re
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.core.deep import deep_trace
from rankscope.core.network import Network
from rankscope.core.theory import law
from rankscope.core.tracing import Trace
from rankscope.experiments import depths, kit
from rankscope.experiments.claims import _norm_starts, d10
from rankscope.experiments.claims._norm_starts import ABOVE, Dynamics
from rankscope.experiments.norm_cases import NormSetting, random_network
from rankscope.process.progress import silent

from ..shown import can_be_shown, reads, steps_of

TINY = d10.Config(
    layers=6,
    masked_layers=10,
    draws=1,
    width=16,
    tokens=8,
    samples=2,
    random=(("4 heads", NormSetting()),),
    masked=(("causal mask", NormSetting(mask="causal")),),
    designed=(Dynamics("designed", tokens=4),),
    designed_starts=20,
    designed_layers=10,
)
CUBIC = [0.0, -1.0, -4.0, -13.0, -40.0, -121.0, -364.0]
LATER = [0.0, -0.02, -0.07, -0.22, -0.7, -2.2, -6.7]
LEVEL = [0.0] * 7
STEADY = [-0.5 * layer for layer in range(7)]


def made_up(
    bare: list[float], normed: list[float], shares: tuple[float, float] = (0.0, 0.0)
) -> pl.DataFrame:
    curves = {
        ("4 heads", d10.BARE): bare,
        ("4 heads", d10.NORMED): normed,
        ("causal mask", d10.BARE): STEADY,
        ("causal mask", d10.NORMED): STEADY,
    }
    rows = [
        (model, variant, layer, 0, depths.RELATIVE_DISPERSION, value)
        for (model, variant), curve in curves.items()
        for layer, value in enumerate(curve)
    ]
    rows += [
        ("designed", variant, 40, 0, ABOVE, share)
        for variant, share in zip((d10.BARE, d10.NORMED), shares, strict=True)
    ]
    return tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)


def judged(table: pl.DataFrame, *doubted: str) -> kit.Result:
    return kit.conclude(d10.ENTRY, TINY, kit.Measured(table, facts=[*doubted]))


@pytest.mark.parametrize(
    ("table", "verdict", "counts", "beyond"),
    [
        (made_up(CUBIC, CUBIC), "depends", "fate in 1 of 1 setting, the same law in 1, .* 1", "S"),
        (made_up(CUBIC, LATER), "depends", "law in 1, the same speed in 0", "Supported"),
        (
            made_up(CUBIC, STEADY),
            "depends",
            "fate in 1 .* law in 0, the same speed in 0",
            "Supported",
        ),
        (made_up(CUBIC, LEVEL), "fails", "fate in 0 .* law in 0, the same speed in 0", "Supported"),
        (made_up(CUBIC, CUBIC, (0.0, 0.2)), "depends", "fate in 1", "Supported in part"),
    ],
)
def test_each_outcome(table: pl.DataFrame, verdict: str, counts: str, beyond: str) -> None:
    found = judged(table)
    assert found.verdict == verdict
    assert re.search(counts, found.judgement.on)
    assert reads(found.beyond, beyond)
    assert all(sentence.endswith(".") for sentence in found.sentences)


def test_speeds_are_compared_by_layers_or_where_they_end() -> None:
    def same(bare: list[float], normed: list[float]) -> bool:
        table = made_up(bare, normed)
        return d10.unchanged(TINY, *d10.follow_pair(TINY, table, "4 heads"))["speed"]

    assert same(CUBIC, [*CUBIC[1:], -1000.0])  # one layer apart
    assert not same(CUBIC, [0.0, 0.0, 0.0, *CUBIC[:4]])
    assert same(STEADY, [0.9 * value for value in STEADY])  # neither is small: −3 and −2.7
    assert not same(STEADY, [0.5 * value for value in STEADY])
    assert not same(STEADY, CUBIC)  # only one of them gets there
    near, beyond = ([-slope * layer for layer in range(7)] for slope in (5.9 / 6, 6.1 / 6))
    assert same(near, beyond)  # 10^−5.9 and 10^−6.1: on either side of what counts as small
    assert not same(near, [*near[:-1], -math.inf])
    assert not same([*LEVEL[:-1], 0.1], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.1])


def test_the_curves_are_those_of_plain_numbers_and_the_weights_the_same() -> None:
    found = d10.ENTRY.run(replace(TINY, masked=(), designed=()), silent)
    x, token_mask = TINY.texts()
    network = random_network(replace(NormSetting(), width=16), 6, TINY.seed)
    for variant, one in {d10.BARE: network.without("norm"), d10.NORMED: network}.items():
        y = next(iter(one.states(x, token_mask))).detach()
        for sample in range(2):
            kept = y[sample, token_mask[sample]]
            want = ((kept - kept.mean(0)).norm() / kept.norm()).log10().item()
            row = found.table.filter(model="4 heads", variant=variant, layer=1, sample=sample)
            assert row["value"].item() == pytest.approx(want, rel=1e-9)
    weights = (each.blocks[0].attention.value.weight for each in (one, network.without("norm")))
    assert torch.equal(*weights)


def test_designed_values_keep_rank_only_with_the_norm() -> None:
    """Without one, a causal mask averages every feature towards the first token's."""
    config = replace(TINY, masked=(), designed_layers=15)
    found, seen = steps_of(d10.ENTRY.run, config)
    assert seen[-1] == 1.0
    can_be_shown(found)
    without, normed = d10.shares_above(config, found.table, "designed")
    assert without == 0.0
    assert normed > 0.0
    assert str(found.beyond).startswith("Not supported")


def test_draws_are_numbered_on_and_seeds_matter() -> None:
    config = replace(TINY, draws=2, masked=(), designed=())
    found = d10.ENTRY.run(config, silent)
    assert sorted(found.table["sample"].unique()) == [0, 1, 2, 3]
    assert found.beyond is None
    assert found.table.equals(d10.ENTRY.run(config, silent).table)
    assert not found.table.equals(d10.ENTRY.run(replace(config, seed=7), silent).table)


def test_doubts_reach_the_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubtful(network: Network, *arguments: Any, **options: Any) -> Trace:
        return deep_trace(network, *arguments, **options).noted({"doubt": "a digit was lost"})

    monkeypatch.setattr(depths, "deep_trace", doubtful)
    found = d10.ENTRY.run(replace(TINY, masked=(), designed=()), silent)
    for variant in (d10.BARE, d10.NORMED):
        assert f"Note on 4 heads, {variant}, draw 1: a digit was lost." in found.sentences
    assert found.verdict == "not tried"
    assert "Not counted, because their figures are in doubt: 4 heads." in found.sentences


def test_doubts_of_every_draw_and_design_reach_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A doubt about the first draw alone is not lost when the second has none."""
    seen: list[str] = []

    def doubtful(network: Network, *arguments: Any, **options: Any) -> Trace:
        seen.append("")
        return deep_trace(network, *arguments, **options).noted({"doubt": f"trace {len(seen)}"})

    monkeypatch.setattr(depths, "deep_trace", doubtful)
    monkeypatch.setattr(_norm_starts, "deep_trace", doubtful)
    found = d10.ENTRY.run(replace(TINY, draws=2, masked=(), designed_layers=5), silent)
    notes = found.provenance["notes"]
    assert notes == {
        f"4 heads, {d10.BARE}, draw 1": "trace 1",
        f"4 heads, {d10.NORMED}, draw 1": "trace 2",
        f"4 heads, {d10.BARE}, draw 2": "trace 3",
        f"4 heads, {d10.NORMED}, draw 2": "trace 4",
        f"designed, {d10.BARE}": "trace 5",
        f"designed, {d10.NORMED}": "trace 6",
    }
    assert found.beyond is None


def test_what_is_in_doubt_or_shows_no_law_is_left_out_and_named() -> None:
    found = judged(made_up(CUBIC, LEVEL), "4 heads", "designed")
    assert found.verdict == "not tried"
    assert found.beyond.verdict == "holds"
    assert "Not counted, because their figures are in doubt: 4 heads, designed." in found.sentences
    short = judged(made_up(CUBIC, LEVEL).filter(pl.col("layer") < 3), "designed")
    assert short.verdict == "not tried"
    assert "Not counted, because they show no law: 4 heads, causal mask." in short.sentences


def test_equal_tokens_are_a_collapse_and_called_equal() -> None:
    equal = [*CUBIC[:-1], -math.inf]
    found = judged(made_up(CUBIC, equal))
    assert "the same fate in 1 of 1 setting, the same law in 0" in found.judgement.on
    said = " ".join(found.sentences)
    assert "all tokens equal in the end, small after 3 layers with it" in said
    assert "no law" not in said


def test_a_law_between_the_two_is_a_collapse() -> None:
    between = law([-0.5 * layer * (layer + 1) for layer in range(13)])
    assert between.kind == "between"
    assert d10.unchanged(TINY, (between, law(CUBIC)), (d10.Reached(3, (3,)),) * 2)["fate"]


def test_speeds_whose_draws_overlap_are_the_same() -> None:
    """Small after 3 and 6 layers without the norm, 6 and 6 with it: as fast as some draw is."""
    slow = [0.0, 0.0, 0.0, *CUBIC[:4]]
    both = [made_up(CUBIC, slow), made_up(slow, slow).with_columns(pl.col("sample") + TINY.samples)]
    laws, reached = d10.follow_pair(TINY, pl.concat(both), "4 heads")
    assert (reached[0].draws, reached[1].draws) == ((3, 6), (6, 6))
    assert d10.unchanged(TINY, laws, reached)["speed"]
    alone = d10.follow_pair(TINY, both[0], "4 heads")
    assert not d10.unchanged(TINY, *alone)["speed"]
    assert str(reached[0]).endswith(" (3 to 6 in the draws)")


def test_layernorm_raises_the_rank_of_what_tells_collinear_tokens_apart() -> None:
    """Two differences along one line before; by hand, (1, −1, 0)/√2, … after are on no line."""
    assert d10.counterexample() == (1, 2)


def test_a_setting_in_which_no_single_draw_becomes_small_is_compared_by_its_medians() -> None:
    laws = (law(CUBIC), law(CUBIC))
    far, near = (d10.Reached(9, ()), d10.Reached(3, (3,))), (d10.Reached(4, ()), d10.Reached(3, ()))
    assert not d10.unchanged(TINY, laws, far)["speed"]
    assert d10.unchanged(TINY, laws, near)["speed"]
