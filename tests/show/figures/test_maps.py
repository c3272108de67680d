"""``layer_map`` and ``token_map``, read off the specification and the picture."""

import math

import polars as pl
import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.show.figures import layer_map, token_map
from rankscope.show.figures._offline import svg


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


def cells_of(spec, panel=0):
    """The rows and the encoding of the shaded cells."""
    own = spec["concat"][panel]
    (cell,) = (
        mark
        for mark in own["layer"]
        if mark["encoding"].get("color", {}).get("field") == "shade" and "transform" in mark
    )
    data = own.get("data") or spec["data"]
    return spec["datasets"][data["name"]], cell["encoding"]


def test_cells_of_a_layer_map_are_medians():
    data, encoding = cells_of(layer_map(spectrum(), metric="share").to_dict())
    found = {(row["layer"], row["place"]): row["shade"] for row in data}
    assert len(found) == 12
    assert found[2, 4] == pytest.approx(2 / 16)
    assert encoding["x"]["scale"]["domain"] == [0, 1, 2]
    assert encoding["y"]["scale"]["domain"] == [1, 2, 3, 4]  # the first on top


@pytest.mark.parametrize(
    ("metric", "kind"), [("share", "linear"), ("token_norm", "log"), ("log10_mine", "linear")]
)
def test_shades_go_by_the_scale_of_the_metric(metric, kind):
    spec = layer_map(spectrum(metric=metric), metric=metric).to_dict()
    _, encoding = cells_of(spec)
    assert encoding["color"]["scale"]["type"] == kind
    assert encoding["y"]["axis"]["title"] == "singular value"
    drawn = svg(spec)
    assert "NaN" not in drawn
    assert ">median</text>" in drawn


def test_what_is_too_many_to_be_seen_is_thinned():
    data, encoding = cells_of(layer_map(spectrum(120, 300), metric="share").to_dict())
    assert len(data) <= 96 * 64
    assert encoding["y"]["scale"]["domain"][:3] == [1, 6, 11]
    assert set(encoding["x"]["axis"]["values"]) <= set(encoding["x"]["scale"]["domain"])


def test_a_token_map_has_a_panel_for_each_layer_and_shades_up_to_one():
    spec = token_map(cosines(), metric="cosine", labels=["the", "cat", "the"]).to_dict()
    assert [panel["title"] for panel in spec["concat"]] == ["Layer 0", "Layer 2"]
    data, encoding = cells_of(spec, 1)
    found = {(row["a"], row["b"]): row["shade"] for row in data}
    assert len(found) == 9  # equal words are told apart
    assert found["0 the", "0 the"] == 1.0
    assert found["2 the", "1 cat"] == 0.2
    assert encoding["color"]["scale"]["domain"] == [0, 1]
    drawn = svg(spec)
    assert drawn.count(">the</text>") == 8  # on both axes of both panels, without their numbers
    assert ">0.25</text>" in drawn


def test_shades_reach_below_zero_if_tokens_point_opposite_ways():
    _, encoding = cells_of(token_map(cosines(least=-0.4), metric="cosine").to_dict())
    assert encoding["color"]["scale"]["domain"] == [-1, 1]


def test_labels_are_not_markup_and_no_code():
    labels = ["'];alert(1)//", "<b>&", '"\\']
    drawn = svg(token_map(cosines(), metric="cosine", labels=labels).to_dict())
    assert "&lt;b&gt;&amp;" in drawn
    assert "'];alert(1)//" in drawn


def test_of_many_tokens_some_are_drawn_and_it_is_said():
    spec = token_map(cosines(90, (0, 1)), metric="cosine").to_dict()
    data, encoding = cells_of(spec)
    assert len(data) == 45**2
    assert len(encoding["y"]["axis"]["values"]) <= 24
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
    assert sum(row["shade"] is None for row in cells_of(spec)[0]) == 3
    assert "NaN" not in svg(spec)
