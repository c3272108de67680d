"""Laws and fates of residuals that go up and down on their way."""

import math

import pytest

from rankscope.experiments import long_laws
from rankscope.experiments.laws import law


@pytest.mark.parametrize(
    ("log10", "fate"),
    [
        ([0.0] * 8, "stops"),
        ([-0.3 * k for k in range(8)], "collapses"),
        ([-0.3 * min(k, 40) for k in range(100)], "stops"),
        ([-0.01 * k for k in range(100)], "collapses"),
        ([0.2 * math.sin(3.7 * k) for k in range(100)], "stops"),
        ([-(3.0**k) for k in range(20)], "collapses"),
        ([0.0, -3.0, *[-math.inf] * 6], "collapses"),
    ],
)
def test_fate(log10: list[float], fate: str) -> None:
    assert long_laws.fate(log10) == fate


def test_scatter_is_not_taken_for_double_exponents() -> None:
    falling = [-0.3 * k for k in range(37)] + [-11.0, -11.1, -11.4, -12.3]
    assert law(falling).growth == pytest.approx(3)  # what the last steps alone would say
    assert long_laws.long_law(falling).kind == "exponential"
    assert long_laws.long_law(falling).rate == pytest.approx((-12.3 + 6.0) / 20)
    assert long_laws.long_law([-(3.0**k) for k in range(12)]).kind == "doubly exponential"
    assert long_laws.long_law([0.0, -1.0, -math.inf]).kind == "equal"
    assert (
        long_laws.long_law([-1e-6 * 3.0**k for k in range(8)]).kind == "none"
    )  # far from small yet


@pytest.mark.parametrize("log10", [[0.0, -1.0, -2.0], [0.0, math.nan, -2.0, -3.0, -4.0]])
def test_few_or_missing_layers_decide_nothing(log10: list[float]) -> None:
    assert long_laws.long_law(log10).kind == "undecided"
    assert long_laws.long_law([0.0, -1.0, -2.0, -3.0]).kind == "exponential"
