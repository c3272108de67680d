"""Scaled branches: that they are what the paper scales, and each outcome of the rule."""

import math
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.core.network import Network, Visibility
from rankscope.core.theory import power_exponent
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import p2
from rankscope.experiments.claims._overlapping import overlapping_tokens
from rankscope.experiments.kit import Mean
from rankscope.process.progress import silent

from ..shown import can_be_shown, steps_of

SMALL = p2.Config(depths=(3, 6), tokens=6, width=16, heads=2, draws=3, networks=2)


@pytest.mark.parametrize("kind", ["without norm", "post-norm", "pre-norm"])
def test_scaled_networks_are_plain_ones_with_branches_over_the_root_of_the_depth(kind: Any) -> None:
    plain, scaled = (
        Network.random(SMALL.spec(kind, 5, scaled=scaled), seed=2, dtype=torch.float64)
        for scaled in (False, True)
    )
    x = overlapping_tokens(6, 16, 0.1, 0).unsqueeze(0)
    seen = Visibility.of(plain.spec.mask, 6, None, x.device)
    by_hand = x
    for block in plain.blocks:
        for step in block.steps:
            branch = step.branches[0](by_hand, seen)
            by_hand = step.after(by_hand + branch / math.sqrt(5))
    assert torch.allclose(scaled(x), by_hand, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(plain(x), by_hand, rtol=0.1)


def test_small_networks_bear_it_out() -> None:
    config = replace(SMALL, depths=(8, 16), kinds=("post-norm",))
    found, _ = steps_of(p2.ENTRY.run, config)
    can_be_shown(found)
    assert found.verdict == "holds", found.sentences
    assert found.beyond is None


def test_a_seed_decides_everything() -> None:
    tiny = replace(SMALL, depths=(1, 2), draws=1, networks=1)
    one, same, other = (p2.ENTRY.run(replace(tiny, seed=seed), silent).table for seed in (0, 0, 1))
    assert one.equals(same)
    assert not one.equals(other)
    assert set(one["metric"]) == {"mean_cosine", "query_value_gradient"}
    assert set(one.filter(model="without norm")["metric"]) == {"mean_cosine"}


def made_up(**other: tuple[float, float]) -> pl.DataFrame:
    """Curves that bear the claim out but for those that are given, at depths 4 and 8."""
    curves = {
        "scaled": (p2.SCALED, "mean_cosine", (0.30, 0.31)),
        "plain": (p2.PLAIN, "mean_cosine", (0.9, 0.995)),
        "fed": (p2.SCALED, "query_value_gradient", (0.6, 0.5)),
        "starved": (p2.PLAIN, "query_value_gradient", (0.1, 1e-4)),
    }
    names = ("model", "variant", "setting", "sample", "metric", "value")
    rows = [
        (kind, f"{name}, {source}", depth, 0, metric, value)
        for kind in ("post-norm", "pre-norm")
        for source in (p2.PREDICTED, p2.MEASURED)
        for key, (name, metric, usual) in curves.items()
        for depth, value in zip((4.0, 8.0), other.get(key, usual), strict=True)
    ]
    return tables.from_rows(names, rows)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ({}, "holds"),
        ({"scaled": (0.3, 0.33)}, "depends"),
        ({"scaled": (0.96, 0.96)}, "depends"),
        ({"plain": (0.9, 0.985)}, "depends"),
        ({"plain": (0.999, 0.995)}, "depends"),
        ({"fed": (0.6, 0.09)}, "depends"),
        ({"starved": (0.1, 2e-3)}, "depends"),
        (
            {"scaled": (0.3, 0.4), "plain": (0.3, 0.4), "fed": (1, 0.01), "starved": (1, 1)},
            "fails",
        ),
    ],
)
def test_each_outcome(other: dict[str, tuple[float, float]], verdict: str) -> None:
    found = kit.conclude(p2.ENTRY, SMALL, made_up(**other))
    assert found.beyond is not None
    assert (found.verdict, found.beyond.verdict) == (verdict, verdict)
    assert all(sentence.endswith(".") for sentence in found.sentences)


def test_networks_that_contradict_the_prediction_do_not_bear_it_out() -> None:
    wrong = (pl.col("variant") == f"{p2.PLAIN}, {p2.MEASURED}") & (
        pl.col("metric") == "mean_cosine"
    )
    table = made_up().with_columns(pl.when(wrong).then(0.5).otherwise("value").alias("value"))
    assert kit.conclude(p2.ENTRY, SMALL, table).verdict == "depends"


def test_means_and_slopes() -> None:
    assert Mean.of([2.0]) == Mean(2.0, 0.0, 1)
    # By hand: deviations 3 and 4 of four draws each; their squares' mean is 12.5.
    assert Mean(1.0, 1.5, 4).errors_from(Mean(6.0, 2.0, 4)) == pytest.approx(2.0)
    # Two draws that happen to agree say little: (9·0 + 1·0 + 9·4)/10 over 10 and 2 draws.
    few, many = Mean(1.0, 0.0, 2), Mean(3.0, 2 / math.sqrt(10), 10)
    assert few.errors_from(many) == pytest.approx(2 / math.sqrt(3.6 * 0.6))
    assert Mean(1.0, 0.0).errors_from(Mean(1.0, 0.0)) == 0.0
    assert Mean(1.0, 0.0).errors_from(Mean(2.0, 0.0)) == math.inf
    assert power_exponent([1, 2, 8], [5, 2.5, 0.625]) == pytest.approx(-1)


def test_one_depth_is_refused() -> None:
    with pytest.raises(InputError, match="at least two depths"):
        p2.ENTRY.run(replace(SMALL, depths=(4,)), silent)
    with pytest.raises(InputError, match="no kind of network 'middle-norm'; choose without norm"):
        p2.ENTRY.run(replace(SMALL, kinds=("middle-norm",)), silent)
