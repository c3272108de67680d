"""Tables with numbers one can read."""

import math
from dataclasses import replace

import polars as pl
import pytest

from rankscope.metric_catalogue import metric as entry_of
from rankscope.results import Listing
from rankscope.show.report._grids import METRIC, Cell, MetricGrid
from rankscope.show.report._html import table_html as table
from rankscope.show.report._tables import number


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


def grid_of(cells, *, metric="rank", axis="layer"):
    """A grid with the places and curves of its cells, ``{(axis, curve): (value, metric)}``."""
    return MetricGrid(
        metric,
        "",
        "median",
        axis,
        list(dict.fromkeys(at for at, _ in cells)),
        list(dict.fromkeys(curve for _, curve in cells)),
        {key: Cell(*cell) for key, cell in cells.items()},
        {name: entry_of(name) for name in [metric, *(cell[1] for cell in cells.values())]},
    )


def test_a_grid_has_a_row_for_each_curve_and_a_column_for_each_place():
    values = {(0, "full"): 0.0, (9, "full"): -3280.0, (0, "<c>"): -math.inf, (9, "<c>"): math.nan}
    html = table(grid_of({key: (value, "log10_residual") for key, value in values.items()}))
    assert '<th scope="col"></th><th scope="col" class="number">layer 0</th>' in html
    assert '<th scope="row">full</th><td class="number">1</td>' in html
    assert '<td class="number">10<sup>−3,280.0</sup></td>' in html
    assert '&lt;c&gt;</th><td class="number">exactly 0</td><td class="number">–</td>' in html


def test_numbers_in_doubt_are_marked_and_the_mark_is_explained():
    cells = {
        (0, "full"): (-2.0, "log10_residual"),
        (9, "full"): (-80.0, "log10_residual", True),
        (9, "causal"): (3.0, "rank", True),
        (0, "causal"): (math.nan, "rank", True),
    }
    html = table(grid_of(cells))
    assert "10<sup>−80.00</sup>?</td>" in html
    assert ">3?</td>" in html
    assert html.count("?") == 3
    assert html.endswith(
        '<p class="note">? inaccurate: the differences between tokens are lost to rounding.</p>'
    )
    sure = table(replace(grid_of(cells), positions=[0], curves=["full"]))
    assert "?" not in sure


def test_a_grid_of_metrics_names_them_and_biases_have_no_length():
    cells = {
        (1, "residual_share"): (0.125, "residual_share"),
        (None, "residual_share"): (1.5, "residual_share"),
        (1, "rank"): (3.0, "rank"),
    }
    html = table(grid_of(cells, metric="", axis="length"))
    assert ">metric</th>" in html
    assert ">length 1</th>" in html
    assert ">bias</th>" in html
    assert "Share of the residual</th>" in html
    assert '<td class="number" title="0.125">0.125</td>' in html
    # Whole numbers throughout are told as such.
    assert 'Rank</th><td class="number" title="3.0">3</td><td class="number">–</td>' in html


def test_the_one_curve_there_is_is_called_by_its_metric():
    assert 'row">Rank</th>' in table(grid_of({(0, ""): (3.0, "rank")}))
    assert 'row">value</th>' in table(grid_of({("rank", ""): (3.0, "rank")}, axis=METRIC))


def test_metrics_that_are_one_number_each_are_columns():
    cells = {("rank", "a"): (3.0, "rank"), ("mean_cosine", "a"): (0.5, "mean_cosine")}
    html = table(grid_of(cells, axis=METRIC))
    assert '<th scope="col" class="number">Rank</th>' in html
    assert '<th scope="col" class="number">Mean cosine</th>' in html
    assert 'a</th><td class="number" title="3.0">3</td><td class="number" title="0.5">0.500' in html


def test_a_listing_has_a_caption_numbers_to_the_right_and_words_with_marks():
    listing = Listing(
        "Heads that **mix**",
        ("head", "entropy", "seen", "note"),
        (("layer 1", 2.1e-7, 1200, "**one**, 10^-3 <"), ("layer 2", None, 3, None)),
        "In `nats`.",
    )
    html = table(listing)
    assert "<caption>Heads that <strong>mix</strong></caption>" in html
    assert '<th scope="col" class="number">entropy</th>' in html
    assert '<th scope="col">note</th>' in html
    assert '<th scope="row">layer 1</th>' in html
    assert '<td class="number" title="2.1e-07">2.10·10<sup>−7</sup></td>' in html
    assert '<td class="number">1,200</td>' in html
    assert "<td><strong>one</strong>, 10<sup>−3</sup> &lt;</td>" in html
    assert '<td class="number">–</td>' in html
    assert html.endswith('<p class="note">In <code>nats</code>.</p>')


def test_numbers_written_as_words_stand_right_with_a_few_short_words_among_them():
    rows = (("x", "−0.072"), ("y", "+5.1e−4"), ("z", "no skip"))
    html = table(Listing("t", ("a", "b"), rows))
    assert '<th scope="col" class="number">b</th>' in html
    assert '<td class="number">+5.1·10<sup>−4</sup></td>' in html
    assert '<td class="number">no skip</td>' in html


@pytest.mark.parametrize("entries", [("1", "none", "none"), ("1", "2 layers of many heads each")])
def test_a_column_of_words_stands_left(entries):
    html = table(Listing("t", ("a", "b"), tuple(("x", each) for each in entries)))
    assert '<th scope="col">b</th>' in html
    assert f"<td>{entries[-1]}</td>" in html


def test_a_keyboard_reaches_a_table_and_a_screen_reader_names_it():
    html = table(pl.DataFrame({"a": [1]}), 'The "last" layer')
    assert 'tabindex="0" role="region" aria-label="The &#34;last&#34; layer"' in html
