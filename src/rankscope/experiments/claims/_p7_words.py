"""The findings of claim P7 in sentences."""

from collections.abc import Sequence

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


def zero_in_words(table: pl.DataFrame, groups: Sequence[str]) -> str:
    """Whether the loss is least where both exponents vanish, as the paper says."""
    found = ", ".join(
        f"{distance_correlation(table, group, start):+.2f} for {group} at {_tokens(start)}"
        for group in groups
        for start in STARTS
    )
    return (
        "The paper adds that loss is least where both exponents vanish; the rank correlation of "
        f"their distance from zero with the loss is {found} (+1 if that decides)."
    )


def distance_correlation(table: pl.DataFrame, group: str, start: str) -> float:
    """Of the distance of both exponents from zero with the mean loss of a design."""
    rows = table.filter(pl.col("parameter") == f"{DISTANCE}, {start}", pl.col("metric") == LOSS)
    if group != TOGETHER:
        rows = rows.filter(model=group)
    each = rows.group_by("model", "variant", "run", maintain_order=True).agg(
        pl.first("setting"), pl.mean("value")
    )
    return correlate(each["setting"].to_list(), each["value"].to_list())


def _times_depth(table: pl.DataFrame, group: str, start: str) -> str:
    if group != TOGETHER:
        return ""
    return f", both times depth {value_of(table, group, EXPLAINED, accumulated(start)):.2f}"


def _tokens(start: str) -> str:
    return "tokens nearly alike" if start == STARTS[0] else "the task's own tokens"


def _range(table: pl.DataFrame, group: str) -> str:
    rows = table.filter(pl.col("metric") == LOSS, pl.col("parameter") == SCALE)
    if group != TOGETHER:
        rows = rows.filter(model=group)
    means = rows.group_by("model", "variant", "run").agg(pl.mean("value"))["value"]
    return f"{means.min():.2f} to {means.max():.2f}"
