"""Masks for one network side by side: what their graphs promise, and how fast tokens agree."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch

from rankscope import tables
from rankscope.ask import Cost
from rankscope.core.masks import Mask, as_mask
from rankscope.core.network import Network
from rankscope.core.theory import GraphFacts, Law
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.depths import (
    DISPERSION,
    LAW_COLUMNS,
    LAW_NOTE,
    RELATIVE_DISPERSION,
    doubts,
    law_entries,
    sure_medians,
)
from rankscope.experiments.questions._masked import (
    BY_MASK,
    PRODUCTS,
    Masked,
    left_out,
    measure_mask,
)
from rankscope.numerals import plural, power_of_ten, short

ENTRY = kit.question(
    "masks",
    "Which mask keeps the tokens apart?",
    asks=kit.Asks(
        passages=4, without="skip,mlp,norm", all_tokens="graphs of masks are about all tokens"
    ),
    metrics=(
        kit.Metric(
            "radius",
            "Radius of the graph",
            "radius",
            "linear",
            "Layers until one token reaches all; infinite = never",
            "The fewest steps in which some token reaches all others in the graph of the mask.",
            includes=(0.0,),
        ),
        kit.Metric(
            "mean_ergodicity",
            "Mean ergodicity coefficient",
            "mean τ(P)",
            "linear",
            "0 = one step makes all tokens alike; 1 = need not mix",
            "The mean of Dobrushin's coefficient τ(P) over all layers and heads of the first "
            "sample.",
            "down",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "product_ergodicity_rate",
            "Ergodicity coefficient of all layers, by layer",
            "τ of all layers, L-th root",
            "linear",
            "What a layer can leave of any difference on average",
            "The L-th root of τ of the product of the heads' average attention in all L layers, "
            "for the first sample.",
            "down",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "promised_loss",
            "Promised loss",
            "loss in a layer",
            "log",
            "The part of the differences a layer loses at least",
            "The part of all differences that the graph and the smallest weight promise to be "
            "lost in each layer; 0 where they promise nothing.",
            includes=(1.0,),
        ),
        kit.Metric(
            "largest_limit_weight",
            "Largest weight in the end",
            "largest weight",
            "linear",
            "1 = all is left of one position; 1 / n = of all alike",
            "The largest of the weights that the final tokens give to each position's input.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "perron_weight",
            "Perron weight",
            "weight of a token",
            "linear",
            "What each token adds to the limit",
            "π with π = πP: the weight of each position in the state that repeating the last "
            "layer's attention tends to.",
            includes=(0.0,),
        ),
        kit.Metric(
            "limit_weight",
            "Weight in the end",
            "weight",
            "linear",
            "What is left of each position's input",
            "The mean row of the product of all layers' attention matrices: how much of the final "
            "tokens comes from each position.",
            includes=(0.0,),
        ),
    ),
)
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


def cost(config: Config) -> Cost:
    """What it will take: the whole depth, mask by mask."""
    one = Cost.of_deep_trace(config.subject).times(2)
    return one.times(len(config.masks) * config.layers / config.subject.network.spec.layers)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Run one network under several masks, in scaled arithmetic, to any depth.

    A network that is not deep enough is repeated. Ergodicity coefficients, weights and graphs are
    those of the first sample; dispersion (μ of Wu et al. 2024, the residual
    in the Frobenius norm) is that of all samples.
    """
    subject = config.subject
    subject.refuse_measured(ENTRY.asks.all_tokens)
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
            *subject.reduced,
            *_sentences(found, depth),
            *_coverage(deep),
            *filter(None, [left_out(found[0].facts.tokens)]),
        ),
        table=table,
        listings=(_measured(found, tables.summary(table)), _graphs(found)),
        about={"dispersion": "Frobenius norm"},
        notes=doubts({one.name: one.trace for one in found}),
        drawings=_drawings(found),
        shown=(RELATIVE_DISPERSION, *(each for each in BY_MASK if each != "radius")),
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


def _sentences(found: Sequence[Masked], depth: int) -> Iterator[str]:
    """Which mask loses most and which least, and which cannot collapse."""
    sure = {one.name: one.law.last for one in found if one.law.sure_to is None}
    if len(sure) > 1:
        (least, low), *_, (most, high) = sorted(sure.items(), key=lambda each: each[1])
        yield (
            f"After {plural(depth, 'layer')} tokens are most alike under {least}, a relative "
            f"dispersion of {power_of_ten(low)}, and least under {most}, {power_of_ten(high)} "
            "(medians over the samples)."
        )
    apart = [one.name for one in found if not one.facts.quasi_strongly_connected]
    if apart:
        whose = "its graph has" if len(apart) == 1 else "their graphs have"
        yield f"{', '.join(apart)} cannot collapse to one point: {whose} no center."


def _graphs(found: Sequence[Masked]) -> kit.Listing:
    """What is known before any weight is."""
    rows = tuple(
        (
            *(one.name, one.facts.edges, len(one.facts.centers)),
            *(_whole(each) for each in (one.facts.radius, one.facts.diameter)),
            "; ".join(_beside(one.facts)) or None,
        )
        for one in found
    )
    return kit.Listing(
        "The graphs of the masks",
        ("mask", "edges", "centers", "radius", "diameter", "beside"),
        rows,
        f"Of {found[0].facts.tokens} tokens, in the first sample. A center is a token that reaches "
        "every other. Radius (from the best center) and diameter (between any two tokens) are in "
        "layers; a dash where some token is never reached.",
    )


def _beside(facts: GraphFacts) -> Iterator[str]:
    """What else a graph has to say, where it is not like most."""
    if not facts.quasi_strongly_connected:
        yield f"{len(facts.closed_classes)} closed classes"
    elif not facts.collapses:
        yield f"period {facts.periods[0]}"
    if facts.missing_self_loops:
        yield f"{plural(len(facts.missing_self_loops), 'token')} without self-loop"


def _whole(layers: float) -> int | None:
    return int(layers) if math.isfinite(layers) else None


def _measured(found: Sequence[Masked], summary: pl.DataFrame) -> kit.Listing:
    """How each mask ends, and how many layers it takes to lose what the fastest loses in two."""
    curves = {
        one.name: sure_medians(summary, RELATIVE_DISPERSION, variant=one.name) for one in found
    }
    curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
    layers = min([_REFERENCE_LAYERS, *(len(curve) - 1 for curve in curves.values())])
    fastest = min(curves, key=lambda name: curves[name][layers], default="")
    rows = []
    for one in found:
        end, law, pace = law_entries(one.law)
        needed = None
        if one.name in curves and one.facts.quasi_strongly_connected:
            target = curves[fastest][layers]
            needed = layers_to(curves[one.name], target, one.law, radius=one.facts.radius)
        rows.append((one.name, end, one.different_laws or law, pace, needed))
    return kit.Listing(
        "Relative dispersion under each mask",
        ("mask", *LAW_COLUMNS, f"layers to lose what {fastest} loses in {layers}"),
        tuple(rows),
        f"Medians over the samples. {LAW_NOTE} Layers beyond those that were run are counted at "
        f"the pace of the last ones, once they are {_SEVERAL} radii deep and the law is "
        "exponential.",
    )


def layers_to(curve: Sequence[float], target: float, found: Law, *, radius: float = 1.0) -> str:
    """After how many layers a curve is at or below a target, measured or to come.

    >>> layers_to([0.0, -1.0, -2.0], -2.0, Law("exponential", 1.0, -1.0, -2.0))
    '2'
    """
    depth = len(curve) - 1
    reached = [layer for layer, value in enumerate(curve) if value <= target]
    if reached:
        return str(reached[0])
    if depth < _SEVERAL * radius or found.kind != "exponential":
        return f"more than {depth}"
    more = depth + (target - curve[-1]) / found.rate
    return f"about {short(round(more))}"
