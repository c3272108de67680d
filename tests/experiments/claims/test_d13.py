"""MLPs without skips: the networks that are trained, residuals by hand, and each outcome."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import d13
from rankscope.experiments.learning import SORTING, TaskPlan, lesson
from rankscope.models.training import Recipe
from rankscope.process.progress import silent

from ..shown import can_be_shown

SMALL = d13.Config(
    depths=(1, 2),
    seeds=2,
    plan=TaskPlan(1, 8, Recipe(12, 4, warmup=2), 8, 6, 0.9, tokens=3),
    sequences=2,
)


def test_variants_differ_in_what_they_are_called_after() -> None:
    parts = {
        name: (any(spec.skips), spec.mlp_ratio > 0)
        for name in d13.VARIANTS
        for spec in [SMALL.spec(name, 2)]
    }
    assert parts == {
        d13.WITH_SKIPS: (True, True),
        d13.REMOVED: (True, True),
        d13.MLPS: (False, True),
        d13.ALONE: (False, False),
    }


def test_skips_are_removed_and_weights_kept() -> None:
    model = lesson(SORTING, SMALL.plan, 0, spec=SMALL.spec(d13.WITH_SKIPS, 2)).model
    bare = d13.without_skips(model)
    assert not any(bare.network.spec.skips)
    kept, given = dict(bare.named_parameters()), dict(model.named_parameters())
    assert kept.keys() == given.keys()
    assert all(torch.equal(kept[name], given[name]) for name in given)
    inputs = torch.tensor([[1, 2, 3]])
    assert not torch.allclose(bare(inputs), model(inputs))


def test_a_residual_is_that_of_the_hidden_states() -> None:
    """By hand: both sums of absolute entries about the mean, over those of the states."""
    taught = lesson(SORTING, SMALL.plan, 0, spec=SMALL.spec(d13.MLPS, 2))
    table = d13._residuals(replace(SMALL, sequences=1), "a", 0, taught.model, taught)
    with torch.no_grad():
        x = taught.model.embed(taught.evaluate.inputs[:1])
        states = [x[0], *(state[0] for state in taught.model.network.states(x))]

    def composite(matrix: torch.Tensor) -> float:
        return math.sqrt(float(matrix.abs().sum(0).max() * matrix.abs().sum(1).max()))

    by_hand = [math.log10(composite(s - s.mean(0)) / composite(s)) for s in states]
    assert table.sort("layer")["value"].to_list() == pytest.approx(by_hand, abs=1e-3)


def test_it_runs_small_and_can_be_shown() -> None:
    seen: list[float] = []
    result = d13.ENTRY.run(SMALL, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    can_be_shown(result)
    right = result.table.filter(metric=d13.ACCURACY)
    assert set(right["variant"]) >= {*d13.VARIANTS, d13.GUESS}
    assert right["value"].is_between(0.0, 1.0).all()
    other = d13.ENTRY.run(replace(SMALL, seed=1), silent).table
    assert not result.table.equals(other)
    assert other.equals(d13.ENTRY.run(replace(SMALL, seed=1), silent).table)
    for wrong in ({"seeds": 1}, {"depths": ()}):
        with pytest.raises(InputError, match="two seeds or more"):
            d13.ENTRY.run(replace(SMALL, **wrong), silent)


def made_up(mlps: tuple[float, float], alone: float = -1.0, removed: float = -3.0) -> pl.DataFrame:
    """Logarithms of residuals, one for each seed with MLPs; accuracies follow them."""
    rows = []
    ends = {d13.WITH_SKIPS: (0.0, 0.0), d13.MLPS: mlps, d13.ALONE: (alone, alone)}
    ends |= {d13.REMOVED: (removed, removed), f"{d13.ALONE}{d13.UNTRAINED}": (-2.0, -2.0)}
    for layers in (1, 2):
        depth = "1 layer" if layers == 1 else "2 layers"
        for name, values in ends.items():
            for seed, value in enumerate(values):
                rows.append((depth, name, 0, seed, d13.RESIDUAL, 5.0))
                # One layer is always as it should be.
                end = -0.5 if layers == 1 and name == d13.MLPS else value
                rows.append((depth, name, layers, seed, d13.RESIDUAL, end))
                rows.append((depth, name, None, seed, d13.ACCURACY, 0.5 + end / 100))
        rows += [(depth, d13.GUESS, None, seed, d13.ACCURACY, 0.3) for seed in (0, 1)]
    return tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)


@pytest.mark.parametrize(
    ("mlps", "against"),
    [
        ((-0.5, -0.5), []),
        ((-0.5, -2.0), ["no MLPs"]),
        ((-2.0, -4.0), ["skips removed after training", "no MLPs"]),
        ((-1.0, -1.0), ["no MLPs"]),
    ],
)
def test_every_seed_has_to_bear_it_out(mlps: tuple[float, float], against: list[str]) -> None:
    table = made_up(mlps)
    answer = d13.judge(SMALL, table)
    for checks in (answer.stated, answer.beyond):
        assert checks is not None
        assert [name for name, held in checks.items() if not held] == [
            f"2 layers, against {name}" for name in against
        ]
    result = kit.conclude(d13.ENTRY, SMALL, table)
    assert result.verdict == ("depends" if against else "holds")
    assert all(sentence.endswith(".") for sentence in result.sentences)
    if mlps == (-0.5, -2.0):
        assert (
            "2 layers: 0.056 against 0.001 with skips removed after training (2) and 0.1 with "
            in (str(result.judgement))
        )


def test_a_claim_that_no_depth_supports_fails() -> None:
    table = made_up((-5.0, -5.0))
    only = replace(SMALL, depths=(2,))
    assert kit.conclude(d13.ENTRY, only, table.filter(model="2 layers")).verdict == "fails"
