"""Claim D13: MLPs keep tokens apart without skips, if the network is trained without them.

Dong et al. 2021 take skips out of trained networks, where MLPs hardly help against collapse, and
remark in section 4.1 that they might if networks were retrained without skips (as recalled in the
notes; the full text was not at hand). Three kinds of network learn to sort, all with LayerNorm
after each step as in the paper: transformers, attention with MLPs but no skips, and attention
alone. Depths were chosen after a trial with six layers, in which nothing without skips learnt.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Final

import polars as pl
import torch

from rankscope import tables
from rankscope.core.deep import deep_trace
from rankscope.core.network import Spec
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.experiments.learning import SORTING, Lesson, TaskPlan, learn, lesson
from rankscope.models.training import Recipe, SequenceModel
from rankscope.numerals import plural, power_of_ten

ENTRY = kit.claim(
    "D13",
    "MLPs counteract collapse without skips if the network is trained without skips.",
    source="Dong et al. 2021, remark in section 4.1 (as recalled)",
    question="Does a network with MLPs that is trained without skips keep its tokens apart, where "
    "attention alone, and a network whose skips are removed after training, do not?",
    domain="networks with LayerNorm that learn to sort, residual of the last layer",
    beyond="what they have learnt: accuracy on new sequences",
    seconds=45,
    metrics=(
        kit.Metric(
            "sorted_accuracy",
            "Accuracy at sorting",
            "right tokens / all tokens",
            "linear",
            "1 = every token is right",
            "The share of tokens of new sequences that a network puts in the right place.",
            includes=(0.0, 1.0),
        ),
    ),
)
ACCURACY, RESIDUAL = "sorted_accuracy", depths.RELATIVE
WITH_SKIPS, REMOVED, MLPS, ALONE = VARIANTS = (
    "transformer",
    "skips removed after training",
    "SAN+MLP, trained without skips",
    "SAN, trained without skips",
)
UNTRAINED: Final = ", untrained"
GUESS: Final = "guess"
_LEARNT: Final = 0.05  # accuracy above a guess's from which on something is learnt
CHARTS = (
    kit.Drawing(
        "by_depth",
        "After training and before; medians over seeds.",
        RESIDUAL,
        {"lowest": -20.0},
        {"variant": (*VARIANTS, f"{MLPS}{UNTRAINED}", f"{ALONE}{UNTRAINED}")},
    ),
)
_PLAN: Final = TaskPlan(2, 32, Recipe(600, 16, 2e-3, warmup=60), 2000, 200, 0.9, tokens=6)


@dataclass(frozen=True)
class Config(kit.Config):
    """The task, the networks, and on how many sequences their residuals are taken."""

    depths: tuple[int, ...] = (2, 3, 4)
    seeds: int = 3  # networks of each kind, with weights, examples and batches of their own
    plan: TaskPlan = _PLAN
    mlp_ratio: float = 2.0
    sequences: int = 8

    def spec(self, variant: str, layers: int) -> Spec:
        """The network that is trained for a variant."""
        return Spec(
            layers,
            self.plan.heads,
            self.plan.width,
            mlp_ratio=0.0 if variant == ALONE else self.mlp_ratio,
            skip=variant in (WITH_SKIPS, REMOVED),
            norm_place="post",
            init="xavier",
        )


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Train every kind of network at every depth; accuracies, and residuals layer by layer."""
    if config.seeds < 2 or not config.depths:
        raise InputError(
            f"seeds={config.seeds}, depths={config.depths}; use two seeds or more, since networks "
            "differ, and a depth."
        )
    cases = list(product(config.depths, (WITH_SKIPS, MLPS, ALONE)))
    parts = [
        part.with_columns(model=pl.lit(plural(layers, "layer")))
        for (layers, variant), on_case in kit.tracked(cases, on_step)
        for part in _train(config, variant, layers, on_case)
    ]
    return tables.stack(parts)


def _train(
    config: Config, variant: str, layers: int, on_step: kit.OnStep
) -> Iterator[pl.DataFrame]:
    """What the networks of a kind have learnt, and their residuals before and after."""
    seeds = [config.seed * config.seeds + seed for seed in range(config.seeds)]
    spec = config.spec(variant, layers)
    lessons = [lesson(SORTING, config.plan, seed, spec=spec) for seed in seeds]
    models = {f"{variant}{UNTRAINED}": [copy.deepcopy(taught.model) for taught in lessons]}
    trained = learn(lessons, config.plan, seeds, "cpu", on_step)
    models[variant] = [network.model for network in trained]
    rows: list[tuple[str, int, str, float]] = []
    if variant == WITH_SKIPS:
        models[REMOVED] = [without_skips(model) for model in models[variant]]
        rows = [(GUESS, seed, ACCURACY, taught.chance()) for seed, taught in enumerate(lessons)]
    for name, networks in models.items():
        for seed, (model, taught) in enumerate(zip(networks, lessons, strict=True)):
            with torch.no_grad():
                right = taught.accuracy(model(taught.evaluate.inputs))
            rows.append((name, seed, ACCURACY, right))
            yield _residuals(config, name, seed, model, taught)
    yield tables.from_rows(("variant", "sample", "metric", "value"), rows)


def without_skips(model: SequenceModel) -> SequenceModel:
    """The same weights with both skips of every layer removed."""
    network = model.network.without("skip")
    return SequenceModel(model.encoder, model.positions, network, model.readout)


def _residuals(
    config: Config, name: str, seed: int, model: SequenceModel, taught: Lesson
) -> pl.DataFrame:
    """Relative residuals by layer, the median over sequences, in scaled arithmetic."""
    with torch.no_grad():
        x = model.embed(taught.evaluate.inputs[: config.sequences]).double()
        traced = deep_trace(copy.deepcopy(model.network).double(), x)
    curve = traced.table.filter(metric=RESIDUAL).group_by("layer").agg(pl.median("value"))
    rows = [(name, layer, seed, RESIDUAL, value) for layer, value in sorted(curve.iter_rows())]
    return tables.from_rows(("variant", "layer", "sample", "metric", "value"), rows)


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """The last layer's residual, seed by seed, of attention with MLPs trained without skips.

    As stated, at each depth and in every seed: it is larger than that of a transformer whose skips
    were removed after training, and than that of attention alone, trained without skips as well.
    Ours, beyond: the same of the accuracy.
    """
    stated, beyond, words = {}, {}, []
    listing: list[tuple[str | float, ...]] = []
    for layers in config.depths:
        depth = plural(layers, "layer")
        ends, right = (
            {name: _values(table, depth, name, metric) for name in VARIANTS}
            for metric in (RESIDUAL, ACCURACY)
        )
        pairs = []
        for other, against in ((REMOVED, "skips removed after training"), (ALONE, "no MLPs")):
            wins = _wins(ends[MLPS], ends[other])
            stated[f"{depth}, against {against}"] = wins == config.seeds
            beyond[f"{depth}, against {against}"] = _wins(right[MLPS], right[other]) == config.seeds
            pairs.append(f"{power_of_ten(fmean(ends[other]))} with {against} ({wins})")
        words.append(f"{depth}: {power_of_ten(fmean(ends[MLPS]))} against {' and '.join(pairs)}")
        listing += [
            (depth, name, power_of_ten(fmean(ends[name])), fmean(right[name])) for name in VARIANTS
        ]
        guess = fmean(_values(table, depth, GUESS, ACCURACY))
        listing.append((depth, GUESS, "", guess))
    counted = (
        f"residual of the last layer (in how many of {plural(config.seeds, 'seed')} it is larger), "
        f"{'; '.join(words)}"
    )
    return kit.Answer(
        _sentences(config, table),
        stated=stated,
        on={"holds": counted, "fails": counted, "depends": counted},
        beyond=beyond,
        key_figures={
            f"log10 of the residual, {MLPS}, {plural(layers, 'layer')}": fmean(
                _values(table, plural(layers, "layer"), MLPS, RESIDUAL)
            )
            for layers in config.depths
        },
        listings=(
            kit.Listing(
                "After training",
                ("depth", "network", "residual of the last layer", "accuracy"),
                tuple(listing),
                "Relative residual, composite norm at the mean: geometric means over seeds of "
                "medians over sequences. A guess ignores the sequence.",
            ),
        ),
        shown=(RESIDUAL, ACCURACY),
    )


def _values(table: pl.DataFrame, depth: str, variant: str, metric: str) -> list[float]:
    """By seed, a figure of a kind of network; of residuals the last layer's."""
    rows = table.filter(model=depth, variant=variant, metric=metric)
    if metric == RESIDUAL:
        rows = rows.filter(pl.col("layer") == pl.col("layer").max())
    return [float(value) for value in rows.sort("sample")["value"]]


def _wins(values: Sequence[float], others: Sequence[float]) -> int:
    """In how many seeds a figure is the larger one."""
    return sum(value > other for value, other in zip(values, others, strict=True))


def _sentences(config: Config, table: pl.DataFrame) -> Iterator[str]:
    """What training without skips does to attention alone, and where nothing is learnt."""
    for layers in config.depths:
        depth = plural(layers, "layer")
        guess = max(_values(table, depth, GUESS, ACCURACY))
        learnt = {
            name: sum(right > guess + _LEARNT for right in _values(table, depth, name, ACCURACY))
            for name in VARIANTS
        }
        counts = ", ".join(f"{name} {count}" for name, count in learnt.items())
        start, end = (
            power_of_ten(fmean(_values(table, depth, f"{ALONE}{when}", RESIDUAL)))
            for when in (UNTRAINED, "")
        )
        yield (
            f"{depth}: networks that beat a guess, of {config.seeds} of each kind: "
            f"{counts}; training takes the residual of attention alone from {start} to "
            f"{end}."
        )
