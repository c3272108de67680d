"""Maps and curves of a training run: which steps are drawn, and where events stand."""

import math

import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric, knowing
from rankscope.show import figures

RANK = "rank"
EVENTS = ("alarm/fall", "alarm/rise")
TITLES = [Metric("alarm/fall", "Fall"), Metric("alarm/rise", "Rise"), Metric("rank", "Rank")]


def training(steps, layers=(1, 2, 3), events=(), value=lambda step, layer: step + layer, more=()):
    rows = [(step, layer, RANK, float(value(step, layer))) for step in steps for layer in layers]
    rows += [(step, layer, name, 1.0) for name, step, layer in events]
    return tables.from_rows(("step", "layer", "metric", "value"), [*rows, *more])


def drawn(chart):
    """The specification, and its rows with a field."""
    spec = figures.printable(chart.to_dict())
    assert figures.svg(spec).startswith("<svg")
    rows = [row for values in spec["datasets"].values() for row in values]
    return spec, lambda field: [row for row in rows if field in row]


def texts(rows):
    return [row["text"] for row in rows("text") if "exponent" not in row]


def test_a_map_has_a_cell_for_every_layer_and_step():
    _, rows = drawn(figures.step_map(training([0, 50, 100]), metric=RANK))
    cells = {(row["x"], row["y"]): row["exact"] for row in rows("across")}
    assert len(cells) == 9
    assert cells["100", "3"] == "103"
    assert texts(rows) == []


def test_values_that_are_not_finite_are_grey_and_zero_layers_are_drawn():
    table = training([0, 1], layers=(0, 1), value=lambda s, k: math.nan if (s, k) == (1, 1) else 1)
    _, rows = drawn(figures.step_map(table, metric=RANK))
    shades = {(row["x"], row["y"]): row["shade"] for row in rows("across")}
    assert shades["1", "1"] is None
    assert shades["1", "0"] == 1.0


def test_events_are_numbered_by_their_steps_and_named():
    events = [("alarm/rise", 100, None), ("alarm/fall", 50, 2)]
    with knowing(TITLES):
        chart = figures.step_map(training([0, 50, 100], events=events), metric=RANK, events=EVENTS)
    _, rows = drawn(chart)
    assert texts(rows) == ["1", "2", "1  Fall, layer 2, step 50", "2  Rise, step 100"]
    (ring,) = {(row["at"], row["up"]) for row in rows("up") if "event" in row}
    assert ring == (1.0, 1)
    assert chart.description.endswith("1: Fall, layer 2, step 50. 2: Rise, step 100.")
    assert "Rank: from 1 at layer 1, step 0 to 103 at layer 3, step 100." in chart.description


def test_numbers_that_would_overlap_are_joined_and_many_names_are_cut():
    events = [("alarm/fall", 1000 + k, 1) for k in range(9)]
    table = training(range(2000), layers=(1,), events=events)
    _, rows = drawn(figures.step_map(table, metric=RANK, events=EVENTS))
    numbers, *names = texts(rows)
    assert numbers == "1–9"
    assert len(names) == 6
    assert names[-1] == "and 4 more in the table of alarms"


@pytest.mark.parametrize("layers", [1, 12, 48])
def test_of_many_steps_some_are_drawn_with_the_last_and_those_of_events(layers):
    events = [("alarm/fall", 1117, 1)]
    table = training(range(3000), layers=range(1, layers + 1), events=events)
    _, rows = drawn(figures.step_map(table, metric=RANK, events=EVENTS))
    steps = {row["x"] for row in rows("across")}
    assert {"0", "1,117", "2,999"} <= steps
    assert 90 <= len(steps) <= 245
    assert len(steps) * layers <= 5000


def test_curves_have_their_start_band_and_events():
    band = [(0, 2, "rank/low", 0.5), (0, 2, "rank/high", 4.0), (0, 1, "rank/low", 1.0)]
    table = training([0, 50, 100], events=[("alarm/fall", 50, 2)], more=band)
    ends = ("/low", "/high")
    with knowing(TITLES):
        chart = figures.by_step(table, metrics=RANK, layers=[1, 2], events=EVENTS, band=ends)
    spec, rows = drawn(chart)
    assert [panel["title"]["text"] for panel in spec["concat"]] == ["Rank, layer 1",
                                                                    "Rank, layer 2"]  # fmt: skip
    assert [(row["from"], row["to"]) for row in rows("from")] == [(0.5, 4.0)]
    values = [row["drawn_median"] for row in rows("drawn_median")]
    assert values == [1, 51, 101, 2, 52, 102]
    assert chart.description.startswith("Rank, layer 1: 1 at step 0, 101 at step 100.")


def test_curves_without_a_layer_and_lost_values():
    rows = [(step, None, "loss", math.nan if step > 1 else 3.0) for step in range(4)]
    table = tables.from_rows(("step", "layer", "metric", "value"), rows)
    _, rows_of = drawn(figures.by_step(table, metrics=["loss"]))
    crosses = [row["step"] for row in rows_of("step") if "drawn_median" not in row]
    assert crosses == [2, 3]
    _, rows_of = drawn(figures.by_step(table.drop("layer"), metrics="loss"))
    assert len(rows_of("drawn_median")) == 4


def test_what_cannot_be_drawn_is_refused():
    twice = tables.stack([training([0, 1]), training([1, 2])])
    with pytest.raises(InputError, match="several rows for step 1, layer 1; step_map draws one"):
        figures.step_map(twice, metric=RANK)
    with pytest.raises(InputError, match="no rows for metric 'loss'"):
        figures.by_step(training([0, 1]), metrics="loss", layers=[1])
    with pytest.raises(InputError, match="some rows have no layer"):
        figures.step_map(training([0], layers=(None,), value=lambda *_: 1), metric=RANK)
