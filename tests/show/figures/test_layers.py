"""``by_layer``, read off the specification and off what Vega makes of it."""

import json
import re

import polars as pl
import pytest
import vl_convert

from rankscope.errors import InputError
from rankscope.show.figures import by_layer
from rankscope.show.figures._theme import FOLLOWING_COLOURS, SINGLE_COLOUR, VARIANT_COLOURS

FOUR = ["SAN", "SAN+MLP", "SAN+skip", "transformer"]


def drawn(table, **options):
    """The specification of a chart; ``spec`` is the one that was checked against the schema."""
    return by_layer(table, **options).to_dict(validate=False)


def panels(spec):
    """The panels by title."""
    return {panel["title"]["text"]: panel for panel in spec["concat"]}


def layers_of(panel, mark):
    return [layer for layer in panel["layer"] if layer["mark"]["type"] == mark]


def line_of(panel):
    (line,) = layers_of(panel, "line")
    return line


def rows_of(spec):
    """The rows drawn in the first panel."""
    data = spec["concat"][0].get("data") or spec["data"]  # Altair lifts data all panels share
    return spec["datasets"][data["name"]]


def first_scale(spec, channel):
    return line_of(spec["concat"][0])["encoding"][channel]["scale"]


def test_one_panel_per_metric_two_in_a_row_in_order_of_appearance(spec):
    assert list(panels(spec)) == [
        "Relative residual",
        "Dispersion",
        "Mean cosine",
        "Effective rank",
    ]
    assert spec["columns"] == 2


def test_metrics_chooses_the_panels_and_their_order(summary):
    chosen = drawn(summary, metrics=["effective_rank", "relative_residual", "effective_rank"])
    assert list(panels(chosen)) == ["Effective rank", "Relative residual"]
    assert list(panels(drawn(summary, metrics="dispersion"))) == ["Dispersion"]


@pytest.mark.parametrize(
    ("metric", "scale"),
    [
        ("relative_residual", "log"),
        ("residual", "log"),
        ("dispersion", "log"),
        ("spectral_ratio", "log"),
        ("mean_cosine", "linear"),
        ("effective_rank", "linear"),
        ("numerical_rank", "linear"),
        ("attention_entropy", "linear"),
        ("somebody_elses", "linear"),
    ],
)
def test_residuals_are_drawn_on_a_logarithmic_scale(summary, metric, scale):
    table = summary.filter(pl.col("metric") == "dispersion").with_columns(metric=pl.lit(metric))
    (panel,) = panels(drawn(table)).values()
    for layer in panel["layer"]:
        if "scale" in layer["encoding"].get("y", {}):
            assert layer["encoding"]["y"]["scale"]["type"] == scale
    assert "scale" in line_of(panel)["encoding"]["y"]


def test_median_line_points_and_band_are_there(spec):
    for panel in panels(spec).values():
        (band,) = layers_of(panel, "area")
        assert band["encoding"]["y"]["field"] == "drawn_low"
        assert band["encoding"]["y2"]["field"] == "drawn_high"
        assert line_of(panel)["encoding"]["y"]["field"] == "drawn_median"
        assert len(layers_of(panel, "point")) == 2  # seen, and the unseen targets of the pointer


def test_rows_hold_the_values_of_the_table(summary, spec):
    rows = pl.DataFrame(rows_of(spec))
    table = summary.filter(pl.col("metric") == "relative_residual").sort(
        "layer", maintain_order=True
    )
    for name in ("median", "low", "high"):
        assert rows[f"drawn_{name}"].to_list() == table[name].to_list()


def test_each_variant_has_its_colour_whatever_else_is_there(summary):
    def colours(table):
        scale = first_scale(drawn(table), "color")
        return dict(zip(scale["domain"], scale["range"], strict=True))

    assert colours(summary) == dict(VARIANT_COLOURS)
    assert list(colours(summary)) == FOUR
    last = colours(summary.filter(pl.col("variant") == "transformer"))
    assert last == {"transformer": VARIANT_COLOURS["transformer"]}
    renamed = summary.with_columns(pl.col("variant").replace({"SAN": "mine", "SAN+MLP": "yours"}))
    assert colours(renamed) == {
        "mine": FOLLOWING_COLOURS[0],
        "yours": FOLLOWING_COLOURS[1],
        "SAN+skip": VARIANT_COLOURS["SAN+skip"],
        "transformer": VARIANT_COLOURS["transformer"],
    }


def test_names_without_a_colour_of_their_own_start_with_blue_as_in_every_figure(summary):
    own = summary.filter(pl.col("variant") == "SAN").with_columns(variant=pl.lit("mine"))
    assert first_scale(drawn(own), "color")["range"] == [VARIANT_COLOURS["transformer"]]


def test_a_deep_model_has_points_on_some_of_its_layers(summary):
    deep = pl.concat(
        summary.filter(pl.col("layer") == 0).with_columns(layer=pl.lit(layer, pl.Int64))
        for layer in range(49)
    )
    marked = {row["layer"] for row in rows_of(drawn(deep)) if row["marked"]}
    assert 20 <= len(marked) <= 30


def test_order_is_that_of_the_table_not_of_the_alphabet(summary):
    backwards = summary.reverse()
    assert first_scale(drawn(backwards), "color")["domain"] == FOUR[::-1]


def test_neighbouring_curves_are_solid_and_dashed_in_turn(spec):
    """Otherwise SAN vanishes under SAN+MLP, which often takes the very same course."""
    scale = first_scale(spec, "strokeDash")
    solid, dashed = [1, 0], [6, 3]
    assert scale["domain"] == FOUR
    assert scale["range"] == [solid, dashed, solid, dashed]


def test_one_legend_at_the_top_that_listens(spec):
    compiled = vl_convert.vegalite_to_vega(spec)
    (legend,) = compiled["legends"]
    assert compiled["config"]["legend"]["orient"] == "top"
    assert legend["encode"]["labels"]["interactive"] is True
    signals = {signal["name"]: json.dumps(signal) for signal in compiled["signals"]}
    assert "pointerover" in signals["hovered_variant_legend"]
    assert "click" in signals["pinned_variant_legend"]


def test_variants_out_of_focus_are_faded(spec):
    for panel in panels(spec).values():
        for layer in (*layers_of(panel, "area"), *layers_of(panel, "line")):
            opacity = layer["encoding"]["opacity"]
            assert opacity["value"] < opacity["condition"]["value"]
            assert {"param": "hovered", "empty": False} in opacity["condition"]["test"]["or"]


def test_a_table_without_variants_has_one_colour_and_no_legend(summary):
    spec = drawn(summary.filter(pl.col("variant") == "SAN").drop("variant"))
    assert line_of(spec["concat"][0])["encoding"]["color"] == {"value": SINGLE_COLOUR}
    assert "params" not in spec
    picture = vl_convert.vegalite_to_svg(spec)
    assert "role-legend" not in picture
    assert SINGLE_COLOUR in picture


def test_words_symbol_and_meaning_are_on_the_panel(spec):
    panel = panels(spec)["Relative residual"]
    assert panel["title"]["subtitle"].startswith("0 = all tokens alike")
    assert line_of(panel)["encoding"]["y"]["axis"]["title"] == "‖res(X)‖ / ‖X‖"
    assert line_of(panel)["encoding"]["x"]["axis"]["title"] == "layer"


def test_layers_are_whole_numbers_with_the_same_ends_everywhere(summary):
    shorter = summary.filter((pl.col("metric") != "dispersion") | (pl.col("layer") > 3))
    for panel in panels(drawn(shorter)).values():
        x = line_of(panel)["encoding"]["x"]
        assert x["axis"]["format"] == "d"
        assert x["axis"]["tickMinStep"] == 1
        assert x["scale"]["domain"] == [0, 12]


def test_the_noise_floor_is_marked_for_the_relative_residual_alone(summary, spec):
    found = panels(spec)
    for title, panel in found.items():
        names = [text["mark"].get("text") for text in layers_of(panel, "text")]
        assert ("float32 noise floor" in names) == (title == "Relative residual")
        assert len(layers_of(panel, "rect")) == (title == "Relative residual")
    held = summary.filter(pl.col("variant") == "transformer")
    assert "noise floor" not in json.dumps(drawn(held))


def test_tooltips_tell_the_exact_values(spec):
    panel = panels(spec)["Relative residual"]
    target = layers_of(panel, "point")[-1]
    told = [tip["field"] for tip in target["encoding"]["tooltip"]]
    assert told[:3] == ["variant", "layer", "exact_median"]
    (row,) = (row for row in rows_of(spec) if (row["variant"], row["layer"]) == ("SAN", 3))
    assert row["exact_median"] == "0.00457088"


def test_zeros_are_drawn_a_decade_below_and_told_as_zero(with_zeros):
    spec = drawn(with_zeros)
    rows = rows_of(spec)
    smallest = with_zeros.filter(pl.col("low") > 0)["low"].min()
    zeros = [row for row in rows if row["exact_median"] == "0"]
    assert len(zeros) == 7
    for row in zeros:
        assert row["drawn_median"] == row["drawn_low"] == row["drawn_high"] == smallest / 10
        assert row["off_scale"]
    assert not any(row["off_scale"] for row in rows if row not in zeros)
    domain = first_scale(spec, "y")["domain"]
    assert 0 < domain[0] < smallest / 10 < domain[1]


def test_lines_with_zeros_reach_the_last_layer(with_zeros):
    picture = vl_convert.vegalite_to_svg(drawn(with_zeros))
    lines = re.findall(r'aria-roledescription="line mark" d="([^"]+)"', picture)
    assert [line.count("L") for line in lines] == [12, 12, 12, 12]
    assert "NaN" not in picture
    assert len(re.findall(r">0</text>", picture)) == 3  # layer 0, 10 to the 0, and zero itself


def test_missing_and_infinite_values_break_the_line_and_nothing_else(summary):
    broken = summary.with_columns(
        pl.when(pl.col("layer") == 5)
        .then(pl.lit(float("nan")))
        .when(pl.col("layer") == 6)
        .then(None)
        .when(pl.col("layer") == 7)
        .then(float("inf"))
        .otherwise(pl.col(name))
        .alias(name)
        for name in ("mean", "low", "median", "high")
    )
    spec = drawn(broken)
    missing = [row for row in rows_of(spec) if row["variant"] == "SAN" and 5 <= row["layer"] <= 7]
    assert [row["drawn_median"] for row in missing] == [None, None, None]
    assert [row["exact_median"] for row in missing] == ["nan", "none", "inf"]
    json.dumps(spec, allow_nan=False)
    assert "NaN" not in vl_convert.vegalite_to_svg(spec)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-320, 1e-300, 1e300, 1.0])
def test_any_constant_can_be_drawn(summary, value):
    flat = summary.with_columns(pl.lit(value).alias(n) for n in ("mean", "low", "median", "high"))
    picture = vl_convert.vegalite_to_svg(drawn(flat, metrics=["dispersion", "mean_cosine"]))
    assert picture.count('aria-roledescription="line mark"') == 8
    assert "NaN" not in picture
    assert "Infinity" not in picture


def test_equal_tables_make_equal_charts(summary, spec):
    assert drawn(summary.clone()) == spec


def test_a_title_is_shown(summary):
    spec = by_layer(summary, metrics=["dispersion"], title="A model of ours").to_dict()
    assert "A model of ours" in vl_convert.vegalite_to_svg(spec)


def test_a_long_legend_is_broken_into_lines(summary):
    long = pl.concat(
        summary.with_columns(variant=pl.lit(f"a mask with a long name, number {n}"))
        for n in range(9)
    ).unique(["variant", "metric", "layer"], maintain_order=True)
    assert 1 <= drawn(long)["config"]["legend"]["columns"] < 4


def test_a_table_that_is_no_summary_is_refused(summary):
    with pytest.raises(InputError, match=r"lacks low, high.*tables\.summary"):
        by_layer(summary.drop("low", "high"))
    with pytest.raises(InputError, match="no layer"):
        by_layer(summary.with_columns(layer=pl.lit(None, pl.Int64)))
    with pytest.raises(InputError, match="nothing to draw"):
        by_layer(summary.clear())
    with pytest.raises(InputError, match="nothing to draw"):
        by_layer(summary, metrics=[])


def test_a_metric_that_is_not_there_is_named(summary):
    with pytest.raises(InputError, match="'stable_rank'; the table has relative_residual"):
        by_layer(summary, metrics=["dispersion", "stable_rank"])


def test_two_models_in_one_table_are_not_drawn_as_one(summary):
    two = pl.concat([summary.with_columns(model=pl.lit(name)) for name in ("BERT", "ALBERT")])
    with pytest.raises(
        InputError, match="several rows for metric relative_residual, variant SAN, layer 0"
    ):
        by_layer(two)
