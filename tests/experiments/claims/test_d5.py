"""Skips keep real models from collapsing, told apart from models they do not keep."""

from dataclasses import replace

import pytest

from rankscope import tables
from rankscope.ask import SMALL, Model
from rankscope.experiments import kit
from rankscope.experiments.claims import d5
from rankscope.process.progress import silent

from ..tiny import Fresh, Tiny
from .small import DEEP, TINY, tiny

NAMES = ("SAN", "SAN+MLP", "SAN+skip", "transformer")
STATED = ("collapsed", "collapsed", "level", "level")
CASES = [
    (STATED, True),
    (("still falling", "collapsed", "level", "level"), False),
    (("collapsed", "level", "level", "level"), False),
    (("collapsed", "collapsed", "still falling", "level"), False),
    (("collapsed", "collapsed", "level", "collapsed"), False),
]


RESIDUALS = {
    "collapsed": [0.6, 1e-2, 1e-4, 1e-6, 1e-6],
    "still falling": [0.6, 0.4, 0.25, 0.16, 0.1],
    "level": [0.6, 0.1, 0.1, 0.1, 0.1],
}


def judged(**models: tuple[str, tuple[str, ...]]) -> kit.Result:
    """By model, its family and the fates of its variants."""
    rows = [
        (f"{model} (init)", name, layer, 0, "relative_residual", value)
        for model, (_, fates) in models.items()
        for name, fate in zip(NAMES, fates, strict=True)
        for layer, value in enumerate(RESIDUALS[fate])
    ]
    table = tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)
    facts = {f"{model} (init)": {"family": family} for model, (family, _) in models.items()}
    config = d5.Config(models=tuple(Model(model, at_init=True) for model in models))
    return kit.conclude(d5.ENTRY, config, kit.Measured(table, facts=facts))


@pytest.mark.parametrize(("fates", "borne_out"), CASES)
def test_a_model_is_judged_by_all_four_variants(fates: tuple[str, ...], borne_out: bool) -> None:
    found = judged(bert=("BERT", fates))
    assert found.verdict == ("holds" if borne_out else "fails")
    assert found.judgement.on == "tried on bert (init)"
    assert found.beyond is None


def test_where_models_differ_the_verdict_says_which_and_how() -> None:
    found = judged(bert=("BERT", STATED), albert=("ALBERT", CASES[3][0]))
    told = "depends on the model (albert (init): SAN+skip 0.6 → 0.1, still falling)"
    assert str(found.judgement) == told


def test_other_families_are_beyond_the_papers_domain() -> None:
    found = judged(gpt=("GPT-2", STATED))
    assert found.verdict == "not tried"
    assert "--pretrained" in found.judgement.on
    assert str(found.beyond) == "holds, tried on gpt (init)"


@pytest.mark.parametrize(
    ("residuals", "fate"),
    [
        ([0.6, 0.02, 1e-6, 1e-7], "collapsed"),
        ([0.6, 0.55, 0.5, 0.48, 0.47, 0.46, 0.46, 0.45], "level"),
        # As measured for ALBERT at initialisation with skips alone: no collapse yet, but no rest.
        ([0.63, 0.57, 0.5, 0.44, 0.38, 0.32, 0.26, 0.21, 0.17, 0.13, 0.1, 0.08, 0.072],
         "still falling"),
        ([0.6, 0.0, 0.0, 0.0], "collapsed"),
    ],
)  # fmt: skip
def test_what_becomes_of_a_residual(residuals: list[float], fate: str) -> None:
    assert d5.course(residuals).fate == fate


def test_every_model_and_variant_is_told() -> None:
    config = replace(TINY["d5"][1], models=(DEEP, Fresh("gpt2")))
    found = d5.ENTRY.run(config, silent)
    assert found.verdict == "holds"
    assert found.beyond.verdict == "fails"  # behind a causal mask, before the norms
    assert found.table.columns == ["model", "variant", "layer", "sample", "metric", "value"]
    assert found.table["sample"].unique().to_list() == [0, 1]
    counted, untrained = found.sentences
    (listing,) = found.listings
    assert listing.columns == ("model", "SAN", "SAN+MLP", "SAN+skip", "transformer")
    bert, gpt2 = listing.rows
    assert bert[0] == "bert (init)"
    assert [each.split(", ")[1] for each in bert[1:]] == ["collapsed"] * 2 + ["level"] * 2
    assert gpt2[0].startswith("gpt2")
    every = [each for row in listing.rows for each in row[1:3]]
    assert counted.startswith(f"Tokens collapse in {sum('coll' in each for each in every)} of 4 ")
    assert "none of the paper's models was tried with trained weights" in untrained.lower()


def test_it_fails_where_skips_do_not_hold() -> None:
    found = d5.ENTRY.run(replace(TINY["d5"][1], models=(Tiny("bert"),)), silent)
    assert found.verdict == "fails"


def test_it_takes_away_what_it_is_told_to() -> None:
    kept, _ = tiny("d5")
    found = d5.ENTRY.run(replace(TINY["d5"][1], parts="theorems"), silent)
    assert not found.table.equals(kept.table)
    assert "without norms" in found.provenance["variants"]
    assert "without norms" in found.drawings[0].caption


def test_without_trained_weights_at_hand_one_is_trained(monkeypatch, tmp_path) -> None:
    known = d5.Config().models
    assert known[:3] == (
        Model("bert-base", at_init=True),
        Model("albert-base-v2", at_init=True),
        Model("xlnet-base", at_init=True),
    )
    assert known[3:] == (SMALL,)
    monkeypatch.setattr("rankscope.experiments.models.cached_folder", lambda _: tmp_path)
    assert [case.at_init for case in d5.Config().models] == [True] * 3 + [False] * 3
    assert not any(case.trained_here for case in d5.Config().models)
