"""``head_map``, read off the specification and off what Vega makes of it."""

import json

import polars as pl
import pytest
import vl_convert

from rankscope import tables
from rankscope.errors import InputError
from rankscope.show.figures import head_map, save
from rankscope.show.figures._theme import INK

from .maps import cells_of, named_on, scale_of, shaded, side_of


def table(layers=3, heads=4, samples=2):
    rows = [
        (layer, head, sample, metric, 0.01 * layer + 0.1 * head + 0.02 * sample)
        for layer in range(1, layers + 1)
        for head in range(heads)
        for sample in range(samples)
        for metric in ("residual_share", "norm_share")
    ]
    names = ("layer", "head", "sample", "metric", "value")
    return tables.frame(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def picture(spec):
    drawn = vl_convert.vegalite_to_svg(spec)
    assert "NaN" not in drawn
    return drawn


def test_cells_are_medians_over_the_samples():
    outlier = pl.when(pl.col("sample") == 2).then(1e9).otherwise("value")
    drawn = cells_of(head_map(table(samples=3).with_columns(value=outlier)).to_dict())
    assert drawn["3", "2"]["shade"] == pytest.approx(0.34)
    rows = cells_of(head_map(table()).to_dict())
    assert len(rows) == 12
    assert rows["3", "2"]["shade"] == pytest.approx(0.33)
    assert rows["3", "2"]["exact"] == "0.33"
    assert rows["3", "2"]["count"] == 2


def test_shades_are_linear_from_zero_with_a_named_bar():
    spec = head_map(table()).to_dict()
    scale = scale_of(spec)
    assert scale["type"] == "linear"
    assert scale["domain"] == pytest.approx([0, 0.34])
    assert scale["scheme"]["name"] == "viridis"
    drawn = picture(spec)
    for name in ("0", "0.1", "0.2", "0.3", "median"):
        assert f">{name}</text>" in drawn


def test_layers_go_down_from_one_and_heads_to_the_right():
    spec = head_map(table()).to_dict()
    assert side_of(spec, "y") == ["3", "2", "1"]
    assert side_of(spec, "x") == ["0", "1", "2", "3"]
    told = [(tip["field"], tip["title"]) for tip in shaded(spec)["encoding"]["tooltip"]]
    assert told == [
        ("x", "head"),
        ("y", "layer"),
        ("exact", "median"),
        ("count", "measurements"),
    ]


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 96), (96, 1), (96, 96)])
def test_any_size_fits_and_labels_thin_out(layers, heads):
    spec = head_map(table(layers, heads, samples=1)).to_dict(validate=False)
    panel = spec["concat"][0]
    assert panel["width"] == 620
    assert panel["height"] <= 520.1
    assert 1 <= len(named_on(spec, "x")) <= 26
    assert named_on(spec, "y")[0] == "1"
    picture(spec)


def test_pages_are_told_to_stretch_it():
    assert head_map(table()).to_dict()["usermeta"]["rankscope"]["panels"]


def test_large_values_close_together_do_not_start_at_zero():
    close = table().with_columns(value=1.0 + 0.1 * pl.col("value"))
    low, high = scale_of(head_map(close).to_dict())["domain"]
    assert low == pytest.approx(0.9 * high)


def test_the_sample_column_may_be_missing():
    once = table(samples=1)
    assert cells_of(head_map(once.drop("sample")).to_dict()) == cells_of(head_map(once).to_dict())


def test_zeros_and_nan_can_be_drawn():
    zeros = table().with_columns(value=pl.lit(0.0))
    assert scale_of(head_map(zeros).to_dict())["domain"] == [0, 1]
    broken = table().with_columns(
        value=pl.when(pl.col("head") == 1).then(float("nan")).otherwise("value")
    )
    spec = head_map(broken).to_dict()
    json.dumps(spec, allow_nan=False)
    assert picture(spec).count(f'fill="{INK["grid"]}"') == 3
    assert {row["exact"] for (head, _), row in cells_of(spec).items() if head == "1"} == {"nan"}
    picture(head_map(table().with_columns(value=pl.lit(float("nan")))).to_dict())


def test_another_metric_is_drawn_under_its_own_name():
    spec = head_map(
        table().with_columns(metric=pl.lit("log10_mine")), metric="log10_mine"
    ).to_dict()
    assert scale_of(spec)["domain"][0] < 0  # exponents, not from zero up
    assert "Mine by head" in picture(spec)


def test_a_title_is_shown_and_files_are_written(tmp_path):
    path = save(head_map(table(), title="A model of ours"), tmp_path / "map.svg")
    assert "A model of ours" in path.read_text("utf-8")


def test_tables_that_cannot_be_drawn_are_refused():
    with pytest.raises(InputError, match=r"lacks head; head_map"):
        head_map(table().drop("head"))
    with pytest.raises(InputError, match="nothing to draw"):
        head_map(table().filter(pl.col("metric") == "norm_share"))
    with pytest.raises(InputError, match="no head"):
        head_map(table().with_columns(head=pl.lit(None, pl.Int64)))
    two = tables.joined({"SAN": table(), "transformer": table()})
    with pytest.raises(InputError, match="several values of variant"):
        head_map(two)
