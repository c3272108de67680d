"""What stands at the top of a page."""

import math

import pytest

from rankscope.results import Headline, Judgement
from rankscope.show.report import Report, write_html


@pytest.fixture
def top(tmp_path):
    """The page of a report with nothing but what is given."""

    def written(**given):
        return write_html(Report("t", "", **given), tmp_path / "page.html").read_text("utf-8")

    return written


@pytest.mark.parametrize("tone", ["collapse", "slow", "holds", "neutral"])
def test_the_headline_is_in_its_tone_and_the_answer_below_it(tone, top):
    shown = top(headline=Headline("A **cone** < 1", tone), answer="It is, 10^-3.")
    assert (
        f'<p class="headline {tone}">A <strong>cone</strong> &lt; 1</p>\n'
        '<div class="answer"><p>It is, 10<sup>−3</sup>.</p></div>'
    ) in shown


def test_warnings_are_one_box_with_a_paragraph_for_each(top):
    shown = top(warnings=["155 of `157`.", "One <sample>."])
    assert shown.count('class="warnings"') == 1
    assert "<p>155 of <code>157</code>.</p>\n<p>One &lt;sample&gt;.</p>" in shown


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("holds", "supported"),
        ("fails", "not supported"),
        ("depends", "supported in part"),
        ("not tried", "not tested"),
    ],
)
def test_a_judgement_is_a_badge_in_words_beside_what_it_is_about(verdict, words, top):
    judgement = Judgement(verdict, "", "the **scale**, 10^-3")
    shown = top(judgements={"Stated for: <this>": judgement})
    assert f'<span class="{verdict.replace(" ", "-")}"><span class="tone">{words}</span>' in shown
    assert "<dt>Stated for: &lt;this&gt;</dt>" in shown
    assert "the <strong>scale</strong>, 10<sup>−3</sup>" in shown


def test_key_figures_are_large_and_those_not_known_are_left_out(top):
    shown = top(key_figures={"all_paths": 9, "error": 2.5e-7, "nothing": math.nan, "many": 10**30})
    assert "<dt>all paths</dt><dd>9</dd>" in shown
    assert "<dd>2.50·10<sup>−7</sup></dd>" in shown
    assert "<dd>10<sup>30.0</sup></dd>" in shown
    assert "nothing" not in shown
    assert '<dl class="key">' not in top(key_figures={"nothing": math.nan})
