"""Which law a curve follows, told from curves whose law is known."""

import math

import pytest

from rankscope import tables
from rankscope.experiments.laws import law, medians, power_of_ten


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


def test_a_fall_that_dies_away_is_no_collapse():
    """Two closed classes: each becomes one point, and the distance between the points stays."""
    inside = [0.9 ** (2 * layer) for layer in range(80)]
    assert law([0.5 * math.log10(1 + rest) for rest in inside]).kind == "none"


def test_equal_tokens_have_a_law_of_their_own():
    found = law([0.0, -3.0, -math.inf, -math.inf])
    assert found.kind == "equal"
    assert "all tokens are equal" in str(found)


@pytest.mark.parametrize(
    "curve",
    [
        [0.3],
        [0.0, -1.6],  # a single step
        [0.0, -1.0, -1.9, -2.5, -2.9, -3.1],  # slows down, but is not over
        [-1.0, -3.0, -5.0, math.nan],
    ],
)
def test_what_shows_no_law_is_called_undecided(curve):
    assert law(curve).kind == "undecided"
    assert "too few layers" in str(law(curve))


@pytest.mark.parametrize(
    ("log10", "words"),
    [
        (-math.inf, "0"),
        (math.inf, "infinity"),
        (0.0, "1"),
        (-2.0, "0.01"),
        (-7.25, "10^-7.2"),
        (-47003.4, "10^-47,003"),
        (-5.14e47, "10^(-5.14e+47)"),
    ],
)
def test_numbers_of_any_size_have_words(log10, words):
    assert power_of_ten(log10) == words


def test_medians_come_in_the_order_of_the_layers():
    table = tables.frame(
        {
            "variant": ["a", "a", "b"] * 2,
            "layer": [1, 1, 1, 0, 0, 0],
            "metric": ["m"] * 6,
            "value": [1.0, 3.0, 9.0, 5.0, 7.0, 8.0],
        }
    )
    assert medians(tables.summary(table), "m", variant="a") == [6.0, 2.0]
