"""MLPs slow the collapse; what counts as slower."""

from dataclasses import replace

import pytest

from rankscope.experiments.claims import d3
from rankscope.experiments.laws import Law
from rankscope.experiments.progress import silent

from .small import TINY, tiny


def test_d3_fails_where_the_law_is_not_there_yet() -> None:
    assert d3.run(replace(TINY["d3"][1], layers=3), silent).verdict == "fails"


def test_d3_does_not_mind_the_order_of_gains() -> None:
    config = replace(TINY["d3"][1], gains=(2.0, 0.5), activations=("relu",))
    assert d3.run(config, silent).verdict == "holds"


def test_d3_is_borne_out_by_rising_cubes_alone() -> None:
    def ends(*values: float, growth: float = 3.0) -> list[Law]:
        return [Law("doubly exponential", growth, -9.0, last) for last in values]

    assert d3.bears_out(ends(-300.0, -200.0, -200.0))
    assert not d3.bears_out(ends(-200.0, -300.0))
    assert not d3.bears_out(ends(-300.0, -200.0, growth=2.8))


def test_d3_says_how_steep_the_mlps_are() -> None:
    sentences = tiny("d3")[0].sentences
    assert sentences[0].startswith("no MLP")
    slopes = [float(each.split("at most ")[1].split(",")[0]) for each in sentences[1:]]
    assert slopes[1] == pytest.approx(4 * slopes[0], rel=0.01)
    assert slopes[3] == pytest.approx(4 * slopes[2], rel=0.01)
