"""``steps``: what each part of each block does, read off the specification and the picture."""

import math

import polars as pl
import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.show.figures import steps, svg

NAMES = ("variant", "layer", "sample", "metric", "value")


def table(*more):
    rows = [
        (part, layer, sample, "step", base * layer + 0.1 * sample)
        for part, base in (("attention", -0.2), ("MLP", 0.1))
        for layer in (1, 2, 3)
        for sample in (0, 1, 9)
    ]
    return tables.summary(tables.from_rows(NAMES, [*rows, *more]))


def datasets(spec):
    """The bars, and the hollow marks if there are any."""
    found = [rows for rows in spec["datasets"].values() if "layer" in rows[0]]
    return {"bars": found[0], "hollow": found[1] if len(found) > 1 else []}


def marks(spec):
    return spec["concat"][0]["layer"]


def test_bars_are_medians_from_zero_with_whiskers():
    spec = steps(table(), metric="step").to_dict()
    bars = {(row["variant"], row["layer"]): row for row in datasets(spec)["bars"]}
    assert len(bars) == 6
    assert bars["attention", 2]["drawn"] == pytest.approx(-0.3)  # the mean would be above zero
    assert bars["attention", 2]["low"] == pytest.approx(-0.38)
    assert bars["attention", 2]["high"] == pytest.approx(0.34)
    bar, whisker, zero = marks(spec)
    assert bar["encoding"]["y2"] == {"datum": 0}
    assert whisker["encoding"]["y"]["field"] == "low"
    assert whisker["encoding"]["y2"]["field"] == "high"
    assert zero["encoding"]["y"]["field"] == "zero"
    low, high = bar["encoding"]["y"]["scale"]["domain"]
    assert low < 0 < high


def test_the_axis_is_even_and_layers_are_whole_numbers():
    encoding = marks(steps(table(), metric="step").to_dict())[0]["encoding"]
    assert encoding["y"]["scale"]["type"] == "linear"
    assert encoding["x"]["type"] == "ordinal"
    assert encoding["x"]["axis"]["values"] == [1, 2, 3]
    assert encoding["xOffset"]["scale"]["domain"] == ["attention", "MLP"]


def test_what_a_step_would_be_alone_is_a_hollow_mark_and_at_the_edge_if_far():
    more = [
        ("attention", 1, 0, "step_alone", -0.5),
        ("attention", 2, 0, "step_alone", -400.0),
        ("attention", 3, 0, "step_alone", -math.inf),
        ("MLP", 3, 0, "step_alone", math.nan),
    ]
    spec = steps(table(*more), metric="step").to_dict()
    hollow = {(row["variant"], row["layer"]): row for row in datasets(spec)["hollow"]}
    low, _ = marks(spec)[0]["encoding"]["y"]["scale"]["domain"]
    assert (hollow["attention", 1]["drawn"], hollow["attention", 1]["shape"]) == (-0.5, "circle")
    for layer in (2, 3):
        assert hollow["attention", layer]["drawn"] == low
        assert hollow["attention", layer]["shape"] == "triangle-down"
    assert hollow["attention", 2]["exact_median"] == "-400"
    assert hollow["MLP", 3]["drawn"] is None
    assert low > -5  # the bars stay visible
    drawn = svg(spec)
    assert "without its skip" in drawn
    assert "NaN" not in drawn


def test_without_such_rows_nothing_is_hollow():
    drawn = svg(steps(table(), metric="step", title="Mine").to_dict())
    assert "without its skip" not in drawn
    assert "Mine" in drawn


def test_other_metrics_are_left_out():
    other = ("norm", 1, 0, "rank", 1e9)
    assert steps(table(other), metric="step").to_dict() == steps(table(), metric="step").to_dict()


def test_tables_that_cannot_be_drawn_are_refused():
    with pytest.raises(InputError, match="lacks variant; steps draws"):
        steps(table().drop("variant"), metric="step")
    with pytest.raises(InputError, match="no rows for metric 'rank'"):
        steps(table(), metric="rank")
    with pytest.raises(InputError, match="several rows"):
        steps(pl.concat([table(), table()]), metric="step")
