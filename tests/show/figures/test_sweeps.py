"""``by_setting``, read off the specification and off what Vega makes of it."""

import json
import math

import polars as pl
import pytest
import vl_convert

from rankscope import tables
from rankscope.errors import InputError
from rankscope.show.figures import by_setting

INF = math.inf


def summary(settings, *, value=lambda _, setting: 2.0 + setting, metric="beta"):
    """``settings`` by parameter; two variants, three samples 10 % apart."""
    rows = [
        (name, parameter, float(setting), sample, metric, value(name, setting) * (1 + sample / 10))
        for parameter, varied in settings.items()
        for name in ("full", "causal")
        for setting in varied
        for sample in (-1, 0, 1)
    ]
    names = ("variant", "parameter", "setting", "sample", "metric", "value")
    return tables.summary(
        tables.frame(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    )


def drawn(table, metric="beta", **options):
    spec = by_setting(table, metric=metric, **options).to_dict()
    json.dumps(spec, allow_nan=False)
    text = vl_convert.vegalite_to_svg(spec)
    assert "NaN" not in text
    assert "Infinity" not in text
    return spec, text


def marks_of(spec, kind, panel=0):
    return [m for m in spec["concat"][panel]["layer"] if m["mark"]["type"] == kind]


def x_of(spec, panel=0):
    return marks_of(spec, "line", panel)[0]["encoding"]["x"]


def data_of(spec, holder):
    data = holder.get("data") or spec["data"]
    return spec["datasets"][data["name"]] if "name" in data else data["values"]


def test_a_panel_for_each_parameter_and_a_curve_for_each_variant():
    spec, text = drawn(summary({"weight_scale": [1, 2, 3], "window": [1, 4]}))
    titles = [panel["title"]["text"] for panel in spec["concat"]]
    assert titles == ["Beta by weight scale", "Beta by window"]
    assert x_of(spec)["axis"]["title"] == "weight scale"
    assert x_of(spec, 1)["scale"]["domain"] == [1, 4]
    colour = marks_of(spec, "line")[0]["encoding"]["color"]
    assert colour["scale"]["domain"] == ["full", "causal"]
    assert text.count('aria-roledescription="line mark"') == 4
    assert len(vl_convert.vegalite_to_vega(spec)["legends"]) == 1


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ([1, 2, 4, 8], "log"),
        ([1, 2, 4, 7.9], "linear"),
        ([0, 1, 100], "linear"),
        ([-1, 1, 100], "linear"),
        ([5], "linear"),
    ],
)
def test_settings_are_laid_out_logarithmically_if_that_can_be_and_helps(settings, kind):
    spec, _ = drawn(summary({"window": settings}, value=lambda *_: 5.0))
    scale = x_of(spec)["scale"]
    assert scale["type"] == kind
    assert scale["domain"][0] < scale["domain"][1]


def test_points_are_medians_with_bars_from_low_to_high():
    spec, _ = drawn(summary({"window": [1, 2]}))
    row = data_of(spec, spec["concat"][0])[0]
    assert row["drawn_median"] == pytest.approx(3.0)
    assert (row["drawn_low"], row["drawn_high"]) == pytest.approx((2.76, 3.24))
    (bar,) = marks_of(spec, "rule")
    assert bar["encoding"]["y"]["field"] == "drawn_low"
    assert bar["encoding"]["y2"]["field"] == "drawn_high"
    tips = marks_of(spec, "point")[-1]["encoding"]["tooltip"]
    assert [tip.get("title") for tip in tips[:3]] == ["curve", "window", "median"]


def test_the_axis_names_the_settings_themselves_as_far_as_there_is_room():
    few, _ = drawn(summary({"tokens": [2**k for k in range(11)]}))
    assert x_of(few)["axis"]["values"] == [2**k for k in range(11)]
    many, _ = drawn(summary({"tokens": range(1, 41)}))
    named = x_of(many)["axis"]["values"]
    assert len(named) <= 12
    assert set(named) <= set(range(1, 41))


def test_many_settings_that_were_measured_have_round_ticks():
    panel, _ = drawn(summary({"exponent": [k / 7 - 1 for k in range(20)]}))
    measured = x_of(panel)["axis"]
    assert "values" not in measured
    assert measured["tickCount"] == 6


def test_logarithms_are_drawn_as_powers_and_zero_as_a_marker():
    def value(name, setting):
        return -INF if name == "full" and setting > 2 else -1000.0 * setting

    table = summary({"window": [1, 2, 3, 4]}, value=value, metric="log10_residual")
    spec, text = drawn(table, "log10_residual")
    assert "−4,000</text>" in text
    (marker,) = (m for m in marks_of(spec, "point") if "data" in m)
    assert [(r["variant"], r["setting"]) for r in data_of(spec, marker)] == [
        ("full", 3),
        ("full", 4),
    ]
    assert text.count("tokens exactly equal") == 1


def test_models_have_panels_of_their_own():
    one = summary({"window": [1, 2]})
    two = pl.concat([one.with_columns(model=pl.lit(name)) for name in ("BERT", "ViT")])
    spec, _ = drawn(two)
    titles = [panel["title"]["text"] for panel in spec["concat"]]
    assert titles == ["BERT: beta by window", "ViT: beta by window"]


def test_without_a_parameter_it_is_a_setting():
    spec, _ = drawn(summary({"window": [1, 2]}).drop("parameter"), title="A sweep")
    assert spec["concat"][0]["title"]["text"] == "Beta by setting"
    assert spec["title"]["text"] == "A sweep"


def test_a_table_that_cannot_be_drawn_is_refused():
    table = summary({"window": [1, 2]})
    with pytest.raises(
        InputError, match=r"lacks setting; by_setting draws what tables\.summary.*by setting"
    ):
        by_setting(table.drop("setting"), metric="beta")
    with pytest.raises(InputError, match="no rows for metric 'rank'"):
        by_setting(table, metric="rank")
    with pytest.raises(InputError, match=r"several rows for parameter window, setting 1\.0"):
        by_setting(table.drop("variant"), metric="beta")
    with pytest.raises(InputError, match="some rows have no setting"):
        by_setting(table.with_columns(setting=pl.lit(None, pl.Float64)), metric="beta")
