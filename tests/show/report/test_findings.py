"""What was looked for, as a table."""

from dataclasses import replace

import pytest

from rankscope.results import Finding
from rankscope.show.report._html import table_html
from rankscope.show.report._tables import in_how_many, where

FOUND = Finding("cone", "slow", "Cosine **0.6** < 1.", "above 10^-3", 0.6, 1200, "attention", 2, 3)


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        ("collapse", "present"),
        ("slow", "under way"),
        ("absent", "absent"),
        ("unknown", "undetermined"),
    ],
)
def test_fates_are_said_in_words_and_not_by_colour_alone(fate, words):
    shown = table_html([replace(FOUND, fate=fate)])
    assert f'<td><span class="{fate}"><span class="tone">{words}</span></span></td>' in shown


def test_a_row_says_what_whether_in_words_where_how_often_and_by_which_rule():
    shown = table_html([FOUND])
    cells = [
        '<th scope="row">cone</th>',
        "under way",
        '<td class="words">Cosine <strong>0.6</strong> &lt; 1.</td>',
        '<td class="where">layer 1,200, attention</td>',
        '<td class="number">2 of 3</td>',
        '<td class="words rule">above 10<sup>−3</sup></td>',
    ]
    places = [shown.index(cell) for cell in cells]
    assert places == sorted(places)
    assert shown.count('<th scope="col"') == 6
    assert "<caption>Looked for" in table_html([FOUND], "Looked for")


def test_columns_without_anything_are_left_out():
    bare = replace(FOUND, layer=None, part="", samples=0)
    assert "where" not in table_html([bare])
    assert "samples" not in table_html([bare])
    assert "where" in table_html([bare, FOUND])


def test_where_and_how_often_as_far_as_known():
    assert where(FOUND) == "layer 1,200, attention"
    assert where(replace(FOUND, part="")) == "layer 1,200"
    assert where(replace(FOUND, layer=None)) == "attention"
    assert in_how_many(replace(FOUND, found_in=0)) == "0 of 3"
    assert in_how_many(replace(FOUND, samples=0)) == ""
