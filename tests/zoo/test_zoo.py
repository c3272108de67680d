"""docs/models.md says what a survey of the zoo finds: a few architectures always, others by lot."""

import os
import random
from dataclasses import replace

import pytest
import torch
import transformers as hf

from rankscope.errors import InputError

from . import survey
from .architectures import build, inputs, names
from .arguments import INPUTS
from .configurations import FIELDS, UNAVAILABLE

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, not ours

ALWAYS = (
    "clip", "detr", "gemma4_text", "jamba", "mamba", "neomme", "qwen3_vl_vision", "t5", "xlm",
    "xlnet", "zamba2",
)  # fmt: skip
"""Two towers, a detector, refusing configurations, hybrids, packed images, odd layouts."""
DRAWN = 5
ROWS = survey.read_page()
IS_CURRENT = f"Transformers {hf.__version__}:" in survey.PAGE.read_text(encoding="utf-8")


def outcome(row):
    return row.traced, row.converted, row.diagnosed


def check(name, *, diagnosed):
    """Survey an architecture; say how its row differs from the page's."""
    row, expected = survey.survey(name, diagnosed=diagnosed), ROWS[name]
    if not diagnosed:
        expected = replace(expected, diagnosed="-")
    assert not survey.BAD & set(outcome(row)), row.line
    if IS_CURRENT:
        assert outcome(row) == outcome(expected), f"run 'make zoo': {row.line}"


@pytest.mark.parametrize("name", ALWAYS)
def test_the_page_is_right_about(name):
    check(name, diagnosed=name == "xlnet")


def test_the_page_is_right_about_some_more():
    """Others in every run; ``RANKSCOPE_ZOO_SEED`` repeats a choice."""
    seed = int(os.environ.get("RANKSCOPE_ZOO_SEED", random.SystemRandom().randrange(10**6)))
    available = [name for name in names() if name in ROWS and name not in UNAVAILABLE]
    chosen = random.Random(seed).sample(available, DRAWN)
    print(f"RANKSCOPE_ZOO_SEED={seed}: {', '.join(chosen)}")
    for name in chosen:
        check(name, diagnosed=True)


def test_the_page_lists_every_architecture():
    assert not survey.BAD & {cell for row in ROWS.values() for cell in outcome(row)}
    if IS_CURRENT:
        assert list(ROWS) == names()
        assert survey.page(list(ROWS.values())) == survey.PAGE.read_text(encoding="utf-8")
        assert set(UNAVAILABLE) <= set(ROWS)


def test_rows_are_read_as_they_are_written():
    row = survey.Row("bert", "`BertModel`", "equal", "no", "yes", "a reason; another")
    assert survey.Row.read(row.line) == row
    assert survey.Row.read(replace(row, note="").line) == replace(row, note="")


def test_what_cannot_be_built_has_no_fields_and_no_inputs():
    assert set(UNAVAILABLE).isdisjoint(FIELDS)
    assert set(UNAVAILABLE).isdisjoint(INPUTS)


def test_models_are_drawn_by_their_seed():
    one, same, other = (build("bert", seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["pooler.dense.weight"], other["pooler.dense.weight"])


def test_wrong_numbers_are_seen():
    model = build("bert", 0)
    given = inputs(model)
    with torch.no_grad():
        (own,) = survey._run(model, given)
    traced = survey._trace_stack(model, given, None)
    mask = [given["attention_mask"]]
    assert traced.equals(own, mask)
    assert not traced.equals(own, [None])  # padding was measured
    wrong = [own[0], own[1] + 1e-2, *own[2:]]
    assert not traced.equals(wrong, mask)
    assert survey._trace(model, given, [wrong])[0] == "DIFFERS"


def test_errors_are_told_apart():
    def foreign():
        raise KeyError("key")

    def refused():
        raise InputError("Got 3, expected 4. Do this.")

    assert survey._attempt(foreign)[0] == "FOREIGN"
    assert survey._attempt(refused) == ("no", "Got 3, expected 4")
