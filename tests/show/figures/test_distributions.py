"""``length_distributions``, read off the specification and off what Vega makes of it."""

import json
import re
from itertools import pairwise

import polars as pl
import pytest
import vl_convert

from rankscope import tables
from rankscope.core.paths import count_paths
from rankscope.errors import InputError
from rankscope.show.figures import length_distributions
from rankscope.show.figures._theme import DARK

NINE = {f"model {9 - n}": (2 * n + 1, n + 1) for n in range(9)}


def table(models):
    rows = [
        (name, length, "proportion", part)
        for name, (layers, heads) in models.items()
        for length, part in enumerate(count_paths(layers, heads).proportions)
    ]
    names = ("model", "length", "metric", "value")
    return tables.frame(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def rows_of(spec):
    data = spec["concat"][0].get("data") or spec["data"]
    return spec["datasets"][data["name"]]


def mark(spec, kind, index=0):
    return [m for m in spec["concat"][0]["layer"] if m["mark"]["type"] == kind][index]["encoding"]


@pytest.fixture(scope="module")
def spec():
    return length_distributions(table(NINE)).to_dict()


def test_values_are_per_cent_on_a_linear_axis_from_zero():
    spec = length_distributions(table({"ours": (2, 3)})).to_dict()
    assert [row["drawn_median"] for row in rows_of(spec)] == pytest.approx([6.25, 37.5, 56.25])
    assert rows_of(spec)[0]["exact_median"] == "6.25 %"
    scale = mark(spec, "line")["y"]["scale"]
    assert scale["type"] == "linear"
    assert scale["domain"][0] == 0
    assert scale["domain"][1] > 56.25


def test_lengths_go_from_zero_to_the_longest_of_all_models():
    spec = length_distributions(table({"short": (2, 3), "long": (96, 96)})).to_dict()
    x = mark(spec, "line")["x"]
    assert x["scale"]["domain"] == [0, 96]
    assert x["axis"]["format"] == "d"


def test_one_line_per_model_and_a_legend_in_order_of_appearance(spec):
    assert mark(spec, "line")["color"]["scale"]["domain"] == list(NINE)
    drawn = vl_convert.vegalite_to_svg(spec)
    assert drawn.count('aria-roledescription="line mark"') == 9
    legend = drawn[drawn.index('role-legend"') :]
    assert re.findall(r">(model \d)</text>", legend) == list(NINE)


def test_nine_models_differ_in_colour_and_neighbours_in_dash_and_shape(spec):
    colours = mark(spec, "line")["color"]["scale"]["range"]
    assert len(set(colours)) == 9
    assert set(colours) <= set(DARK)  # each has its partner on a dark page
    dashes = mark(spec, "line")["strokeDash"]["scale"]["range"]
    assert len({json.dumps(dash) for dash in dashes}) == 4
    assert dashes[:5] == [*dashes[:4], dashes[0]]
    shapes = mark(spec, "point")["shape"]["scale"]["range"]
    assert all(a != b for a, b in pairwise(shapes))


def test_points_are_thinned_and_the_peak_has_one():
    spec = length_distributions(table({"wide": (96, 1)})).to_dict()
    marked = [row["length"] for row in rows_of(spec) if row["marked"]]
    assert 48 in marked
    assert 4 <= len(marked) <= 11


def test_the_legend_listens(spec):
    compiled = vl_convert.vegalite_to_vega(spec)
    signals = {signal["name"] for signal in compiled["signals"]}
    assert {"hovered_variant_legend", "pinned_variant_legend"} <= signals
    assert "condition" in mark(spec, "line")["opacity"]


def test_tooltips_tell_model_length_and_part(spec):
    told = mark(spec, "point", -1)["tooltip"]
    assert [tip["field"] for tip in told] == ["variant", "length", "exact_median"]
    assert told[0]["title"] == "model"


def test_rows_in_any_order_make_the_same_lines():
    def lines(source):
        spec = length_distributions(source).to_dict()
        return sorted((r["variant"], r["length"], r["drawn_median"]) for r in rows_of(spec))

    source = table({"ours": (5, 3)})
    assert lines(source.reverse()) == lines(source)
    lengths = [r["length"] for r in rows_of(length_distributions(source.reverse()).to_dict())]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("value", [float("nan"), None, 0.0])
def test_missing_values_and_single_lengths_can_be_drawn(value):
    source = table({"ours": (4, 3)})
    holed = source.with_columns(
        value=pl.when(pl.col("length") == 2).then(pl.lit(value)).otherwise("value")
    )
    for each in (holed, holed.filter(pl.col("length") == 2), source.filter(pl.col("length") == 0)):
        spec = length_distributions(each).to_dict()
        json.dumps(spec, allow_nan=False)
        assert "NaN" not in vl_convert.vegalite_to_svg(spec)


def test_a_title_is_shown():
    spec = length_distributions(table({"ours": (2, 3)}), title="Figure 5").to_dict()
    assert ">Figure 5</text>" in vl_convert.vegalite_to_svg(spec)


def test_tables_that_cannot_be_drawn_are_refused():
    source = table({"ours": (2, 3)})
    with pytest.raises(InputError, match=r"lacks model; length_distributions"):
        length_distributions(source.drop("model"))
    with pytest.raises(InputError, match="nothing to draw"):
        length_distributions(source.clear())
    with pytest.raises(InputError, match="no length"):
        length_distributions(source.with_columns(length=pl.lit(None, pl.Int64)))
    with pytest.raises(InputError, match="several rows for model ours, length 0"):
        length_distributions(pl.concat([source, source]))
