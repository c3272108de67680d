"""What a comparison says: a row for each model, who loses most, where they part, and in what."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import polars as pl

from rankscope import metric_catalogue, tables
from rankscope.ask import Model
from rankscope.models.text import InputCheck
from rankscope.numerals import short, span_of
from rankscope.results import Headline, Listing

RESIDUAL: Final = "relative_residual"
OF_TOKENS: Final = (RESIDUAL, "mean_cosine", "effective_rank", "token_norm")
METRICS: Final = (*OF_TOKENS, "attention_entropy")
_APART: Final = 0.1
"""Medians that differ by no more than this share of the larger do not tell models apart."""


class At(NamedTuple):
    """The relative residual at a layer: its median, its 10th and its 90th percentile."""

    layer: int
    low: float
    median: float
    high: float

    def __str__(self) -> str:
        span = span_of(self.low, self.high)
        return short(self.median) + (f" (samples {span})" if " to " in span else "")


@dataclass(frozen=True, eq=False)
class Measured:
    """One model and what was measured of it, one number a row.

    ``read`` says what it read, ``weights`` which ones they are; ``own`` whether it was measured
    here, not read from a file.
    """

    model: Model
    table: pl.DataFrame
    check: InputCheck | None = None
    read: str = ""
    weights: str = ""
    own: bool = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self.model.label

    @cached_property
    def course(self) -> list[At]:
        """The relative residual from what it reads to the last layer."""
        rows = tables.summary(self.table.filter(metric=RESIDUAL)).sort("layer")
        return [At(*row) for row in rows.select("layer", "low", "median", "high").iter_rows()]

    @property
    def layers(self) -> int:
        """How many it has."""
        return self.course[-1].layer

    @property
    def lowest(self) -> At:
        """The relative residual where it is smallest, first if that is at several layers."""
        return min(self.course, key=lambda at: at.median)

    @property
    def kept(self) -> float:
        """The smallest relative residual, as a share of that at the input."""
        first = self.course[0].median
        return self.lowest.median / first if first else 1.0

    @property
    def apart(self) -> float:
        """The smallest relative residual: how far tokens are apart where they are most alike."""
        return self.lowest.median

    def figure(self, metric: str) -> float | None:
        """A metric after the last layer; attention's is the median over all layers and heads."""
        rows = self.table.filter(metric=metric)
        if metric == "attention_entropy":
            median = rows["value"].median()
            return None if median is None else float(median)  # type: ignore[arg-type]
        medians = tables.summary(rows).sort("layer")["median"]
        return float(medians[-1]) if len(medians) else None


def _change(one: float, other: float) -> float:
    """A difference as a share of the larger value."""
    most = max(abs(one), abs(other))
    return abs(one - other) / most if most else 0.0


def headline(found: Sequence[Measured]) -> Headline:
    """Who keeps its tokens apart best, and who worst."""
    most, *_, least = sorted(found, key=lambda each: each.apart)
    if _change(most.apart, least.apart) <= _APART:
        return Headline("They keep their tokens about as far apart")
    return Headline(
        f"{least.name} keeps its tokens apart best: the relative residual is "
        f"{short(least.apart, digits=2)} at its lowest, {short(most.apart, digits=2)} in "
        f"{most.name}"
    )


def sentences(found: Sequence[Measured]) -> tuple[str, ...]:
    """Whose tokens are most alike, where the two furthest apart part, in what, and what training
    moved."""
    most, *_, least = sorted(found, key=lambda each: each.apart)
    alike = min(found, key=lambda each: each.course[-1].median)
    lost = (
        f"Tokens become most alike in {most.name}: its relative residual {_fall(most)}. They stay "
        f"furthest apart in {least.name}: its relative residual {_fall(least)}."
    )
    if _change(most.apart, least.apart) <= _APART:
        lost = f"Tokens are about as far apart in all: the relative residual {_fall(most)}."
    return (
        f"{lost}{_more_lost(found, most)}",
        _parting(most, least),
        f"After the last layer tokens are most alike in {alike.name}: a relative residual of "
        f"{alike.course[-1]}.",
        f"At the end {most.name} and {least.name} {_difference(most, least)}.",
        *_training(found),
    )


def _more_lost(found: Sequence[Measured], alike: Measured) -> str:
    """Who loses more on the way than the one whose tokens are most alike, which began lower."""
    most = min(found, key=lambda each: each.kept)
    if most is alike or _change(most.kept, alike.kept) <= _APART:
        return ""
    return (
        f" Of what there was at the input {most.name} loses most, down to "
        f"{short(most.kept, digits=2)} of it."
    )


def by_step(found: Sequence[Measured]) -> pl.DataFrame | None:
    """Figures of every sample against the step, of checkpoints of one training; None of others."""
    steps = [each for each in found if each.model.step is not None]
    if len(steps) < 2 or len({each.model.training for each in steps}) > 1:
        return None
    rows: list[tuple[str, float, int, str, float]] = []
    for each in steps:
        for name, (metric, layer) in {
            "lowest_relative_residual": (RESIDUAL, each.lowest.layer),
            "last_mean_cosine": ("mean_cosine", each.layers),
            "last_effective_rank": ("effective_rank", each.layers),
        }.items():
            own = each.table.filter(metric=metric, layer=layer)
            rows += [
                ("step", float(each.model.step or 0), sample, name, value)
                for sample, value in own.select("sample", "value").iter_rows()
            ]
    rows.sort(key=lambda row: row[3])
    return tables.from_rows(("parameter", "setting", "sample", "metric", "value"), rows)


def _fall(measured: Measured) -> str:
    lowest = measured.lowest
    if lowest.layer == 0:
        return f"never falls below the {lowest} it has at the input"
    where = f"layer {lowest.layer} of {measured.layers}"
    return f"goes from {short(measured.course[0].median)} at the input to {lowest} at {where}"


def _parting(one: Measured, other: Measured) -> str:
    """From which depth on the samples of two models do not overlap."""
    steps = max(one.layers, other.layers)
    start = steps + 1
    for step in range(steps, -1, -1):
        a, b = (each.course[round(step / steps * each.layers)] for each in (one, other))
        overlap = a.low <= b.high and b.low <= a.high
        if overlap or _change(a.median, b.median) <= _APART:
            break
        start = step
    pair = f"{one.name} and {other.name}"
    if start > steps:
        return (
            f"After the last layer the samples of {pair} overlap, or their medians differ by less "
            "than a tenth: in the end they are not told apart."
        )
    where = f"layer {start}" if one.layers == other.layers else f"{start / steps:.0%} of the depth"
    return (
        f"{pair} part at {where if start else 'the input'}: from there on the 10th to 90th "
        "percentiles of their samples do not overlap, and their medians differ by more than a "
        "tenth."
    )


def _difference(one: Measured, other: Measured) -> str:
    """The figure in which two models differ most, as a share of the larger value."""
    both = {
        metric: (before, after)
        for metric in METRICS
        if (before := one.figure(metric)) is not None
        and (after := other.figure(metric)) is not None
    }
    metric, (before, after) = max(both.items(), key=lambda each: _change(*each[1]))
    if _change(before, after) <= _APART:
        return "differ by no more than a tenth in every figure"
    title = metric_catalogue.metric(metric).title.lower()
    return f"differ most in {title}, {short(before)} against {short(after)}"


def _training(found: Sequence[Measured]) -> list[str]:
    """What moved from the first checkpoint of a training to its last, if these are some."""
    steps = [each for each in found if each.model.training]
    if len(steps) < 2 or len({each.model.training for each in steps}) > 1:
        return []
    course = [each.lowest.median for each in steps]
    falls = all(after <= before for before, after in pairwise(course))
    rises = all(after >= before for before, after in pairwise(course))
    how = "falls all the way" if falls else "rises all the way" if rises else "goes up and down"
    first, last = steps[0], steps[-1]
    return [
        f"From {first.name} to {last.name} the smallest relative residual {how}, from "
        f"{short(course[0])} to {short(course[-1])}; the two {_difference(first, last)}."
    ]


def warnings(found: Sequence[Measured]) -> tuple[str, ...]:
    """What each read, where that needs saying, and whether all read the same."""
    said = [
        f"{each.name}: {warning}"
        for each in found
        if each.check is not None
        for warning in each.check.warnings()
    ]
    longest = {
        each.name: max(each.check.lengths)
        for each in found
        if each.check is not None and each.check.cut
    }
    if len(set(longest.values())) > 1:
        cut = ", ".join(f"{name} at {count} tokens" for name, count in longest.items())
        said.append(
            f"Texts were cut at different lengths: {cut}; --length {min(longest.values())} gives "
            "all of them the same."
        )
    if len({each.read for each in found} - {""}) > 1 and not all(each.own for each in found):
        inputs = "; ".join(f"{each.name}, {each.read}" for each in found)
        said.append(f"They were not measured on the same input: {inputs}.")
    return tuple(said)


def listings(found: Sequence[Measured]) -> tuple[Listing, ...]:
    """A row for each model: its relative residual, other figures, and what it read."""
    residuals, checks = [], []
    for each in found:
        at, first, last = each.lowest, each.course[0].median, each.course[-1].median
        span = span_of(at.low, at.high)
        residuals.append((each.name, each.layers, first, at.median, span, at.layer, last))
        if (read := each.check) is not None:
            cut = (read.unknown_count, read.cut, read.lost_count)
            checks.append((each.name, read.origin, read.samples, sum(read.lengths), *cut))
    others = {metric: metric_catalogue.metric(metric).title.lower() for metric in METRICS[1:]}
    listed = (
        Listing(
            "Relative residual",
            ("model", "layers", "input", "lowest", "samples", "at layer", "end"),
            tuple(residuals),
            "Medians over the samples; 0 = all tokens alike. Samples are the 10th to 90th "
            "percentile where it is lowest.",
        ),
        Listing(
            "After the last layer",
            ("model", *others.values()),
            tuple((each.name, *map(each.figure, others)) for each in found),
            "Medians over the samples; of attention entropy, over all layers and heads as well.",
        ),
        Listing(
            "What each model read",
            ("model", "read", "samples", "tokens", "unknown", "samples cut", "tokens cut off"),
            tuple(checks),
        ),
    )
    return tuple(each for each in listed if each.rows)
