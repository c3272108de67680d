"""Maps of designs: their rows, where they say the boundary is, and what is measured in them."""

import math
from dataclasses import replace

import pytest
import torch

from rankscope import predict, tables
from rankscope.core.masks import as_mask
from rankscope.core.network import Init, Spec
from rankscope.errors import InputError
from rankscope.experiments.studies.phases import (
    BOUNDARY,
    ENTRY,
    Config,
    Map,
    agreement,
    boundary,
    first_below,
    maps,
)
from rankscope.models.text import embed, passages
from rankscope.streams import stream_seed

from ..shown import can_be_shown, steps_of

SMALL = Config(
    layers=4,
    width=16,
    heads=2,
    tokens=8,
    draws=3,
    scales=(0.25, 2.0),
    skips=(0.0, 4.0),
    windows=(1, 4),
    head_counts=(1, 16),
    measured=1,
    marked=2,
)


@pytest.fixture(scope="module")
def found():
    result, seen = steps_of(ENTRY.run, SMALL)
    assert len(seen) == 8 * 2
    return result


def test_every_map_has_every_cell_and_its_measured_points(found):
    rows = found.table.filter(metric="relative_dispersion")
    predicted = rows.filter(variant="predicted")
    cells = predicted.group_by("model", "parameter", "setting", "layer").len()
    assert set(cells["len"]) == {3}
    assert cells.height == 8 * 2 * 4
    marks = rows.filter(variant="measured")
    assert marks.height == 8 * 2
    assert set(marks["layer"]) == {2, 4}
    gradients = found.table.filter(metric="state_gradient")
    assert set(gradients["parameter"]) == {"init_scale"}
    can_be_shown(found)


def test_a_row_is_one_prediction_of_the_design(found):
    """The same figures by hand: the spec of a cell, its own seed, and the first passage."""
    x, _ = embed(passages()[:1], 16, length=8, seed=0, dtype=torch.float64)
    spec = Spec(4, 2, 16, norm_place="both", init=Init("lecun", 2.0))
    seed = stream_seed(0, "phases", "sandwich norm", "init_scale", "2.0")
    by_hand = predict(spec, x, draws=3, seed=seed).values["relative_dispersion"][3, :, 0]
    rows = found.table.filter(
        metric="relative_dispersion", model="sandwich norm", setting=2.0, variant="predicted"
    )
    assert rows.filter(layer=3).sort("sample")["value"].to_list() == pytest.approx(by_hand.tolist())


def test_windows_are_measured_by_the_entropy_they_allow(found):
    shares = found.table.filter(metric="entropy_share")
    assert shares["value"].max() <= 1 + 1e-6
    narrow = shares.filter(parameter="window", setting=1.0, variant="predicted")
    assert narrow["value"].min() > 0.5  # of three keys; of all eight it would be below


def test_specs_of_every_map() -> None:
    at = {(map_.placement, map_.parameter): map_ for map_ in maps(SMALL)}
    assert len(at) == 8
    assert at["none", "init_scale"].spec(SMALL, 0.5).norm == "none"
    assert at["pre", "init_scale"].spec(SMALL, 0.5).init == Init("lecun", 0.5)
    assert at["post", "skip_scale"].spec(SMALL, 0.3).skips == (0.3, 0.3)
    assert at["post", "window"].spec(SMALL, 3.0).mask == as_mask("window:3")
    heads = at["post", "heads"].spec(SMALL, 8.0)
    assert (heads.heads, heads.head_width) == (8, 2)
    assert {each.spec(SMALL, 1.0).norm_place for each in at.values()} == {
        "pre",
        "post",
        "both",
        "output",
    }
    with pytest.raises(
        InputError, match="no norm place 'inside'; choose none, pre, post, both, output"
    ):
        maps(replace(SMALL, places=("inside",)))


def test_measured_settings_are_spread() -> None:
    settings = tuple(float(k) for k in range(20))
    assert Map("pre", "init_scale", settings).chosen(4) == (2.0, 7.0, 12.0, 17.0)
    assert Map("pre", "init_scale", settings[:2]).chosen(4) == (0.0, 1.0)


def test_the_boundary_is_crossed_from_above() -> None:
    assert first_below([1.0, BOUNDARY, 0.0999, 1.0]) == 2
    assert math.isnan(first_below([1.0, BOUNDARY]))


def made(reached, measured=()):
    """A map by hand: the collapse layer of each setting, dispersions 0.5 and 0.7 at layer 1."""
    columns = ("model", "variant", "layer", "parameter", "setting", "sample", "metric", "value")
    rows = [
        ("pre", "predicted", None, "heads", setting, 0, "collapse_layer", layer)
        for setting, layer in reached.items()
    ]
    rows += [
        ("pre", "predicted", 1, "heads", setting, draw, "relative_dispersion", value)
        for setting in reached
        for draw, value in enumerate((0.5, 0.7))
    ]
    rows += [
        ("pre", "measured", 1, "heads", setting, 0, "relative_dispersion", value)
        for setting, value in measured
    ]
    return tables.from_rows(columns, rows)


def test_where_the_boundary_lies_in_words() -> None:
    never = made({1.0: math.nan, 2.0: math.nan})
    assert boundary(never, "pre", "heads", 0.1) == (
        "Heads, pre: no collapse at any setting from 1 to 2 within 1 layer; the relative "
        "dispersion stays above 0.6."
    )
    some = made({1.0: math.nan, 2.0: 5.0, 3.0: 4.0, 4.0: math.nan, 5.0: 9.0})
    assert boundary(some, "pre", "heads", 0.1) == (
        "Heads, pre: the relative dispersion falls below 0.1 within 1 layer at settings 2 to 3, 5, "
        "soonest at layer 4 (3), latest at layer 9 (5)."
    )
    every = boundary(made({1.0: 3.0, 2.0: 3.0}), "pre", "heads", 0.1)
    assert every.endswith("at every setting, soonest at layer 3 (1).")


def test_how_measurements_agree_in_words() -> None:
    table = made({1.0: math.nan, 2.0: math.nan}, [(1.0, 0.6), (2.0, 0.3)])
    share, furthest = agreement(table, draws=2)
    assert "Of 2 measured figures 50% lie between" in share
    assert "33% are expected" in share  # a third draw is between two others in one order of three
    assert "relative dispersion 0.3 where 0.592 is predicted (heads 2, pre, layer 1)" in furthest
    assert list(agreement(made({1.0: math.nan}), draws=2)) == []
