"""Every metric has its words, in characters that can be drawn everywhere."""

import pytest

from rankscope.figures import metric_words
from rankscope.figures.metric_words import WORDS
from rankscope.tracing.measures import MEASURES


def test_every_metric_a_trace_knows_has_words():
    assert set(WORDS) == set(MEASURES)


def test_residuals_are_logarithmic():
    logarithmic = {name for name, words in WORDS.items() if words.scale == "log"}
    assert logarithmic == {"relative_residual", "residual", "dispersion", "spectral_ratio"}


@pytest.mark.parametrize("name", WORDS)
def test_words_say_something_in_a_line(name):
    words = WORDS[name]
    assert words.title
    assert words.symbol
    assert 10 < len(words.meaning) < 60


@pytest.mark.parametrize("name", WORDS)
def test_characters_are_in_the_font_that_pictures_fall_back_on(name):
    """Superscript and subscript digits are not, bar the Latin-1 ones: they come out as boxes."""
    latin = {chr(code) for code in range(0x20, 0x180)}
    greek = set("ΣστμΠαβγλ")
    assert set(WORDS[name].title + WORDS[name].symbol + WORDS[name].meaning) <= (
        latin | greek | set("‖′−")
    )


def test_an_unknown_metric_keeps_its_name():
    words = metric_words("my_own_score")
    assert (words.title, words.scale, words.symbol) == ("My own score", "linear", "")
    assert metric_words("_").title == "_"
