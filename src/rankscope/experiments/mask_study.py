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
from rankscope.experiments.depths import DISPERSION, RELATIVE, dispersions
from rankscope.experiments.laws import Law, law, medians
from rankscope.experiments.study import Drawing, Study
from rankscope.masks import Mask, as_mask
from rankscope.network import Network
from rankscope.paths.held import HeldAttention, held_steps
from rankscope.theory import (
    Ergodicity,
    GraphFacts,
    a_priori_log_decay,
    class_weights,
    ergodicity,
    graph_facts,
    smallest_allowed_weight,
)
from rankscope.tracing import Provenance

_PRODUCTS = "log10_product_ergodicity"
_SEVERAL = 3
"""Radii of depth before a rate is taken for final: until then some tokens have not met."""
_REFERENCE_LAYERS = 2
"""The fastest mask's loss over this many layers is what the others are asked for."""


@dataclass(frozen=True)
class Masked:
    """What one mask does to a network: promised by its graph, and measured."""

    name: str
    facts: GraphFacts
    smallest: float
    law: Law
    mean_tau: float
    product_rate: float
    heard: tuple[Tensor, ...]
    """For each closed class, what its tokens hold of each position's input after all layers."""
    covered: str
    """Why the theorem does not cover the network; empty if it does."""


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
    chosen = _named(masks)
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
        question="Which mask keeps the tokens apart for how long, and what is left in the end?",
        sentences=(*_comparison(found, summary), *map(_about, found)),
        table=table,
        summary=summary,
        provenance=asdict(origin) | {"depth": str(depth), "norm": "fro"},
        drawings=(
            Drawing("by_depth", "μ(X) / ‖X‖, Frobenius norms.", RELATIVE, _cut(found)),
            Drawing("by_depth", "μ(X) itself, the 2024 paper's measure.", DISPERSION, _cut(found)),
            Drawing(
                "by_depth",
                "The ergodicity coefficient of the product of the heads' average in all layers so "
                "far, first sample. With one head and values that do not stretch it bounds what is "
                "left of any difference.",
                _PRODUCTS,
            ),
            Drawing(
                "by_setting",
                "What the tokens hold of each position's input after all layers: the row all "
                "products of attention matrices tend to (the heads' average, first sample).",
                "limit_weight",
            ),
        ),
        shown=(RELATIVE,),
    )


def _named(masks: Sequence[str | Mask]) -> dict[str, Mask]:
    """Masks under names of their own: two may be written alike and differ."""
    if isinstance(masks, str) or not masks:
        raise InputError("there is no list of masks to compare; write masks=['full', 'causal'].")
    named: dict[str, Mask] = {}
    for mask in dict.fromkeys(map(as_mask, masks)):
        name = str(mask)
        while name in named:
            name += " (another)"
        named[name] = mask
    return named


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
    traced = dispersions(traced.filter(pl.col("layer") <= depth))
    patterns, tokens = _patterns(network, x, token_mask, depth)
    facts, allowed = graph_facts(mask, tokens), mask.matrix(tokens)
    shared = [p.mean(0) for p in patterns]
    of_heads = [ergodicity([p]).each[0] for p in patterns]  # layers may differ in silent heads
    of_products = ergodicity(shared)
    one = Masked(
        name,
        facts,
        min(float(smallest_allowed_weight(p, allowed).min()) for p in patterns),
        law(medians(tables.summary(traced), RELATIVE)),
        float(torch.cat(of_heads).mean()),
        float(of_products.rate),
        _heard(shared, facts),
        _not_covered(network),
    )
    rows = _rows(of_heads, of_products, shared, one.heard)
    return one, pl.concat([traced, *rows], how="diagonal")


def _not_covered(network: Network) -> str:
    """What of a network is beyond the theorem on masks."""
    spec = network.spec
    beyond = {
        "skips": any(spec.skips),
        "norms": spec.norm != "none",
        "MLPs": spec.mlp_width > 0,
        f"{spec.heads} heads": spec.heads > 1,
    }
    return ", ".join(name for name, there in beyond.items() if there)


def _heard(shared: Sequence[Tensor], facts: GraphFacts) -> tuple[Tensor, ...]:
    """The mean row, over each closed class, of the product of all layers' matrices."""
    product = shared[0]
    for matrix in shared[1:]:
        product = matrix @ product
    return tuple(product[list(members)].mean(0) for members in facts.closed_classes)


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
                    pattern = branch.part.pattern[0]
                    found.append(pattern[pattern.sum((1, 2)) > 0])  # silent heads attend to nothing
            if len(found) == depth:
                break
    return found, int(keep.sum())


def _rows(
    of_heads: list[Tensor],
    of_products: Ergodicity,
    shared: list[Tensor],
    heard: tuple[Tensor, ...],
) -> list[pl.DataFrame]:
    """Ergodicity coefficients by layer and head and of products, and weights by position."""
    products = of_products.log_products / math.log(10)
    by_head: dict[str, list[Any]] = {
        "layer": [layer for layer, each in enumerate(of_heads, start=1) for _ in each],
        "head": [head for each in of_heads for head in range(len(each))],
        "metric": ["dobrushin" for each in of_heads for _ in each],
        "value": torch.cat(of_heads).tolist(),
    }
    by_layer: dict[str, list[Any]] = {
        "layer": list(range(1, len(products) + 1)),
        "metric": [_PRODUCTS] * len(products),
        # Rows that plain numbers cannot tell apart any more need not be equal.
        "value": torch.where(products.isneginf(), math.nan, products).tolist(),
    }
    weights = {
        "limit_weight": torch.stack(heard).mean(0),
        "perron_weight": torch.stack(class_weights(shared[-1])).mean(0),
    }
    by_position: dict[str, list[Any]] = {
        "parameter": ["position" for _ in weights for _ in shared[0]],
        "setting": [float(position) for _ in weights for position in range(len(shared[0]))],
        "metric": [name for name in weights for _ in shared[0]],
        "value": [value for vector in weights.values() for value in vector.tolist()],
    }
    return [tables.frame(columns) for columns in (by_head, by_layer, by_position)]


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
        needed = layers_to(curves[one.name], target, one.law, radius=one.facts.radius)
        told.append(f"{one.name} {needed} to lose what {fastest} loses in {layers}.")
    return tuple(told)


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
        return f"needs {reached[0]} layer{'s' * (reached[0] != 1)}"
    if depth < _SEVERAL * radius:
        return f"needs more than {depth} layers (its radius is {radius:g})"
    if found.kind != "exponential":
        return f"needs more than {depth} layers, if it ever gets there,"
    more = depth + (target - curve[-1]) / found.rate
    return f"would need about {more:,.0f} layers at its pace"


def _about(one: Masked) -> str:
    """One mask in a sentence: its graph, its rates, its limit."""
    tau = (
        f"ergodicity coefficient {one.mean_tau:.3g} a layer, {one.product_rate:.3g} a layer in the "
        "product"
    )
    return (
        f"{one.name}: {one.facts}; measured: {one.law}; {tau}; {_promise(one)}; "
        f"{_listening(one.heard)}."
    )


def _promise(one: Masked) -> str:
    """The theorem's factor per layer, if it has one for this graph, and its conditions."""
    reach = one.facts.contracts_after
    if math.isinf(reach) or one.smallest <= 0:
        return "the theorem promises nothing"
    decay = float(a_priori_log_decay(one.smallest, reach)) / math.log(10)
    factor = f"{10 ** -(10**decay / math.log(10)):.4f}" if decay > -3 else f"1 − 10^{decay:.1f}"
    least = f"{one.smallest:.2g}"
    covered = f", but does not cover {one.covered}" if one.covered else ""
    return f"with weights of {least} or more the theorem promises a factor of {factor}{covered}"


def _listening(heard: tuple[Tensor, ...]) -> str:
    if len(heard) > 1:
        return f"{len(heard)} groups of tokens each listen to themselves"
    weights = heard[0]
    top = int(weights.argmax())
    share = float(weights[top])
    if share > 2 / len(weights):
        return f"in the end token {top} is heard most, {share:.0%}"
    return "in the end all tokens are heard about alike"
