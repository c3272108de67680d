"""Points in the plane: which panels there are, what is behind them, and what leaves them."""

import math

import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.show.figures import trajectories

NAMES = ("run", "model", "variant", "layer", "parameter", "metric", "value")


def places(model, variant, *way, run="one", point="first"):
    return [
        (run, model, variant, step, point, metric, value)
        for step, place in enumerate(way)
        for metric, value in zip(("x_coordinate", "y_coordinate"), place, strict=True)
    ]


def drawn(rows):
    """A figure, with the data of every layer where they are used."""
    chart = trajectories(tables.from_rows(NAMES, rows)).to_dict()
    for panel in chart["concat"]:
        for layer in panel["layer"]:
            layer["data"] = {"values": chart["datasets"][layer["data"]["name"]]}
    return chart


ARC = places(None, "arc", (0.5, 0.0), (0.0, -0.4))
ROWS = [
    *ARC,
    *places("a", "pure", (0.1, 0.2), (0.3, 0.1)),
    *places("b", "pure", (0.1, 0.2), (0.5, 0.1)),
    *places("a", "skip", (0.1, 0.2), (0.7, 0.1)),
    *places("b", "skip", (0.1, 0.2), (0.9, 0.1)),
]


def way(panel, layer=1):
    """The rows a layer of a panel draws, as (x, y)."""
    return [(row["x"], row["y"]) for row in panel["layer"][layer]["data"]["values"]]


def test_a_row_for_each_variant_and_a_column_for_each_model():
    chart = drawn(ROWS)
    assert chart["columns"] == 2
    names = [(each["title"]["text"], each["title"]["subtitle"]) for each in chart["concat"]]
    assert names == [("pure", "a"), ("pure", "b"), ("skip", "a"), ("skip", "b")]
    assert [way(each)[1][0] for each in chart["concat"]] == [0.3, 0.5, 0.7, 0.9]
    assert {each["width"] for each in chart["concat"]} == {
        each["height"] for each in chart["concat"]
    }


def test_what_has_no_model_is_behind_every_panel_and_sets_the_axes():
    for panel in drawn(ROWS)["concat"]:
        assert way(panel, 0) == [(0.5, 0.0), (0.0, -0.4)]
        for axis in ("x", "y"):
            assert panel["layer"][0]["encoding"][axis]["scale"]["domain"] == [-0.9, 0.9]


def test_a_point_that_leaves_is_followed_to_the_edge_and_no_further():
    rows = [*ARC, *places("a", "pure", (0.1, 0.2), (360.0, 36.0), (0.2, 0.2))]
    (panel,) = drawn(rows)["concat"]
    assert way(panel) == [(0.1, 0.2), pytest.approx((3.6, 0.36))]
    gone = [*ARC, *places("a", "pure", (0.1, 0.2), (math.inf, 36.0), (0.2, 0.2))]
    (panel,) = drawn(gone)["concat"]
    assert way(panel) == [(0.1, 0.2)]


def test_several_runs_are_refused_and_what_lacks_coordinates():
    with pytest.raises(InputError, match="several values of run"):
        drawn([*ROWS, *places("a", "pure", (0.0, 0.0), run="two")])
    with pytest.raises(InputError, match="several rows for"):
        drawn([*ROWS, *ARC])
    with pytest.raises(InputError, match="nothing to draw"):
        trajectories(tables.from_rows(NAMES, [("r", "m", "v", 0, "p", "rank", 1.0)]))
