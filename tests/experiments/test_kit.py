"""From what each case shows to one verdict."""

import pytest

from rankscope.experiments.kit import judged


@pytest.mark.parametrize(
    ("borne_out", "verdict"),
    [
        ((True,), "holds"),
        ((True, True), "holds"),
        ((True, False), "depends"),
        ((False,), "fails"),
        ((), "not tried"),
    ],
)
def test_a_verdict_is_what_all_cases_say(borne_out: tuple[bool, ...], verdict: str) -> None:
    found = judged("here", {str(case): each for case, each in enumerate(borne_out)})
    assert (found.verdict, found.domain) == (verdict, "here")


def test_where_cases_differ_few_are_named_and_many_are_counted() -> None:
    some = judged("", {"a": True, "b": False, "c": False})
    assert str(some) == "depends on the case: a bears it out, b, c do not"
    many = judged("", {str(case): case > 3 for case in range(9)})
    assert str(many) == "depends on the case: 5 of 9 bear it out"


@pytest.mark.parametrize(
    ("borne_out", "words"),
    [
        ({"a": True}, "holds, to a point"),
        ({"a": False}, "fails, to a point"),
        ({"a": True, "b": False}, "depends on to a point"),
        ({}, "not tried: to a point"),
    ],
)
def test_what_is_given_completes_the_verdict(borne_out: dict[str, bool], words: str) -> None:
    assert str(judged("", borne_out, "to a point")) == words
