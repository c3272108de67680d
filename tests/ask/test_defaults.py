"""Defaults of ``Spec``, of the command line and of grids: equal, or the help says why not."""

from dataclasses import fields

import pytest

from rankscope.ask import COMMAND_LINE, GRID, Asks, Setup, Sources, options
from rankscope.core.network import Spec
from rankscope.experiments import ENTRIES

SHAPE = {"layers": 12, "heads": 12, "width": 768}
DIFFERENT = {"norm_place": ("norm_place", "pre"), "norm_eps": ("norm", "1e-5")}
"""Fields whose default is that of BERT: the option whose help says so, and what ``Spec`` has."""
FOLLOWS = {"embedding_scale": "norm_place"}
"""Fields that are derived from one of those above."""
REASON = "by default as in BERT-base"
SPEC = {slot.name for slot in fields(Spec)}
QUESTIONS = [entry for entry in ENTRIES if entry.kind == "question"]


@pytest.mark.parametrize("dialect", [COMMAND_LINE, GRID], ids=["command line", "grid"])
def test_every_field_of_a_spec_has_one_default(dialect) -> None:
    made, plain = Setup.of({}, sources=Sources(dialect=dialect)).spec, Spec(**SHAPE)
    different = {name for name in SPEC if getattr(made, name) != getattr(plain, name)}
    assert different == {*DIFFERENT, *FOLLOWS}
    assert made == Spec(**SHAPE, **{name: getattr(made, name) for name in DIFFERENT})


@pytest.mark.parametrize("entry", QUESTIONS, ids=lambda entry: entry.id)
def test_what_the_command_line_shows_is_what_it_does(entry) -> None:
    shown = {name: default for name, (_, _, default) in options(entry.asks).items()}
    made = Setup.of({}).spec
    for name in SPEC & shown.keys() - {"mask", "embedding_scale", "init"}:
        assert getattr(made, name) == shown[name], name
    assert Spec(**SHAPE, init=shown["init"]).init == made.init
    assert shown["mask"] is None
    assert str(made.mask) == "full"


def test_the_help_gives_the_reason_for_each_difference() -> None:
    helps = {name: word.help for name, (word, _, _) in options(Asks()).items()}
    for option, usual in DIFFERENT.values():
        assert REASON in helps[option]
        assert f"(Spec: {usual})" in helps[option]
    for name in SHAPE:
        assert REASON in helps[name]
    assert "default: full, or the mask of the MODEL" in helps["mask"]


def test_a_design_that_is_written_out_is_the_same_everywhere() -> None:
    written = {**SHAPE, "norm_place": "pre", "norm_eps": 1e-5}
    assert Setup.of(written).spec == Spec(**SHAPE)
