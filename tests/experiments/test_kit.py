"""From what each case shows to one verdict."""

import pytest

from rankscope.errors import InputError
from rankscope.experiments.kit import overall


@pytest.mark.parametrize(
    ("borne_out", "verdict"),
    [((True,), "holds"), ((True, True), "holds"), ((True, False), "depends"), ((False,), "fails")],
)
def test_overall(borne_out: tuple[bool, ...], verdict: str) -> None:
    assert overall({str(case): each for case, each in enumerate(borne_out)}) == verdict


def test_a_verdict_needs_a_case() -> None:
    with pytest.raises(InputError, match="no case was tried"):
        overall({})
