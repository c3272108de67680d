"""What a rule sees in each sample, and how samples are counted into a finding."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.theory import thresholds
from rankscope.numerals import plural, sentence_case, span_of
from rankscope.results import Fate, Finding


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
class Kind:
    """One of the things called collapse, and its rule in words with its thresholds.

    ``worst`` is what it can come to: a cone is no loss, so it is only noted.
    """

    name: str
    rule: str
    worst: Fate = "collapse"

    def finding(
        self,
        seen: Sighting,
        *,
        when_found: Callable[[float, int], str],
        when_not: Callable[[float, int], str],
        part: str = "",
        layer: int | None = None,
    ) -> Finding:
        """The samples' sightings as one finding; sentences are made of a figure and a layer.

        ``layer`` is the one to blame where it is not that in which it was seen.
        """
        samples, count = len(seen.found), int(seen.found.sum())
        if seen.untold:
            words = f"{sentence_case(self.name)} cannot be told: {seen.untold}."
            return Finding(self.name, "unknown", words, self.rule)
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
            self.name, fate, words, self.rule, figure, blamed[1], blamed[0], affected, samples
        )
