"""What a comparison says: a row for each model, who loses most, where they part, and in what."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import polars as pl

from rankscope import metric_catalogue, tables
from rankscope.ask import Model
from rankscope.models.text import InputCheck
from rankscope.numerals import short, span_of
from rankscope.results import Drawing, Entry, Headline, Listing

RESIDUAL: Final = "relative_residual"
OF_TOKENS: Final = (RESIDUAL, "mean_cosine", "effective_rank", "token_norm")
METRICS: Final = (*OF_TOKENS, "attention_entropy")
_APART: Final = 0.1
"""Medians that differ by no more than this share of the larger do not tell models apart."""

_ENDS: Final = "Medians over the samples; of attention entropy, over all layers and heads as well."


@dataclass(frozen=True)
class At:
    """A figure over the samples: its median, its 10th and its 90th percentile."""

    layer: int
    low: float
    median: float
    high: float

    def __str__(self) -> str:
        span = span_of(self.low, self.high)
        return short(self.median) + (f" (samples {span})" if " to " in span else "")

    def is_apart(self, other: "At") -> bool:
        """Whether samples do not overlap and medians differ by more than a tenth."""
        overlap = self.low <= other.high and other.low <= self.high
        return not overlap and _change(self.median, other.median) > _APART


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
    def _summary(self) -> pl.DataFrame:
        return tables.summary(self.table)

    def course(self, metric: str) -> list[At]:
        """A metric layer by layer; nothing if it was not measured."""
        rows = self._summary.filter(metric=metric).sort("layer")
        columns = (rows[name].to_list() for name in ("layer", "low", "median", "high"))
        return [At(*row) for row in zip(*columns, strict=True)]

    @property
    def layers(self) -> int:
        """How many it has."""
        return self.course(RESIDUAL)[-1].layer

    @property
    def first(self) -> At:
        """The relative residual of what it reads."""
        return self.course(RESIDUAL)[0]

    @property
    def last(self) -> At:
        """The relative residual it ends with."""
        return self.course(RESIDUAL)[-1]

    @property
    def lowest(self) -> At:
        """The relative residual where it is smallest, first if that is at several layers."""
        return min(self.course(RESIDUAL), key=lambda at: at.median)

    @property
    def kept(self) -> float:
        """The smallest relative residual, as a share of that at the input."""
        return self.lowest.median / self.first.median if self.first.median else 1.0

    def figure(self, metric: str) -> float | None:
        """A metric after the last layer; attention's is the median over all layers and heads."""
        if metric == "attention_entropy":
            values = self.table.filter(metric=metric)["value"]
            median = values.median()
            return None if median is None else float(median)  # type: ignore[arg-type]
        course = self.course(metric)
        return course[-1].median if course else None


def headline(found: Sequence[Measured]) -> Headline:
    """Who loses most, and who least."""
    most, least = _extremes(found)
    if _change(most.kept, least.kept) <= _APART:
        return Headline("They lose about as much of the differences between tokens")
    return Headline(
        f"{most.name} loses most: {short(most.kept, digits=2)} of the relative residual is left at "
        f"layer {most.lowest.layer}, {short(least.kept, digits=2)} in {least.name}"
    )


def sentences(found: Sequence[Measured]) -> tuple[str, ...]:
    """Who loses most, where the two furthest apart part, in what, and what training moved."""
    most, least = _extremes(found)
    alike = min(found, key=lambda each: each.last.median)
    as_much = _change(most.kept, least.kept) <= _APART
    apart = (
        f"{most.name} loses most of the differences between tokens: its relative residual "
        f"{_fall(most)}. {least.name} loses least: its relative residual {_fall(least)}."
    )
    said = [
        f"All lose about as much: the relative residual {_fall(most)}." if as_much else apart,
        _parting(most, least),
        f"After the last layer tokens are most alike in {alike.name}: a relative residual of "
        f"{alike.last}.",
        f"At the end {most.name} and {least.name} {_difference(most, least)}.",
        _training(found),
    ]
    return tuple(each for each in said if each)


def _fall(measured: Measured) -> str:
    first, lowest = short(measured.first.median), measured.lowest
    if lowest.layer == 0:
        return f"never falls below the {lowest} it has at the input"
    where = f"layer {lowest.layer} of {measured.layers}"
    return f"goes from {first} at the input to {lowest} at {where}"


def _extremes(found: Sequence[Measured]) -> tuple[Measured, Measured]:
    by_share = sorted(found, key=lambda each: each.kept)
    return by_share[0], by_share[-1]


def _parting(one: Measured, other: Measured) -> str:
    """From which depth on the samples of two models do not overlap."""
    steps = max(one.layers, other.layers)
    apart = [
        _nearest(one, step / steps).is_apart(_nearest(other, step / steps))
        for step in range(steps + 1)
    ]
    pair = f"{one.name} and {other.name}"
    if not apart[-1]:
        return (
            f"After the last layer the samples of {pair} overlap, or their medians differ by less "
            "than a tenth: in the end they are not told apart."
        )
    start = next(step for step in range(steps, -1, -1) if step == 0 or not apart[step - 1])
    where = f"layer {start}" if one.layers == other.layers else f"{start / steps:.0%} of the depth"
    where = "the input" if start == 0 else where
    return (
        f"{pair} part at {where}: from there on the 10th to 90th percentiles of their samples do "
        "not overlap, and their medians differ by more than a tenth."
    )


def _nearest(measured: Measured, share: float) -> At:
    course = measured.course(RESIDUAL)
    return course[round(share * (len(course) - 1))]


def _difference(one: Measured, other: Measured) -> str:
    """The figure in which two models differ most, as a share of the larger value."""
    both = {
        metric: (before, after)
        for metric in METRICS
        if (before := one.figure(metric)) is not None
        and (after := other.figure(metric)) is not None
    }
    metric = max(both, key=lambda name: _change(*both[name]))
    before, after = both[metric]
    if _change(before, after) <= _APART:
        return "differ by no more than a tenth in every figure"
    title = metric_catalogue.metric(metric).title.lower()
    return f"differ most in {title}, {short(before)} against {short(after)}"


def _training(found: Sequence[Measured]) -> str:
    """What moved from the first checkpoint of a training to its last, if these are some."""
    steps = [each for each in found if each.model.training]
    trainings = {each.model.training for each in steps}
    if len(steps) < 2 or len(trainings) > 1:
        return ""
    course = [each.lowest.median for each in steps]
    falls = all(after <= before for before, after in pairwise(course))
    rises = all(after >= before for before, after in pairwise(course))
    how = "falls all the way" if falls else "rises all the way" if rises else "goes up and down"
    first, last = steps[0], steps[-1]
    return (
        f"From {first.name} to {last.name} the smallest relative residual {how}, from "
        f"{short(course[0])} to {short(course[-1])}; the two {_difference(first, last)}."
    )


def warnings(found: Sequence[Measured]) -> tuple[str, ...]:
    """What each read, where that needs saying, and whether all read the same."""
    said = [
        f"{each.name}: {warning}"
        for each in found
        if each.check is not None
        for warning in each.check.warnings()
    ]
    read = {each.read for each in found if each.read}
    if len(read) > 1 and not all(each.own for each in found):
        inputs = "; ".join(f"{each.name}, {each.read}" for each in found)
        said.append(f"They were not measured on the same input: {inputs}.")
    return tuple(said)


def listings(found: Sequence[Measured]) -> tuple[Listing, ...]:
    """A row for each model: its relative residual, other figures, and what it read."""
    residuals = tuple(
        (
            each.name,
            each.layers,
            each.first.median,
            each.lowest.median,
            span_of(each.lowest.low, each.lowest.high),
            each.lowest.layer,
            each.last.median,
        )
        for each in found
    )
    columns = ("model", "layers", "input", "lowest", "samples", "at layer", "end")
    note = (
        "Medians over the samples; 0 = all tokens alike. Samples are the 10th to 90th percentile "
        "where it is lowest."
    )
    others = {metric: metric_catalogue.metric(metric).title.lower() for metric in METRICS[1:]}
    ends = tuple((each.name, *(each.figure(metric) for metric in others)) for each in found)
    listed = (
        Listing("Relative residual", columns, residuals, note),
        Listing("After the last layer", ("model", *others.values()), ends, _ENDS),
        _checks(found),
    )
    return tuple(each for each in listed if each.rows)


def _checks(found: Sequence[Measured]) -> Listing:
    rows: list[tuple[Entry, ...]] = [
        (
            each.name,
            each.check.origin,
            each.check.samples,
            sum(each.check.lengths),
            each.check.unknown_count,
            each.check.cut,
            each.check.lost_count,
        )
        for each in found
        if each.check is not None
    ]
    columns = ("model", "read", "samples", "tokens", "unknown", "samples cut", "tokens cut off")
    return Listing("What each model read", columns, tuple(rows))


def drawings(found: Sequence[Measured]) -> tuple[Drawing, ...]:
    """Every figure of the tokens against the layer, a curve for each model."""
    shared = [name for name in OF_TOKENS if all(each.course(name) for each in found)]
    caption = "Each curve is one model on the same input."
    return (Drawing("by_layer", caption, options={"metrics": shared}),)


def _change(one: float, other: float) -> float:
    """A difference as a share of the larger value."""
    most = max(abs(one), abs(other))
    return abs(one - other) / most if most else 0.0
