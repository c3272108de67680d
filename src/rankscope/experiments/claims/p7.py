"""The table of claim P7: losses against every figure, and what each figure forecasts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
import polars as pl

from rankscope import tables
from rankscope.core.network import Spec
from rankscope.core.shapes import Hidden
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._p7_networks import (
    ANGLE,
    DISTANCE,
    GRADIENT,
    STARTS,
    Design,
    correlate,
    explainable,
    guess_loss,
    predicted_figures,
    reached_losses,
    score,
)
from rankscope.experiments.learning import Plan
from rankscope.models.training import Recipe, SequenceModel, Sorting
from rankscope.numerals import plural, sentence_case

LOSS, EXPLAINABLE, EXPLAINED = "reached_loss", "explainable_share", "explained_share"
CORRELATION, NEIGHBOURS = "rank_correlation", "neighbour_share"
SCALE, DEPTH = "init scale", "depth"
SKIPS = ("attention skip", "MLP skip")
KNOBS: Final = "init scale and both skips"
TOGETHER: Final = "all depths"
COLUMNS: Final = ("run", "model", "variant", "parameter", "setting", "sample", "metric", "value")
Row = tuple[str | float | None, ...]


def both(start: str) -> str:
    """What the two exponents are called as one predictor."""
    return f"both exponents, {start}"


def accumulated(start: str) -> str:
    """The same, each times the depth."""
    return f"both exponents times depth, {start}"


def loss_rows(
    designs: Sequence[Design],
    figures: Sequence[Mapping[str, float]],
    losses: Sequence[Sequence[float]],
) -> list[Row]:
    """The losses of each design's seeds against each of its figures, and against its knobs."""
    rows: list[Row] = []
    for design, predicted, reached in zip(designs, figures, losses, strict=True):
        skips = zip(SKIPS, (design.attention_skip, design.mlp_skip), strict=True)
        knobs = {SCALE: design.scale, **dict(skips), DEPTH: float(design.layers)}
        rows += [
            (design.start, design.depth, design.branch, name, setting, sample, LOSS, loss)
            for name, setting in (dict(predicted) | knobs).items()
            for sample, loss in enumerate(reached)
        ]
    return rows


def score_rows(table: pl.DataFrame, neighbours: int) -> list[Row]:
    """What every predictor forecasts, for the designs of each depth and for all of them."""
    depths = table["model"].unique(maintain_order=True).to_list()
    groups = {TOGETHER: table} | {depth: table.filter(model=depth) for depth in depths}
    rows: list[Row] = []
    for group, own in groups.items():
        figures, losses = _by_design(own)
        means = [float(np.mean(each)) for each in losses]
        rows.append(_row(group, None, metric=EXPLAINABLE, value=explainable(losses)))
        for name, columns in _predictors(figures):
            found = score(columns, means, neighbours)
            rows += [
                _row(group, name, metric=EXPLAINED, value=found.explained),
                _row(group, name, metric=CORRELATION, value=found.correlation),
                _row(group, name, metric=NEIGHBOURS, value=found.by_neighbours),
            ]
    return rows


def value_of(table: pl.DataFrame, group: str, metric: str, predictor: str | None = None) -> float:
    """One number of a group of designs."""
    rows = table.filter(
        pl.col("model") == group,
        pl.col("metric") == metric,
        pl.col("variant").eq_missing(pl.lit(predictor, pl.String)),
    )
    return float(rows["value"].item())


def _row(group: str, predictor: str | None, *, metric: str, value: float) -> Row:
    return (None, group, predictor, None, None, None, metric, value)


def _by_design(table: pl.DataFrame) -> tuple[dict[str, list[float]], list[list[float]]]:
    """Each figure by design, and the losses of each design's seeds."""
    figures: dict[str, list[float]] = {}
    losses: list[list[float]] = []
    designs = ["model", "variant", "run"]
    for (name,), rows in table.filter(metric=LOSS).group_by("parameter", maintain_order=True):
        each = rows.group_by(designs, maintain_order=True).agg(pl.first("setting"), "value")
        figures[str(name)] = each["setting"].to_list()
        losses = each["value"].to_list()  # the same for every figure
    return figures, losses


def _predictors(figures: Mapping[str, list[float]]) -> Iterator[tuple[str, list[list[float]]]]:
    """Pairs of exponents, each figure alone, and what needs no prediction at all."""
    layers = figures[DEPTH]
    for start in STARTS:
        pair = [figures[f"{name}, {start}"] for name in (ANGLE, GRADIENT)]
        yield both(start), pair
        totals = [[a * b for a, b in zip(each, layers, strict=True)] for each in pair]
        yield accumulated(start), totals
    yield KNOBS, [figures[name] for name in (SCALE, *SKIPS)]
    for name, values in figures.items():
        yield name, [values]


_LEARNT: Final = 0.1
"""By how much less than a guess's the loss of a design that learns is."""


def group_in_words(table: pl.DataFrame, group: str) -> str:
    """What the exponents, the best single figure and the designs' own knobs forecast."""

    def of(predictor: str) -> str:
        return f"{value_of(table, group, EXPLAINED, predictor):.2f}"

    most = value_of(table, group, EXPLAINABLE)
    pairs = ", ".join(
        f"{of(both(start))} taken at {_named_tokens(start)} "
        f"(the angles' alone {of(f'{ANGLE}, {start}')}, the gradients' {of(f'{GRADIENT}, {start}')}"
        f"{_times_depth(table, group, start)})"
        for start in STARTS
    )
    best = best_figure(table, group)
    return (
        f"{sentence_case(group)}: losses from {_range(table, group)}; {most:.2f} of the "
        f"differences can be explained, both exponents explain {pairs}; best single figure: "
        f"{best} ({of(best)}); {KNOBS}, which need no prediction: {of(KNOBS)}."
    )


def best_figure(table: pl.DataFrame, group: str) -> str:
    """The predicted figure that explains most by itself."""
    figures = set(table.filter(metric=LOSS)["parameter"].to_list()) - {SCALE, *SKIPS, DEPTH}
    rows = table.filter(pl.col("variant").is_in(figures), model=group, metric=EXPLAINED)
    return str(rows.sort("value", descending=True)["variant"][0])


def zero_in_words(table: pl.DataFrame, guess: float) -> str:
    """Whether the loss is least where both exponents vanish, as the paper says."""
    losses = _designs(table, TOGETHER, SCALE)["value"]
    learnt = losses < guess - _LEARNT
    among = "; ".join(
        f"{distance_correlation(table, start):+.2f} at {_named_tokens(start)}, "
        f"{distance_correlation(table, start, guess - _LEARNT):+.2f} among those that learn"
        for start in STARTS
    )
    return (
        f"{learnt.sum()} of {len(losses)} designs learn more than a guess knows (loss "
        f"{guess:.2f}). The paper adds that loss is least where both exponents vanish: the rank "
        f"correlation of their distance from zero with the loss is {among}."
    )


def distance_correlation(table: pl.DataFrame, start: str, below: float = math.inf) -> float:
    """Of the distance of both exponents from zero with the loss of designs ``below`` a loss."""
    each = _designs(table, TOGETHER, f"{DISTANCE}, {start}").filter(pl.col("value") < below)
    return correlate(each["setting"].to_list(), each["value"].to_list())


def _times_depth(table: pl.DataFrame, group: str, start: str) -> str:
    if group != TOGETHER:
        return ""
    return f", both times depth {value_of(table, group, EXPLAINED, accumulated(start)):.2f}"


def _named_tokens(start: str) -> str:
    return "tokens nearly alike" if start == STARTS[0] else "the task's own tokens"


def _range(table: pl.DataFrame, group: str) -> str:
    means = _designs(table, group, SCALE)["value"].to_list()
    return f"{min(means):.2f} to {max(means):.2f}"


def _designs(table: pl.DataFrame, group: str, figure: str) -> pl.DataFrame:
    """A figure, as ``setting``, and the mean loss, as ``value``, of each design."""
    rows = table.filter(pl.col("metric") == LOSS, pl.col("parameter") == figure)
    if group != TOGETHER:
        rows = rows.filter(model=group)
    return rows.group_by("model", "variant", "run", maintain_order=True).agg(
        pl.first("setting"), pl.mean("value")
    )


ENTRY = kit.claim(
    "P7",
    "Two exponents known before training, that of the angles between tokens and that of the "
    "gradients, forecast the loss a network reaches.",
    source="Cowsik et al. 2024",
    domain="networks that learn to sort: depth, norm place, skips and scale of weights varied",
    seconds=72,
    metrics=(
        kit.Metric(
            "reached_loss",
            "Loss reached",
            "cross-entropy",
            "linear",
            "0 = every token certain and right",
            "The cross-entropy of a trained network on new examples, in nats a token, and at most "
            "that of a guess that does not look.",
            includes=(0.0,),
        ),
        kit.Metric(
            "explainable_share",
            "Explainable share",
            "1 − s²/n / var",
            "linear",
            "1 = seeds agree, so that all is the designs'",
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
            "1 = forecasts have the order of what is reached",
            "The correlation of the ranks of forecast and reached losses, over designs left out.",
            includes=(0.0, 1.0),
        ),
    ),
)
_SYMBOLS = Sorting().symbols
_PLAN: Final = Plan(2, 32, Recipe(100, 16, warmup=10), 2000, 200, 0.9, tokens=6)


@dataclass(frozen=True)
class Config(kit.Config):
    """The map of designs, how each is trained, and what a forecast must be worth."""

    depths: tuple[int, ...] = (4, 8)
    places: tuple[str, ...] = ("pre", "post")
    skips: tuple[tuple[float, float], ...] = ((0.3, 0.3), (1.0, 1.0), (4.0, 0.3))
    """Of attention and of the MLP."""
    scales: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """Of all weights, in those of LeCun's initialisation."""
    seeds: int = 3
    """Networks of each design; each has weights, examples and batches of its own."""
    plan: Plan = _PLAN
    mlp_ratio: float = 1.5
    rates: tuple[float, ...] = (1e-3, 4e-3)
    """Learning rates, of which each design has its better one."""
    draws: int = 16
    """Random networks by which a design's figures are predicted."""
    sequences: int = 4
    """On so many of the task's sequences, each by itself."""
    neighbours: int = 3
    """Designs of which the check by neighbours takes the mean."""
    enough: float = 0.7
    """The part of what is explainable that exponents must explain."""
    tell_apart: float = 0.5
    """The share of the differences in loss that must be the designs' own: with less, nothing can be
    forecast, and nothing is tried."""

    @property
    def designs(self) -> tuple[Design, ...]:
        """The whole map; designs that differ only in the scale of their weights stand together."""
        return tuple(
            Design(layers, place, *skips, scale)
            for layers, place, skips, scale in product(
                self.depths, self.places, self.skips, self.scales
            )
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """Which designs are compared: all, and those of each depth."""
        return (TOGETHER, *(plural(layers, "layer") for layers in self.depths))

    def spec(self, design: Design) -> Spec:
        """The network of a design."""
        return design.spec(self.plan.heads, self.plan.width, self.mlp_ratio)


PAPER: Final[Mapping[str, Any]] = {
    "depths": (6, 12),
    "skips": ((0.1, 0.1), (0.3, 0.3), (1.0, 1.0), (2.0, 0.3), (4.0, 0.3), (4.0, 1.0)),
    "scales": (0.25, 0.5, 1.0, 2.0, 4.0),
    "seeds": 5,
    "plan": Plan(4, 64, Recipe(1000, 32, warmup=100), 5000, 500, 0.9, tokens=8),
    "mlp_ratio": 2.5,
    "rates": (3e-4, 1e-3, 3e-3),
    "sequences": 16,
}


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Predict every design, train it, and forecast its loss from the other designs.

    A figure is what ``predict`` says of random networks of the design on the task's own embedded
    tokens, or on the same brought nearly together. All designs share these tokens; in training no
    design shares weights, examples or batches with another.
    """
    _check(config)
    on_predict, on_train = kit.parts(on_step, 1.0, 9.0)
    tokens = _tokens(config)
    figures = [
        predicted_figures(config.spec(design), tokens, draws=config.draws, seed=config.seed)
        for design, _ in kit.tracked(config.designs, on_predict)
    ]
    table = tables.from_rows(COLUMNS, loss_rows(config.designs, figures, _train(config, on_train)))
    scores = tables.from_rows(COLUMNS, score_rows(table, config.neighbours))
    table = tables.stack([table, scores])
    judgement, sentences = judge(config, table)
    return ENTRY.result(
        config,
        question="Which figure, known before training, forecasts the loss that is reached?",
        sentences=sentences,
        table=table,
        judgement=judgement,
        key_figures=_key_figures(table),
        drawings=_drawings(),
        shown=(LOSS, EXPLAINED, EXPLAINABLE, CORRELATION, NEIGHBOURS),
    )


def judge(config: Config, table: pl.DataFrame) -> tuple[kit.Judgement, tuple[str, ...]]:
    """The verdict on all designs, and in words what forecasts best, for each depth too."""
    tried = _forecast(config, table)
    untried = "" if tried else "the designs differ by no more than the seeds do"
    return (
        kit.judged(ENTRY.domain, tried, untried),
        (
            *(group_in_words(table, group) for group in config.groups),
            zero_in_words(table, _guess(config)),
        ),
    )


def _forecast(config: Config, table: pl.DataFrame) -> dict[str, bool]:
    """Whether both exponents explain enough, for each start; empty where there is too little."""
    most = value_of(table, TOGETHER, EXPLAINABLE)
    if most < config.tell_apart:
        return {}
    return {
        start: value_of(table, TOGETHER, EXPLAINED, both(start)) >= config.enough * most
        for start in STARTS
    }


def _check(config: Config) -> None:
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


def _guess(config: Config) -> float:
    return guess_loss(_SYMBOLS, config.plan.tokens)


def _train(config: Config, on_step: kit.OnStep) -> list[list[float]]:
    """The losses of each design, a number for each seed, at the better rate of the design."""
    designs, seeds, together = config.designs, config.seeds, len(config.scales)
    first = config.seed * len(designs) * seeds  # no network of one run is one of another
    found: list[list[float]] = []
    for at, on_shape in kit.tracked(range(0, len(designs), together), on_step):
        group = designs[at : at + together]
        specs = {
            first + (at + number) * seeds + seed: config.spec(design)
            for number, design in enumerate(group)
            for seed in range(seeds)
        }
        by_rate = reached_losses(specs, config.plan, config.rates, on_shape, most=_guess(config))
        for number in range(len(group)):
            own = [losses[number * seeds : (number + 1) * seeds] for losses in by_rate]
            found.append(min(own, key=sum))
    return found


def _key_figures(table: pl.DataFrame) -> dict[str, float]:
    best = best_figure(table, TOGETHER)
    explained = {name: value_of(table, TOGETHER, EXPLAINED, name) for name in map(both, STARTS)}
    return {
        "explainable": value_of(table, TOGETHER, EXPLAINABLE),
        **explained,
        f"best single figure ({best})": value_of(table, TOGETHER, EXPLAINED, best),
        KNOBS: value_of(table, TOGETHER, EXPLAINED, KNOBS),
    }


_ALONG = "Each curve is one norm place and its skips; along it the scale of the weights changes."


def _drawings() -> tuple[kit.Drawing, ...]:
    """Against how far both exponents are from zero, against each of them, and the map."""
    return tuple(
        kit.Drawing("by_setting", caption, LOSS, only={"parameter": parameters})
        for caption, parameters in (
            (_ALONG, tuple(f"{DISTANCE}, {start}" for start in STARTS)),
            (_ALONG, tuple(f"{name}, {start}" for name in (ANGLE, GRADIENT) for start in STARTS)),
            ("The map: each curve is one norm place and its skips.", (SCALE,)),
        )
    )
