"""``phase_map``, read off the specification and off what Vega makes of it."""

import json
import math

import polars as pl
import pytest
import vl_convert

from rankscope import tables
from rankscope.errors import InputError
from rankscope.show.figures import phase_map
from rankscope.show.figures._theme import DARK

from .maps import cells_of, named_on, scale_of, shaded, side_of

METRIC = "relative_dispersion"


def table(value=lambda layer, setting: 1 / (layer * setting), settings=(1.0, 2.0, 4.0)):
    """Three layers and some settings, two draws each, and one network measured in the middle."""
    rows = [
        ("predicted", layer, "init_scale", setting, draw, METRIC, value(layer, setting))
        for layer in (1, 2, 3)
        for setting in settings
        for draw in (0, 1)
    ]
    rows.append(("measured", 2, "init_scale", settings[1], 0, METRIC, 0.5))
    names = ("variant", "layer", "parameter", "setting", "sample", "metric", "value")
    return tables.from_rows(names, rows)


def drawn(frame, **options):
    spec = phase_map(tables.summary(frame), **{"metric": METRIC, **options}).to_dict()
    json.dumps(spec, allow_nan=False)
    assert "NaN" not in vl_convert.vegalite_to_svg(spec)
    return spec


def rows_of(spec, mark, panel=0):
    """The data of every layer with one kind of mark."""
    layers = [each for each in spec["concat"][panel]["layer"] if each["mark"]["type"] == mark]
    return spec["datasets"][layers[0]["data"]["name"]] if layers else []


def test_cells_are_means_at_their_place():
    uneven = table(lambda layer, setting: 0.1 * layer + 0.01 * setting)
    cells = cells_of(drawn(uneven))
    assert len(cells) == 9
    assert cells["2", "4"]["shade"] == pytest.approx(0.24)
    assert [cells["1", setting]["up"] for setting in "124"] == [0, 1, 2]
    (ring,) = rows_of(drawn(uneven), "point")
    assert (ring["x"], ring["y"], ring["shade"]) == ("2", "2", 0.5)
    assert (ring["across"], ring["up"]) == (1, 1)


def test_the_line_runs_between_cells_on_either_side():
    """1/(layer × setting) is below 0.3 from 4 on: a staircase, worked out by hand."""
    edges = rows_of(drawn(table(), boundary=0.3), "rule")
    # Layers are from 1 on, and places from 0.
    found = {(each["left"] + 1, each["right"] + 1, each["low"], each["high"]) for each in edges}
    assert found == {
        (1.5, 1.5, 0.5, 1.5),  # setting 2: 1/2 at layer 1, 1/4 at layer 2
        (0.5, 1.5, 1.5, 1.5),  # layer 1: 1/2 at setting 2, 1/4 at setting 4
        (1.5, 2.5, 0.5, 0.5),  # layer 2: 1/2 at setting 1, 1/4 at setting 2
        (2.5, 3.5, 0.5, 0.5),  # layer 3: 1/3 at setting 1, 1/6 at setting 2
    }
    assert rows_of(drawn(table()), "rule") == []
    assert rows_of(drawn(table(), boundary=1e-9), "rule") == []


def test_the_scale_can_be_cut_and_is_one_for_all_panels():
    spec = drawn(table(), lowest=0.2, highest=0.4)
    shades = [each["shade"] for each in cells_of(spec).values()]
    assert scale_of(spec)["domain"] == [0.2, 0.4]
    assert (min(shades), max(shades)) == (0.2, 0.4)
    two = tables.joined({"pre-norm": table(), "post-norm": table()}, column="model")
    spec = drawn(two)
    assert [panel["title"]["text"] for panel in spec["concat"]] == [
        "Init scale, pre-norm",
        "Init scale, post-norm",
    ]
    assert scale_of(spec) == scale_of(spec, 1)
    assert vl_convert.vegalite_to_svg(spec).count(">Relative dispersion</text>") == 1


def test_what_is_infinite_has_the_last_shade_and_what_is_missing_is_grey():
    def value(layer, setting):
        return {1.0: math.inf, 2.0: math.nan}.get(setting, 1.0 / layer)

    cells = cells_of(drawn(table(value), lowest=0.1, highest=2.0, boundary=0.4))
    shades = {place: row["shade"] for place, row in cells.items()}
    assert shades["1", "2"] is None
    assert shades["1", "1"] >= 2.0
    assert shades["3", "4"] == pytest.approx(1 / 3, rel=1e-3)


def test_settings_are_named_in_order():
    spec = drawn(table(settings=(4.0, 0.5, 2.0)))
    assert side_of(spec, "y") == named_on(spec, "y") == ["0.5", "2", "4"]
    assert shaded(spec)["encoding"]["y"]["axis"]["title"] == "init scale"
    many = tuple(float(k) for k in range(1, 42))
    assert len(named_on(drawn(table(settings=many)), "y")) <= 10


def test_rings_and_lines_are_seen_on_dark_pages_too():
    """They lie on cells, whose shades no page exchanges."""
    spec = drawn(table(), boundary=0.3)
    on_cells = [m["mark"] for m in spec["concat"][0]["layer"] if m["mark"]["type"] != "text"]
    used = {mark.get(name) for mark in on_cells for name in ("color", "stroke")}
    assert len(used - {None}) == 2
    assert not used & set(DARK)


def test_tables_that_cannot_be_drawn_are_refused():
    summary = tables.summary(table())
    with pytest.raises(InputError, match="lacks setting; phase_map draws"):
        phase_map(summary.drop("setting"), metric=METRIC)
    with pytest.raises(InputError, match="no rows for metric 'rank'"):
        phase_map(summary, metric="rank")
    with pytest.raises(InputError, match="several rows for"):
        phase_map(pl.concat([summary, summary]), metric=METRIC)
    for ends in ({"lowest": 2.0, "highest": 1.0}, {"lowest": 0.0}):
        with pytest.raises(InputError, match="not valid on a log scale"):
            phase_map(summary, metric=METRIC, **ends)
