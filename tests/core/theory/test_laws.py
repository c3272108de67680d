"""Which law a curve follows, told from curves whose law is known."""

import math
from dataclasses import replace

import pytest
import torch

from rankscope.core.theory import (
    SMOOTH,
    UNEVEN,
    as_stated,
    growth_exponent,
    late_exponent,
    law,
    levels_off,
    power_exponent,
    steadiness,
    trend,
)

AT = torch.arange(13, dtype=torch.float64)


def cubic(start, constant, layers):
    curve = [start]
    for _ in range(layers):
        curve.append(3 * curve[-1] + constant)
    return curve


def test_a_cubic_step_is_doubly_exponential():
    found = law(cubic(-0.5, 0.2, 9))
    assert found.kind == "doubly exponential"
    assert found.growth == pytest.approx(3)
    assert found.last == pytest.approx(cubic(-0.5, 0.2, 9)[-1])


@pytest.mark.parametrize("rate", [-2.0, -0.3, -1e-3, -1e-5])
def test_a_steady_factor_is_exponential_however_slow(rate):
    found = law([0.7 + rate * layer for layer in range(30)])
    assert found.kind == "exponential"
    assert found.rate == pytest.approx(rate)
    assert f"{10**rate:.3g}" in str(found)


def test_what_scatters_around_a_level_does_not_collapse():
    assert law([0.0, -0.3, 0.1, -0.2, 0.2, -0.1, 0.15, -0.12, 0.1]).kind == "none"
    assert law([0.1 * layer for layer in range(9)]).kind == "none"


def test_a_fall_must_be_clear_of_its_scatter():
    """Steps of −0.15 and 0.05: their mean is 1.3 standard errors below zero."""
    shaken = [0.0]
    for layer in range(16):
        shaken.append(shaken[-1] + (0.05 if layer % 2 else -0.15))
    assert law(shaken).kind == "undecided"
    assert law(shaken, replace(SMOOTH, scatter=1.0)).kind == "exponential"


def test_a_fall_that_dies_away_is_no_collapse():
    """Two closed classes: each becomes one point, and the distance between the points stays."""
    inside = [0.9 ** (2 * layer) for layer in range(80)]
    assert law([0.5 * math.log10(1 + rest) for rest in inside]).kind == "none"


@pytest.mark.parametrize("evidence", [SMOOTH, UNEVEN])
def test_equal_tokens_have_a_law_of_their_own(evidence):
    found = law([0.0, -3.0, -math.inf, -math.inf], evidence)
    assert found.kind == "equal"
    assert "all tokens are equal" in str(found)
    assert law([0.0, -1.0, -math.inf], evidence).kind == "equal"


@pytest.mark.parametrize(
    "curve",
    [
        [],
        [0.3],
        [0.0, -1.6],  # a single step
        [0.0, -1.0, -1.9, -2.5, -2.9, -3.1],  # slows down, but is not over
        [-1.0, -3.0, -5.0, math.nan],
    ],
)
def test_what_shows_no_law_is_called_undecided(curve):
    assert law(curve).kind == "undecided"
    assert "too few layers" in str(law(curve))


def test_each_test_of_growth_can_forbid_a_double_exponent():
    """A doubly exponential curve in every respect but one is not called so."""
    growing = cubic(-0.5, 0.2, 9)
    last_but_one_short = [*growing[:-1], growing[-2] + 1.9 * (growing[-2] - growing[-3])]
    assert law(last_but_one_short).kind != "doubly exponential"
    assert law(last_but_one_short, replace(SMOOTH, least_growth=1.5)).kind == "doubly exponential"
    small = [1e-3 * value for value in cubic(-0.5, 0.2, 5)]
    assert law(small).kind != "doubly exponential"
    assert law(small, replace(SMOOTH, least_fall=0.0)).kind == "doubly exponential"


@pytest.mark.parametrize(
    ("log10", "level"),
    [
        ([0.0] * 8, True),
        ([-0.3 * k for k in range(8)], False),
        ([-0.3 * min(k, 40) for k in range(100)], True),
        ([-0.01 * k for k in range(100)], False),
        ([0.2 * math.sin(3.7 * k) for k in range(100)], True),
        ([-(3.0**k) for k in range(20)], False),
        ([0.0, -3.0, *[-math.inf] * 6], False),
    ],
)
def test_a_residual_stops_where_its_last_quarter_is_level(log10, level):
    assert levels_off(log10) is level


def test_scatter_is_not_taken_for_double_exponents():
    falling = [-0.3 * k for k in range(37)] + [-11.0, -11.1, -11.4, -12.3]
    assert law(falling).growth == pytest.approx(3)  # what the last steps alone would say
    assert law(falling, UNEVEN).kind == "exponential"
    assert law(falling, UNEVEN).rate == pytest.approx((-12.3 + 6.0) / 20)
    assert law(falling, replace(UNEVEN, least_bend=1.5)).kind == "doubly exponential"


def test_uneven_curves_may_be_doubly_exponential_once_they_are_far_down():
    assert law([-(3.0**k) for k in range(12)], UNEVEN).kind == "doubly exponential"
    assert law([-(2.0**k) for k in range(12)], UNEVEN).kind == "exponential"  # by no cube
    assert law([-1e-6 * 3.0**k for k in range(8)], UNEVEN).kind == "none"  # far from small yet


@pytest.mark.parametrize("log10", [[0.0, -1.0, -2.0], [0.0, math.nan, -2.0, -3.0, -4.0]])
def test_few_or_missing_layers_decide_nothing(log10):
    assert law(log10, UNEVEN).kind == "undecided"
    assert law([0.0, -1.0, -2.0, -3.0], UNEVEN).kind == "exponential"


def test_what_is_asked_decides_between_slow_collapse_and_none():
    """A fall within its scatter: undecided where scatter counts, a collapse by its quarters."""
    uneven = [-0.02 * k + 0.3 * math.sin(3.7 * k) for k in range(60)]
    assert law(uneven).kind == "none"
    assert law(uneven, UNEVEN).kind == "exponential"


def test_steps_that_grow_by_an_amount_are_between():
    curve = [-(1.5 * k * (k + 1) / 2 + 2.0 * k) for k in range(16)]  # steps −3.5, −5, −6.5, …
    found = law(curve)
    assert found.kind == "between"
    assert found.bend == pytest.approx(-1.5)
    assert "each step is 1.50 decades larger than the one before" in str(found)
    assert found.collapses
    assert found.decided
    assert law(curve, replace(SMOOTH, linear=None)).kind == "exponential"
    assert law(curve[:6]).kind != "between"  # too few steps for a line


def test_a_drift_of_a_steady_factor_is_not_between():
    drifting = [-(2.0 * k + 0.01 * k * k) for k in range(24)]
    assert law(drifting).kind == "exponential"
    grown = 0.02 * 11 / (2.0 + 0.02 * 17)  # of the mean of the later steps
    assert grown < 0.25
    scattered = [0.0]
    for k in range(16):
        scattered.append(scattered[-1] - k * (0.2 if k % 2 else 2.0))
    assert law(scattered).kind == "exponential"


def test_constants_come_with_their_standard_errors():
    """Against SciPy's regression and standard error, on a curve with some scatter."""
    import numpy as np
    from scipy import stats

    curve = [-0.8 * k * k - 0.3 * math.sin(5.0 * k) for k in range(25)]
    steps = np.diff(curve)[-12:]
    line = stats.linregress(np.arange(12), steps)
    found = law(curve)
    assert found.kind == "between"
    assert (found.bend, found.bend_error) == pytest.approx((line.slope, line.stderr))
    assert found.rate_error == pytest.approx(stats.sem(steps))
    ratios = steps[-3:] / steps[-4:-1]
    assert found.growth_error == pytest.approx(stats.sem(ratios))


def test_errors_are_written_where_they_show():
    steady = law([-0.3 * k for k in range(12)])
    assert str(steady).endswith("by 0.501")
    shaken = law([-0.3 * k + 0.02 * math.sin(3.7 * k) for k in range(41)])
    off = 2 * shaken.rate_error
    low, high = (f"{10 ** (shaken.rate + sign * off):.3g}" for sign in (-1, 1))
    assert low != high
    assert str(shaken).endswith(f"by {10**shaken.rate:.3g} ({low} to {high})")


def test_steps_too_large_to_be_squared_have_a_law():
    assert law([-(3.0**k) * 1e240 for k in range(12)]).kind == "doubly exponential"


def test_what_shows_no_law_is_left_out_of_a_verdict():
    found = {"steady": law([-0.3 * k for k in range(9)]), "level": law([0.0] * 9), "few": law([])}
    assert as_stated(found, lambda _, law: law.kind == "exponential") == {
        "steady": True,
        "level": False,
    }


@pytest.mark.parametrize(
    ("logs", "law"),
    [
        (0.3 * AT, "exponential"),
        (0.5 * (AT + 1e-9).log(), "polynomial"),
        (-0.4 * (AT + 1e-9).log(), "polynomial"),
        (0.015 * AT, "level"),  # a factor of exp(0.09) over six layers, and then one of exp(0.1)
        (0.0166 * AT, "exponential"),
        (1.06**AT, "exponential"),  # later steps are 1.2 times the earlier
        (1.2**AT, "faster than exponential"),  # and 1.7 times
        (0.5 * AT[:7], "exponential"),
        (0.5 * AT[:5], "unclear"),  # layers 2, 3, 4 are too few
        (0.05 * AT + 0.3 * (-1) ** AT, "unclear"),
    ],
)
def test_the_law_is_that_of_the_second_half(logs, law):
    assert trend(logs).kind == law


def test_the_constants_of_a_law():
    assert trend(0.3 * AT).rate == pytest.approx(0.3)
    assert trend(0.5 * (AT + 1e-9).log()).power == pytest.approx(0.5)


def test_exponents_of_curves_with_a_known_power():
    assert power_exponent([1, 2, 8], [5, 2.5, 0.625]) == pytest.approx(-1)
    # Only the second half is asked: the first is of another power.
    curve = [7.0] * 4 + [layer**1.5 for layer in range(5, 9)]
    assert late_exponent(curve) == pytest.approx(1.5)
    assert growth_exponent([1.0 + layer**2 for layer in range(9)], [0.0] * 9) == (2.0, 0.0)
    assert growth_exponent([1.0] * 9, [0.1] * 9) == (0.0, 0.0)
    assert steadiness([-0.3 * layer for layer in range(9)]) == pytest.approx(1.0)
