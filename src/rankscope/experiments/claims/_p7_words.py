"""The findings of claim P7 in sentences."""

import math
from typing import Final

import polars as pl

from rankscope.experiments.claims._p7_figures import ANGLE, DISTANCE, GRADIENT, STARTS
from rankscope.experiments.claims._p7_forecast import correlate
from rankscope.experiments.claims._p7_table import (
    DEPTH,
    EXPLAINABLE,
    EXPLAINED,
    KNOBS,
    LOSS,
    SCALE,
    SKIPS,
    TOGETHER,
    accumulated,
    both,
    value_of,
)
from rankscope.numerals import sentence_case

_LEARNT: Final = 0.1
"""By how much less than a guess's the loss of a design that learns is."""


def group_in_words(table: pl.DataFrame, group: str) -> str:
    """What the exponents, the best single figure and the designs' own knobs forecast."""

    def of(predictor: str) -> str:
        return f"{value_of(table, group, EXPLAINED, predictor):.2f}"

    most = value_of(table, group, EXPLAINABLE)
    pairs = ", ".join(
        f"{of(both(start))} taken at {_tokens(start)} "
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
        f"{distance_correlation(table, start):+.2f} at {_tokens(start)}, "
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


def _tokens(start: str) -> str:
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
