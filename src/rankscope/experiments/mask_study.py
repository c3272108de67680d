"""Masks for one network side by side: what their graphs promise, and how fast tokens agree."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.errors import InputError
from rankscope.experiments.laws import Law, law, medians
from rankscope.experiments.study import Drawing, Study
from rankscope.masks import Mask, as_mask
from rankscope.network import Network
from rankscope.paths.held import HeldAttention, held_steps
from rankscope.theory import (
    GraphFacts,
    a_priori_rate,
    class_weights,
    ergodicity,
    graph_facts,
    smallest_allowed_weight,
)
from rankscope.tracing import Provenance

RELATIVE, DISPERSION = "log10_relative_residual", "log10_dispersion"
_REFERENCE_LAYERS = 2
"""The fastest mask's loss over this many layers is what the others are asked for."""


@dataclass(frozen=True)
class Masked:
    """What one mask does to a network: promised by its graph, and measured."""

    name: str
    facts: GraphFacts
    smallest: float
    promised: float
    law: Law
    listens: tuple[Tensor, ...]
    """Left Perron weights of the last layer's heads on average, one vector per closed class."""


def mask_study(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None = None,
    *,
    masks: Sequence[str | Mask],
    depth: int | None = None,
    title: str = "",
    on_mask: Callable[[], None] | None = None,
) -> Study:
    """Run one network under several masks, in scaled arithmetic, to any depth.

    A network that is not deep enough is repeated. Ergodicity coefficients, weights and graphs are
    those of the first sample; residuals are Frobenius, W's μ, over all samples.
    """
    chosen = {str(mask): mask for mask in map(as_mask, masks)}
    if not chosen:
        raise InputError("there is no mask to compare; name at least one, such as full.")
    depth = network.spec.layers if depth is None else depth
    if depth < 1:
        raise InputError(f"depth={depth} is out of range; expected 1 layer or more.")
    deep = network.double().repeat(-(-depth // network.spec.layers))
    found, parts = [], {}
    for name, mask in chosen.items():
        one, parts[name] = _measured(name, mask, deep, x.double(), token_mask, depth)
        found.append(one)
        if on_mask is not None:
            on_mask()
    table = tables.joined(parts)
    summary = tables.summary(table)
    origin = Provenance(network.name, network.spec.digest(seed=network.seed), network.seed)
    return Study(
        name="masks",
        title=title,
        question="Which mask keeps the tokens apart for how long, and whom does the rest hear?",
        sentences=(*_comparison(found, summary), *map(_about, found)),
        table=table,
        summary=summary,
        provenance=asdict(origin) | {"depth": str(depth), "norm": "fro"},
        drawings=(
            Drawing("by_depth", "μ(X) / ‖X‖, Frobenius norms.", RELATIVE, _cut(found)),
            Drawing(
                "by_depth",
                "The ergodicity coefficient of the product of all layers so far (the heads' "
                "average), which bounds what is left of any difference.",
                "log10_product_ergodicity",
            ),
            Drawing(
                "by_setting",
                "Whom the collapsed state listens to: left Perron weights of the last layer.",
                "perron_weight",
            ),
        ),
        shown=(RELATIVE,),
    )


def _cut(found: Sequence[Masked]) -> dict[str, float]:
    """Where the axis ends: below the masks that collapse exponentially, not far below them."""
    ends = [one.law.last for one in found if one.law.kind != "doubly exponential"]
    ends = [end for end in ends if math.isfinite(end)]
    return {"lowest": 1.3 * min(ends) - 1} if ends and len(ends) < len(found) else {}


def _measured(
    name: str, mask: Mask, deep: Network, x: Tensor, token_mask: Tensor | None, depth: int
) -> tuple[Masked, pl.DataFrame]:
    network = deep.with_mask(mask)
    traced = deep_trace(network, x, norm="fro", token_mask=token_mask).table
    traced = traced.filter(pl.col("layer") <= depth).with_columns(
        pl.col("metric").replace({"log10_residual": DISPERSION})
    )
    patterns, tokens = _patterns(network, x, token_mask, depth)
    facts = graph_facts(mask, tokens)
    allowed = mask.matrix(tokens)
    smallest = min(float(smallest_allowed_weight(p, allowed).min()) for p in patterns)
    shared = [p.mean(0) for p in patterns]
    listens = class_weights(shared[-1])
    one = Masked(
        name,
        facts,
        smallest,
        float(a_priori_rate(smallest, facts.contracts_after)),
        law(medians(tables.summary(traced), RELATIVE)),
        listens,
    )
    return one, pl.concat([traced, *_rows(patterns, shared, listens)], how="diagonal")


def _patterns(
    network: Network, x: Tensor, token_mask: Tensor | None, depth: int
) -> tuple[list[Tensor], int]:
    """The first sample's attention matrices ``(head, query, key)`` by layer, padding cut away."""
    keep = torch.ones(x.shape[1], dtype=torch.bool) if token_mask is None else token_mask[0]
    found = []
    with torch.no_grad():
        for step in held_steps(network, x[:1, keep]):
            for branch in step.branches:
                if isinstance(branch.part, HeldAttention):
                    found.append(branch.part.pattern[0])
            if len(found) == depth:
                break
    return found, int(keep.sum())


def _rows(
    patterns: list[Tensor], shared: list[Tensor], listens: tuple[Tensor, ...]
) -> list[pl.DataFrame]:
    """Ergodicity coefficients by layer and head and of products, and Perron weights by position."""
    each = ergodicity(patterns).each
    products = ergodicity(shared).log_products / math.log(10)
    by_head: dict[str, list[Any]] = {
        "layer": [layer for layer in range(1, len(each) + 1) for _ in each[0]],
        "head": [head for _ in each for head in range(each.shape[1])],
        "metric": ["dobrushin"] * each.numel(),
        "value": each.flatten().tolist(),
    }
    of_products: dict[str, list[Any]] = {
        "layer": list(range(1, len(products) + 1)),
        "metric": ["log10_product_ergodicity"] * len(products),
        "value": products.tolist(),
    }
    weights = torch.stack(listens).mean(0)
    by_position: dict[str, list[Any]] = {
        "parameter": ["position"] * len(weights),
        "setting": [float(position) for position in range(len(weights))],
        "metric": ["perron_weight"] * len(weights),
        "value": weights.tolist(),
    }
    return [tables.frame(columns) for columns in (by_head, of_products, by_position)]


def _comparison(found: Sequence[Masked], summary: pl.DataFrame) -> tuple[str, ...]:
    """How many layers each mask takes to lose what the fastest loses in two."""
    curves = {one.name: medians(summary, RELATIVE, variant=one.name) for one in found}
    layers = min(_REFERENCE_LAYERS, len(next(iter(curves.values()))) - 1)
    fastest = min(curves, key=lambda name: curves[name][layers])
    target = curves[fastest][layers]
    told = []
    for one in found:
        if one.name == fastest:
            continue
        if not one.facts.quasi_strongly_connected:
            told.append(
                f"{one.name} does not collapse: its graph has no center but "
                f"{len(one.facts.closed_classes)} closed classes, and each goes its own way."
            )
            continue
        needed = layers_to(curves[one.name], target, one.law)
        told.append(f"{one.name} {needed} to lose what {fastest} loses in {layers}.")
    return tuple(told)


def layers_to(curve: Sequence[float], target: float, found: Law) -> str:
    """In words: after how many layers a curve is at or below a target, measured or to come.

    >>> layers_to([0.0, -1.0, -2.0], -2.0, Law("exponential", 1.0, -1.0, -2.0))
    'needs 2 layers'
    """
    reached = [layer for layer, value in enumerate(curve) if value <= target]
    if reached:
        return f"needs {reached[0]} layer{'s' * (reached[0] != 1)}"
    if found.kind == "none":
        return f"needs more than {len(curve) - 1} layers, if it ever gets there,"
    more = len(curve) - 1 + (target - curve[-1]) / found.rate
    return f"would need about {more:,.0f} layers at its pace"


def _about(one: Masked) -> str:
    """One mask in a sentence: its graph, its rates, its limit."""
    measured = "no collapse" if one.law.kind == "none" else str(one.law)
    promise = (
        f"the theorem promises a factor of {_below_one(one.promised)} per layer "
        f"(weights of at least {one.smallest:.1g})"
        if one.facts.quasi_strongly_connected
        else "the theorem promises nothing"
    )
    return f"{one.name}: {one.facts}; measured: {measured}; {promise}; {_heard(one.listens)}."


def _below_one(rate: float) -> str:
    """A rate that may be too close to 1 to be told from it."""
    return f"{rate:.4g}" if rate < 0.9995 else f"1 − {1 - rate:.1g}" if rate < 1 else "almost 1"


def _heard(listens: tuple[Tensor, ...]) -> str:
    if len(listens) > 1:
        return f"{len(listens)} groups of tokens each listen to themselves"
    weights = listens[0]
    top = int(weights.argmax())
    share = float(weights[top])
    if share > 2 / len(weights):
        return f"the limit listens to token {top} most, {share:.0%}"
    return "the limit listens to all tokens about alike"
