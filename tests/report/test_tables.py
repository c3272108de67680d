"""Tables with numbers one can read."""

import math

import polars as pl

from rankscope.report._grids import Curve, Grid
from rankscope.report._tables import number, table


def test_whole_numbers_keep_the_digits_that_are_read():
    assert number(109482240) == "109,482,240"
    assert number(10**15) == "10<sup>15.0</sup>"
    assert number(2.1345e-7) == "2.13·10<sup>−7</sup>"


def test_numbers_stand_right_and_words_left():
    html = table(pl.DataFrame({"variant": ["SAN"], "last_layer": [2.5e-7], "mask": ["full"]}))
    assert '<th scope="col">variant</th>' in html
    assert '<th scope="col" class="number">last layer</th>' in html
    assert '<th scope="row">SAN</th>' in html
    assert '<td class="number" title="2.5e-07">2.50·10<sup>−7</sup></td>' in html
    assert "<td>full</td>" in html


def test_a_first_column_of_numbers_is_no_heading():
    html = table(pl.DataFrame({"layer": [3]}))
    assert '<td class="number">3</td>' in html
    assert 'scope="row"' not in html


def test_what_is_missing_is_a_dash_and_truth_is_a_word():
    frame = pl.DataFrame({"a": ["x", None], "b": [None, 2], "c": [True, None], "d": [1.5, None]})
    html = table(frame)
    assert html.count("–") == 4
    assert "<td>yes</td>" in html


def test_words_are_escaped():
    html = table(pl.DataFrame({"<a>": ["<b>"], "c": ["<d>"], "e": [["<f>"]]}))
    assert not {"<a>", "<b>", "<d>", "<f>"} & set(html.replace(">", "> ").split())
    assert "&lt;b&gt;" in html


def test_every_row_is_there():
    assert table(pl.DataFrame({"n": range(100)})).count("<tr>") == 101


def test_a_grid_has_a_row_for_each_curve_and_a_column_for_each_place():
    full, causal = Curve("full", "log10_residual"), Curve("<causal>", "log10_residual")
    values = {(0, full): 0.0, (9, full): -3280.0, (0, causal): -math.inf, (9, causal): math.nan}
    html = table(Grid("", "median", "layer", [0, 9], [full, causal], values))
    assert '<th scope="col">curve</th><th scope="col" class="number">layer 0</th>' in html
    assert '<th scope="row">full</th><td class="number">1</td>' in html
    assert '<td class="number">10<sup>−3,280.0</sup></td>' in html
    assert '&lt;causal&gt;</th><td class="number">exactly 0</td><td class="number">–</td>' in html


def test_a_grid_of_metrics_names_them_and_biases_have_no_length():
    share, rank = Curve("", "residual_share"), Curve("", "rank")
    values = {(1, share): 0.125, (None, share): 1.5, (1, rank): 3.0}
    html = table(Grid("", "mean", "length", [1, None], [share, rank], values))
    assert ">metric</th>" in html
    assert ">length 1</th>" in html
    assert ">bias</th>" in html
    assert "Share of the residual</th>" in html
    assert '<td class="number" title="0.125">0.125</td>' in html
    # Whole numbers throughout are told as such.
    assert 'Rank</th><td class="number" title="3.0">3</td><td class="number">–</td>' in html
