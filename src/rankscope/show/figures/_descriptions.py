"""Charts in words, with the numbers they show: for readers who cannot see them."""

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from rankscope import metric_catalogue
from rankscope.metric_catalogue import Metric
from rankscope.numerals import power_of_ten, short

_LABELS: Final = ("model", "parameter", "variant")
_WORDS: Final = {"length": "path length", "index": "singular value", "other_token": "token"}
_MOST: Final = 8
"""Curves that are told one by one."""


def describe(
    rows: pl.DataFrame,
    metrics: Sequence[str],
    places: Sequence[str],
    *,
    labels: Sequence[str] = _LABELS,
    entry: Metric | None = None,
) -> list[str]:
    """Of each curve or map of the metrics, in a sentence: its ends, its least and its most.

    ``labels`` are the columns that tell curves apart; ``entry`` has words other than the
    catalogue's.
    """
    labels = [name for name in labels if _varies(rows, name)]
    parts = []
    for name in metrics:
        own = rows.filter(pl.col("metric") == name)
        present = [
            place
            for place in places
            if place in own.columns and own[place].null_count() < own.height
        ]
        own = own.drop_nulls([*present, "value"])
        if places == ("length",) and "layer" in own.columns and own["layer"].drop_nulls().len():
            own = own.filter(pl.col("layer") == pl.col("layer").max())
        medians = own.group_by([*labels, *present], maintain_order=True).agg(
            pl.col("value").median()
        )
        split = medians.partition_by(labels, maintain_order=True) if labels else [medians]
        words = entry or metric_catalogue.metric(name)
        parts += [(words, part, present) for part in split if part.height]
    told = [_sentence(words, part, labels, present) for words, part, present in parts[:_MOST]]
    left = len(parts) - _MOST
    return [*told, f"{left} more curves are in the table's file."] if left > 0 else told


def _sentence(
    entry: Metric, part: pl.DataFrame, labels: Sequence[str], places: Sequence[str]
) -> str:
    first = part.row(0, named=True)
    named = [str(first[label]) for label in labels if first[label] is not None]
    whose = ", ".join([entry.title, *named])
    ordered = part.sort(places)
    ends = [ordered.row(0, named=True), ordered.row(-1, named=True)]
    known = part.filter(pl.col("value").is_not_nan()).sort("value")
    if not known.height:
        return f"{whose}: not known."
    least, most = known.row(0, named=True), known.row(-1, named=True)
    if len(places) > 1:
        return f"{whose}: from {_told(entry, least, places)} to {_told(entry, most, places)}."
    told = [_told(entry, end, places) for end in ends[: 1 + (part.height > 1)]]
    values = {end["value"] for end in ends}
    told += [f"lowest {_told(entry, least, places)}"] * (least["value"] not in values)
    told += [f"highest {_told(entry, most, places)}"] * (most["value"] not in values)
    return f"{whose}: {', '.join(told)}."


def _told(entry: Metric, row: dict[str, Any], places: Sequence[str]) -> str:
    """A value and where it is."""
    value = row["value"]
    number = power_of_ten(value, digits=3) if entry.scale == "exponent" else short(value)
    where = ", ".join(f"{_WORDS.get(place, place)} {_place(row[place])}" for place in places)
    return f"{number} at {where}" if where else number


def _place(value: object) -> str:
    return short(value) if isinstance(value, int | float) else str(value)


def _varies(rows: pl.DataFrame, column: str) -> bool:
    return column in rows.columns and rows[column].drop_nulls().n_unique() > 1
