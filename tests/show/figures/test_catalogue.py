"""From a drawing and a result to a chart, its heading and how to read it."""

import pkgutil

import polars as pl
import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.results import Drawing, Result
from rankscope.show import figures
from rankscope.show.figures import FIGURES, draw, heading, headings, reading


def result(table):
    return Result("r", "A result", "What?", (), table, {})


def rows(**columns):
    return tables.frame(columns)


def depth_table(*variants, metric="log10_residual"):
    """Two layers and two samples of each variant; and a metric without layers."""
    cells = [
        (variant, layer, sample, metric, -layer - sample)
        for variant in variants
        for layer in (0, 1)
        for sample in (0, 1)
    ]
    cells.append((variants[0], None, 0, "share_still_apart", 0.5))
    names = ("variant", "layer", "sample", "metric", "value")
    return tables.frame(dict(zip(names, zip(*cells, strict=True), strict=True)))


def path_table():
    """By length and by head in one table, as a study of paths has them."""
    by_length = [(2, None, length, 0.5) for length in (0, 1, 2)] + [(2, None, None, 0.1)]
    by_head = [(layer, head, None, 7.0 + head) for layer in (1, 2) for head in (0, 1)]
    cells = [
        (layer, head, length, sample, "residual_share", value * (1 + sample))
        for layer, head, length, value in by_length + by_head
        for sample in (0, 1)
    ]
    names = ("layer", "head", "length", "sample", "metric", "value")
    return tables.frame(dict(zip(names, zip(*cells, strict=True), strict=True)))


def counts():
    return rows(model=["a", "a"], length=[0, 1], metric=["proportion"] * 2, value=[0.25, 0.75])


def same(chart, other):
    return chart.to_dict() == other.to_dict()


def test_the_entries_are_the_figures_of_the_package():
    assert list(FIGURES) == [
        "by_depth",
        "by_setting",
        "by_layer",
        "by_model",
        "steps",
        "trajectories",
        "head_map",
        "layer_map",
        "token_map",
        "phase_map",
        "by_length",
        "length_distributions",
        "by_axis",
        "axis_map",
        "step_map",
        "by_step",
    ]
    for name, kind in FIGURES.items():
        assert kind.function is getattr(figures, name)
        assert name in figures.__all__
        assert kind.reading.endswith(".")
        assert not kind.against.endswith(".")
        assert "title" in kind.options
    with_roles = [name for name, kind in FIGURES.items() if "roles" in kind.options]
    assert with_roles == ["by_depth", "by_setting"]


def test_figures_of_summaries_draw_the_summary():
    table = depth_table("full", "causal")
    found = result(table)
    chart = draw(Drawing("by_depth", metric="log10_residual", options={"lowest": -9.0}), found)
    assert same(chart, figures.by_depth(found.summary, metric="log10_residual", lowest=-9.0))
    layers = draw(Drawing("by_layer", metric="log10_residual"), found)
    assert same(layers, figures.by_layer(found.summary, metrics=["log10_residual"]))
    assert same(
        draw(Drawing("by_layer", options={"metrics": ["log10_residual"]}), found),
        layers,
    )
    models = result(table.with_columns(model=pl.lit("BERT")))
    by_model = draw(Drawing("by_model", metric="log10_residual"), models)
    assert by_model.to_dict()["concat"][0]["title"]["text"] == "BERT"


def test_settings_and_counts_are_drawn():
    swept = rows(setting=[1.0, 2.0], metric=["rank"] * 2, value=[1.0, 2.0])
    chart = draw(Drawing("by_setting", metric="rank"), result(swept))
    assert same(chart, figures.by_setting(tables.summary(swept), metric="rank"))
    for drawing in (
        Drawing("length_distributions"),
        Drawing("length_distributions", metric="proportion"),
    ):
        assert same(draw(drawing, result(counts())), figures.length_distributions(counts()))


def test_paths_by_length_and_by_head_live_in_one_table():
    table = path_table()
    found = result(table)
    lengths = table.filter(pl.col("head").is_null()).drop("head")
    chart = draw(Drawing("by_length"), found)
    assert same(chart, figures.by_length(tables.summary(lengths)))
    heads = table.filter(pl.col("head").is_not_null()).drop("length")
    chart = draw(Drawing("head_map"), found)
    assert same(chart, figures.head_map(heads))


def test_a_map_of_heads_draws_any_metric():
    table = rows(layer=[1, 1], head=[0, 1], metric=["attention_entropy"] * 2, value=[1.0, 2.0])
    chart = draw(Drawing("head_map", metric="attention_entropy"), result(table))
    assert same(chart, figures.head_map(table, metric="attention_entropy"))
    assert heading(Drawing("head_map", metric="attention_entropy")) == "Attention entropy by head"


def test_only_keeps_rows():
    table = depth_table("full", "causal", "window")
    drawing = Drawing("by_depth", metric="log10_residual", only={"variant": ("causal", "window")})
    kept = tables.summary(table).filter(pl.col("variant") != "full")
    assert same(draw(drawing, result(table)), figures.by_depth(kept, metric="log10_residual"))
    by_layer = Drawing("by_depth", metric="log10_residual", only={"layer": ("1",)})
    assert draw(by_layer, result(table)).to_dict()["concat"]


def test_roles_are_passed_on():
    roles = {"a theorem": "bound"}
    table = depth_table("measured", "a theorem")
    drawing = Drawing("by_depth", metric="log10_residual", roles=roles)
    chart = draw(drawing, result(table))
    summary = tables.summary(table)
    assert same(chart, figures.by_depth(summary, metric="log10_residual", roles=roles))
    assert not same(chart, figures.by_depth(summary, metric="log10_residual"))


@pytest.mark.parametrize(
    ("drawing", "words"),
    [
        (Drawing("pie"), r"figure 'pie' is unknown; choose one of by_depth, by_setting, by_layer"),
        (
            Drawing("by_depth", metric="log10_residual", only={"model": ("BERT",)}),
            r"log10_residual keeps some of 'model'; the table has variant, layer, metric, count",
        ),
        (
            Drawing("by_depth", metric="log10_residual", only={"variant": ("star", "ring")}),
            r"log10_residual keeps the variant star, ring; the table has full\.",
        ),
        (Drawing("by_layer", roles={"full": "bound"}), r"by_layer takes no roles; it takes metr"),
        (Drawing("by_depth", options={"colour": 1}), r"by_depth takes no colour"),
        (Drawing("by_length", metric="rank"), r"by_length draws only residual_share, not rank"),
        (Drawing("by_depth", metric="rank"), r"no rows for metric 'rank'"),
    ],
)
def test_drawings_that_cannot_be_drawn_are_refused(drawing, words):
    with pytest.raises(InputError, match=words):
        draw(drawing, result(depth_table("full")))


def test_drawing_twice_gives_the_same_chart_and_leaves_the_result_alone():
    found = result(depth_table("full", "causal"))
    before = found.table.clone()
    drawing = Drawing("by_depth", metric="log10_residual", only={"variant": ("full",)})
    assert same(draw(drawing, found), draw(drawing, found))
    assert found.table.equals(before)


def test_headings_say_what_is_drawn_against_what():
    assert heading(Drawing("by_depth", metric="log10_slack")) == "Slack against depth"
    assert heading(Drawing("by_setting", metric="rank")) == "Rank against what was varied"
    assert heading(Drawing("by_layer")) == "Layer by layer"
    assert heading(Drawing("by_length")) == "Share of the residual by path length"
    assert heading(Drawing("head_map")) == "Share of the residual by head"
    assert heading(Drawing("length_distributions")) == "Proportion of paths by length"


def test_headings_that_would_be_alike_say_which_rows_they_keep():
    drawings = [
        Drawing("by_depth", metric="log10_residual", only={"variant": ("a", "b")}),
        Drawing("by_depth", metric="log10_residual", only={"variant": ("c",)}),
        Drawing("by_depth", metric="log10_residual"),
        Drawing("by_depth", metric="log10_slack", only={"variant": ("a",)}),
    ]
    assert headings(drawings) == [
        "Residual against depth: a, b",
        "Residual against depth: c",
        "Residual against depth",
        "Slack against depth",
    ]
    assert headings([]) == []


def test_every_figure_says_how_to_read_it():
    for name in FIGURES:
        assert reading(Drawing(name)) == FIGURES[name].reading
    assert "medians over the samples, bands" in reading(Drawing("by_depth"))
    with pytest.raises(InputError, match="figure 'pie' is unknown"):
        reading(Drawing("pie"))


def test_inner_modules_are_private():
    """The room's door is ``rankscope.show.figures``."""
    assert all(module.name.startswith("_") for module in pkgutil.iter_modules(figures.__path__))
