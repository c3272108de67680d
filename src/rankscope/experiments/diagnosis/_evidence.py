"""What a rule sees in each sample, where most is lost, and how samples become one finding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from rankscope.core.theory import thresholds
from rankscope.experiments.diagnosis._measure import Measured
from rankscope.experiments.diagnosis._stages import PARTS
from rankscope.numerals import plural, power_of_ten, sentence_case, short, span_of
from rankscope.results import Fate, Finding

_NOTHING_LEFT: Final = -200.0
"""Decades below which a step ends at tokens that are exactly equal: zero has no logarithm."""


@dataclass(frozen=True)
class Loss:
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
            return "No layer loses any of the residual that is worth telling."
        kept = power_of_ten(self.decades) if self.decades > _NOTHING_LEFT else "nothing"
        worst_first = sorted(PARTS, key=self.by_part.__getitem__)
        parts = [
            f"{part} {signed(self.by_part[part])}"
            for part in worst_first
            if part == self.part or abs(self.by_part[part]) >= thresholds.BLAMED_DECADES
        ]
        share = ""
        if 2 * self.agreeing < self.samples:
            share = "; samples differ in which layer that is"
        elif self.agreeing < self.samples:
            share = f"; {self.agreeing} of {self.samples} samples lose most there"
        return (
            f"Most is lost in layer {self.layer}, which leaves {kept} of the residual, to its "
            f"{self.part} (in decades: {', '.join(parts)}){share}."
        )


def find_loss(measured: Measured) -> Loss:
    """By medians over the samples, up to the layer where tokens are alike."""
    logs = measured.residual.clamp_min(1e-300).log10()
    falls = logs.diff(dim=0)
    before = (
        measured.residual[:-1] >= thresholds.COLLAPSED_RESIDUAL
    )  # there was still something to lose
    falls = torch.where(before, falls, 0.0)
    typical = falls.quantile(0.5, dim=-1)
    layer = int(typical.argmin()) + 1
    decades = float(typical[layer - 1])
    by_part: dict[str, float] = {
        part: float(measured.changes[part].quantile(0.5, dim=-1)[layer - 1]) for part in PARTS
    }
    totals: dict[str, float] = {
        part: float(torch.where(before, measured.changes[part], 0.0).sum(0).quantile(0.5))
        for part in PARTS
    }
    agreeing = int((falls.argmin(0) + 1 == layer).sum())
    if decades > -thresholds.BLAMED_DECADES:
        layer, decades = 0, 0.0
    worst = min(by_part, key=by_part.__getitem__) if layer else ""
    return Loss(layer, decades, worst, by_part, totals, agreeing, measured.samples)


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
    """For every sample: whether it was found or is under way, in which layer, and its figure.

    ``layer`` is None for what is about no layer. ``untold`` says why nothing can be told at all.
    """

    found: Tensor
    under_way: Tensor
    figure: Tensor
    layer: Tensor | None = None
    untold: str = ""

    @classmethod
    def none(cls, samples: int, why: str) -> "Sighting":
        """Nothing can be told, and why."""
        no = torch.zeros(samples, dtype=torch.bool)
        return cls(no, no, torch.full((samples,), torch.nan), untold=why)

    @property
    def concerned(self) -> Tensor:
        """The samples a sentence is about: those it was found in, else under way, else all."""
        for some in (self.found, self.under_way):
            if bool(some.any()):
                return some
        return torch.ones_like(self.found)

    @property
    def fate(self) -> Fate:
        """Half of the samples decide; fewer are still something."""
        if self.untold:
            return "unknown"
        half = thresholds.DECIDING_SAMPLES * len(self.found)
        if float(self.found.sum()) >= half:
            return "collapse"
        either = self.found | self.under_way
        return "slow" if bool(self.found.any()) or float(either.sum()) >= half else "holds"

    def typical(self) -> tuple[float, int]:
        """Figure and layer of the sample in the middle of those concerned."""
        figures = self.figure[self.concerned]
        middle = int(figures.argsort()[(len(figures) - 1) // 2])
        layer = 0 if self.layer is None else int(self.layer[self.concerned][middle])
        return float(figures[middle]), layer


@dataclass(frozen=True)
class Evidence:
    """What rules are asked about.

    ``exponents`` are, by sample, the power of the number of tokens with which the dispersion goes,
    NaN where it cannot be told; ``why_no_exponents`` is why, if none can. ``epsilon`` is the
    rounding of the number format.
    """

    measured: Measured
    exponents: Tensor
    why_no_exponents: str
    epsilon: float

    @property
    def loss(self) -> Loss:
        """Where most is lost, in the samples that collapse with depth if any do."""
        concerned = depth_sighting(self.measured).concerned
        return find_loss(self.measured.of_samples(concerned))


class Words(NamedTuple):
    """What a rule saw, and how it is said, given the figure and the layer of a typical sample.

    ``part`` and ``layer`` are to blame; unless given, the layer is that in which it was seen.
    """

    seen: Sighting
    when_found: Callable[[float, int], str] = lambda _, __: ""
    when_not: Callable[[float, int], str] = lambda _, __: ""
    part: str = ""
    layer: int | None = None


@dataclass(frozen=True)
class Rule:
    """One of the things called collapse: when it counts as found, and what it can come to.

    ``worst`` is "noted" for what is no loss; ``headline`` is its name in a headline, unless
    that is its own.
    """

    name: str
    text: str
    judge: Callable[[Evidence], Words]
    worst: Fate = "collapse"
    headline: str = ""

    def finding(self, evidence: Evidence) -> Finding:
        """The samples' sightings as one finding."""
        seen, when_found, when_not, part, layer = self.judge(evidence)
        samples, count = len(seen.found), int(seen.found.sum())
        if seen.untold:
            words = f"{sentence_case(self.name)} cannot be told: {seen.untold}."
            return Finding(self.name, "unknown", words, self.text)
        fate = seen.fate
        figure, seen_at = seen.typical()
        words = when_not(figure, seen_at) if fate == "holds" else when_found(figure, seen_at)
        affected = count or (0 if fate == "holds" else int(seen.under_way.sum()))
        if fate != "holds" and affected < samples:
            rest = seen.figure[~(seen.found if count else seen.under_way)]
            words += (
                f" So it is in {affected} of {plural(samples, 'sample')}; in the others the "
                f"figure is {span_of(float(rest.min()), float(rest.max()))}."
            )
        fate = self.worst if fate == "collapse" else fate
        where = None if seen.layer is None else seen_at
        blamed = ("", where) if fate == "holds" else (part, layer or where)
        return Finding(
            self.name, fate, words, self.text, figure, blamed[1], blamed[0], affected, samples
        )


def depth_sighting(measured: Measured) -> Sighting:
    """Sample by sample, over all layers."""
    residual = measured.common
    if bool((residual[0] < thresholds.COLLAPSED_RESIDUAL).all()) and not bool(
        (residual >= thresholds.COLLAPSED_RESIDUAL).any()
    ):
        return Sighting.none(measured.samples, "the tokens are alike before the first layer")
    shrunk = kept(residual) < thresholds.SHRUNK_RESIDUAL
    alike = (residual < thresholds.COLLAPSED_RESIDUAL) & shrunk
    before = residual[:-1]
    sudden = (residual[1:] < thresholds.HALVED_RESIDUAL * before) & (
        before >= thresholds.COLLAPSED_RESIDUAL
    )
    lowest = residual.argmin(0)
    layer = _first(alike, _first(shrunk, lowest))
    figure = residual.gather(0, torch.where(alike.any(0), layer, lowest).unsqueeze(0)).squeeze(0)
    return Sighting(alike.any(0), shrunk.any(0) | sudden.any(0), figure, layer)


def kept(residual: Tensor) -> Tensor:
    """What each layer has of the largest residual so far; all of it where there never was any."""
    largest = residual.cummax(0).values
    return torch.where(largest > 0, residual / largest, 1.0)


def _first(flags: Tensor, otherwise: Tensor) -> Tensor:
    """The first layer with a flag, by sample."""
    return torch.where(flags.any(0), flags.int().argmax(0), otherwise)


def rule(
    name: str, text: str, *, worst: Fate = "collapse", headline: str = ""
) -> Callable[[Callable[[Evidence], Words]], Rule]:
    """Make a rule of the function that judges it."""
    return lambda judge: Rule(name, text, judge, worst, headline)
