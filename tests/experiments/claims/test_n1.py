"""Pairs of positions make the collapse exponential, and what is called so wrongly."""

from dataclasses import replace

from rankscope.experiments.claims import n1
from rankscope.experiments.progress import silent

from .small import TINY


def test_n1_fails_where_the_laws_are_the_other_way_round() -> None:
    wrong = n1.Pattern("called pairwise", rows_agree=False)
    right = n1.Pattern("absolute positions", rows_agree=True)
    config = replace(TINY["n1"][1], patterns=(right, wrong))
    assert n1.run(config, silent).verdict == "depends"
    assert n1.run(replace(config, patterns=(wrong,)), silent).verdict == "fails"
