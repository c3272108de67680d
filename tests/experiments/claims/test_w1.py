"""Masks with and without a center, on networks small enough for tests."""

import pytest

from rankscope import tables
from rankscope.experiments.claims.w1 import Config, judge, run
from rankscope.experiments.depths import RELATIVE

from ..shown import can_be_shown, steps_of

SMALL = Config(
    layers=24,
    windows=("window:16", "window:4"),
    others=("causal",),
    without_center=("block:16",),
)
NAMES = {
    "window:16": "window(-16, +16)",
    "window:4": "window(-4, +4)",
    "causal": "causal",
    "block:16": "block(16)",
}


def test_it_holds_among_windows_and_can_be_shown() -> None:
    found, seen = steps_of(run, SMALL)
    assert found.verdict == "holds", found.sentences
    assert len(seen) == 4
    can_be_shown(found)
    assert found.stem == f"w1-{SMALL.digest('W1')[:8]}"
    panels = found.table["model"].unique(maintain_order=True).to_list()
    assert panels == ["two-sided windows", "other masks with a center", "masks without a center"]


def test_it_depends_where_a_larger_radius_of_another_family_is_faster() -> None:
    # Both of radius 12, and one of them halves it in the end.
    config = Config(
        layers=40,
        windows=SMALL.windows,
        others=("causal-window:4", "window:2"),
        without_center=SMALL.without_center,
    )
    found, _ = steps_of(run, config)
    assert found.verdict == "depends"
    said = found.sentences
    assert said[0].startswith("4 of 4 masks with a center collapse exponentially; 1 of 1 without")
    assert said[1] == (
        "Radius and rate, two-sided windows: in 1 of 1 pairs of different radius the larger one is "
        "slower."
    )
    assert said[2].startswith("Radius and rate, all masks with a center: in 3 of 5 pairs")
    assert "against it most clearly window(-4, +0), radius 12, × 0.6" in said[2]
    assert "beside window(-4, +4), radius 6" in said[2]
    assert said[3].startswith("So the radius orders masks of one family")


def table(**rates: float):
    """Straight curves of these decades per layer, by mask."""
    rows = [
        ("panel", NAMES[mask], layer, 0, RELATIVE, rate * layer)
        for mask, rate in rates.items()
        for layer in range(25)
    ]
    names = ("model", "variant", "layer", "sample", "metric", "value")
    return tables.frame(dict(zip(names, zip(*rows, strict=True), strict=True)))


@pytest.mark.parametrize(
    ("wide", "narrow", "causal", "block", "verdict"),
    [
        (-0.5, -0.1, -0.6, 0.0, "holds"),
        (-0.1, -0.5, -0.6, 0.0, "depends"),  # the larger radius is faster
        (-0.5, -0.1, 0.0, 0.0, "depends"),  # a center, and no collapse
        (-0.5, -0.1, -0.6, -0.3, "depends"),  # no center, and a collapse
        (0.0, 0.0, 0.0, -0.3, "fails"),
    ],
)
def test_every_verdict_can_be_reached(wide, narrow, causal, block, verdict) -> None:
    curves = table(**{"window:16": wide, "window:4": narrow, "causal": causal, "block:16": block})
    got, sentences = judge(SMALL, curves)
    assert got == verdict, sentences
    centered = sum(rate < 0 for rate in (wide, narrow, causal))
    assert sentences[0] == (
        f"{centered} of 3 masks with a center collapse exponentially; "
        f"{int(block == 0)} of 1 without one do not collapse."
    )
