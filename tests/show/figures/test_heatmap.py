"""Shades, and the whole numbers an axis names."""

import pytest

from rankscope.show.figures._axes import whole_numbers
from rankscope.show.figures._heatmap import shades_of


@pytest.mark.parametrize(
    ("first", "last", "most", "named"),
    [
        (0, 6, 14, [0, 1, 2, 3, 4, 5, 6]),
        (1, 12, 6, [2, 4, 6, 8, 10, 12]),
        (1, 24, 5, [1, 5, 10, 15, 20]),
        (3, 3, 1, [3]),
        (7, 9, 1, [7]),
    ],
)
def test_axes_name_the_first_and_then_round_numbers(first, last, most, named):
    assert whole_numbers([first, last], most=most) == named


@pytest.mark.parametrize(
    ("high", "ticks"),
    [(1.0, [0, 0.5, 1]), (0.34, [0, 0.1, 0.2, 0.3]), (30.0, [0, 10, 20, 30]), (0.0, [0, 0.5, 1])],
)
def test_linear_shades_begin_at_zero_and_are_named_in_round_steps(high, ticks):
    axis = shades_of("linear", [0.0, high]).axis
    assert [tick.value for tick in axis.ticks] == pytest.approx(ticks)
    assert axis.domain == (0.0, high or 1.0)


def test_logarithmic_shades_have_a_place_for_zero():
    shades = shades_of("log", [0.0, 1e-3, 1.0])
    axis = shades.axis
    assert axis.kind == "log"
    assert axis.floor == 1e-4
    assert shades.of(0.0) == 1e-4
    assert shades.of(float("inf")) == pytest.approx(axis.domain[1], rel=1e-3)
    assert shades.of(float("nan")) is None
