"""Masks for one network side by side: what their graphs promise, and how fast tokens agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import estimates, kit
from rankscope.experiments.depths import DISPERSION, RELATIVE_DISPERSION, doubts
from rankscope.experiments.laws import Law, sure_medians
from rankscope.experiments.questions._masked import (
    BY_MASK,
    PRODUCTS,
    Masked,
    left_out,
    measure_mask,
)
from rankscope.masks import Mask, as_mask
from rankscope.network import Network
from rankscope.numerals import plural, short

ENTRY = kit.entry("masks")
MASKS = ("full", "causal", "window:8", "causal-window:8", "strided:8", "bigbird:2:1:2")
_SEVERAL = 3
"""Radii of depth before a rate is taken for final; earlier, some tokens have not interacted yet."""
_REFERENCE_LAYERS = 2
"""The fastest mask's loss over this many layers is what the others are asked for."""


@dataclass(frozen=True)
class Config(kit.Question):
    """Masks, as values or by name, and how many layers; as many as the network has if None."""

    masks: tuple[str | Mask, ...] = MASKS
    depth: int | None = None

    @property
    def layers(self) -> int:
        """How many layers there are to be."""
        return self.subject.network.spec.layers if self.depth is None else self.depth

    def describe(self) -> dict[str, Any]:
        """The masks by their full names, and how many layers there were."""
        return {"masks": list(_masks_by_name(self.masks)), "depth": self.layers}


def cost(config: Config) -> estimates.Cost:
    """What it will take: the whole depth, mask by mask."""
    one = estimates.scaled(config.subject).times(2)
    return one.times(len(config.masks) * config.layers / config.subject.network.spec.layers)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Run one network under several masks, in scaled arithmetic, to any depth.

    A network that is not deep enough is repeated. Ergodicity coefficients, weights and graphs are
    those of the first sample; dispersion (μ of Wu et al. 2024, the residual
    in the Frobenius norm) is that of all samples.
    """
    subject = config.subject
    subject.refuse_measured("graphs of masks are about all tokens")
    masks = _masks_by_name(config.masks)
    depth = config.layers
    if depth < 1:
        raise InputError(f"depth={depth} is out of range; expected 1 layer or more.")
    exact = subject.to(torch.float64)
    deep = exact.network.repeat(-(-depth // subject.network.spec.layers))
    found = [
        measure_mask(name, exact.with_network(deep.with_mask(mask)), mask, depth, on_part)
        for (name, mask), on_part in kit.tracked(masks.items(), on_step)
    ]
    table = tables.joined({one.name: one.table for one in found})
    return ENTRY.result(
        config,
        title=subject.name,
        question="Which mask keeps the tokens apart for how long, and what is left in the end?",
        sentences=(
            *_comparison(found, tables.summary(table)),
            *(f"{one.name}: {one.facts}; {one.law_in_words}." for one in found),
            *_coverage(deep),
            *filter(None, [left_out(found[0].facts.tokens)]),
        ),
        table=table,
        about={"norm": "Frobenius"},
        notes=doubts({one.name: one.trace for one in found}),
        drawings=_drawings(found),
        shown=(RELATIVE_DISPERSION, *BY_MASK),
    )


def _drawings(found: Sequence[Masked]) -> tuple[kit.Drawing, ...]:
    cut = _axis_end(found)
    drawings = (
        kit.Drawing("by_depth", "μ(X) / ‖X‖, Frobenius norms.", RELATIVE_DISPERSION, cut),
        kit.Drawing("by_depth", "μ(X) itself, the measure of Wu et al. 2024.", DISPERSION, cut),
        kit.Drawing(
            "by_depth",
            "The ergodicity coefficient of the product of the heads' average in all layers so far, "
            "first sample. With one head and values that do not stretch it bounds what is left of "
            "any difference.",
            PRODUCTS,
        ),
        kit.Drawing(
            "by_setting",
            "What the tokens hold of each position's input after all layers: the row all products "
            "of attention matrices tend to (the heads' average, first sample).",
            "limit_weight",
        ),
    )
    measured = set(found[0].table["metric"])
    return tuple(each for each in drawings if each.metric in measured)


def _masks_by_name(masks: Sequence[str | Mask]) -> dict[str, Mask]:
    """Masks under names of their own: two may be written alike and differ."""
    if isinstance(masks, str) or not masks:
        raise InputError("there is no list of masks to compare; write masks=('full', 'causal').")
    named: dict[str, Mask] = {}
    for mask in dict.fromkeys(map(as_mask, masks)):
        name = str(mask)
        while name in named:
            name += " (another)"
        named[name] = mask
    return named


def _axis_end(found: Sequence[Masked]) -> dict[str, float]:
    """Where the axis ends: below the masks that collapse exponentially, not far below them."""
    ends = [one.law.last for one in found if one.law.kind != "doubly exponential"]
    ends = [end for end in ends if math.isfinite(end)]
    return {"lowest": 1.3 * min(ends) - 1} if ends and len(ends) < len(found) else {}


def _coverage(network: Network) -> tuple[str, ...]:
    """What of a network is beyond the theorem on masks, if anything is."""
    spec = network.spec
    beyond = {
        "skips": any(spec.skips),
        "norms": spec.norm != "none",
        "MLPs": spec.mlp_width > 0,
        f"{spec.heads} heads": spec.heads > 1,
    }
    named = ", ".join(name for name, there in beyond.items() if there)
    if not named:
        return ()
    return (f"The theorem on masks of Wu et al. 2024 does not cover this network: {named}.",)


def _comparison(found: Sequence[Masked], summary: pl.DataFrame) -> tuple[str, ...]:
    """How many layers each mask takes to lose what the fastest loses in two."""
    curves = {one.name: sure_medians(summary, RELATIVE_DISPERSION, variant=one.name) for one in found}
    curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
    if not curves:
        return ()
    layers = min(_REFERENCE_LAYERS, *(len(curve) - 1 for curve in curves.values()))
    fastest = min(curves, key=lambda name: curves[name][layers])
    target = curves[fastest][layers]
    sentences = []
    for one in found:
        if one.name == fastest:
            continue
        if not one.facts.quasi_strongly_connected:
            sentences.append(
                f"{one.name} does not collapse: its graph has no center but "
                f"{len(one.facts.closed_classes)} closed classes, which do not see each other."
            )
            continue
        if one.name not in curves:  # nothing of it is sure
            continue
        needed = layers_to(curves[one.name], target, one.law, radius=one.facts.radius)
        sentences.append(f"{one.name} {needed} to lose what {fastest} loses in {layers}.")
    return tuple(sentences)


def layers_to(curve: Sequence[float], target: float, found: Law, *, radius: float = 1.0) -> str:
    """In words: after how many layers a curve is at or below a target, measured or to come.

    >>> layers_to([0.0, -1.0, -2.0], -2.0, Law("exponential", 1.0, -1.0, -2.0))
    'needs 2 layers'
    """
    depth = len(curve) - 1
    reached = [layer for layer, value in enumerate(curve) if value <= target]
    if reached and not reached[0]:
        return "has nothing"
    if reached:
        return f"needs {plural(reached[0], 'layer')}"
    if depth < _SEVERAL * radius:
        return f"needs more than {plural(depth, 'layer')} (its radius is {radius:g})"
    if found.kind != "exponential":
        return f"needs more than {plural(depth, 'layer')}, if it ever gets there,"
    more = depth + (target - curve[-1]) / found.rate
    return f"would need about {short(round(more))} layers at its pace"
