"""Claim W1: masked attention with a center collapses exponentially; a larger radius is slower."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import combinations

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
_WIDTH = 64
_TWO_SIDED, _CENTERED = "two-sided windows", "all masks with a center"

Pair = tuple[str, str]
"""Two masks, the one of smaller radius first."""


def w1(*, seed: int = 0, on_network: Callable[[], None] | None = None) -> Claim:
    """Attention with orthogonal values under many masks, in scaled arithmetic.

    A mask bears the claim out if it has a center and its residual ends by shrinking at a steady
    rate, or has none and does not shrink; one whose layers tell no law does not. Radii are compared
    twice, among the two-sided windows and among all masks with a center, and bear the claim out if
    no mask shrinks faster than one of smaller radius.
    """
    reading = Texts(_WIDTH, tokens=TOKENS, samples=2, seed=seed)
    x, token_mask = reading()
    groups = {words: _named(names) for words, names in _groups().items()}
    masks = {name: mask for group in groups.values() for name, mask in group.items()}
    parts = {}
    for words, group in groups.items():
        networks = {name: partial(_network, mask, seed) for name, mask in group.items()}
        parts[words] = deep_table(networks, x, token_mask, norm="fro", on_network=on_network)
    table = tables.joined(parts, column="model")
    summary = tables.summary(table)
    found = laws(summary)
    facts = {name: graph_facts(mask, TOKENS) for name, mask in masks.items()}
    borne_out = {name: _bears_out(found[name], facts[name]) for name in masks}
    ordered = {
        _TWO_SIDED: list(groups[_TWO_SIDED]),
        _CENTERED: [n for n in masks if facts[n].quasi_strongly_connected],
    }
    pairs = {words: _pairs(names, found, facts) for words, names in ordered.items()}
    borne_out |= {words: not _reversed(each, found) for words, each in pairs.items() if each}
    return Claim(
        "W1",
        STATEMENT,
        "Wu, Ajorlou, Wang, Jegelka, Jadbabaie 2024, masked attention",
        overall(borne_out),
        (
            _counted(borne_out, facts),
            *(_order(words, each, found, facts) for words, each in pairs.items() if each),
            *_families(pairs[_TWO_SIDED], pairs[_CENTERED], found),
            *(_reason(name, found[name], facts[name]) for name in masks),
        ),
        table,
        summary,
        asdict(Provenance("masked attention", spec=_about(), seed=seed))
        | {"input": str(reading), "norm": "fro"},
        metric=RELATIVE,
        figure="by_depth",
    )


def steps() -> int:
    """How often ``on_network`` is called."""
    return len(WINDOWS) + len(OTHERS) + len(WITHOUT_CENTER)


def _groups() -> dict[str, tuple[str, ...]]:
    return {
        _TWO_SIDED: WINDOWS,
        "other masks with a center": OTHERS,
        "masks without a center": WITHOUT_CENTER,
    }


def _named(names: Iterable[str]) -> dict[str, Mask]:
    return {str(mask): mask for mask in map(as_mask, names)}


def _about() -> str:
    return (
        f"1 head, width {_WIDTH}, {LAYERS} layers, orthogonal values, other weights lecun init; no "
        "norm, skips, MLPs or biases; a mask for each network"
    )


def _network(mask: Mask, seed: int) -> Network:
    spec = Spec(
        LAYERS,
        1,
        _WIDTH,
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


def _pairs(
    names: Iterable[str], found: Mapping[str, Law], facts: Mapping[str, GraphFacts]
) -> list[Pair]:
    """Masks that shrink at a rate, two and two, as far as their radii differ."""
    steady = [name for name in names if found[name].kind == "exponential"]
    by_radius = sorted(steady, key=lambda name: facts[name].radius)
    return [(a, b) for a, b in combinations(by_radius, 2) if facts[a].radius < facts[b].radius]


def _reversed(pairs: Iterable[Pair], found: Mapping[str, Law]) -> list[Pair]:
    """The pairs in which the larger radius shrinks faster."""
    return [(a, b) for a, b in pairs if found[b].rate < found[a].rate]


def _counted(borne_out: Mapping[str, bool], facts: Mapping[str, GraphFacts]) -> str:
    centered = [borne_out[name] for name, one in facts.items() if one.quasi_strongly_connected]
    others = [borne_out[name] for name, one in facts.items() if not one.quasi_strongly_connected]
    return (
        f"{sum(centered)} of {len(centered)} masks with a center collapse exponentially; "
        f"{sum(others)} of {len(others)} without one do not collapse."
    )


def _order(
    words: str, pairs: list[Pair], found: Mapping[str, Law], facts: Mapping[str, GraphFacts]
) -> str:
    """How often a larger radius is slower, and where it is most clearly not."""
    against = _reversed(pairs, found)
    told = (
        f"Radius and rate, {words}: in {len(pairs) - len(against)} of {len(pairs)} pairs of "
        "different radius the larger one is slower"
    )
    if not against:
        return f"{told}."
    a, b = max(against, key=lambda pair: found[pair[0]].rate - found[pair[1]].rate)
    return (
        f"{told}; against it most clearly {b}, radius {facts[b].radius:g}, × "
        f"{10 ** found[b].rate:.3g} a layer, beside {a}, radius {facts[a].radius:g}, × "
        f"{10 ** found[a].rate:.3g}."
    )


def _families(windows: list[Pair], everywhere: list[Pair], found: Mapping[str, Law]) -> list[str]:
    """What the two comparisons come to, where they differ."""
    if windows and not _reversed(windows, found) and _reversed(everywhere, found):
        return ["So the radius orders masks of one family, and not masks of different families."]
    return []


def _reason(name: str, found: Law, facts: GraphFacts) -> str:
    return (
        f"{name}: {facts}; relative residual {power_of_ten(found.last)} after {LAYERS} layers; "
        f"{found}."
    )
