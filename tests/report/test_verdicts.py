"""Verdicts as cards."""

import pytest

from rankscope.report.page import TONES
from rankscope.report.verdicts import cards


def test_each_tone_has_a_curve_of_its_own():
    drawn = [cards([("x", "y", tone)]).replace(f"verdict {tone}", "") for tone in TONES]
    assert len(set(drawn)) == len(TONES) == 4


@pytest.mark.parametrize(
    ("tone", "word"),
    [("collapse", "collapses"), ("slow", "collapses slowly"), ("holds", "holds")],
)
def test_tones_are_said_in_words_too(tone, word):
    assert f'<span class="tone">{word}</span>' in cards([("SAN", "It does.", tone)])
    assert 'class="tone"' not in cards([("SAN", "It does.", "neutral")])


def test_no_verdict_makes_no_list():
    assert cards([]) == ""
