"""The words of a comparison: which model loses most, where models differ, and in what."""

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
"""Medians that differ by no more than this share of the larger count as equal."""


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
class ModelCurve:
    """One model and its measurements, one number per row.

    ``read`` describes the input and ``weights`` the weights; ``measured_here`` is False for a
    result that was read from a file.
    """

    model: Model
    table: pl.DataFrame
    check: InputCheck | None = None
    read: str = ""
    weights: str = ""
    measured_here: bool = False

    @property
    def name(self) -> str:
        """Its label."""
        return self.model.label

    @cached_property
    def course(self) -> list[At]:
        """The relative residual from the input to the last layer."""
        rows = tables.summary(self.table.filter(metric=RESIDUAL)).sort("layer")
        return [At(*row) for row in rows.select("layer", "low", "median", "high").iter_rows()]

    @property
    def layers(self) -> int:
        """The number of layers."""
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


def _change(first: float, second: float) -> float:
    """A difference as a share of the larger value."""
    most = max(abs(first), abs(second))
    return abs(first - second) / most if most else 0.0


def headline(models: Sequence[ModelCurve]) -> Headline:
    """Which model keeps its tokens apart best, and which worst."""
    most, *_, least = sorted(models, key=lambda model: model.apart)
    if _change(most.apart, least.apart) <= _APART:
        return Headline("All models keep their tokens about equally far apart")
    return Headline(
        f"{least.name} keeps its tokens apart best: the relative residual is "
        f"{short(least.apart, digits=2)} at its lowest, {short(most.apart, digits=2)} in "
        f"{most.name}"
    )


def sentences(models: Sequence[ModelCurve]) -> tuple[str, ...]:
    """Whose tokens are most alike, where the two extremes separate, and what training changed."""
    most, *_, least = sorted(models, key=lambda model: model.apart)
    alike = min(models, key=lambda model: model.course[-1].median)
    lost = (
        f"Tokens become most alike in {most.name}: its relative residual {_fall(most)}. They stay "
        f"furthest apart in {least.name}: its relative residual {_fall(least)}."
    )
    if _change(most.apart, least.apart) <= _APART:
        lost = f"Tokens are about equally far apart in all: the relative residual {_fall(most)}."
    return (
        f"{lost}{_more_lost(models, most)}",
        _parting(most, least),
        f"After the last layer tokens are most alike in {alike.name}: a relative residual of "
        f"{alike.course[-1]}.",
        f"After the last layer {most.name} and {least.name} {_difference(most, least)}.",
        *_training(models),
    )


def _more_lost(models: Sequence[ModelCurve], alike: ModelCurve) -> str:
    """The model that loses most of its input's residual, if that is another one."""
    most = min(models, key=lambda model: model.kept)
    if most is alike or _change(most.kept, alike.kept) <= _APART:
        return ""
    return (
        f" Relative to its input, {most.name} loses most: {short(most.kept, digits=2)} of the "
        "residual remains."
    )


def by_step(curves: Sequence[ModelCurve]) -> pl.DataFrame | None:
    """Figures of every sample against the step, of checkpoints of one training; None of others."""
    steps = [curve for curve in curves if curve.model.step is not None]
    if len(steps) < 2 or len({curve.model.training for curve in steps}) > 1:
        return None
    rows: list[tuple[str, float, int, str, float]] = []
    for curve in steps:
        for name, (metric, layer) in {
            "lowest_relative_residual": (RESIDUAL, curve.lowest.layer),
            "last_mean_cosine": ("mean_cosine", curve.layers),
            "last_effective_rank": ("effective_rank", curve.layers),
        }.items():
            values = curve.table.filter(metric=metric, layer=layer)
            rows += [
                ("step", float(curve.model.step or 0), sample, name, value)
                for sample, value in values.select("sample", "value").iter_rows()
            ]
    rows.sort(key=lambda row: row[3])
    return tables.from_rows(("parameter", "setting", "sample", "metric", "value"), rows)


def _fall(measured: ModelCurve) -> str:
    lowest = measured.lowest
    if lowest.layer == 0:
        return f"never falls below its value at the input, {lowest}"
    where = f"layer {lowest.layer} of {measured.layers}"
    return f"goes from {short(measured.course[0].median)} at the input to {lowest} at {where}"


def _parting(first: ModelCurve, second: ModelCurve) -> str:
    """The depth from which on the samples of two models do not overlap."""
    steps = max(first.layers, second.layers)
    start = steps + 1
    for step in range(steps, -1, -1):
        a, b = (model.course[round(step / steps * model.layers)] for model in (first, second))
        overlap = a.low <= b.high and b.low <= a.high
        if overlap or _change(a.median, b.median) <= _APART:
            break
        start = step
    pair = f"{first.name} and {second.name}"
    if start > steps:
        return (
            f"After the last layer {pair} do not differ: their samples overlap, or their medians "
            "differ by less than a tenth."
        )
    depth = f"{start / steps:.0%} of the depth"
    where = f"layer {start}" if first.layers == second.layers else depth
    return (
        f"{pair} differ from {where if start else 'the input'} on: the 10th to 90th "
        "percentiles of their samples do not overlap, and their medians differ by more than a "
        "tenth."
    )


def _difference(first: ModelCurve, second: ModelCurve) -> str:
    """The figure in which two models differ most, as a share of the larger value."""
    both = {
        metric: (before, after)
        for metric in METRICS
        if (before := first.figure(metric)) is not None
        and (after := second.figure(metric)) is not None
    }
    metric, (before, after) = max(both.items(), key=lambda figures: _change(*figures[1]))
    if _change(before, after) <= _APART:
        return "differ by no more than a tenth in every figure"
    title = metric_catalogue.metric(metric).title.lower()
    return f"differ most in {title}, {short(before)} against {short(after)}"


def _training(curves: Sequence[ModelCurve]) -> list[str]:
    """The change from the first checkpoint of a training run to the last, if there are any."""
    steps = [curve for curve in curves if curve.model.training]
    if len(steps) < 2 or len({curve.model.training for curve in steps}) > 1:
        return []
    course = [curve.lowest.median for curve in steps]
    falls = all(after <= before for before, after in pairwise(course))
    rises = all(after >= before for before, after in pairwise(course))
    how = "always falls" if falls else "always rises" if rises else "goes up and down"
    first, last = steps[0], steps[-1]
    return [
        f"From {first.name} to {last.name} the smallest relative residual {how}, from "
        f"{short(course[0])} to {short(course[-1])}; the two {_difference(first, last)}."
    ]


def warnings(curves: Sequence[ModelCurve]) -> tuple[str, ...]:
    """Problems with the inputs, and whether all models read the same."""
    said = [
        f"{curve.name}: {warning}"
        for curve in curves
        if curve.check is not None
        for warning in curve.check.warnings()
    ]
    longest = {
        curve.name: max(curve.check.lengths)
        for curve in curves
        if curve.check is not None and curve.check.cut
    }
    if len(set(longest.values())) > 1:
        cut = ", ".join(f"{name} at {count} tokens" for name, count in longest.items())
        said.append(
            f"Texts were cut at different lengths: {cut}; use --length {min(longest.values())} for "
            "equal lengths."
        )
    all_new = all(curve.measured_here for curve in curves)
    if len({curve.read for curve in curves} - {""}) > 1 and not all_new:
        inputs = "; ".join(f"{curve.name}, {curve.read}" for curve in curves)
        said.append(f"The models were not measured on the same input: {inputs}.")
    return tuple(said)


def listings(curves: Sequence[ModelCurve]) -> tuple[Listing, ...]:
    """A row for each model: its relative residual, other figures, and what it read."""
    residuals, checks = [], []
    for curve in curves:
        at, first, last = curve.lowest, curve.course[0].median, curve.course[-1].median
        span = span_of(at.low, at.high)
        residuals.append((curve.name, curve.layers, first, at.median, span, at.layer, last))
        if (read := curve.check) is not None:
            cut = (read.unknown_count, read.cut, read.lost_count)
            checks.append((curve.name, read.origin, read.samples, sum(read.lengths), *cut))
    others = {metric: metric_catalogue.metric(metric).title.lower() for metric in METRICS[1:]}
    listed = (
        Listing(
            "Relative residual",
            ("model", "layers", "input", "lowest", "samples", "at layer", "end"),
            tuple(residuals),
            "Medians over the samples; 0 = all tokens equal. Samples: the 10th to 90th percentile "
            "at the lowest layer.",
        ),
        Listing(
            "After the last layer",
            ("model", *others.values()),
            tuple((curve.name, *map(curve.figure, others)) for curve in curves),
            "Medians over the samples; of attention entropy, over all layers and heads as well.",
        ),
        Listing(
            "What each model read",
            ("model", "read", "samples", "tokens", "unknown", "samples cut", "tokens cut off"),
            tuple(checks),
        ),
    )
    return tuple(listing for listing in listed if listing.rows)
