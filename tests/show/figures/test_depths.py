"""``by_depth``, read off the specification and off what Vega makes of it."""

import json
import math
import re

import polars as pl
import pytest
import vl_convert

from rankscope import metric_catalogue, tables
from rankscope.errors import InputError
from rankscope.show.figures import by_depth, by_layer
from rankscope.show.figures._axes import exponent_axis
from rankscope.show.figures._rows import exact_text
from rankscope.show.figures._theme import DARK, SINGLE_COLOUR, VARIANT_COLOURS, colours, dashes

INF = math.inf
METRIC = "log10_relative_residual"
LABELS = [  # as the bounds of a network are called
    "measured",
    "sharp bound, layer by layer",
    "bound from the data, layer by layer",
    "a-priori bound, layer by layer",
    "bound from the data, all layers",
    "Dong et al. 2021, all layers",
    "bound from the input's norm, all layers",
]
ROLES = dict.fromkeys(LABELS[1:], "bound")


def summary(curves, *, metric=METRIC, models=("",), first=0):
    """One value per layer for each curve; bands of ±10 %."""
    rows = [
        (model, name, first + layer, sample, metric, value * (1 + 0.1 * sample))
        for model in models
        for name, values in curves.items()
        for layer, value in enumerate(values)
        for sample in (-1, 0, 1)
    ]
    names = ("model", "variant", "layer", "sample", "metric", "value")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    if models == ("",):
        del columns["model"]
    return tables.summary(tables.frame(columns))


def triple(layers=13):
    return [-0.0885 * (3**layer - 1) for layer in range(layers)]


def marks_of(spec, kind, panel=0):
    return [m for m in spec["concat"][panel]["layer"] if m["mark"]["type"] == kind]


def line_of(spec, panel=0):
    (line,) = marks_of(spec, "line", panel)
    return line


def data_of(spec, holder):
    data = holder.get("data") or spec["data"]
    return spec["datasets"][data["name"]] if "name" in data else data["values"]


def rows_of(spec, panel=0):
    return data_of(spec, spec["concat"][panel])


def scale_of(spec, channel, panel=0):
    return line_of(spec, panel)["encoding"][channel]["scale"]


def ends_of(spec, panel=0):
    """The markers at the bottom: the only points with data of their own."""
    markers = [m for m in marks_of(spec, "point", panel) if "data" in m]
    return [row for marker in markers for row in data_of(spec, marker)]


def picture(spec):
    drawn = vl_convert.vegalite_to_svg(spec)
    assert "NaN" not in drawn
    assert "Infinity" not in drawn
    return drawn


def drawn(table, **options):
    spec = by_depth(table, **options).to_dict(validate=False)
    json.dumps(spec, allow_nan=False)
    return spec


@pytest.fixture(scope="module")
def deep():
    return by_depth(summary({"scaled": triple(), "float64": [-14.0] * 13})).to_dict()


def test_the_axis_is_even_in_the_exponent_and_names_powers_of_ten(deep):
    assert scale_of(deep, "y")["type"] == "linear"
    low, high = scale_of(deep, "y")["domain"]
    assert low < triple()[-1] * 1.08
    assert 0 < high < 5000
    text = picture(deep)
    for exponent in ("−10,000", "−40,000", "−50,000"):
        assert f">{exponent}</text>" in text
    # Long names push the axis' title away; short ones leave it where every figure has it.
    assert line_of(deep)["encoding"]["y"]["axis"]["minExtent"] > 45
    short = drawn(summary({"full": [-1.0, -9.0]}))
    assert line_of(short)["encoding"]["y"]["axis"]["minExtent"] == 34


def test_medians_are_drawn_in_bands_where_the_table_has_them(deep):
    last = [row for row in rows_of(deep) if row["layer"] == 12 and row["variant"] == "scaled"]
    assert last[0]["drawn_median"] == pytest.approx(triple()[-1])
    assert last[0]["drawn_high"] == pytest.approx(0.92 * triple()[-1])
    assert line_of(deep)["encoding"]["y"]["field"] == "drawn_median"
    (band,) = marks_of(deep, "area")
    assert band["encoding"]["y"]["field"] == "drawn_low"
    assert band["encoding"]["y2"]["field"] == "drawn_high"


def test_tooltips_tell_powers_of_ten(deep):
    row = next(row for row in rows_of(deep) if row["layer"] == 12)
    assert row["exact_median"] == "10^−47,032.4"
    target = marks_of(deep, "point")[-1]
    fields = [tip["field"] for tip in target["encoding"]["tooltip"]]
    assert fields[:3] == ["variant", "layer", "exact_median"]


@pytest.mark.parametrize(
    ("ends", "named"),
    [
        ((-47003, 0), "−40,000 −30,000 −20,000 −10,000 0"),
        ((-3, 0), "−3 −2 −1 0"),
        ((-2.2, 0), "−2 −1 0"),
        ((-16, 0), "−15 −10 −5 0"),
        ((-1300, 0), "−1,200 −1,000 −800 −600 −400 −200 0"),
        ((-385, -0.5), "−400 −300 −200 −100 0"),
        ((-40003.25, -40003.2), "−40,004.2 −40,004.0 −40,003.8 −40,003.6 −40,003.4 −40,003.2"),
        ((-1e12, 0), "−1·10¹² −8·10¹¹ −6·10¹¹ −4·10¹¹ −2·10¹¹ 0"),
    ],
)
def test_exponents_that_are_named_are_round(ends, named):
    ticks = exponent_axis("", ends).ticks
    assert " ".join(tick.exponent for tick in ticks) == named
    assert {tick.text for tick in ticks} == {"10"}
    plain = str.maketrans("−⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", ",")
    numbers = [tick.exponent.replace("·10", "e").translate(plain) for tick in ticks]
    assert [float(number) for number in numbers] == pytest.approx([tick.value for tick in ticks])


def test_near_one_numbers_are_named_themselves_where_they_are():
    axis = exponent_axis("", [-0.6, 0.0])
    assert [(tick.text, tick.exponent) for tick in axis.ticks] == [
        ("0.1", ""),
        ("0.2", ""),
        ("0.5", ""),
        ("1", ""),
    ]
    assert [10**tick.value for tick in axis.ticks] == pytest.approx([0.1, 0.2, 0.5, 1.0])


@pytest.mark.parametrize("values", [[], [0.0], [-7.0, -7.0], [-1.79e308, 0.0], [1.79e308]])
def test_an_axis_over_exponents_is_never_empty_and_never_endless(values):
    low, high = exponent_axis("", values).domain
    assert -INF < low < high < INF


def test_powers_as_text():
    texts = {
        0.0: "1",
        -0.0458: "0.9",
        3.5: "3,162",
        -6.3034: "10^−6.30",
        -579.44: "10^−579.4",
        -47003.12: "10^−47,003.1",
        -2.5e300: "10^(−2.5·10³⁰⁰)",
        12.0: "10^12.00",
        -INF: "exactly 0",
        INF: "infinite",
        None: "none",
    }
    told = {value: exact_text(value, metric_catalogue.metric(METRIC)) for value in texts}
    assert told == texts
    assert exact_text(math.nan, metric_catalogue.metric(METRIC)) == "none"


def test_a_panel_for_each_model_with_one_legend_and_an_axis_of_its_own():
    table = summary({"full": triple(6), "causal": [-1.0 * k for k in range(6)]}, models=("b", "a"))
    shallow = table.with_columns(
        pl.when(pl.col("model") == "a").then(pl.col(name) / 100).otherwise(pl.col(name)).alias(name)
        for name in ("mean", "low", "median", "high")
    )
    spec = drawn(shallow)
    assert [panel["title"]["text"] for panel in spec["concat"]] == ["b", "a"]
    assert scale_of(spec, "color")["domain"] == ["full", "causal"]
    assert len(vl_convert.vegalite_to_vega(spec)["legends"]) == 1
    assert scale_of(spec, "y", 0)["domain"][0] < -20
    assert scale_of(spec, "y", 1)["domain"][0] > -2
    cut = drawn(shallow, lowest=-10)
    assert scale_of(cut, "y", 0) == scale_of(cut, "y", 1)


def test_without_models_the_panel_is_named_after_the_metric():
    spec = drawn(summary({"full": triple(4)}).drop("variant"))
    assert spec["concat"][0]["title"]["text"] == "Relative residual"
    assert line_of(spec)["encoding"]["color"] == {"value": SINGLE_COLOUR}
    assert "params" not in spec
    named = drawn(summary({"full": triple(4)}, models=("BERT",)), title="BERT, scaled")
    assert named["concat"][0]["title"]["text"] == "Relative residual"
    assert named["title"]["text"] == "BERT, scaled"


def test_lowest_and_highest_cut_the_axis_and_the_lines():
    table = summary({"scaled": triple()})
    spec = drawn(table, lowest=-300)
    assert scale_of(spec, "y")["domain"][0] == -300
    for mark in (*marks_of(spec, "line"), *marks_of(spec, "area"), *marks_of(spec, "point")):
        assert mark["mark"]["clip"] is True
    assert "−300" in picture(spec)
    assert scale_of(drawn(table, highest=-1000), "y")["domain"][1] == -1000
    # An end beyond everything is no reason to show nothing.
    assert scale_of(drawn(table, lowest=-1e9), "y")["domain"][0] > -60000
    with pytest.raises(InputError, match=r"lowest=5.*below highest"):
        by_depth(table, lowest=5, highest=1)


def test_zero_stands_at_the_lowest_value_of_a_logarithmic_axis():
    metric = "relative_residual"
    spec = drawn(summary({"full": [0.5, 1e-7, 0.0]}, metric=metric), metric=metric, lowest=1e-3)
    assert scale_of(spec, "y")["domain"][0] == 1e-3
    assert [row["drawn_median"] for row in rows_of(spec)] == [0.5, 1e-7, 1e-3]
    picture(spec)


def test_depth_on_a_logarithmic_axis_leaves_layer_0_out_and_says_so():
    spec = drawn(summary({"full": [-0.1 * k for k in range(101)]}), log_depth=True)
    assert min(row["layer"] for row in rows_of(spec)) == 1
    x = line_of(spec)["encoding"]["x"]
    assert (x["scale"]["type"], x["scale"]["domain"]) == ("log", [1, 100])
    assert x["axis"]["values"] == [1, 2, 4, 8, 16, 32, 64]
    assert "layer 0 is left out" in picture(spec)
    marked = sorted(row["layer"] for row in rows_of(spec) if row["marked"])
    assert marked == [1, 2, 4, 8, 16, 32, 64, 100]
    with pytest.raises(InputError, match="no layer above 0"):
        by_depth(summary({"full": [-1.0]}), log_depth=True)


@pytest.mark.parametrize("log_depth", [False, True])
def test_thousands_of_layers_cost_no_more_than_there_are_pixels(log_depth):
    spec = drawn(summary({"full": [-0.01 * k for k in range(4001)]}), log_depth=log_depth)
    layers = [row["layer"] for row in rows_of(spec)]
    assert len(layers) <= 621
    assert layers == sorted(layers)
    assert layers[-1] == 4000
    assert sum(row["marked"] for row in rows_of(spec)) <= 31


def test_exactly_equal_tokens_end_a_curve_in_a_marker():
    curves = {
        "early": [-1.0, -2.0, -INF, -INF, -INF],
        "too": [-1.0, -3.0, -INF, -INF, -INF],
        "back": [-1.0, -INF, -2.0, -3.0, -4.0],
        "unknown": [-1.0, -2.0, -3.0, math.nan, math.nan],
    }
    spec = drawn(summary(curves))
    markers = ends_of(spec)
    assert [(row["variant"], row["layer"]) for row in markers] == [("early", 2), ("too", 2)]
    assert markers[0]["from_top"] - markers[1]["from_top"] == 12
    assert markers[0]["exact_median"] == "exactly 0"
    text = picture(spec)
    assert text.count("tokens exactly equal") == 1
    assert "tokens exactly equal" not in picture(drawn(summary({"back": curves["back"]})))
    missing = [row for row in rows_of(spec) if row["drawn_median"] is None]
    assert len(missing) == 3 + 3 + 1 + 2


def test_a_band_that_reaches_zero_goes_to_the_bottom():
    table = summary({"full": [-1.0, -2.0]}).with_columns(
        low=pl.when(pl.col("layer") == 1).then(-INF).otherwise(pl.col("low"))
    )
    spec = drawn(table)
    assert rows_of(spec)[1]["drawn_low"] == scale_of(spec, "y")["domain"][0]
    assert rows_of(spec)[0]["drawn_low"] == pytest.approx(-1.08)


def test_markers_leave_room_below_the_lowest_value():
    with_end = drawn(summary({"full": [-1.0, -2.0, -INF]}))
    without = drawn(summary({"full": [-1.0, -2.0]}))
    assert scale_of(with_end, "y")["domain"][0] < scale_of(without, "y")["domain"][0] - 0.1


@pytest.mark.parametrize(
    ("last", "align"),
    [(2, "left"), (20, "right")],  # of 20 layers: to the right of its marker while there is room
)
def test_the_word_on_the_marker_stays_inside(last, align):
    gone = [-1.0] * last + [-INF] * (21 - last)
    spec = drawn(summary({"full": gone, "other": [-1.0] * 21}))
    (word,) = (m["mark"] for m in marks_of(spec, "text") if m["mark"].get("text"))
    assert (word["text"], word["align"]) == ("tokens exactly equal", align)


def test_local_exponents_have_rules_at_one_and_three():
    spec = drawn(
        summary({"full": [4.0, 3.0, 3.0]}, metric="local_exponent"), metric="local_exponent"
    )
    at = [data_of(spec, rule)[0]["at"] for rule in marks_of(spec, "rule")]
    assert at == [1.0, 3.0]
    text = picture(spec)
    assert ">exponential</text>" in text
    assert ">doubly exponential</text>" in text
    assert scale_of(spec, "y")["domain"][0] == 0
    high = drawn(
        summary({"full": [4.0] * 3}, metric="local_exponent"), metric="local_exponent", lowest=2
    )
    assert len(marks_of(high, "rule")) == 1


def test_names_of_rules_avoid_the_curves():
    """The name of 3 goes below where the curve comes from above, and above otherwise."""

    def side(values):
        table = summary({"full": values}, metric="local_exponent")
        spec = drawn(table.with_columns(low="median", high="median"), metric="local_exponent")
        (word,) = (
            m["mark"]
            for m in marks_of(spec, "text")
            if m["mark"].get("text", "").startswith("doub")
        )
        return word["align"], word["baseline"]

    assert side([3.2] * 30) == ("right", "top")
    assert side([2.8] * 30) == ("right", "bottom")
    assert side([3.0] * 30) == ("right", "bottom")
    assert side([1.0] * 20 + [2.8, 3.2] * 5) == ("left", "bottom")


def test_bounds_are_broken_lines_in_their_own_colours_and_what_they_bound_is_solid_and_blue():
    """By their roles: of the seven labels one has no "bound" in it, and one is no bound."""
    look = dashes(LABELS, ROLES)
    assert look["measured"] == [1, 0]
    assert all(look[name] != [1, 0] for name in ROLES)
    chosen = colours(LABELS, ROLES)
    assert list(chosen) == LABELS
    assert chosen["measured"] == VARIANT_COLOURS["transformer"]
    assert chosen[LABELS[1]] == VARIANT_COLOURS["SAN+skip"]
    assert len(set(chosen.values())) == len(LABELS)
    assert set(chosen.values()) <= set(DARK)
    assert colours(LABELS[1:], ROLES) == {name: chosen[name] for name in LABELS[1:]}


def test_roles_reach_the_chart():
    table = summary({name: triple(4) for name in LABELS[:3]}, metric="log10_residual")
    spec = drawn(table, metric="log10_residual", roles=ROLES)
    for channel, chosen in (("color", colours), ("strokeDash", dashes)):
        assert scale_of(spec, channel)["range"] == list(chosen(LABELS[:3], ROLES).values())
    assert scale_of(drawn(table, metric="log10_residual"), "color") != scale_of(spec, "color")
    with pytest.raises(InputError, match="'truth' is unknown, expected one of measured, bound"):
        by_depth(table, metric="log10_residual", roles={"measured": "truth"})


def test_floors_of_number_formats_are_broken_lines_in_warm_colours():
    names, floors = ["scaled", "float64", "float32"], {"float64": "floor", "float32": "floor"}
    assert list(colours(names, floors).values()) == [
        VARIANT_COLOURS[name] for name in ("transformer", "SAN+MLP", "SAN")
    ]
    assert [dash == [1, 0] for dash in dashes(names, floors).values()] == [True, False, False]


def test_without_roles_lines_differ_in_turn_whatever_they_are_called():
    assert len({tuple(dash) for dash in dashes(["full", "causal", "window", "star"]).values()}) == 4
    assert dashes(["a bound", "another"]) == {"a bound": [1, 0], "another": [6, 3]}


def test_colours_differ_and_known_names_have_theirs():
    assert colours(["scaled", "float64"])["scaled"] == colours(["measured"])["measured"]
    assert colours(["SAN", "mine"])["SAN"] == VARIANT_COLOURS["SAN"]
    bounded = colours(["SAN", "a bound"], {"a bound": "bound"})
    assert bounded["SAN"] == VARIANT_COLOURS["SAN"] != bounded["a bound"]
    for names in (["full", "measured", "causal", "float32"], [f"mask {k}" for k in range(9)]):
        chosen = colours(names)
        assert list(chosen) == names
        assert len(set(chosen.values())) == len(names)
        assert set(chosen.values()) <= set(DARK)
    many = [f"mask {k}" for k in range(40)]
    assert len(colours(many)) == len(colours(many, dict.fromkeys(many, "bound"))) == 40


def test_plain_metrics_keep_their_scale():
    for metric, kind in (("mean_cosine", "linear"), ("spectral_radius", "log")):
        spec = drawn(summary({"full": [0.5, 0.2, 2.0]}, metric=metric), metric=metric)
        assert scale_of(spec, "y")["type"] == kind
        assert rows_of(spec)[1]["exact_median"] == "0.2"
    zero = drawn(summary({"full": [1.0, 0.0]}, metric="beta"), metric="beta")
    assert rows_of(zero)[1]["drawn_median"] > 0  # a logarithmic axis has its floor for it
    assert [row["off_scale"] for row in rows_of(zero)] == [False, True]
    assert "datum.off_scale" in json.dumps([m.get("transform") for m in marks_of(zero, "point")])
    assert not ends_of(zero)


def test_by_layer_draws_exponents_too():
    spec = by_layer(summary({"full": triple()})).to_dict()
    line = next(m for m in spec["concat"][0]["layer"] if m["mark"]["type"] == "line")
    assert line["encoding"]["y"]["scale"]["type"] == "linear"
    assert re.search(r"−40,000</text>", picture(spec))


def test_by_layer_names_values_and_marks_equal_tokens_too():
    exponents = by_layer(summary({"full": [4.0, 3.0]}, metric="local_exponent")).to_dict()
    assert ">doubly exponential</text>" in picture(exponents)
    equal = by_layer(summary({"full": [-1.0, -INF, -INF]})).to_dict()
    assert [row["layer"] for row in ends_of(equal)] == [1]
    assert ends_of(equal)[0]["exact_median"] == "exactly 0"


def test_only_curves_that_leave_the_axis_are_clipped():
    """Otherwise the points of a value at the very end of an axis would be halves."""
    table = summary({"full": [0.0, 0.5]}, metric="mean_cosine")
    whole, cut = drawn(table, metric="mean_cosine"), drawn(table, metric="mean_cosine", highest=0.4)
    assert not any(mark["mark"]["clip"] for mark in marks_of(whole, "point"))
    assert all(mark["mark"]["clip"] for mark in marks_of(cut, "point"))


def test_a_table_that_cannot_be_drawn_is_refused():
    table = summary({"full": triple(3)})
    with pytest.raises(InputError, match=r"lacks high; by_depth draws what tables\.summary"):
        by_depth(table.drop("high"))
    with pytest.raises(InputError, match="no layer"):
        by_depth(table.with_columns(layer=pl.lit(None, pl.Int64)))
    with pytest.raises(InputError, match="'rank'; the table has log10_relative_residual"):
        by_depth(table, metric="rank")
    with pytest.raises(InputError, match="several rows for variant full, layer 0; by_depth"):
        by_depth(pl.concat([table, table]))
    some = pl.concat([table, table.with_columns(variant=pl.lit(None, pl.String))])
    with pytest.raises(InputError, match="some rows have no variant"):
        by_depth(some)
    empty = table.with_columns(model=pl.lit(None, pl.String))
    assert len(drawn(empty)["concat"]) == 1


def doubted(from_layer, curves):
    """A summary whose first curve is in doubt from a layer on."""
    whole = summary(curves)
    name = whole["variant"][0]
    doubt = (pl.col("layer") >= from_layer) & (pl.col("variant") == name)
    return whole.with_columns(doubt.alias("doubt"))


def test_curves_are_dotted_from_their_last_sure_point_on():
    spec = by_depth(doubted(2, {"a": [0.0, -1.0, -3.0, -9.0], "b": [0.0, -1.0, -2.0, -3.0]}))
    spec = spec.to_dict()
    solid, dots = marks_of(spec, "line")
    assert solid["transform"] == [{"filter": "!datum.doubt"}]
    assert dots["transform"] == [{"filter": "datum.dotted"}]
    assert dots["mark"]["strokeDash"] == [0, 5]
    rows = rows_of(spec)
    passed = {(row["variant"], row["layer"]) for row in rows if row["dotted"]}
    assert passed == {("a", 1), ("a", 2), ("a", 3)}
    assert spec["concat"][0]["title"]["subtitle"].endswith("dotted where in doubt")


def test_without_doubts_nothing_is_dotted_and_nothing_is_said_of_it():
    curves = {"a": [0.0, -1.0]}
    for whole in (summary(curves), doubted(5, curves)):
        spec = by_depth(whole).to_dict()
        assert "dotted" not in spec["concat"][0]["title"]["subtitle"]
        assert "transform" not in line_of(spec)


def test_a_curve_in_doubt_from_its_first_layer_is_dotted_alone():
    spec = by_depth(doubted(0, {"a": [0.0, -1.0]})).to_dict()
    assert len(marks_of(spec, "line")) == 2
    assert all(row["dotted"] and row["doubt"] for row in rows_of(spec))
