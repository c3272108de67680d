"""The evidence that rules judge, and how the judgements of all samples become one finding."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import torch
from torch import Tensor

from rankscope.core.theory import thresholds
from rankscope.experiments.diagnosis._causes import Suspect, suspects
from rankscope.experiments.diagnosis._measure import ModelFigures
from rankscope.numerals import plural, power_of_ten, sentence_case, short, span_of
from rankscope.results import Fate, Finding
from rankscope.version import documentation

_NOTHING_LEFT: Final = -200.0
"""Decades below which a step ends at tokens that are exactly equal: zero has no logarithm."""


class Loss(NamedTuple):
    """The layer with the largest fall of the relative residual, and what its parts did, in decades.

    ``layer`` is 0 where no layer loses anything. ``agreeing`` of ``samples`` lose most there.
    """

    layer: int
    decades: float
    part: str
    by_part: dict[str, float]
    totals: dict[str, float]
    agreeing: int
    samples: int

    @property
    def sentence(self) -> str:
        """Where most is lost, and to what."""
        if not self.layer:
            return "No single layer makes a noticeable difference."
        size = "to zero"
        if self.decades > -1:
            size = f"−{short(100 * (1 - 10**self.decades), digits=2)} %"
        elif self.decades > _NOTHING_LEFT:
            size = f"to {power_of_ten(self.decades)} of what there was"
        alone = all(
            fall > -thresholds.BLAMED_DECADES
            for part, fall in self.by_part.items()
            if part != self.part
        )
        share = ""
        if 2 * self.agreeing < self.samples:
            share = "; samples differ in which layer that is"
        elif self.agreeing < self.samples:
            share = f"; {self.agreeing} of {self.samples} samples agree"
        return (
            f"The largest drop of the residual is in layer {self.layer} ({size}), "
            f"{'' if alone else 'mostly '}from its {self.part}{share}."
        )


def find_loss(measured: ModelFigures) -> Loss:
    """By medians over the samples, up to the layer where tokens are alike."""
    before = measured.residual[:-1] >= thresholds.COLLAPSED_RESIDUAL  # still something to lose
    falls = measured.residual.clamp_min(1e-300).log10().diff(dim=0)
    falls = torch.where(before, falls, 0.0)
    typical = falls.quantile(0.5, dim=-1)
    layer = int(typical.argmin()) + 1
    decades = float(typical[layer - 1])
    by_part, totals = {}, {}
    for part, change in measured.changes.items():
        by_part[part] = float(change.quantile(0.5, dim=-1)[layer - 1])
        totals[part] = float(torch.where(before, change, 0.0).sum(0).quantile(0.5))
    agreeing, samples = int((falls.argmin(0) + 1 == layer).sum()), falls.shape[-1]
    if decades > -thresholds.BLAMED_DECADES:
        return Loss(0, 0.0, "", by_part, totals, agreeing, samples)
    worst = min(by_part, key=by_part.__getitem__)
    return Loss(layer, decades, worst, by_part, totals, agreeing, samples)


def signed(decades: float) -> str:
    """A number of decades with its sign.

    >>> signed(-0.25), signed(0.031)
    ('−0.25', '+0.031')
    """
    if decades < _NOTHING_LEFT:
        return "all of it"
    text = short(decades, digits=2)
    return text if text.startswith("−") else f"+{text}"


@dataclass(frozen=True)
class Sighting:
    """For every sample: whether a collapse is present or under way, its figure, and its layer.

    ``layer`` is None for a rule that does not name one.
    """

    present: Tensor
    under_way: Tensor
    figure: Tensor
    layer: Tensor | None = None

    @property
    def concerned(self) -> Tensor:
        """The samples a sentence describes: those that show it, else those on the way, else all."""
        for some in (self.present, self.under_way):
            if bool(some.any()):
                return some
        return torch.ones_like(self.present)

    @property
    def fate(self) -> Fate:
        """Half of the samples make a collapse; fewer make one that is under way."""
        half = thresholds.DECIDING_SAMPLES * len(self.present)
        if float(self.present.sum()) >= half:
            return "collapse"
        either = self.present | self.under_way
        return "slow" if bool(self.present.any()) or float(either.sum()) >= half else "absent"

    @property
    def typical(self) -> tuple[float, int]:
        """Figure and layer of the median sample of those concerned."""
        figures = self.figure[self.concerned]
        middle = int(figures.argsort()[(len(figures) - 1) // 2])
        layer = 0 if self.layer is None else int(self.layer[self.concerned][middle])
        return float(figures[middle]), layer


@dataclass(frozen=True)
class RuleEvidence:
    """Everything that rules may use.

    ``exponents`` are, by sample, the exponent with which the dispersion depends on the number of
    tokens, NaN where it is unknown; ``why_no_exponents`` is the reason, if all are. ``epsilon`` is
    that of the number format. ``twin`` are the figures of the untrained twin, including its
    embeddings, on the same texts, if there is one.
    """

    measured: ModelFigures
    exponents: Tensor
    why_no_exponents: str
    epsilon: float
    twin: ModelFigures | None = None
    causal: bool = False
    """Whether the first token attends only to itself."""

    def beside(self, name: str, part: str) -> Iterator[tuple[int, float, float, float]]:
        """By layer from 1, a figure of a part, its median in the other layers, and the twin's.

        The figures (``sizes`` and the like) are medians over the samples. Where there is no
        other layer or no twin, each replaces the other.
        """
        mine = getattr(self.measured, name)[part].nanquantile(0.5, dim=-1)
        twins = [] if self.twin is None else [getattr(self.twin, name)[part]]
        drawn = [values.nanquantile(0.5, dim=-1) for values in twins]
        for at, figure in enumerate(mine.tolist()):
            rest = torch.cat([mine[:at], mine[at + 1 :]])
            usual = float(rest.nanmedian()) if len(rest) else math.nan
            fresh = float(drawn[0][at]) if drawn else usual
            yield at + 1, figure, fresh if math.isnan(usual) else usual, fresh

    @cached_property
    def suspects(self) -> list[Suspect]:
        """Unusual weights compared with the other layers and the twin, the most unusual first."""
        return suspects(self.measured.weights, () if self.twin is None else self.twin.weights)

    @cached_property
    def kept(self) -> Tensor:
        """The residual of each layer over the largest one so far; 1 where all are 0."""
        residual = self.measured.common
        largest = residual.cummax(0).values
        return torch.where(largest > 0, residual / largest, 1.0)

    @cached_property
    def depth(self) -> Sighting | None:
        """Depth collapse by sample, over all layers; None if tokens are alike in all of them."""
        residual = self.measured.common
        few = residual < thresholds.COLLAPSED_RESIDUAL
        if bool(few.all()):
            return None
        shrunk = self.kept < thresholds.SHRUNK_RESIDUAL
        alike = few & shrunk
        sudden = (residual[1:] < thresholds.HALVED_RESIDUAL * residual[:-1]) & ~few[:-1]
        lowest = residual.argmin(0)
        layer = lowest
        for flags in (shrunk, alike):  # the first layer with a flag, by sample
            layer = torch.where(flags.any(0), flags.int().argmax(0), layer)
        at = torch.where(alike.any(0), layer, lowest)
        figure = residual.gather(0, at.unsqueeze(0)).squeeze(0)
        return Sighting(alike.any(0), shrunk.any(0) | sudden.any(0), figure, layer)

    @cached_property
    def loss(self) -> Loss:
        """Where most is lost, in the samples that collapse with depth if any do."""
        if self.depth is None:
            return find_loss(self.measured)
        return find_loss(self.measured.of_samples(self.depth.concerned))


class Words(NamedTuple):
    """What a rule saw, and the sentence about a typical sample.

    ``part`` and ``layer`` are where it happens; by default the layer in which it was seen.
    ``lowest`` is the figure and its layer, for a rule that judges medians over the samples.
    """

    seen: Sighting
    sentence: str
    part: str = ""
    layer: int | None = None
    lowest: tuple[float, int] | None = None


@dataclass(frozen=True)
class Rule:
    """One kind of collapse: its condition in words, and the function that judges it.

    ``judge`` returns the reason if it cannot decide. ``worst`` is "noted" for what is not a loss;
    ``headline`` is its name in a headline, by default ``name``.
    """

    name: str
    text: str
    judge: Callable[[RuleEvidence], Words | str]
    worst: Fate = "collapse"
    headline: str = ""

    @property
    def url(self) -> str:
        """The page of the documentation about this rule."""
        return documentation("rules", self.name)

    def finding(self, evidence: RuleEvidence) -> Finding:
        """The samples' sightings as one finding."""
        judged = self.judge(evidence)
        if isinstance(judged, str):
            words = f"{sentence_case(self.name)} could not be determined: {judged}."
            return Finding(self.name, "unknown", words, self.text, url=self.url)
        seen, words, part, layer, lowest = judged
        fate, (figure, at) = seen.fate, lowest or seen.typical
        where = None if seen.layer is None else at
        samples, count = len(seen.present), int(seen.present.sum())
        finding = Finding(
            self.name, fate, words, self.text, figure, where, "", count, samples, url=self.url
        )
        if fate == "absent":
            return finding
        affected = seen.concerned
        count = int(affected.sum())
        if count < samples:
            rest = seen.figure[~affected]
            words += (
                f" This is the case in {count} of {plural(samples, 'sample')}; in the others the "
                f"value is {span_of(float(rest.min()), float(rest.max()))}."
            )
        fate = self.worst if fate == "collapse" or self.worst == "noted" else fate
        return replace(
            finding, fate=fate, sentence=words, layer=layer or where, part=part, found_in=count
        )


def rule(
    name: str, text: str, *, worst: Fate = "collapse", headline: str = ""
) -> Callable[[Callable[[RuleEvidence], Words | str]], Rule]:
    """Turn the function that judges a rule into the rule."""
    return lambda judge: Rule(name, text, judge, worst, headline)
