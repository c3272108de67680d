"""Claim P7: losses against every figure, and what each figure forecasts.

MLPs are gated: a product of two maps about doubles the square of a small angle, which a single GELU
or ReLU leaves as it is. With skips of their own for attention and MLPs the map of designs then has
both sides: attention under a weak skip brings tokens together, MLPs under a weak skip drive them
apart.

Which share of the losses is forecast differs from seed to seed by as much as it differs from the
threshold. So every design is trained in several runs, each with weights, examples and batches of
its own, and each run is judged; the rule is the one of a single run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
import polars as pl

from rankscope import tables
from rankscope.core.network import Init, Spec
from rankscope.core.shapes import Hidden
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._p7_networks import (
    ANGLE,
    CORRELATION,
    DISTANCE,
    EXPLAINED,
    GRADIENT,
    NEIGHBOURS,
    STARTS,
    correlate,
    explainable,
    guess_loss,
    predicted_figures,
    reached_losses,
    score,
)
from rankscope.experiments.learning import TaskPlan
from rankscope.models.training import Recipe, SequenceModel, Sorting
from rankscope.numerals import plural, sentence_case

ENTRY = kit.claim(
    "P7",
    "Two exponents known before training, that of the angles between tokens and that of the "
    "gradients, forecast the loss a network reaches.",
    source="Cowsik et al. 2024, abstract",
    question="Which figure, known before training, predicts the final loss?",
    domain="networks that learn to sort: depth, norm placement, skips and scale of weights varied",
    beyond="comparison with figures that need no prediction",
    seconds=150,
    metrics=(
        kit.Metric(
            "reached_loss",
            "Loss reached",
            "cross-entropy",
            "linear",
            "0 = every token certain and right",
            "The cross-entropy of a trained network on new examples, in nats a token, and at most "
            "that of a guess that ignores the sequence.",
            includes=(0.0,),
        ),
        kit.Metric(
            "explainable_share",
            "Explainable share",
            "1 − s²/n / var",
            "linear",
            "1 = seeds agree: designs explain all differences",
            "The share of the differences in loss between designs that is not the chance of n "
            "seeds, whose variance is s².",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "explained_share",
            "Explained share",
            "1 − errors² / differences²",
            "linear",
            "0 = no better than no forecast",
            "The share of the differences in loss that is forecast for designs left out, each by "
            "a smooth function of some figures that was fitted to the others.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "neighbour_share",
            "Explained share, by neighbours",
            "1 − errors² / differences²",
            "linear",
            "0 = no better than no forecast",
            "As the explained share, each design forecast by the mean loss of the designs nearest "
            "to it in the ranks of the figures.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "rank_correlation",
            "Rank correlation",
            "Spearman's r",
            "linear",
            "1 = forecasts rank the losses correctly",
            "The correlation of the ranks of forecast and reached losses, over designs left out.",
            includes=(0.0, 1.0),
        ),
    ),
)
LOSS, EXPLAINABLE = "reached_loss", "explainable_share"
SCALE, DEPTH = "init scale", "depth"
SKIPS = ("attention skip", "MLP skip")
KNOBS: Final = "init scale and both skips"
TOGETHER: Final = "all depths"
_COLUMNS: Final = ("run", "model", "variant", "parameter", "setting", "sample", "metric", "value")
_LEARNT: Final = 0.1  # by how much less than a guess's the loss of a design that learns is
_SYMBOLS = Sorting().symbols
_PLAN: Final = TaskPlan(2, 32, Recipe(100, 16, warmup=10), 2000, 200, 0.9, tokens=6)
_ALONG = "Each curve is one norm placement and its skips; along it the scale of weights changes."
CHARTS = tuple(
    kit.Drawing("by_setting", caption, LOSS, only={"parameter": parameters})
    for caption, parameters in (
        (_ALONG, tuple(f"{DISTANCE}, {start}" for start in STARTS)),
        (_ALONG, tuple(f"{name}, {start}" for name in (ANGLE, GRADIENT) for start in STARTS)),
        ("The map: each curve is one norm placement and its skips.", (SCALE,)),
    )
)


class Design(NamedTuple):
    """One point of the map; ``place`` is that of the norms, as a ``Spec`` has it and checks it."""

    layers: int
    placement: str
    attention_skip: float
    mlp_skip: float
    scale: float

    @property
    def knobs(self) -> dict[str, float]:
        """What needs no prediction."""
        skips = dict(zip(SKIPS, (self.attention_skip, self.mlp_skip), strict=True))
        return {SCALE: self.scale, **skips, DEPTH: float(self.layers)}


@dataclass(frozen=True)
class Config(kit.Config):
    """The map of designs, how each is trained, and what a forecast must be worth."""

    depths: tuple[int, ...] = (3, 6)
    places: tuple[str, ...] = ("pre", "post")
    skips: tuple[tuple[float, float], ...] = ((0.3, 0.3), (1.0, 1.0), (4.0, 0.3))
    """Of attention and of the MLP."""
    scales: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)  # of all weights, in LeCun's
    runs: int = 3  # each of which is judged
    seeds: int = 2
    """Networks of each design in each run, with weights, examples and batches of their own."""
    plan: TaskPlan = _PLAN
    mlp_ratio: float = 1.5
    rates: tuple[float, ...] = (1e-3, 4e-3)  # of learning; each design has its better one
    draws: int = 8  # random networks by which a design's figures are predicted
    sequences: int = 4  # of the task, on each of which they are predicted
    neighbours: int = 3  # designs of which the check by neighbours takes the mean
    enough: float = 0.7  # the part of what is explainable that exponents must explain
    tell_apart: float = 0.5
    """The share of the differences in loss that must be the designs' own: with less, nothing can be
    forecast, and nothing is tried."""

    @property
    def designs(self) -> tuple[Design, ...]:
        """The whole map; designs that differ only in the scale of their weights stand together."""
        return tuple(
            Design(layers, placement, *skips, scale)
            for layers, placement, skips, scale in product(
                self.depths, self.places, self.skips, self.scales
            )
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """Which designs are compared: all, and those of each depth."""
        return (TOGETHER, *dict.fromkeys(plural(layers, "layer") for layers in self.depths))

    @property
    def guess(self) -> float:
        """The loss of a guess that ignores the sequence."""
        return guess_loss(_SYMBOLS, self.plan.tokens)

    def spec(self, design: Design) -> Spec:
        """The network of a design."""
        return Spec(
            design.layers,
            self.plan.heads,
            self.plan.width,
            mlp_ratio=self.mlp_ratio,
            norm_place=cast(Literal["pre", "post", "both"], design.placement),
            activation="silu",
            gated=True,
            attention_skip=design.attention_skip,
            mlp_skip=design.mlp_skip,
            init=Init("lecun", design.scale),
        )


PAPER: Final[Mapping[str, Any]] = {
    "depths": (6, 12),
    "skips": ((0.1, 0.1), (0.3, 0.3), (1.0, 1.0), (2.0, 0.3), (4.0, 0.3), (4.0, 1.0)),
    "scales": (0.25, 0.5, 1.0, 2.0, 4.0),
    "seeds": 5,
    "draws": 16,
    "plan": TaskPlan(4, 64, Recipe(1000, 32, warmup=100), 5000, 500, 0.9, tokens=8),
    "mlp_ratio": 2.5,
    "rates": (3e-4, 1e-3, 3e-3),
    "sequences": 16,
}


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Predict every design, train it, and forecast its loss from the other designs.

    A figure is what ``predict`` says of random networks of the design on the task's own embedded
    tokens, or on the same brought nearly together. All designs share these tokens; in training no
    design shares weights, examples or batches with another.
    """
    designs = len(config.places) * len(config.skips) * len(config.scales)
    if not config.depths or designs <= config.neighbours + 1:
        raise InputError(
            f"{designs} designs of each of {len(config.depths)} depths; {config.neighbours} "
            f"neighbours need at least one depth and {config.neighbours + 2} designs."
        )
    if config.seeds < 2 or not config.rates:
        raise InputError(
            f"seeds={config.seeds} and rates={config.rates}; use at least two seeds, whose spread "
            "says what can be forecast, and one rate."
        )
    on_predict, on_train = kit.parts(on_step, 1.0, 9.0)
    tokens = _tokens(config)
    figures = [
        predicted_figures(config.spec(design), tokens, draws=config.draws, seed=config.seed)
        for design, _ in kit.tracked(config.designs, on_predict)
    ]
    return forecast_table(config, figures, _train(config, on_train))


def _tokens(config: Config) -> Hidden:
    """Sequences of the task as the networks read them, in an embedding of its own."""
    plan = config.plan
    model = SequenceModel.random(
        config.spec(config.designs[0]),
        outputs=_SYMBOLS,
        symbols=_SYMBOLS,
        positions=plan.tokens,
        seed=config.seed,
    )
    drawn = Sorting(tokens=plan.tokens).draw(config.sequences, config.seed, "prediction")
    return model.embed(drawn.inputs).detach()


def _train(config: Config, on_step: kit.OnStep) -> list[list[float]]:
    """The losses of each design, run by run a number for each seed, at its better rate there."""
    designs, seeds, together = config.designs, config.seeds * config.runs, len(config.scales)
    first = config.seed * len(designs) * seeds  # no network of one run is one of another
    better: list[list[float]] = []
    for at, on_shape in kit.tracked(range(0, len(designs), together), on_step):
        specs = {
            first + (at + number) * seeds + seed: config.spec(design)
            for number, design in enumerate(designs[at : at + together])
            for seed in range(seeds)
        }
        by_rate = reached_losses(specs, config.plan, config.rates, on_shape, most=config.guess)
        for start in range(0, len(specs), seeds):
            by_seed = [losses[start : start + seeds] for losses in by_rate]
            parts = [_of_run(config, by_seed, run) for run in range(config.runs)]
            better.append([loss for part in parts for loss in min(part, key=sum)])
    return better


def _of_run(config: Config, losses: Sequence[Sequence[float]], run: int) -> list[list[float]]:
    """What belongs to a run, of losses that have all runs' seeds one after the other."""
    start = run * config.seeds
    return [list(row[start : start + config.seeds]) for row in losses]


def forecast_table(
    config: Config, figures: Sequence[Mapping[str, float]], losses: Sequence[Sequence[float]]
) -> pl.DataFrame:
    """The losses of each design's seeds against its figures and knobs, and what each forecasts.

    Forecasts are made for the designs of each depth and for all of them, in every run.
    """
    settings = [
        {**predicted, **design.knobs}
        for design, predicted in zip(config.designs, figures, strict=True)
    ]
    rows: list[tuple[str | float | None, ...]] = []
    members: dict[str, list[int]] = {group: [] for group in config.groups}
    for number, (design, reached) in enumerate(zip(config.designs, losses, strict=True)):
        depth, start = plural(design.layers, "layer"), f"scale {design.scale:g}"
        branch = f"{design.placement}-norm, skips {design.attention_skip:g} and {design.mlp_skip:g}"
        rows += [
            (start, depth, branch, name, setting, sample, LOSS, loss)
            for name, setting in settings[number].items()
            for sample, loss in enumerate(reached)
        ]
        members[TOGETHER].append(number)
        members[depth].append(number)
    for group, numbers in members.items():
        by_name = {name: [settings[number][name] for number in numbers] for name in settings[0]}
        for run in range(config.runs):
            reached_by = _of_run(config, [losses[number] for number in numbers], run)
            means = [float(np.mean(reached)) for reached in reached_by]
            scores = {(None, EXPLAINABLE): explainable(reached_by)} | {
                (predictor, metric): value
                for predictor, columns in _predictors(by_name)
                for metric, value in score(columns, means, config.neighbours).items()
            }
            rows += [
                (None, group, predictor, None, None, run, metric, value)
                for (predictor, metric), value in scores.items()
            ]
    return tables.from_rows(_COLUMNS, rows)


def _predictors(figures: Mapping[str, list[float]]) -> Iterator[tuple[str, list[list[float]]]]:
    """Pairs of exponents, each figure alone, and what needs no prediction at all."""
    for start in STARTS:
        pair = [figures[f"{name}, {start}"] for name in (ANGLE, GRADIENT)]
        yield both(start), pair
        yield (
            accumulated(start),
            [[a * b for a, b in zip(rates, figures[DEPTH], strict=True)] for rates in pair],
        )
    yield KNOBS, [figures[name] for name in (SCALE, *SKIPS)]
    for name, values in figures.items():
        yield name, [values]


def both(start: str) -> str:
    """What the two exponents are called as one predictor."""
    return f"both exponents, {start}"


def accumulated(start: str) -> str:
    """The same, each times the depth."""
    return f"both exponents times depth, {start}"


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """Whether both exponents explain enough of all designs, run by run, taken at either start.

    Ours, beyond: whether they explain more than the scale of the weights and the skips, which need
    no prediction, in every run. Where the designs of a run differ too little to be told apart,
    nothing is tried.
    """
    most = by_run(table, TOGETHER, EXPLAINABLE)
    explained = {start: by_run(table, TOGETHER, EXPLAINED, both(start)) for start in STARTS}
    enough = {
        start: [value >= config.enough * limit for value, limit in zip(values, most, strict=True)]
        for start, values in explained.items()
    }
    knobs = by_run(table, TOGETHER, EXPLAINED, KNOBS)
    tried = min(most) >= config.tell_apart
    best = _best_figure(table, TOGETHER)
    words = "; ".join(_supported(start, enough[start], explained[start]) for start in STARTS)
    words += f"; {KNOBS}, which need no prediction, explain {_listed(knobs)}"
    return kit.Answer(
        (
            *(_describe_group(table, group) for group in config.groups),
            _describe_zero(table, config.guess),
        ),
        stated={
            f"{start}, run {run}": holds
            for start in STARTS
            for run, holds in enumerate(enough[start], 1)
        }
        if tried
        else {},
        on={
            "holds": words,
            "fails": words,
            "depends": words,
            "not tried": "the designs differ by no more than the seeds do",
        },
        beyond={
            f"both exponents, {start}, explain more than {KNOBS}": all(
                ours > plain for ours, plain in zip(values, knobs, strict=True)
            )
            for start, values in explained.items()
        }
        if tried
        else None,
        key_figures={
            "explainable, smallest of the runs": min(most),
            **{f"{both(start)}, mean": fmean(values) for start, values in explained.items()},
            **{f"{both(start)}, smallest": min(values) for start, values in explained.items()},
            f"best single figure ({best})": value_of(table, TOGETHER, EXPLAINED, best),
            f"{KNOBS}, mean": fmean(knobs),
        },
        shown=(LOSS, EXPLAINED, EXPLAINABLE, CORRELATION, NEIGHBOURS),
    )


def _supported(start: str, enough: Sequence[bool], explained: Sequence[float]) -> str:
    """In how many runs exponents explain enough, and how much."""
    unstable = ", not stable over seeds" if 0 < sum(enough) < len(enough) else ""
    return (
        f"at {_named_tokens(start)} both exponents explain enough in {sum(enough)} of "
        f"{plural(len(enough), 'run')} ({_listed(explained)} of the differences{unstable})"
    )


def by_run(
    table: pl.DataFrame, group: str, metric: str, predictor: str | None = None
) -> list[float]:
    """A figure of a group of designs, one number for each run."""
    named = pl.col("variant").eq_missing(pl.lit(predictor, pl.String))
    rows = table.filter(named, model=group, metric=metric)
    return [float(value) for value in rows.sort("sample")["value"]]


def value_of(table: pl.DataFrame, group: str, metric: str, predictor: str | None = None) -> float:
    """The mean of a figure of a group of designs over the runs."""
    return fmean(by_run(table, group, metric, predictor))


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _describe_group(table: pl.DataFrame, group: str) -> str:
    """What the exponents, the best single figure and the designs' own knobs forecast."""

    def of(predictor: str) -> str:
        return f"{value_of(table, group, EXPLAINED, predictor):.2f}"

    def alone(start: str) -> str:
        angle, gradient = (of(f"{name}, {start}") for name in (ANGLE, GRADIENT))
        times = f", both times depth {of(accumulated(start))}" if group == TOGETHER else ""
        return f"the angles' alone {angle}, the gradients' {gradient}{times}"

    pairs = ", ".join(
        f"{of(both(start))} taken at {_named_tokens(start)} ({alone(start)})" for start in STARTS
    )
    best = _best_figure(table, group)
    means = _designs(table, group, SCALE)["value"].to_list()
    return (
        f"{sentence_case(group)}: losses from {min(means):.2f} to {max(means):.2f}; "
        f"{value_of(table, group, EXPLAINABLE):.2f} of the differences can be explained, both "
        f"exponents explain {pairs}; best single figure: {best} ({of(best)}); {KNOBS}, which need "
        f"no prediction: {of(KNOBS)}."
    )


def _best_figure(table: pl.DataFrame, group: str) -> str:
    """The predicted figure that explains most by itself."""
    figures = set(table.filter(metric=LOSS)["parameter"].to_list()) - {SCALE, *SKIPS, DEPTH}
    rows = table.filter(pl.col("variant").is_in(figures), model=group, metric=EXPLAINED)
    means = rows.group_by("variant", maintain_order=True).agg(pl.mean("value"))
    return str(means.sort("value", descending=True)["variant"][0])


def _describe_zero(table: pl.DataFrame, guess: float) -> str:
    """Whether the loss is least where both exponents vanish, as the paper says."""
    losses = _designs(table, TOGETHER, SCALE)["value"]
    learnt = losses < guess - _LEARNT
    among = "; ".join(
        f"{distance_correlation(table, start):+.2f} at {_named_tokens(start)}, "
        f"{distance_correlation(table, start, guess - _LEARNT):+.2f} among those that learn"
        for start in STARTS
    )
    return (
        f"{learnt.sum()} of {len(losses)} designs beat a guess (loss "
        f"{guess:.2f}). The paper adds that loss is least where both exponents vanish: the rank "
        f"correlation of their distance from zero with the loss is {among}."
    )


def distance_correlation(table: pl.DataFrame, start: str, below: float = math.inf) -> float:
    """Of the distance of both exponents from zero with the loss of designs ``below`` a loss."""
    designs = _designs(table, TOGETHER, f"{DISTANCE}, {start}").filter(pl.col("value") < below)
    return correlate(designs["setting"].to_list(), designs["value"].to_list())


def _named_tokens(start: str) -> str:
    return "tokens nearly alike" if start == STARTS[0] else "the task's own tokens"


def _designs(table: pl.DataFrame, group: str, figure: str) -> pl.DataFrame:
    """A figure, as ``setting``, and the mean loss, as ``value``, of each design."""
    rows = table.filter(metric=LOSS, parameter=figure)
    if group != TOGETHER:
        rows = rows.filter(model=group)
    return rows.group_by("model", "variant", "run", maintain_order=True).agg(
        pl.first("setting"), pl.mean("value")
    )
