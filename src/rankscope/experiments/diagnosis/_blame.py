"""Where most of the residual is lost, and to which part."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.theory import thresholds
from rankscope.experiments.diagnosis._measure import Measured
from rankscope.experiments.diagnosis._walk import PARTS
from rankscope.numerals import power_of_ten, short

_NOTHING_LEFT = -200.0
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
    # Where there was still something to lose.
    before = measured.residual[:-1] >= thresholds.COLLAPSED_RESIDUAL
    falls = torch.where(before, falls, 0.0)
    typical = _median(falls)
    layer = int(typical.argmin()) + 1
    decades = float(typical[layer - 1])
    by_part: dict[str, float] = {
        part: float(_median(measured.changes[part])[layer - 1]) for part in PARTS
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


def _median(values: Tensor) -> Tensor:
    return values.quantile(0.5, dim=-1)
