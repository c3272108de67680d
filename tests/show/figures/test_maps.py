"""``layer_map`` and ``token_map``, read off the specification and the picture."""

import math

import polars as pl
import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.show.figures import layer_map, svg, token_map

from .maps import cells_of, named_on, scale_of, shaded, side_of


def spectrum(layers=3, values=4, metric="share"):
    rows = [
        (layer, number, sample, metric, [1.0, 2.0, 30.0][sample] / float(number) ** layer)
        for layer in range(layers)
        for number in range(1, values + 1)
        for sample in range(3)
    ]
    return tables.summary(tables.from_rows(("layer", "index", "sample", "metric", "value"), rows))


def cosines(tokens=3, layers=(0, 2), sample=0, least=0.1):
    rows = [
        (layer, one, other, sample, "cosine", 1.0 if one == other else least * one)
        for layer in layers
        for one in range(tokens)
        for other in range(tokens)
    ]
    names = ("layer", "token", "other_token", "sample", "metric", "value")
    return tables.from_rows(names, rows)


def test_cells_of_a_layer_map_are_medians():
    spec = layer_map(spectrum(), metric="share").to_dict()
    cells = cells_of(spec)
    assert len(cells) == 12
    assert cells["2", "4"]["shade"] == pytest.approx(2 / 16)
    assert (cells["2", "4"]["across"], cells["2", "4"]["up"]) == (2, 3)
    assert side_of(spec, "x") == ["0", "1", "2"]
    assert side_of(spec, "y") == ["4", "3", "2", "1"]  # the first on top


@pytest.mark.parametrize(
    ("metric", "kind"), [("share", "linear"), ("token_norm", "log"), ("log10_mine", "linear")]
)
def test_shades_go_by_the_scale_of_the_metric(metric, kind):
    spec = layer_map(spectrum(metric=metric), metric=metric).to_dict()
    assert scale_of(spec)["type"] == kind
    assert shaded(spec)["encoding"]["y"]["axis"]["title"] == "singular value"
    drawn = svg(spec)
    assert "NaN" not in drawn
    assert ">median</text>" in drawn


def test_what_is_too_many_to_be_seen_is_thinned():
    spec = layer_map(spectrum(120, 300), metric="share").to_dict()
    assert len(cells_of(spec)) <= 96 * 64
    assert side_of(spec, "y")[:-4:-1] == ["1", "6", "11"]
    assert 1 <= len(named_on(spec, "x")) <= 16
    assert 1 <= len(named_on(spec, "y")) <= 16


def test_a_token_map_has_a_panel_for_each_layer_and_shades_up_to_one():
    spec = token_map(cosines(), metric="cosine", labels=["the", "cat", "the"]).to_dict()
    assert [panel["title"]["text"] for panel in spec["concat"]] == ["Layer 0", "Layer 2"]
    cells = cells_of(spec, 1)
    assert len(cells) == 9  # equal words are told apart
    assert cells["0 the", "0 the"]["shade"] == 1.0
    assert cells["1 cat", "2 the"]["shade"] == 0.2
    assert scale_of(spec)["domain"] == [0, 1]
    drawn = svg(spec)
    assert drawn.count(">the</text>") == 8  # on both axes of both panels, without their numbers
    assert ">0.25</text>" in drawn


def test_shades_reach_below_zero_if_tokens_point_opposite_ways():
    spec = token_map(cosines(least=-0.4), metric="cosine").to_dict()
    assert scale_of(spec)["domain"] == [-1, 1]


def test_labels_are_not_markup_and_no_code():
    labels = ["'];alert(1)//", "<b>&", '"\\']
    drawn = svg(token_map(cosines(), metric="cosine", labels=labels).to_dict())
    assert "&lt;b&gt;&amp;" in drawn
    assert "'];alert(1)//" in drawn


def test_of_many_tokens_some_are_drawn_and_it_is_said():
    spec = token_map(cosines(90, (0, 1)), metric="cosine").to_dict()
    assert len(cells_of(spec)) == 45**2
    assert len(named_on(spec, "y")) <= 24
    assert "Cosine, one token in 2" in svg(spec)


def test_tables_that_cannot_be_drawn_are_refused():
    with pytest.raises(InputError, match="lacks index; layer_map draws"):
        layer_map(spectrum().drop("index"), metric="share")
    two = pl.concat([spectrum().with_columns(variant=pl.lit(name)) for name in "ab"])
    with pytest.raises(InputError, match="several values of variant"):
        layer_map(two, metric="share")
    with pytest.raises(InputError, match="several values of sample"):
        token_map(pl.concat([cosines(), cosines(sample=1)]), metric="cosine")
    with pytest.raises(InputError, match="2 labels for 3 tokens"):
        token_map(cosines(), metric="cosine", labels=["a", "b"])


def test_cells_without_a_value_can_be_drawn():
    gone = pl.when(pl.col("token") == 1).then(math.nan).otherwise("value")
    spec = token_map(cosines().with_columns(value=gone), metric="cosine").to_dict()
    assert sum(row["shade"] is None for row in cells_of(spec).values()) == 3
    assert "NaN" not in svg(spec)
