"""LayerNorm alone: judged sample by sample, and drawn so that the samples can be told apart."""

from dataclasses import replace

import polars as pl
import pytest

from rankscope.experiments.claims.w2 import Config, judge, run
from rankscope.experiments.depths import Measured
from rankscope.experiments.studies._layernorm_cases import Setting

from ..shown import can_be_shown, steps_of
from ..studies.curves import FALLING, LEVEL, curves

SMALL = Setting(heads=2, width=8, tokens=8)
POLES = Setting(heads=1, width=4, logits=64.0, tokens=16, shared=True)
FEW = Config(
    layers=4,
    factors=(("few", (("full", SMALL), ("causal", replace(SMALL, mask="causal")))),),
    sweeps=(("narrow", Setting(heads=1, width=4, tokens=16)),),
    search_layers=4,
    draws=1,
)


@pytest.mark.parametrize(
    ("cases", "verdict", "domain"),
    [
        ([[FALLING] * 3] * 2, "fails", "Tokens collapse in every sample of all 2 cases."),
        (
            [[FALLING] * 3, [LEVEL, LEVEL, FALLING]],
            "depends",
            "Tokens collapse in every sample of 1 of the 2 cases; they stay apart in some samples "
            "of 1 case and in all samples of 0, always with causal mask.",
        ),
        (
            [[LEVEL] * 3] * 2,
            "holds",
            "Tokens collapse in every sample of 0 of the 2 cases; they stay apart in some samples "
            "of 0 cases and in all samples of 2.",
        ),
    ],
)
def test_it_is_judged_sample_by_sample(cases, verdict, domain) -> None:
    table = curves(**dict(zip(("full", "causal"), cases, strict=True)))
    found = judge(FEW, Measured(table, {}))
    can_be_shown(found)
    assert found.verdict == verdict
    assert found.sentences[0] == domain
    assert any("opposite poles" in why for why in found.sentences) is (verdict != "fails")
    split = {"full", "causal: 2 of 3 stay", "causal: 1 of 3 collapse"}
    drawn = {"fails": {"full"}, "depends": split, "holds": {"full", "causal"}}
    assert set(found.drawings[0].only["model"]) == drawn[verdict]
    if verdict == "depends":
        assert found.sentences[1].startswith("Of the 2 samples that stay apart 1 end")  # ranks 1, 2
        rows = found.summary.filter(variant="scaled", layer=8, metric="log10_relative_residual")
        assert dict(rows.select("model", "median").rows()) == {
            "full": -4.0,
            "causal: 2 of 3 stay": 0.0,
            "causal: 1 of 3 collapse": -4.0,
        }
    # Nothing but names has changed, and every sample is in its group.
    assert found.table.drop("model").equals(table.drop("model"))
    assert found.table["model"].str.split(":").list.first().equals(table["model"])


def test_a_run_counts_its_steps_and_keeps_every_number() -> None:
    found, seen = steps_of(run, FEW)
    can_be_shown(found)
    assert len(seen) > 3
    assert found.provenance["experiment"] == "W2"
    assert {"share_still_apart", "still_apart", "stable_rank"} <= set(found.table["metric"])
    assert any(each.startswith("A search over 10 settings") for each in found.sentences)
    assert any("narrow, fresh layers, still apart after 4 layers" in s for s in found.sentences)


def test_doubts_reach_the_reader() -> None:
    table = curves(full=[FALLING], causal=[LEVEL])
    found = judge(FEW, Measured(table, {"causal": "at layer 3 digits were lost"}))
    assert found.sentences[-1] == "Note on causal: at layer 3 digits were lost."
    assert found.provenance["notes"] == {"causal": "at layer 3 digits were lost"}
    assert "notes" not in judge(FEW, Measured(table, {})).provenance


def test_poles_are_drawn_apart_from_samples_that_collapse() -> None:
    config = Config(seed=2, layers=12, factors=(("corner", (("poles", POLES),)),), sweeps=())
    found, _ = steps_of(run, config)
    groups = found.table.select("model", "sample").unique()
    assert groups.height == config.samples
    staying = groups.filter(pl.col("model").str.ends_with("stay")).height
    assert 0 < staying < 3
    assert set(groups["model"]) == {
        f"poles: {staying} of 3 stay",
        f"poles: {3 - staying} of 3 collapse",
    }
