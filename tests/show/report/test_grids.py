"""Metrics as grids of numbers."""

import math
from dataclasses import replace

import polars as pl
import pytest

from rankscope.show.figures import FIGURES
from rankscope.show.report._grids import METRIC, grids, statistic, thin

from .conftest import DEEP, table_of


def values(grid, curve):
    return [None if cell is None else cell.value for cell in grid.column(curve)]


def test_models_can_be_kept_apart(study):
    found = grids(study, apart=("model",))
    assert [(grid.metric, grid.about) for grid in found] == [
        (DEEP, "BERT"),
        (DEEP, "ViT"),
        ("rank", ""),
    ]
    assert [grid.curves for grid in found] == [["full", "causal"]] * 3
    assert [grid.axis for grid in found] == ["layer", "layer", "window"]
    assert values(found[0], "full")[-3:] == [-3280.0, -math.inf, -math.inf]
    assert values(found[2], "causal") == [7.0, 17.5]
    assert [found[2].label(place) for place in found[2].positions] == ["1", "2.5"]


def test_layers_under_several_settings_are_curves(study):
    table = table_of(
        (0, "scale", 0.5, "rank", 4.0),
        (1, "scale", 0.5, "rank", math.nan),
        (0, "scale", 2.0, "rank", 3.0),
        (1, "scale", 2.0, "rank", 1.0),
        names=("layer", "parameter", "setting", "metric", "value"),
    )
    (grid,) = grids(replace(study, table=table), apart=("model",))
    assert (grid.axis, grid.positions) == ("layer", [0, 1])
    assert grid.curves == ["scale 0.5", "scale 2"]
    assert values(grid, "scale 0.5")[0] == 4.0
    assert math.isnan(values(grid, "scale 0.5")[1])
    assert values(grid, "scale 2") == [3.0, 1.0]


def test_metrics_that_are_one_number_for_each_curve_stand_below_each_other(study):
    table = table_of(
        *((name, metric, 4.0) for metric in ("rank", "gamma") for name in "ab"),
        names=("variant", "metric", "value"),
    )
    (grid,) = grids(replace(study, table=table))
    assert (grid.axis, grid.few(1).positions) == (METRIC, ["rank", "gamma"])  # all, in their order
    assert grid.curves == ["a", "b"]
    assert grid.label("rank") == "Rank"
    assert grid.metrics == ["rank", "gamma"]
    assert values(grid, "b") == [4.0, 4.0]


def test_lengths_are_those_of_the_last_layer_and_biases_come_last(lengths):
    (found,) = grids(lengths)
    grid = found.few(16)
    assert (grid.axis, grid.positions) == ("length", [0, 1, None])
    assert grid.last_layer
    assert grid.by_metric
    assert grid.curves == ["residual_share", "projection"]
    assert grid.about == "by length"
    # Heads have no length: they are not taken for biases.
    assert values(grid, "residual_share") == [1.5, 0.125, 0.0625]
    assert [grid.label(place) for place in grid.positions] == ["0", "1", "bias"]


def test_metrics_of_one_curve_stand_side_by_side(study):
    table = table_of(
        *((layer, metric, 1.0) for metric in ("rank", "dobrushin") for layer in range(3)),
        names=("layer", "metric", "value"),
    ).filter((pl.col("metric") == "rank") | (pl.col("layer") > 0))
    (found,) = grids(replace(study, table=table))
    grid = found.few(16)
    assert grid.positions == [0, 1, 2]
    assert values(grid, "dobrushin") == [None, 1.0, 1.0]


def test_models_are_curves_where_nothing_else_is(study):
    table = table_of(
        *((model, 0, "rank", 1.0) for model in ("BERT", "ViT")),
        names=("model", "layer", "metric", "value"),
    )
    (grid,) = grids(replace(study, table=table), apart=("model",))
    assert grid.curves == ["BERT", "ViT"]


def test_metrics_of_several_curves_stand_alone(study):
    table = table_of(
        *((name, 0, metric, 1.0) for metric in ("rank", "dobrushin") for name in "ab"),
        names=("variant", "layer", "metric", "value"),
    )
    assert [grid.metric for grid in grids(replace(study, table=table))] == [
        "rank",
        "dobrushin",
    ]


def test_places_are_thinned_but_the_first_and_the_last_are_kept(study):
    table = table_of(*((k, "rank", 1.0) for k in range(200)), names=("layer", "metric", "value"))
    (grid,) = grids(replace(study, table=table))
    places = grid.few(16).positions
    assert places == thin(range(200), 16)
    assert (len(places), places[:3], places[-1]) == (16, [0, 1, 2], 199)
    assert thin(range(3), 16) == [0, 1, 2]


def test_places_that_few_curves_have_make_room_for_those_of_most(study):
    table = table_of(
        *((name, k, "rank", 1.0) for name in ("a", "b", "to 400") for k in range(101)),
        *(("to 400", k, "rank", 1.0) for k in range(101, 401)),
        names=("variant", "layer", "metric", "value"),
    )
    (grid,) = grids(replace(study, table=table))
    assert grid.few(6).positions == [*thin(range(101), 5), 400]
    apart = table_of(*((name, k, "rank", 1.0) for k, name in enumerate("abc")), names=table.columns)
    (grid,) = grids(replace(study, table=apart))
    assert grid.few(6).positions == [0, 1, 2]


def test_a_few_curves_have_their_own_places(study):
    table = table_of(
        *((f"up to {n}", k, "rank", 1.0) for n in (3, 90) for k in range(n + 1)),
        names=("variant", "layer", "metric", "value"),
    )
    (grid,) = grids(replace(study, table=table))
    short = grid.few(4, ["up to 3"])
    assert (short.curves, short.positions) == (["up to 3"], [0, 1, 2, 3])
    assert grid.few(4).positions[-1] == 90


def test_tables_tell_medians_as_every_chart_does(diagnosis):
    (grid,) = grids(diagnosis)
    assert grid.statistic == "median"
    assert values(grid, "SAN") == pytest.approx([1.0, 0.1, 0.01])  # the means are twice that


def test_where_there_is_one_sample_there_is_no_statistic(study):
    assert statistic(study, "rank") == ""


@pytest.mark.parametrize("figure", FIGURES.values(), ids=lambda kind: kind.name)
def test_no_figure_draws_means(figure):
    assert "mean" not in figure.reading
