"""``by_axis`` and ``axis_map``, against values worked out by hand."""

import json

import polars as pl
import pytest
import vl_convert

from rankscope.errors import InputError
from rankscope.results import Drawing, Result
from rankscope.show.figures import FIGURES, axis_map, by_axis, description, draw

from .maps import cells_of, scale_of

METRIC = "relative_residual"
NAMES = ("run", "norm", "layers", "seed", "layer", "sample", "metric", "value")


def falling(norm, layer):
    """Halved in every layer without a norm, slower with one."""
    return 0.5**layer if norm == "none" else 0.8**layer


def sweep(depths=(2, 4, 8), norms=("none", "layer"), value=falling):
    """Three seeds and two samples of each; seeds differ by a factor, samples do not."""
    rows = [
        (f"{norm}-{depth}-{seed}", norm, depth, seed, layer, sample, METRIC, value(norm, layer) * f)
        for norm in norms
        for depth in depths
        for seed, f in enumerate((0.9, 1.0, 1.3))
        for layer in range(depth + 1)
        for sample in range(2)
    ]
    return pl.DataFrame(rows, schema=list(NAMES), orient="row")


def spec_of(chart):
    spec = chart.to_dict()
    json.dumps(spec, allow_nan=False)
    assert "NaN" not in vl_convert.vegalite_to_svg(spec)
    return spec


def data_of(spec, panel=0):
    own = spec["concat"][panel]
    held = own.get("data") or spec.get("data") or own["layer"][0]["data"]
    return spec["datasets"][held["name"]] if "name" in held else held["values"]


def x_of(spec, panel=0):
    (line,) = (m for m in spec["concat"][panel]["layer"] if m["mark"]["type"] == "line")
    return line["encoding"]["x"]


def test_a_curve_for_each_colour_and_a_panel_for_each_facet_on_the_same_axes():
    spec = spec_of(by_axis(sweep(), metric=METRIC, x="depth", color="seed", facet="norm", pool=()))
    assert [panel["title"]["text"] for panel in spec["concat"]] == ["norm = none", "norm = layer"]
    assert x_of(spec) == x_of(spec, 1)
    assert (x_of(spec)["scale"]["type"], x_of(spec)["scale"]["domain"]) == ("linear", [2, 8])
    assert x_of(spec)["axis"]["title"] == "depth in layers"
    first = data_of(spec)[0]
    assert (first["place"], first["variant"]) == (2, "seed = 0")
    assert first["drawn_median"] == pytest.approx(0.225)
    assert len(data_of(spec)) == len(data_of(spec, 1)) == 9


def test_numbers_that_span_much_are_laid_out_logarithmically():
    spec = spec_of(by_axis(sweep(depths=(2, 4, 16)), metric=METRIC, x="layers", color="norm"))
    assert x_of(spec)["scale"]["type"] == "log"
    assert x_of(spec)["axis"]["values"] == [2, 4, 16]


def test_words_stand_in_the_order_of_the_grid():
    table = sweep(depths=(2,), norms=("rms", "none", "layer"))
    spec = spec_of(by_axis(table, metric=METRIC, x="norm"))
    assert x_of(spec)["axis"]["labelExpr"] == '["rms", "none", "layer"][datum.value]'
    assert [row["place_name"] for row in data_of(spec)] == ["rms", "none", "layer"]
    assert [row["place"] for row in data_of(spec)] == [0, 1, 2]
    ordered = table.reverse().with_columns(pl.col("norm").cast(pl.Enum(["rms", "none", "layer"])))
    again = spec_of(by_axis(ordered, metric=METRIC, x="norm"))
    assert x_of(again) == x_of(spec)


def test_values_that_are_no_words_are_named_with_their_axis():
    table = sweep(depths=(2,)).with_columns(bias=pl.col("norm") == "none", variant=pl.lit("SAN"))
    names = [
        row["variant"]
        for row in data_of(
            spec_of(by_axis(table, metric=METRIC, x="layers", color="bias", facet="norm"))
        )
    ]
    assert names == ["bias = true"]
    spec = spec_of(by_axis(table, metric=METRIC, x="norm", color="variant"))
    assert {row["variant"] for row in data_of(spec)} == {"SAN"}


def test_layers_can_be_the_axis_and_have_bands():
    table = sweep(depths=(8,))
    spec = spec_of(by_axis(table, metric=METRIC, x="layer", color="norm"))
    kinds = {mark["mark"]["type"] for mark in spec["concat"][0]["layer"]}
    assert "area" in kinds
    assert [row["layer"] for row in data_of(spec)][::2] == list(range(9))


def test_cells_are_medians_at_their_place_and_the_line_divides_them():
    spec = spec_of(axis_map(sweep(), metric=METRIC, x="depth", y="norm", boundary=0.2))
    cells = cells_of(spec)
    assert cells["4", "none"]["shade"] == pytest.approx(0.0625)
    assert (cells["4", "none"]["across"], cells["4", "none"]["up"]) == (1, 0)
    rules = [m for m in spec["concat"][0]["layer"] if m["mark"]["type"] == "rule"]
    edges = spec["datasets"][rules[0]["data"]["name"]]
    # Without a norm 1/4, 1/16, 1/256; with one 0.64, 0.41, 0.17: after 2, after 4, and between.
    assert {(e["left"], e["low"], e["right"], e["high"]) for e in edges} == {
        (0.5, -0.5, 0.5, 0.5),
        (1.5, 0.5, 1.5, 1.5),
        (0.5, 0.5, 1.5, 0.5),
    }


def test_a_map_of_layers_is_grey_where_nothing_falls_so_low():
    spec = spec_of(axis_map(sweep(), metric=METRIC, x="depth", y="norm", below=0.3))
    shades = {place: row["shade"] for place, row in cells_of(spec).items()}
    assert shades == {
        ("2", "none"): 2,
        ("4", "none"): 2,
        ("8", "none"): 2,
        ("2", "layer"): None,
        ("4", "layer"): None,
        ("8", "layer"): 6,
    }
    assert "First layer with relative residual below 0.3" in vl_convert.vegalite_to_svg(spec)


def test_facets_of_a_map_share_their_shades():
    table = sweep().with_columns(skip=pl.lit(1.0))
    spec = spec_of(axis_map(table, metric=METRIC, x="layers", y="skip", facet="norm"))
    assert scale_of(spec) == scale_of(spec, 1)
    assert vl_convert.vegalite_to_svg(spec).count(">Relative residual</text>") == 1
    with pytest.raises(InputError, match="two different axes; got layers twice"):
        axis_map(table, metric=METRIC, x="layers", y="depth")


def test_tiny_shades_are_named_as_powers():
    table = sweep(depths=(2, 8, 64), norms=("none",)).with_columns(skip=pl.lit(1.0))
    text = vl_convert.vegalite_to_svg(
        axis_map(table, metric=METRIC, x="layers", y="skip").to_dict()
    )
    for raised in ("−19", "−13", "−7", "−1"):
        assert f">{raised}</text>" in text


def test_charts_say_what_they_show():
    chart = by_axis(sweep(), metric=METRIC, x="depth", color="norm")
    assert chart.to_dict()["description"] == (
        "Relative residual by layers. "
        "Relative residual, norm = none: 0.25 at layers 2, 0.00391 at layers 8. "
        "Relative residual, norm = layer: 0.64 at layers 2, 0.168 at layers 8."
    )
    told = axis_map(sweep(), metric=METRIC, x="depth", y="norm").to_dict()["description"]
    assert told.endswith("from 0.00391 at layers 8, norm none to 0.64 at layers 2, norm layer.")


def test_results_can_ask_for_them():
    result = Result("r", "A sweep", "What?", (), sweep(), {})
    for drawing in (
        Drawing("by_axis", metric=METRIC, options={"x": "depth", "color": "norm"}),
        Drawing("axis_map", metric=METRIC, options={"x": "depth", "y": "norm"}),
    ):
        options = dict(drawing.options)
        chart = FIGURES[drawing.figure].function(sweep(), metric=METRIC, **options)
        assert draw(drawing, result).to_dict() == chart.to_dict()
        assert description(drawing, result) == chart.description
