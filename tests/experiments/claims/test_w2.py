"""LayerNorm alone: for μ and for rank, sample by sample, with dropout and without."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.experiments import kit
from rankscope.experiments.claims._bert_shape import (
    DROPOUT,
    Dropout,
    Shape,
    last_dispersions,
    measure,
)
from rankscope.experiments.claims.w2 import ENTRY, PAPER, Config, join
from rankscope.experiments.depths import DISPERSION, RELATIVE_DISPERSION, Measured, Texts
from rankscope.experiments.norm_cases import Setting, random_network
from rankscope.experiments.studies import layernorm
from rankscope.numerals import power_of_ten
from rankscope.process.progress import silent

from ..shown import can_be_shown, steps_of
from ..studies.curves import FALLING, LEVEL, curves

SMALL = Setting(heads=2, width=8, tokens=8)
POLES = Setting(heads=1, width=4, logits=64.0, tokens=16, shared=True)
SHAPE = Shape(layers=9, heads=2, width=32, tokens=8, samples=2, masks=("full", "causal"))
SWEEP = layernorm.Config(
    layers=4,
    factors=(("few", (("full", SMALL), ("causal", replace(SMALL, mask="causal")))),),
    sweeps=(("narrow", Setting(heads=1, width=4, tokens=16)),),
    scales=(1.0, 64.0),
    search_layers=4,
    draws=1,
)
FEW = Config(shape=SHAPE, sweep=SWEEP)


@pytest.fixture(scope="module")
def found():
    return steps_of(ENTRY.run, FEW)[0]


def shape_table(**by_mask: list[list[float]]) -> pl.DataFrame:
    """A made-up table of the claim's shape; dropout keeps tokens apart."""
    table = curves(**by_mask).with_columns(("LayerNorm only, " + pl.col("model")).alias("model"))
    plain = pl.col("metric") == RELATIVE_DISPERSION
    dispersion = table.filter(plain).with_columns(pl.lit(DISPERSION).alias("metric"))
    noisy = pl.concat([table, dispersion]).filter(variant="float32")
    noisy = noisy.with_columns(pl.lit(DROPOUT).alias("variant"), pl.lit(2.0).alias("value"))
    return tables.stack([table, dispersion, noisy])


def judged(shape: dict[str, list[list[float]]], sweep: dict[str, list[list[float]]]):
    notes = {"causal": "at layer 3 digits were lost"}
    measured = join(Measured(shape_table(**shape)), Measured(curves(**sweep), notes))
    return kit.conclude(ENTRY, FEW, measured)


@pytest.mark.parametrize(
    ("full", "causal", "verdict"),
    [
        ([FALLING] * 2, [FALLING] * 2, "fails, for μ and with it for rank"),
        (
            [FALLING] * 2,
            [LEVEL] * 2,
            "depends on the sample: μ stays in 2 of 4 samples, a rank above one in 1 of these",
        ),
        (
            [LEVEL] * 2,
            [LEVEL] * 2,
            "holds, μ stays in 4 of 4 samples, a rank above one in 2 of these",
        ),
        (
            [[0.0] * 3],
            [[0.0] * 3],
            "not tried: the layers are too few to show what becomes of μ",
        ),
    ],
)
def test_each_verdict_can_be_reached_on_either_domain(full, causal, verdict) -> None:
    cases = {"full": full, "causal": causal}
    on_its_own = judged(cases, {"full": [FALLING], "causal": [FALLING]})
    can_be_shown(on_its_own)
    assert str(on_its_own.judgement) == verdict
    assert on_its_own.judgement.domain.startswith("BERT-base's shape")
    assert on_its_own.key_figures["samples that stay apart"] == sum(
        curve[-1] == 0.0 for curve in (*full, *causal)
    )
    beyond = judged({"full": [FALLING], "causal": [FALLING]}, cases)
    assert str(beyond.beyond) == verdict
    assert beyond.verdict == "fails"


def test_what_a_plateau_can_come_from_is_read_off_the_figures() -> None:
    late = [*[0.0] * 30, -3.0, -9.0, -27.0]

    def plateau(shape, sweep) -> tuple[str, str]:
        (said,) = (each for each in judged(shape, sweep).sentences if "plateau" in each)
        can, cannot = said.split("; not from ")
        return can, cannot

    falling = {"full": [FALLING], "causal": [FALLING]}
    can, cannot = plateau(falling, falling)
    assert can.endswith("can come from dropout")
    assert "LayerNorm" in cannot
    assert "float32" in cannot
    assert "LayerNorm" in plateau({"full": [LEVEL], "causal": [FALLING]}, falling)[0]
    assert "a stall that ends later" in plateau(falling, {"full": [late], "causal": [FALLING]})[0]
    slow = [-0.15 * k for k in range(9)]
    can, cannot = plateau({"full": [slow], "causal": [FALLING]}, falling)
    assert "merely slow" in can
    assert "a stall that ends later" in cannot  # still apart at the last layer, and never level
    steady = [-0.03 * k for k in range(80)]
    stays_low = [*[0.0] * 30, -0.5, -1.0, -1.5]
    for curve in (steady, stays_low):  # a fall without a stall; a stall without a collapse
        assert "stall" in plateau(falling, {"full": [curve], "causal": [FALLING]})[1]


def test_groups_of_a_setting_are_drawn_apart_and_doubts_reach_the_reader() -> None:
    shape = {"full": [FALLING], "causal": [FALLING]}
    sweep = {"full": [FALLING] * 3, "causal": [LEVEL, LEVEL, FALLING]}
    found = judged(shape, sweep)
    split = {"full", "causal: 2 of 3 stay", "causal: 1 of 3 collapse"}
    (beyond,) = found.parts
    assert set(beyond.drawings[0].only["model"]) == split
    assert [row[2] for row in beyond.listings[0].rows] == ["0 of 3", "2 of 3, rank 1.50"]
    rows = found.summary.filter(variant="scaled", layer=8, metric=RELATIVE_DISPERSION)
    ends = dict(rows.select("model", "median").rows())
    assert {name: ends[name] for name in split} == {
        "full": -4.0,
        "causal: 2 of 3 stay": 0.0,
        "causal: 1 of 3 collapse": -4.0,
    }
    assert found.sentences[-1] == "Note on causal: at layer 3 digits were lost."
    assert found.provenance["notes"] == {"causal": "at layer 3 digits were lost"}


def test_dropout_keeps_apart_what_layernorm_does_not(found) -> None:
    can_be_shown(found)
    assert found.verdict == "fails"
    assert len(found.sentences) <= 5
    (listing,) = found.listings
    assert listing.columns == ("mask", "law", "scaled", "float64", "float32", *dict(SHAPE.dropouts))
    assert [row[0] for row in listing.rows] == ["full", "causal"]
    assert listing.rows[0][1:3] == (
        "doubly exponential",
        power_of_ten(last_dispersions(found.table, "scaled")[SHAPE.panel("full")]),
    )
    scaled, noisy = (last_dispersions(found.table, each) for each in ("scaled", DROPOUT))
    full = SHAPE.panel("full")
    assert scaled[full] < -100
    outputs = last_dispersions(found.table, "dropout of outputs alone")
    assert 10 ** outputs[full] == pytest.approx(SHAPE.dropout_floor, rel=0.2)  # of 32 features
    assert min(noisy.values()) > 0.5
    assert {"share_still_apart", "still_apart", "stable_rank"} <= set(found.table["metric"])


def test_plain_figures_are_those_of_the_network(found) -> None:
    x, mask = Texts(32, 8, 2, 0)()
    setting = Setting(heads=2, width=32, init="bert", tokens=8, mask="causal")
    with torch.no_grad():
        y = random_network(setting, SHAPE.layers, 0)(x, mask)
    spread = torch.linalg.matrix_norm(y - y.mean(1, keepdim=True)).log10().tolist()
    for variant in ("float64", "scaled"):
        rows = found.table.filter(
            model=SHAPE.panel("causal"), variant=variant, layer=SHAPE.layers, metric=DISPERSION
        )
        assert rows.sort("sample")["value"].to_list() == pytest.approx(spread, rel=1e-6)


def test_a_run_is_the_same_again_and_a_seed_changes_all_of_it() -> None:
    shape = replace(SHAPE, layers=2, masks=("full",))
    fewer = Config(shape=shape, sweep=replace(SWEEP, layers=2, search_layers=2, factors=()))
    once, again, other = (ENTRY.run(replace(fewer, seed=seed), silent).table for seed in (0, 0, 1))
    assert once.equals(again)
    for metric in (DISPERSION, "still_apart"):
        of = [each.filter(metric=metric)["value"].to_list() for each in (once, other)]
        assert of[0] != of[1]


def test_what_seems_to_stay_is_followed_deeper(monkeypatch) -> None:
    from rankscope.experiments.claims import _bert_shape

    monkeypatch.setattr(_bert_shape.norm_outcomes, "some_stay", lambda _: True)
    shape = replace(SHAPE, layers=3, deeper=2, masks=("full",), dropouts=SHAPE.dropouts[:1])
    assert measure(shape, 0, silent).table["layer"].max() == 6


def test_its_scales_are_as_stated() -> None:
    quick, paper = Config(), replace(Config(), **PAPER)
    assert (quick.shape.heads, quick.shape.width, quick.shape.tokens) == (12, 768, 64)
    assert len(quick.shape.masks) == 4
    assert dict(quick.shape.dropouts)[DROPOUT] == Dropout(attention=0.1, hidden=0.1)
    assert paper.shape.layers > quick.shape.layers
    assert paper.sweep == layernorm.Config()


def test_poles_are_drawn_apart_from_samples_that_collapse() -> None:
    sweep = layernorm.Config(
        layers=6, deeper=2, factors=(("corner", (("poles", POLES),)),), sweeps=()
    )
    shape = replace(SHAPE, layers=4, masks=("full",))
    found = ENTRY.run(Config(seed=5, shape=shape, sweep=sweep), silent)
    groups = found.table.filter(pl.col("model").str.starts_with("poles"))
    groups = groups.select("model", "sample").unique()
    staying = groups.filter(pl.col("model").str.ends_with("stay")).height
    assert 0 < staying < 3
    assert set(groups["model"]) == {
        f"poles: {staying} of 3 stay",
        f"poles: {3 - staying} of 3 collapse",
    }
    assert str(found.beyond).endswith("a rank above one in 0 of these")
