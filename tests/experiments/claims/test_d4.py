"""Skips keep what they protect, and where nothing is lost without them."""

from dataclasses import replace

from rankscope.experiments.claims import d4
from rankscope.experiments.progress import silent


def test_d4_fails_where_nothing_is_lost_without_skips() -> None:
    """Attention as sharp as this copies tokens, and values of this size keep them large."""
    config = d4.Config(
        layers=6, strengths=(1.0, 1e4), values=3.0, kept=2, width=8, tokens=4, samples=1
    )
    assert d4.run(config, silent).verdict == "depends"
    assert d4.run(replace(config, strengths=(1e4,)), silent).verdict == "fails"


def test_d4_notices_one_sample_below_its_floor() -> None:
    floor = {0: 1.0, 1: 2.0}
    assert d4.never_below({0: 1.0, 1: 2.5}, floor)
    assert not d4.never_below({0: 3.0, 1: 1.99}, floor)
