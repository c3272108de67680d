"""``by_length``, read off the specification and off what Vega makes of it."""

import json
import math

import polars as pl
import pytest
import vl_convert

from rankscope import tables
from rankscope.errors import InputError
from rankscope.show.figures import adaptive, by_length, save
from rankscope.show.figures._theme import DARK, INK, SINGLE_COLOUR

from .maps import cells_of, named_on, scale_of, shaded, side_of

STATISTICS = ("low", "median", "high")
SHARE = "residual_share"


def summary(layers=6, *, samples=3):
    rows = [
        (layer, length, sample, metric, _share(layer, length) * (1 + 0.1 * sample))
        for layer in range(layers + 1)
        for length in (*range(layer + 1), None)
        for sample in range(samples)
        for metric in ("residual_share", "norm_share", "projection")
    ]
    names = ("layer", "length", "sample", "metric", "value")
    return tables.summary(
        tables.frame(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    )


def _share(layer, length):
    if length is None:
        return 0.01 * layer
    return math.comb(layer, length) * 0.2**length


def replaced(table, where, value):
    return table.with_columns(
        pl.when(where).then(pl.lit(value)).otherwise(pl.col(name)).alias(name)
        for name in STATISTICS
    )


def rows_of(spec, panel):
    data = spec["concat"][panel].get("data") or spec["data"]
    return spec["datasets"][data["name"]] if "name" in data else data["values"]


def marks_of(spec, panel, kind):
    return [m for m in spec["concat"][panel]["layer"] if m["mark"]["type"] == kind]


def lengths_of(spec):
    """What the places of the left panel are called, and those the axis names."""
    axis = marks_of(spec, 0, "point")[0]["encoding"]["x"]["axis"]
    words = json.loads(axis["labelExpr"].removesuffix("[datum.value]"))
    return words, [words[at] for at in axis["values"]]


def picture(spec):
    drawn = vl_convert.vegalite_to_svg(spec)
    assert "NaN" not in drawn
    assert "Infinity" not in drawn
    return drawn


@pytest.fixture(scope="module")
def spec():
    return by_length(summary()).to_dict()


def test_the_left_panel_shows_the_last_layer_on_a_logarithmic_axis(spec):
    assert spec["concat"][0]["title"]["text"] == "Share of the residual by path length"
    assert spec["concat"][0]["title"]["subtitle"].startswith("After layer 6")
    assert len(rows_of(spec, 0)) == 8
    scales = [
        m["encoding"]["y"]["scale"]
        for m in spec["concat"][0]["layer"]
        if "scale" in m["encoding"]["y"]
    ]
    assert len(scales) >= 4
    assert {scale["type"] for scale in scales} == {"log"}


def test_medians_and_spreads_are_those_of_the_table(spec):
    table = summary().filter((pl.col("metric") == "residual_share") & (pl.col("layer") == 6))
    rows = {row["place_name"]: row for row in rows_of(spec, 0)}
    for row in table.iter_rows(named=True):
        name = "bias" if row["length"] is None else str(row["length"])
        for statistic in STATISTICS:
            assert rows[name][f"drawn_{statistic}"] == row[statistic]
    assert any(
        m["encoding"].get("y2", {}).get("field") == "drawn_high" for m in marks_of(spec, 0, "rule")
    )


def test_rows_without_a_length_are_bias_apart_at_the_right_and_grey(spec):
    words, named = lengths_of(spec)
    assert words == ["0", "1", "2", "3", "4", "5", "6", " ", "bias"]
    assert named == [*"0123456", "bias"]
    colour = marks_of(spec, 0, "point")[0]["encoding"]["color"]
    assert colour["scale"]["range"] == [SINGLE_COLOUR, INK["muted"]]
    assert {row["variant"] for row in rows_of(spec, 0) if row["place_name"] == "bias"} == {"bias"}
    drawn = picture(spec)
    assert drawn.count(">bias</text>") == 2
    assert INK["muted"] in drawn


def test_without_bias_rows_there_is_no_bias():
    drawn = by_length(summary().filter(pl.col("length").is_not_null())).to_dict()
    assert lengths_of(drawn)[0] == [*"0123456"]
    assert ">bias<" not in picture(drawn)


def test_the_right_panel_shades_every_layer_and_length_by_magnitude(spec):
    assert scale_of(spec, 1)["type"] == "log"
    assert scale_of(spec, 1)["scheme"]["name"] == "viridis"
    assert side_of(spec, "x", 1) == [*"0123456"]
    assert side_of(spec, "y", 1)[0] == "0"  # at the bottom
    rows = cells_of(spec, 1)
    assert len(rows) == 28 + 7
    assert rows["3", "2"]["shade"] == pytest.approx(_share(3, 2) * 1.1, rel=1e-3)


def test_the_bar_names_powers_of_ten_with_raised_exponents(spec):
    raised = [
        m
        for m in marks_of(spec, 1, "text")
        if m["encoding"].get("text", {}).get("field") == "exponent"
    ]
    assert len(raised) == 1
    data = raised[0]["data"]
    rows = spec["datasets"][data["name"]] if "name" in data else data["values"]
    assert [row["exponent"] for row in rows] == ["−4", "−3", "−2", "−1", "0"]
    places = [row["at"] for row in rows]
    assert places == sorted(places)
    assert 0 <= places[0] < places[-1] <= 220


def test_shades_are_no_colours_a_page_exchanges(spec):
    """Between two CSS variables there is no colour."""
    scale = scale_of(adaptive(spec), 1)
    assert "var(" not in json.dumps(scale)
    assert not set(DARK) & set(json.dumps(scale).split('"'))


def test_zeros_are_drawn_a_decade_below_and_told_as_zero():
    table = replaced(summary(), pl.col("length") == 6, 0.0)
    spec = by_length(table).to_dict()
    (left,) = (row for row in rows_of(spec, 0) if row["place_name"] == "6")
    smallest = table.filter((pl.col("layer") == 6) & (pl.col("low") > 0), metric=SHARE)["low"].min()
    assert left["drawn_median"] == smallest / 10
    assert left["off_scale"]
    assert left["exact_median"] == "0"
    right = cells_of(spec, 1)["6", "6"]
    assert 0 < scale_of(spec, 1)["domain"][0] <= right["shade"]
    assert right["exact_median"] == "0"
    picture(spec)


def test_what_rounding_leaves_of_no_biases_does_not_stretch_the_scales():
    noise = replaced(summary(), pl.col("length").is_null(), 3e-17)
    spec = by_length(noise).to_dict()
    assert scale_of(spec, 1)["domain"][0] > 1e-7
    (bias,) = (row for row in rows_of(spec, 0) if row["place_name"] == "bias")
    assert bias["off_scale"]
    assert bias["exact_median"] == "3e-17"


@pytest.mark.parametrize("value", [float("nan"), None])
def test_values_that_are_none_leave_a_gap_and_a_grey_cell(value):
    spec = by_length(replaced(summary(), pl.col("length") == 2, value)).to_dict()
    gone = [row for (_, length), row in cells_of(spec, 1).items() if length == "2"]
    assert [row["shade"] for row in gone] == [None] * 5
    assert gone[0]["exact_median"] == ("none" if value is None else f"{value}")
    json.dumps(spec, allow_nan=False)
    drawn = picture(spec)
    assert drawn.count(f'fill="{INK["grid"]}"') == 5


def test_what_is_infinite_leaves_a_gap_and_has_the_last_shade():
    spec = by_length(replaced(summary(), pl.col("length") == 2, float("inf"))).to_dict()
    gone = [row for (_, length), row in cells_of(spec, 1).items() if length == "2"]
    last = scale_of(spec, 1)["domain"][1]
    assert [row["shade"] for row in gone] == [pytest.approx(last, rel=1e-3)] * 5
    assert gone[0]["exact_median"] == "inf"
    (left,) = (row for row in rows_of(spec, 0) if row["place_name"] == "2")
    assert left["drawn_median"] is None
    json.dumps(spec, allow_nan=False)
    picture(spec)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-300, float("nan")])
def test_any_constant_can_be_drawn(value):
    drawn = picture(by_length(replaced(summary(2), pl.lit(True), value)).to_dict())
    assert "path length" in drawn
    assert "NaN" not in drawn


@pytest.mark.parametrize(
    "kept",
    [
        pl.col("layer") == 6,
        pl.col("layer") == 0,
        pl.col("length") == 0,
        pl.col("length").is_null(),
        (pl.col("layer") == 6) & (pl.col("length") == 3),
    ],
)
def test_one_layer_or_one_length_can_be_drawn(kept):
    drawn = picture(by_length(summary().filter(kept)).to_dict())
    assert "path length" in drawn
    assert "NaN" not in drawn


def test_many_lengths_are_thinned_and_bias_keeps_its_name():
    spec = by_length(summary(60, samples=1)).to_dict()
    named = [*(str(length) for length in range(0, 61, 5)), "bias"]
    assert lengths_of(spec)[1] == named
    assert named_on(spec, "y", 1) == named
    assert picture(spec).count(">bias</text>") == 2


def test_tooltips_tell_the_exact_values(spec):
    told = [(tip["field"], tip["title"]) for tip in shaded(spec, 1)["encoding"]["tooltip"]]
    assert told[:3] == [("x", "layer"), ("y", "path length"), ("exact_median", "median")]
    (target,) = (m for m in marks_of(spec, 0, "point") if "tooltip" in m["encoding"])
    beside = [(tip["field"], tip["title"]) for tip in target["encoding"]["tooltip"]]
    assert beside == [("place_name", "path length"), *told[2:]]


def test_a_title_is_shown_and_files_are_written(tmp_path):
    chart = by_length(summary(), title="A model of ours")
    assert "A model of ours" in picture(chart.to_dict())
    assert save(chart, tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_tables_that_cannot_be_drawn_are_refused():
    table = summary()
    with pytest.raises(InputError, match=r"lacks low, high; by_length"):
        by_length(table.drop("low", "high"))
    with pytest.raises(InputError, match=r"nothing to draw.*no metric at all"):
        by_length(table.clear())
    with pytest.raises(InputError, match=r"'residual_share'; the table has norm_share"):
        by_length(table.filter(pl.col("metric") != "residual_share"))
    with pytest.raises(InputError, match="no layer"):
        by_length(table.with_columns(layer=pl.lit(None, pl.Int64)))
    two = pl.concat([table.with_columns(model=pl.lit(name)) for name in ("BERT", "ALBERT")])
    with pytest.raises(InputError, match="several values of model"):
        by_length(two)
    with pytest.raises(InputError, match="several rows for layer 0, length 0"):
        by_length(pl.concat([table, table]))
