"""Masks for one network side by side: what their graphs guarantee, and how fast tokens agree."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch

from rankscope import tables
from rankscope.ask import MOST_TOKENS_CUBED, Cost
from rankscope.core import theory
from rankscope.core.masks import Mask, as_mask
from rankscope.core.metrics import dobrushin
from rankscope.core.network import Spec
from rankscope.core.paths import attention_patterns
from rankscope.core.theory import Law
from rankscope.core.tracing import Trace
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.experiments.depths import DISPERSION, LAW_COLUMNS, LAW_NOTE, RELATIVE_DISPERSION
from rankscope.numerals import plural, power_of_ten, short

ENTRY = kit.question(
    "masks",
    "Which mask keeps the tokens apart?",
    asks=kit.Asks(
        samples=4, without="skip,mlp,norm", all_tokens="graphs of masks are about all tokens"
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
            "Guaranteed loss",
            "loss in a layer",
            "log",
            "The share of the differences a layer loses at least",
            "The share of all differences that is lost in each layer at least, by the graph and "
            "the smallest weight; 0 where they guarantee nothing.",
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
BY_MASK = (
    "radius",
    "smallest_weight",
    "mean_ergodicity",
    "product_ergodicity_rate",
    "log10_promised_loss",
    "largest_limit_weight",
)
"""Metrics with one number for each mask."""
_PRODUCTS = "log10_product_ergodicity"
_MOST_TOKENS_BY_HEAD = 256
"""Maximum number of tokens for metrics per head that take cubic time."""
_SEVERAL = 3
"""Radii of depth before a rate is taken for final; earlier, some tokens have not interacted yet."""
_REFERENCE_LAYERS = 2
"""The other masks are compared with the fastest mask's loss over this many layers."""


@dataclass(frozen=True)
class Config(kit.Question):
    """Masks, as values or by name, and how many layers; as many as the network has if None."""

    masks: tuple[str | Mask, ...] = MASKS
    depth: int | None = None

    @property
    def layers(self) -> int:
        """The number of layers to run."""
        return self.subject.network.spec.layers if self.depth is None else self.depth

    def describe(self) -> dict[str, Any]:
        """The masks by their full names, and how many layers there were."""
        return {"masks": list(_masks_by_name(self.masks)), "depth": self.layers}


def cost(config: Config) -> Cost:
    """The cost: all layers, for every mask."""
    two_passes = Cost.of_deep_trace(config.subject).times(2)
    return two_passes.times(len(config.masks) * config.layers / config.subject.network.spec.layers)


def _masks_by_name(masks: Sequence[str | Mask]) -> dict[str, Mask]:
    """Masks by distinct names: two different masks may have the same text."""
    if isinstance(masks, str) or not masks:
        raise InputError("there is no list of masks to compare; write masks=('full', 'causal').")
    named: dict[str, Mask] = {}
    for mask in dict.fromkeys(map(as_mask, masks)):
        name = str(mask)
        while name in named:
            name += " (another)"
        named[name] = mask
    return named


@dataclass(frozen=True)
class Masked:
    """What one mask does to a network: its graph, the law that was measured, every number."""

    name: str
    facts: theory.GraphFacts
    law: Law
    different_laws: str
    """The number of samples by law, if they differ."""
    table: pl.DataFrame
    trace: Trace


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Run one network under several masks, in scaled arithmetic, to any depth.

    A network that is not deep enough is repeated. Ergodicity coefficients, weights and graphs are
    those of the first sample; dispersion (μ of Wu et al. 2024, the residual
    in the Frobenius norm) is that of all samples.
    """
    subject, depth = config.subject, config.layers
    subject.refuse_measured(ENTRY.asks.all_tokens)
    masks = _masks_by_name(config.masks)
    if depth < 1:
        raise InputError(f"depth={depth} is out of range; expected 1 layer or more.")
    exact = subject.to(torch.float64)
    deep = exact.network.repeat(-(-depth // subject.network.spec.layers))
    outcomes = [
        _measure(name, exact.with_network(deep.with_mask(mask)), mask, depth, on_part)
        for (name, mask), on_part in kit.tracked(masks.items(), on_step)
    ]
    table = tables.joined({outcome.name: outcome.table for outcome in outcomes})
    return ENTRY.result(
        config,
        question="Which mask keeps the tokens apart for how long, and what is left in the end?",
        sentences=(*subject.reduced, *_sentences(outcomes, depth, deep.spec)),
        table=table,
        listings=(_measured(outcomes, tables.summary(table)), _graphs(outcomes)),
        about={"dispersion": "Frobenius norm"},
        notes=depths.doubts({outcome.name: outcome.trace for outcome in outcomes}),
        drawings=_drawings(outcomes),
        shown=(RELATIVE_DISPERSION, *(metric for metric in BY_MASK if metric != "radius")),
    )


@torch.no_grad()
def _measure(
    name: str, subject: kit.Subject, mask: Mask, depth: int, on_step: kit.OnStep
) -> Masked:
    """Everything about one mask; the network of ``subject`` has it already."""
    trace = subject.deep_trace(on_step, norm="fro")
    traced = depths.dispersions(trace.table.filter(pl.col("layer") <= depth))
    first, real = subject.x[:1], subject.token_mask
    if real is not None:  # padding is cut away
        first = first[:, real if real.ndim == 1 else real[0]]
    facts = theory.graph_facts(mask, first.shape[1])
    law = depths.law_of_medians(tables.summary(traced), RELATIVE_DISPERSION)
    apart = depths.different_laws(traced, RELATIVE_DISPERSION)
    figures = _figures(subject, first, mask, facts, depth)
    return Masked(name, facts, law, apart, tables.stack([traced, figures]), trace)


def _figures(
    subject: kit.Subject, x: torch.Tensor, mask: Mask, facts: theory.GraphFacts, depth: int
) -> pl.DataFrame:
    """Ergodicity coefficients by layer and head, and of products of layers; what is left of each
    position's input in the end, and what one layer's matrix says of it; and one number each."""
    tokens = x.shape[1]
    allowed, smallest = mask.matrix(tokens), math.inf
    shared, of_heads = [], []
    for pattern in attention_patterns(subject.network, x, layers=depth):
        shared.append(pattern.mean(0))
        smallest = min(smallest, float(theory.smallest_allowed_weight(pattern, allowed).min()))
        if tokens <= _MOST_TOKENS_BY_HEAD:
            of_heads.append(dobrushin(pattern))
    rows: list[tuple[Any, ...]] = []

    def add(metric: str, value: float, layer: int | None = None, head: int | None = None) -> None:
        rows.append((layer, head, None, None, metric, value))

    def add_by_position(metric: str, weights: torch.Tensor) -> None:
        for position, value in enumerate(weights.tolist()):
            rows.append((None, None, "position", float(position), metric, value))

    limits = torch.stack(theory.limit_weights(shared, facts.closed_classes)).mean(0)
    promised = theory.a_priori_log_loss(smallest, facts.contracts_after) / math.log(10)
    add("radius", facts.radius)
    add("smallest_weight", smallest)
    add("log10_promised_loss", promised)
    add("largest_limit_weight", float(limits.max()))
    add_by_position("limit_weight", limits)
    if of_heads:
        add("mean_ergodicity", float(torch.cat(of_heads).mean()))
    for layer, by_head in enumerate(of_heads, start=1):
        for head, value in enumerate(by_head.tolist()):
            add("dobrushin", value, layer, head)
    if tokens <= MOST_TOKENS_CUBED:
        products = theory.ergodicity(shared)
        add("product_ergodicity_rate", float(products.rate))
        log10 = products.log_products / math.log(10)
        # Rows that plain numbers cannot tell apart any more need not be equal.
        for layer, value in enumerate(torch.where(log10.isneginf(), math.nan, log10).tolist(), 1):
            add(_PRODUCTS, value, layer)
        perron = torch.stack(theory.class_weights(shared[-1])).mean(0)
        add_by_position("perron_weight", perron)
    return tables.from_rows(("layer", "head", "parameter", "setting", "metric", "value"), rows)


def _drawings(outcomes: Sequence[Masked]) -> tuple[kit.Drawing, ...]:
    # An axis ends below the masks that collapse exponentially, not far below them.
    ends = [outcome.law.last for outcome in outcomes if outcome.law.kind != "doubly exponential"]
    ends = [end for end in ends if math.isfinite(end)]
    cut = {"lowest": 1.3 * min(ends) - 1} if ends and len(ends) < len(outcomes) else {}
    drawings = (
        kit.Drawing("by_depth", "μ(X) / ‖X‖, Frobenius norms.", RELATIVE_DISPERSION, cut),
        kit.Drawing("by_depth", "μ(X) itself, the measure of Wu et al. 2024.", DISPERSION, cut),
        kit.Drawing(
            "by_depth",
            "The ergodicity coefficient of the product of the heads' average in all layers so far, "
            "first sample. With one head and values that do not stretch it bounds what is left of "
            "any difference.",
            _PRODUCTS,
        ),
        kit.Drawing(
            "by_setting",
            "The weight of each position's input in the tokens after all layers: the row to which "
            "products of attention matrices converge (the heads' average, first sample).",
            "limit_weight",
        ),
    )
    measured = set(outcomes[0].table["metric"])
    return tuple(drawing for drawing in drawings if drawing.metric in measured)


def _sentences(outcomes: Sequence[Masked], depth: int, spec: Spec) -> Iterator[str]:
    """Which mask loses most and least, which cannot collapse, what is not covered or left out."""
    sure = {outcome.name: outcome.law.last for outcome in outcomes if outcome.law.sure_to is None}
    if len(sure) > 1:
        (least, low), *_, (most, high) = sorted(sure.items(), key=lambda entry: entry[1])
        yield (
            f"After {plural(depth, 'layer')} tokens are most alike under {least}, a relative "
            f"dispersion of {power_of_ten(low)}, and least under {most}, {power_of_ten(high)} "
            "(medians over the samples)."
        )
    apart = [outcome.name for outcome in outcomes if not outcome.facts.quasi_strongly_connected]
    if apart:
        whose = "its graph has" if len(apart) == 1 else "their graphs have"
        yield f"{', '.join(apart)} cannot collapse to one point: {whose} no center."
    beyond = {
        "skips": any(spec.skips),
        "norms": spec.norm != "none",
        "MLPs": spec.mlp_width > 0,
        f"{spec.heads} heads": spec.heads > 1,
    }
    if named := ", ".join(name for name, there in beyond.items() if there):
        yield f"The theorem on masks of Wu et al. 2024 does not cover this network: {named}."
    most_tokens = {
        "ergodicity coefficients of single heads": _MOST_TOKENS_BY_HEAD,
        "ergodicity coefficients of products and Perron weights": MOST_TOKENS_CUBED,
    }
    tokens = outcomes[0].facts.tokens
    cubic = [f"{what} (above {n:,} tokens)" for what, n in most_tokens.items() if tokens > n]
    if cubic:
        yield f"Left out, because their cost is cubic in the tokens: {' and '.join(cubic)}."


def _graphs(outcomes: Sequence[Masked]) -> kit.Listing:
    """What the graph of a mask implies, without weights."""
    rows = []
    for name, facts in ((outcome.name, outcome.facts) for outcome in outcomes):
        layers = [
            int(hops) if math.isfinite(hops) else None for hops in (facts.radius, facts.diameter)
        ]
        beside = []  # where a graph is not like most
        if not facts.quasi_strongly_connected:
            beside.append(f"{len(facts.closed_classes)} closed classes")
        elif not facts.collapses:
            beside.append(f"period {facts.periods[0]}")
        if facts.missing_self_loops:
            beside.append(f"{plural(len(facts.missing_self_loops), 'token')} without self-loop")
        rows.append((name, facts.edges, len(facts.centers), *layers, "; ".join(beside) or None))
    return kit.Listing(
        "The graphs of the masks",
        ("mask", "edges", "centers", "radius", "diameter", "also"),
        tuple(rows),
        f"For {outcomes[0].facts.tokens} tokens, in the first sample. A center is a token that "
        "reaches every other token. Radius (from the best center) and diameter (between any two "
        "tokens) are in layers; a dash means that some token is never reached.",
    )


def _measured(outcomes: Sequence[Masked], summary: pl.DataFrame) -> kit.Listing:
    """The end of each mask, and the layers it needs to lose what the fastest loses in two."""
    curves = {
        outcome.name: depths.sure_medians(summary, RELATIVE_DISPERSION, variant=outcome.name)
        for outcome in outcomes
    }
    curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
    layers = min([_REFERENCE_LAYERS, *(len(curve) - 1 for curve in curves.values())])
    fastest = min(curves, key=lambda name: curves[name][layers], default="")
    rows = []
    for outcome in outcomes:
        end, law, pace = depths.law_entries(outcome.law)
        needed, facts = None, outcome.facts
        if outcome.name in curves and facts.quasi_strongly_connected:
            target = curves[fastest][layers]
            needed = layers_to(curves[outcome.name], target, outcome.law, radius=facts.radius)
        rows.append((outcome.name, end, outcome.different_laws or law, pace, needed))
    return kit.Listing(
        "Relative dispersion under each mask",
        ("mask", *LAW_COLUMNS, f"layers to lose what {fastest} loses in {layers}"),
        tuple(rows),
        f"Medians over the samples. {LAW_NOTE} Layers beyond those that were run are counted at "
        f"the pace of the last ones, once they are {_SEVERAL} radii deep and the law is "
        "exponential.",
    )


def layers_to(curve: Sequence[float], target: float, law: Law, *, radius: float = 1.0) -> str:
    """After how many layers a curve is at or below a target, measured or to come.

    >>> layers_to([0.0, -1.0, -2.0], -2.0, Law("exponential", 1.0, -1.0, -2.0))
    '2'
    """
    depth = len(curve) - 1
    reached = [layer for layer, value in enumerate(curve) if value <= target]
    if reached:
        return str(reached[0])
    if depth < _SEVERAL * radius or law.kind != "exponential":
        return f"more than {depth}"
    more = depth + (target - curve[-1]) / law.rate
    return f"about {short(round(more))}"
