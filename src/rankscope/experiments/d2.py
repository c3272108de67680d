"""Claim D2: pure attention contracts cubically by layer, hence doubly exponentially with depth."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from rankscope import tables
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.depths import RELATIVE, Texts, deep_table, ending, laws
from rankscope.experiments.laws import Law
from rankscope.network import Network, Spec
from rankscope.theory import Bounds, bounds
from rankscope.theory.residual_bounds import BOUNDS
from rankscope.tracing import Provenance

STATEMENT = (
    "Pure attention with one or many heads contracts the residual like its cube in every layer, "
    "so doubly exponentially with depth, and never above the theorem's bounds."
)
LAYERS = 10
HEADS = (1, 2, 4, 8)
INITS = ("bert", "lecun")
_ROUNDING = 5e-5
"""Decades: the best center is known to a ten-thousandth."""


def d2(*, seed: int = 0, on_network: Callable[[], None] | None = None) -> Claim:
    """Follow pure attention in scaled arithmetic, beside every bound of the theory.

    A network bears the claim out if its last steps grow threefold, to within 0.1, and no layer of
    the first sample is above a bound that applies to it, of which there must be some.
    """
    reading = Texts(seed=seed)
    x, token_mask = reading()
    networks = {
        _name(heads, init): partial(_network, heads, init, seed)
        for heads in HEADS
        for init in INITS
    }
    table = deep_table(networks, x, token_mask, on_network=on_network)
    summary = tables.summary(table)
    found = laws(summary)
    # One sample is enough to hold against the bounds, whose centers take time to find.
    above = {
        name: _above(bounds(make().double(), x[:1], token_mask=token_mask[:1]))
        for name, make in networks.items()
    }
    borne_out = {
        name: law.cubic and not above[name][0] and above[name][1] > 0 for name, law in found.items()
    }
    return Claim(
        "D2",
        STATEMENT,
        "Dong, Cordonnier, Loukas 2021, theorems 2.2 and 2.3",
        overall(borne_out),
        tuple(_reason(name, law, *above[name]) for name, law in found.items()),
        table,
        summary,
        asdict(Provenance("pure attention", seed=seed)) | {"input": str(reading)},
        metric=RELATIVE,
        figure="by_depth",
    )


def steps() -> int:
    """How often ``on_network`` is called."""
    return len(HEADS) * len(INITS)


def _name(heads: int, init: str) -> str:
    return f"{heads} head{'s' * (heads > 1)}, {init}"


def _network(heads: int, init: str, seed: int) -> Network:
    spec = Spec(LAYERS, heads, 64, mlp_ratio=0.0, norm="none", skip=False, init=init)
    return Network.random(spec, seed=seed)


def _above(found: Bounds) -> tuple[int, int]:
    """How many layers and samples are above a bound, and how many have one."""
    above = checked = 0
    for layer in found.layers:
        for name in BOUNDS:
            bound = getattr(layer, name)
            applies = ~bound.isnan()
            checked += int(applies.sum())
            above += int(((layer.log10_residual > bound + _ROUNDING) & applies).sum())
    return above, checked


def _reason(name: str, law: Law, above: int, checked: int) -> str:
    return f"{ending(name, law, LAYERS)}; above its bound in {above} of {checked} comparisons."
