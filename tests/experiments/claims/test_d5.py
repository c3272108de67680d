"""Skips keep real models from collapsing, told apart from models they do not keep."""

from dataclasses import replace

import pytest

from rankscope.experiments.claims import d5
from rankscope.experiments.progress import silent
from rankscope.experiments.variants import Reading
from rankscope.results import Fate, Finding

from ..tiny import Fresh, Tiny
from .small import TINY, tiny

FATES: list[tuple[tuple[Fate, Fate, Fate, Fate], bool]] = [
    (("collapse", "collapse", "holds", "holds"), True),
    (("slow", "collapse", "holds", "holds"), False),
    (("collapse", "slow", "holds", "holds"), False),
    (("collapse", "collapse", "slow", "holds"), False),
    (("collapse", "collapse", "holds", "collapse"), False),
]


def test_d5_tells_every_model_and_variant() -> None:
    config = replace(TINY["d5"][1], models=(Fresh("bert"), Fresh("gpt2")))
    found = d5.run(config, silent)
    assert found.verdict == "depends"
    assert found.table.columns == ["model", "variant", "layer", "sample", "metric", "value"]
    assert found.table["sample"].unique().to_list() == [0, 1]
    bert, gpt2 = found.sentences
    assert bert.startswith("bert (init): relative residual after 3 layers: SAN ")
    assert bert.count("(collapse)") == bert.count("(holds)") == 2
    assert gpt2.count("(holds)") == 4  # before the norms, and behind a causal mask


def test_d5_fails_where_skips_do_not_hold() -> None:
    found = d5.run(replace(TINY["d5"][1], models=(Tiny("bert"),)), silent)
    assert found.verdict == "fails"
    assert "SAN+skip" in found.sentences[0].split("(slow)")[0]


def test_d5_takes_away_what_it_is_told_to() -> None:
    kept, _ = tiny("d5")
    found = d5.run(replace(TINY["d5"][1], reading=Reading(norms="drop")), silent)
    assert not found.table.equals(kept.table)
    assert "norms dropped" in found.provenance["variants"]
    assert "norms dropped" in found.drawings[0].caption


@pytest.mark.parametrize(("fates", "borne_out"), FATES)
def test_d5_is_borne_out_by_skips_alone(fates: tuple[Fate, ...], borne_out: bool) -> None:
    names = ("SAN", "SAN+MLP", "SAN+skip", "transformer")
    found = [Finding(name, fate, "", 1.0, 1.0, 12) for name, fate in zip(names, fates, strict=True)]
    assert d5.bears_out(found) is borne_out
