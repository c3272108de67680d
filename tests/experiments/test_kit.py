"""From what each case shows to one verdict, and from a verdict to a result."""

from types import SimpleNamespace

import pytest

from rankscope import tables
from rankscope.experiments import kit
from rankscope.experiments.catalogue import Entry
from rankscope.experiments.kit import judged


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ((True,), "holds"),
        ((True, True), "holds"),
        ((True, False), "depends"),
        ((False,), "fails"),
        ((), "not tried"),
    ],
)
def test_a_verdict_is_what_all_cases_say(held: tuple[bool, ...], verdict: str) -> None:
    found = judged("here", {str(case): each for case, each in enumerate(held)})
    assert (found.verdict, found.domain) == (verdict, "here")


def test_where_cases_differ_few_are_named_and_many_are_counted() -> None:
    some = judged("", {"a": True, "b": False, "c": False})
    assert str(some) == "Supported for a; not for b, c"
    many = judged("", {str(case): case > 3 for case in range(9)})
    assert str(many) == "Supported in 5 of 9 cases"


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"a": True}, "Supported: to a point"),
        ({"a": False}, "Not supported: to a point"),
        ({"a": True, "b": False}, "Supported in part: to a point"),
        ({}, "Not tested: to a point"),
    ],
)
def test_what_is_given_completes_the_verdict(held: dict[str, bool], words: str) -> None:
    assert str(judged("", held, "to a point")) == words


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"a": True}, "Supported: wholly"),
        ({"a": False}, "Not supported"),
        ({"a": True, "b": False}, "Supported in part: the letter"),
        ({}, "Not tested: give a letter"),
    ],
)
def test_a_verdict_can_have_words_of_its_own(held: dict[str, bool], words: str) -> None:
    on: kit.Phrase = {
        "holds": "wholly",
        "depends": "the letter",
        "not tried": "give a letter",
    }
    assert str(judged("", held, on)) == words


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        ({"a": True, "b": None}, "Supported where tested; not tested: b"),
        ({"a": False, "b": None, "c": None}, "Not supported where tested; not tested: b, c"),
        ({"a": True, "b": False, "c": None}, "Supported in part: the letter; not tested: c"),
        ({"a": None}, "Not tested: give a letter"),
    ],
)
def test_what_was_not_tried_is_named_and_decides_nothing(checks: kit.Checks, words: str) -> None:
    on: kit.Phrase = {"depends": "the letter", "not tried": "give a letter"}
    assert str(judged("", checks, on)) == words


ENTRY = Entry(
    "X1",
    "claim",
    "A title.",
    "A question?",
    "Someone et al. 2030",
    "here",
    "elsewhere",
    metrics=(kit.Metric("gap", "Gap", definition="The gap of two layers."),),
)
TABLE = tables.from_rows(("layer", "metric", "value"), [(0, "gap", 1.0), (1, "gap", 2.0)])


def concluded(monkeypatch, measured, answer: kit.Answer) -> kit.Result:
    """What a module comes to that has two charts, and answers what it is told to."""
    charts = (kit.Drawing("by_depth", metric="gap"), kit.Drawing("trajectories"))
    given = []
    module = SimpleNamespace(CHARTS=charts, judge=lambda *args: given.append(args) or answer)
    monkeypatch.setattr(Entry, "module", lambda _: module)
    found = kit.conclude(ENTRY, kit.Config(seed=3), measured)
    assert given == [(kit.Config(seed=3), measured)]
    return found


def test_a_result_is_derived_from_a_table_and_an_answer(monkeypatch) -> None:
    checks = {"stated": {"a": True}, "beyond": {"a": True, "b": False}}
    answer = kit.Answer(["It grows."], **checks, on="to a point", key_figures={"gap": 2.0})
    found = concluded(monkeypatch, TABLE, answer)
    assert (found.id, found.title, found.question) == ("X1", "A title.", "A question?")
    assert (str(found.judgement), found.judgement.domain) == ("Supported: to a point", "here")
    assert (found.beyond.verdict, found.beyond.domain) == ("depends", "elsewhere")
    assert found.table is TABLE
    assert [each.figure for each in found.drawings] == ["by_depth", "trajectories"]
    assert found.shown == ("gap",)
    assert found.provenance["seed"] == 3


def test_what_is_measured_beside_a_table_reaches_the_result(monkeypatch) -> None:
    measured = kit.Measured(TABLE, {"a": "a digit was lost"}, {"a": 1}, {"norm": "fro"})
    other = (kit.Drawing("by_layer", metric="gap"),)
    answer = kit.Answer(["It grows."], charts=other, shown=(), about={"trained on": "cpu"})
    found = concluded(monkeypatch, measured, answer)
    assert found.sentences == ("It grows.", "Note on a: a digit was lost.")
    assert (found.judgement, found.beyond) == (None, None)
    assert (found.drawings, found.shown) == (other, ())
    about = {name: found.provenance[name] for name in ("norm", "trained on", "notes")}
    assert about == {"norm": "fro", "trained on": "cpu", "notes": {"a": "a digit was lost"}}


def test_checks_hold_where_every_source_says_so() -> None:
    sides = {"predicted": {"up": True, "down": False}, "networks": {"up": False, "down": False}}
    assert kit.on_all(list(sides), sides.__getitem__) == {"up": False, "down": False}


def test_curves_are_means_over_samples_in_the_order_of_their_places() -> None:
    names = ("model", "variant", "setting", "sample", "metric", "value")
    rows = [("m", "b", 2.0, 0, "gap", 5.0), ("m", "a", 1.0, 0, "gap", 0.0)]
    rows += [("m", "b", 1.0, sample, "gap", value) for sample, value in enumerate((1.0, 3.0))]
    found = kit.curves(tables.from_rows(names, rows))
    assert list(found) == [("m", "b", "gap"), ("m", "a", "gap")]
    assert found["m", "b", "gap"] == {1.0: kit.Mean(2.0, 1.0, 2), 2.0: kit.Mean(5.0, 0.0)}
