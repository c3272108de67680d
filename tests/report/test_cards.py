"""What stands at the top of a page."""

import math

import pytest

from rankscope.report._cards import answers, cards, key_figures
from rankscope.results import Judgement


@pytest.mark.parametrize(
    ("tone", "word"),
    [("collapse", "collapses"), ("slow", "collapses slowly"), ("holds", "stays apart")],
)
def test_tones_are_said_in_words_and_not_by_colour_alone(tone, word):
    card = cards([("SAN", "It **does**.", tone)])
    assert f'<li class="verdict {tone}">' in card
    assert f'<span class="tone">{word}</span>' in card
    assert "It <strong>does</strong>." in card


def test_a_neutral_card_has_no_badge():
    assert 'class="tone"' not in cards([("SAN", "It does.", "neutral")])


def test_no_verdict_makes_no_list():
    assert cards([]) == ""


@pytest.mark.parametrize("verdict", ["holds", "fails", "depends", "not tried"])
def test_an_answer_is_a_badge_in_words_beside_what_it_is_about(verdict):
    assert answers({}) == ""
    shown = answers({"Stated for: <this>": Judgement(verdict, "", "the **scale**, 10^-3")})
    assert f'<span class="{verdict.replace(" ", "-")}"><span class="tone">{verdict}</span>' in shown
    assert "<dt>Stated for: &lt;this&gt;</dt>" in shown
    assert f"{'on ' * (verdict == 'depends')}the <strong>scale</strong>, 10<sup>−3</sup>" in shown


def test_key_figures_are_large_and_those_not_known_are_left_out():
    shown = key_figures({"all_paths": 9, "error": 2.5e-7, "nothing": math.nan, "many": 10**400})
    assert "<dt>all paths</dt><dd>9</dd>" in shown
    assert "<dd>2.50·10<sup>−7</sup></dd>" in shown
    assert "<dd>10<sup>400</sup></dd>" in shown
    assert "nothing" not in shown
    assert key_figures({"nothing": math.nan}) == key_figures({}) == ""
