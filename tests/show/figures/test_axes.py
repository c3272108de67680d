"""Axes: their ends and the values they name."""

import pytest

from rankscope.show.figures._axes import linear_axis, log_axis


def names(axis):
    return [(tick.text, tick.exponent) for tick in axis.ticks]


def test_decades_are_named_as_powers():
    axis = log_axis("", [1e-3, 1.0])
    assert names(axis) == [("10", "−3"), ("10", "−2"), ("10", "−1"), ("10", "0")]
    assert [tick.value for tick in axis.ticks] == [1e-3, 1e-2, 1e-1, 1.0]


def test_a_long_range_is_thinned_evenly_down_from_the_top():
    axis = log_axis("", [1e-16, 1.0])
    assert [tick.exponent for tick in axis.ticks] == ["−15", "−12", "−9", "−6", "−3", "0"]


def test_a_short_range_is_named_in_ones_twos_and_fives():
    assert names(log_axis("", [20.0, 300.0])) == [(n, "") for n in ("20", "50", "100", "200")]


def test_what_stays_level_looks_level_and_what_falls_by_half_is_seen_to_fall():
    low, high = log_axis("", [0.9, 0.91]).domain
    assert 3 <= high / low <= 4
    axis = log_axis("", [0.5, 1.0])
    assert axis.height(1.0) - axis.height(0.5) > 0.5


def test_ends_hold_every_value_with_a_margin():
    low, high = log_axis("", [3e-5, 7.0], includes=[1e-8]).domain
    assert 1e-9 < low < 1e-8
    assert 7 < high < 70
    assert linear_axis("", [2.0, 4.0], includes=[0.0]).domain == pytest.approx((0.0, 4.16))
    assert linear_axis("", [-0.5, 0.5], includes=[0.0, 1.0]).domain == pytest.approx((-0.56, 1.06))


def test_nothing_but_what_is_not_positive_goes_to_the_floor():
    axis = log_axis("", [0.0, 1e-4, 1.0, -2.0])
    assert axis.floor == 1e-5
    assert [axis.clip(value) for value in (0.0, -2.0, 1e-4, None)] == [1e-5, 1e-5, 1e-4, None]
    assert (axis.ticks[0].value, axis.ticks[0].text) == (1e-5, "0")
    assert names(axis)[1] == ("10", "−4")


def test_without_zeros_there_is_no_floor():
    axis = log_axis("", [1e-4, 1.0])
    assert axis.floor is None
    assert axis.clip(-1.0) == -1.0


@pytest.mark.parametrize("values", [[], [0.0], [5.0], [-3.0, -3.0]])
def test_an_axis_is_never_empty(values):
    for axis in (linear_axis("", values), log_axis("", values)):
        assert axis.domain[0] < axis.domain[1]


def test_the_whole_range_of_floats_has_an_axis():
    low, high = log_axis("", [1e-300, 1e300]).domain
    assert 0 < low <= 1e-300
    assert 1e300 <= high < float("inf")
