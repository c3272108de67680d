"""Laws of the curves in a table: of medians over samples, and of each sample by itself."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from rankscope.core.theory import SMOOTH, Evidence, Law, law
from rankscope.numerals import power_of_ten
from rankscope.show.words import LAW_NAMES


def medians(summary: pl.DataFrame, metric: str, **labels: str) -> list[float]:
    """The medians of a metric layer by layer, for the rows with these labels."""
    return summary.filter(metric=metric, **labels).sort("layer")["median"].to_list()


def sure_medians(summary: pl.DataFrame, metric: str, **labels: str) -> list[float]:
    """The same, up to the first layer in which a sample is in doubt.

    >>> summary = pl.DataFrame({"layer": [0, 1, 2], "metric": "r", "median": [0.0, -1.0, -9.0],
    ...                         "doubt": [False, False, True]})
    >>> sure_medians(summary, "r")
    [0.0, -1.0]
    """
    rows = summary.filter(metric=metric, **labels).sort("layer")
    return _before_doubts(rows)["median"].to_list()


def law_of_medians(
    summary: pl.DataFrame, metric: str, evidence: Evidence = SMOOTH, **labels: str
) -> Law:
    """The law of a metric's medians, as far as none of the samples is in doubt."""
    return _law_before_doubts(
        summary.filter(metric=metric, **labels).sort("layer"), "median", evidence
    )


def _law_before_doubts(rows: pl.DataFrame, column: str, evidence: Evidence = SMOOTH) -> Law:
    """The law of a curve, which says how far it is sure if that is not to its end."""
    sure = _before_doubts(rows)
    found = law(sure[column].to_list(), evidence)
    return found if len(sure) == len(rows) else replace(found, sure_to=len(sure) - 1)


def _before_doubts(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, sorted by layer, before the first that is in doubt; the input never is."""
    if "doubt" not in rows.columns:
        return rows
    doubts = rows["doubt"].to_list()
    return rows.head(max(1, doubts.index(True))) if True in doubts else rows


def disagreement(table: pl.DataFrame, metric: str, **labels: str) -> str:
    """In words, where the samples follow different laws; nothing where they agree.

    Each sample counts up to its first layer in doubt.

    >>> disagreement(pl.DataFrame({
    ...     "layer": [0, 1, 2, 3, 4] * 2, "sample": [0] * 5 + [1] * 5, "metric": "r",
    ...     "value": [0.0, -1.0, -2.0, -3.0, -4.0, 0.0, 0.0, 0.0, 0.0, 0.0]}), "r")
    'the samples disagree: 1 of 2 exponential, 1 of 2 no collapse; they end between 10^−4.0 and 1'
    """
    counted, found = _count_laws(table, metric, labels)
    if not counted:
        return ""
    low, high = (power_of_ten(end(each.last for each in found)) for end in (min, max))
    sure = "" if all(each.sure_to is None for each in found) else ", as far as they are sure"
    return f"the samples disagree: {counted}; they end between {low} and {high}{sure}"


def different_laws(table: pl.DataFrame, metric: str, **labels: str) -> str:
    """How many samples follow which law, where they differ; nothing where they agree."""
    return _count_laws(table, metric, labels)[0]


def _count_laws(
    table: pl.DataFrame, metric: str, labels: Mapping[str, str]
) -> tuple[str, list[Law]]:
    """The same, and the laws of the samples that say something."""
    curves = table.filter(metric=metric, **labels).sort("layer")
    every = [
        _law_before_doubts(own, "value")
        for _, own in curves.group_by("sample", maintain_order=True)
    ]
    # Where doubts leave too little of a curve, it agrees with any other.
    found = [each for each in every if each.decided or each.sure_to is None]
    kinds = Counter(each.kind for each in found)
    if len(kinds) < 2:
        return "", found
    counts = {LAW_NAMES.get(kind, kind): many for kind, many in kinds.items()}
    if len(found) < len(every):
        counts["in doubt too early to tell"] = len(every) - len(found)
    return ", ".join(f"{many} of {len(every)} {words}" for words, many in counts.items()), found
