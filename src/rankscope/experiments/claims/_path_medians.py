"""What the table of accuracies by length says: its medians, and the controls in words."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Final

import polars as pl

from rankscope.experiments.claims._path_accuracy import ALL, CHANCE, UNTRAINED, few_paths

ACCURACY: Final = "token_accuracy"
_SEEN: Final = 0.01
"""The smallest difference between accuracies that a sentence gives as a figure."""


def median_of(rows: pl.DataFrame, metric: str) -> float:
    """The median of a metric over the seeds."""
    return float(median(rows.filter(pl.col("metric") == metric)["value"].to_list()))


def by_length(rows: pl.DataFrame, variant: str) -> list[float]:
    """Medians over the seeds, in the order of the lengths."""
    own = rows.filter((pl.col("variant") == variant) & (pl.col("metric") == ACCURACY))
    return own.group_by("setting").agg(pl.median("value")).sort("setting")["value"].to_list()


def constant_guess(rows: pl.DataFrame) -> float:
    """The accuracy of the best constant guess, which is the same at every length."""
    return by_length(rows, CHANCE)[0]


def compare_random_paths(table: pl.DataFrame, drawn: Sequence[int]) -> str:
    """How far random paths are from all paths of their length."""
    tasks = table["model"].unique(maintain_order=True).to_list()
    apart = {}
    for few in drawn:
        gaps = []
        for task in tasks:
            rows = table.filter(pl.col("model") == task)
            pairs = zip(by_length(rows, few_paths(few)), by_length(rows, ALL), strict=True)
            gaps += [abs(one - other) for one, other in pairs]
        apart[few] = fmean(gaps)
    gaps_in_words = ", ".join(f"{gap:.2f} with {few}" for few, gap in apart.items())
    return (
        "Random paths miss the accuracy of all paths of their length by "
        f"{gaps_in_words} on average."
    )


def compare_untrained(table: pl.DataFrame) -> str:
    """The control: how far from a guess any length of a network is before training."""
    best = max(
        max(by_length(rows, UNTRAINED)) - constant_guess(rows)
        for rows in table.partition_by("model", maintain_order=True)
    )
    better = f"up to {best:.2f} better" if best >= _SEEN else f"never {_SEEN:.2f} better"
    return f"Control: before training, paths of one length are {better} than a constant guess."
