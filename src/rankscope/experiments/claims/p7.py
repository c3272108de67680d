"""Claim P7, Cowsik et al. 2024: two exponents known before training forecast the loss reached.

How it is judged was fixed before the first full run. The loss of a design is the mean over its
seeds of the cross-entropy on new sequences, at the better of the learning rates, and at most that
of a guess which does not look; a network that has diverged counts as a guess. What is forecast for
a design is the mean loss of the three other designs nearest to it in the ranks of the figures. The
exponents forecast the loss if they explain at least 0.7 of what can be explained at all: of the
differences between designs, less what the spread of the seeds leaves open. No forecast explains 0.

The paper looks at networks of one depth, so each depth is judged by itself first, and all depths
together as what lies beyond. Exponents are taken where the paper takes them, at tokens that are
nearly alike, and at the task's own tokens; each is a case.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import polars as pl

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims._p7_designs import Design, Place
from rankscope.experiments.claims._p7_figures import ANGLE, GRADIENT, STARTS, predicted_figures
from rankscope.experiments.claims._p7_table import (
    COLUMNS,
    CORRELATION,
    EXPLAINABLE,
    EXPLAINED,
    LOSS,
    QUADRATIC,
    SCALE,
    TOGETHER,
    both,
    loss_rows,
    score_rows,
    value_of,
)
from rankscope.experiments.claims._p7_training import guess_loss, reached_losses
from rankscope.experiments.claims._p7_words import group_in_words, zero_in_words
from rankscope.experiments.learning import Plan
from rankscope.network import Spec
from rankscope.numerals import plural
from rankscope.shapes import Hidden
from rankscope.training import Recipe, SequenceModel, Sorting

ENTRY = kit.entry("P7")
_BEYOND = "designs of all depths together, by their exponents per layer"
_SYMBOLS = Sorting().symbols


@dataclass(frozen=True)
class Config(kit.Config):
    """The map of designs, how each is trained, and what a forecast must be worth."""

    depths: tuple[int, ...] = (4, 8)
    places: tuple[Place, ...] = ("pre", "post")
    skips: tuple[tuple[float, float], ...] = ((0.3, 0.3), (1.0, 1.0), (4.0, 0.3))
    """Of attention and of the MLP."""
    scales: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """Of all weights, in those of LeCun's initialisation."""
    seeds: int = 3
    """Networks of each design; each has weights, examples and batches of its own."""
    plan: Plan = Plan(2, 32, Recipe(100, 16, warmup=10), 2000, 200, 0.9, tokens=6)
    mlp_ratio: float = 1.5
    rates: tuple[float, ...] = (1e-3, 4e-3)
    """Learning rates, of which each design has its better one."""
    draws: int = 8
    """Random networks by which a design's figures are predicted."""
    sequences: int = 2
    """On so many of the task's sequences, each by itself."""
    neighbours: int = 3
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
            for layers, place, skips, scale in product(self.depths, self.places, self.skips, self.scales)
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """Which designs are compared: those of one depth, and, if there are several, all."""
        each = tuple(plural(layers, "layer") for layers in self.depths)
        return (*each, TOGETHER) if len(each) > 1 else each

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
    judgement, beyond, sentences = judge(config, table)
    return ENTRY.result(
        config,
        question="Which figure, known before training, forecasts the loss that is reached?",
        sentences=sentences,
        table=table,
        judgement=judgement,
        beyond=beyond,
        key_figures=_key_figures(config, table),
        drawings=_drawings(),
        shown=(LOSS, EXPLAINED, EXPLAINABLE, CORRELATION, QUADRATIC),
    )


def judge(
    config: Config, table: pl.DataFrame
) -> tuple[kit.Judgement, kit.Judgement, tuple[str, ...]]:
    """The verdict for each depth alone, that for all together, and what forecasts best."""
    alone = {
        f"{depth} with {start}": enough
        for depth in config.groups
        if depth != TOGETHER
        for start, enough in _forecast(config, table, depth).items()
    }
    together = _forecast(config, table, TOGETHER) if TOGETHER in config.groups else {}
    on = "the designs differ by no more than the seeds do"
    return (
        kit.judged(ENTRY.domain, alone, "" if alone else on),
        kit.judged(_BEYOND, together, "" if together else "there is one depth, or " + on),
        (
            *(group_in_words(table, group) for group in config.groups),
            zero_in_words(table, config.groups),
            f"A guess that does not look has loss {_guess(config):.2f}.",
        ),
    )


def _forecast(config: Config, table: pl.DataFrame, group: str) -> dict[str, bool]:
    """Whether both exponents explain enough, for each start; empty where there is too little."""
    most = value_of(table, group, EXPLAINABLE)
    if most < config.tell_apart:
        return {}
    return {
        start: value_of(table, group, EXPLAINED, both(start)) >= config.enough * most
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


def _key_figures(config: Config, table: pl.DataFrame) -> dict[str, float]:
    figures = {}
    for group in config.groups:
        figures[f"explainable, {group}"] = value_of(table, group, EXPLAINABLE)
        for start in STARTS:
            figures[f"both exponents, {start}, {group}"] = value_of(
                table, group, EXPLAINED, both(start)
            )
    return figures


def _drawings() -> tuple[kit.Drawing, ...]:
    shown = [f"{name}, {start}" for name in (ANGLE, GRADIENT) for start in STARTS]
    return (
        kit.Drawing(
            "by_setting",
            "Each curve is one norm place and skip; along it the scale of the weights changes.",
            LOSS,
            only={"parameter": tuple(shown)},
        ),
        kit.Drawing(
            "by_setting",
            "The map of designs: each curve is one norm place and skip.",
            LOSS,
            only={"parameter": (SCALE,)},
        ),
    )
