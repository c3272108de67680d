"""Claim W1: masked attention with a center collapses exponentially; a larger radius is slower."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import pairwise

from rankscope import tables
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.depths import RELATIVE, Texts, deep_table, laws
from rankscope.experiments.laws import Law, power_of_ten
from rankscope.masks import Mask, as_mask
from rankscope.network import Network, Spec
from rankscope.theory import GraphFacts, graph_facts
from rankscope.tracing import Provenance

STATEMENT = (
    "Masked attention collapses exponentially if its graph has a center, more slowly the larger "
    "the radius, and does not collapse to one point without a center."
)
LAYERS, TOKENS = 96, 48
WINDOWS = ("window:16", "window:8", "window:4", "window:2", "window:1")
OTHERS = ("causal", "causal-window:4", "star:1", "bigbird:2:1:2")
WITHOUT_CENTER = ("block:16", "window:4 & block:24")
_ORDER = "windows by radius"


def w1(*, seed: int = 0, on_network: Callable[[], None] | None = None) -> Claim:
    """Attention with orthogonal values under many masks, in scaled arithmetic.

    A mask bears the claim out if it has a center and its residual ends by shrinking at a steady
    rate, or has none and does not shrink; so do the windows if a larger radius never is faster.
    """
    reading = Texts(tokens=TOKENS, samples=2, seed=seed)
    x, token_mask = reading()
    masks = {str(mask): mask for mask in map(as_mask, (*WINDOWS, *OTHERS, *WITHOUT_CENTER))}
    networks = {name: partial(_network, mask, seed) for name, mask in masks.items()}
    table = deep_table(networks, x, token_mask, norm="fro", on_network=on_network)
    summary = tables.summary(table)
    found = laws(summary)
    facts = {name: graph_facts(mask, TOKENS) for name, mask in masks.items()}
    borne_out = {name: _bears_out(found[name], facts[name]) for name in masks}
    windows = [str(as_mask(name)) for name in WINDOWS]
    borne_out[_ORDER] = all(found[a].rate <= found[b].rate for a, b in pairwise(windows))
    return Claim(
        "W1",
        STATEMENT,
        "Wu, Ajorlou, Wang, Jegelka, Jadbabaie 2024, masked attention",
        overall(borne_out),
        tuple(_reason(name, found[name], facts[name]) for name in masks),
        table,
        summary,
        asdict(Provenance("masked attention", seed=seed)) | {"input": str(reading)},
        metric=RELATIVE,
        figure="by_depth",
    )


def steps() -> int:
    """How often ``on_network`` is called."""
    return len(WINDOWS) + len(OTHERS) + len(WITHOUT_CENTER)


def _network(mask: Mask, seed: int) -> Network:
    spec = Spec(
        LAYERS,
        1,
        64,
        mlp_ratio=0.0,
        norm="none",
        skip=False,
        bias=False,
        init="orthogonal",
        mask=mask,
        shared_layers=False,
    )
    return Network.random(spec, seed=seed)


def _bears_out(found: Law, facts: GraphFacts) -> bool:
    expected = "exponential" if facts.quasi_strongly_connected else "none"
    return found.kind == expected


def _reason(name: str, found: Law, facts: GraphFacts) -> str:
    return (
        f"{name}: {facts}; relative residual {power_of_ten(found.last)} after {LAYERS} layers; "
        f"{found}."
    )
