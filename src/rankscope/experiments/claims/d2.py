"""Claim D2: pure attention contracts cubically by layer, hence doubly exponentially with depth."""

from dataclasses import dataclass
from functools import partial

from rankscope import tables
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.config import Config as _Config
from rankscope.experiments.depths import RELATIVE, Texts, deep_table, ending, laws
from rankscope.experiments.laws import Law
from rankscope.experiments.progress import OnStep
from rankscope.experiments.verdicts import overall
from rankscope.network import Network, Spec
from rankscope.results import Drawing, Result
from rankscope.theory import Bounds, bounds
from rankscope.theory.residual_bounds import BOUNDS

ENTRY = CATALOGUE["D2"]
_ROUNDING = 5e-5
"""Decades: the best center is known to a ten-thousandth."""


@dataclass(frozen=True)
class Config(_Config):
    """Networks of every number of heads under every initialisation."""

    layers: int = 10
    heads: tuple[int, ...] = (1, 2, 4, 8)
    inits: tuple[str, ...] = ("bert", "lecun")
    width: int = 64
    tokens: int = 32
    samples: int = 4


def run(config: Config, on_step: OnStep) -> Result:
    """Follow pure attention in scaled arithmetic, beside every bound of the theory.

    A network bears the claim out if its last steps grow threefold, to within 0.1, and no layer of
    the first sample is above a bound that applies to it, of which there must be some.
    """
    texts = Texts(config.width, config.tokens, config.samples, config.seed)
    x, token_mask = texts()
    networks = {
        _name(heads, init): partial(_network, config, heads, init)
        for heads in config.heads
        for init in config.inits
    }
    table = deep_table(networks, x, token_mask, on_step=on_step)
    found = laws(tables.summary(table))
    # One sample is enough to hold against the bounds, whose centers take time to find.
    above = {
        name: _above(bounds(make().double(), x[:1], token_mask=token_mask[:1]))
        for name, make in networks.items()
    }
    borne_out = {
        name: law.cubic and not above[name][0] and above[name][1] > 0 for name, law in found.items()
    }
    return Result(
        id=ENTRY.id,
        title=ENTRY.title,
        question="Do the last steps grow threefold, and does every layer keep below its bounds?",
        sentences=tuple(_sentence(config, name, law, *above[name]) for name, law in found.items()),
        table=table,
        provenance=ENTRY.provenance(config),
        source=ENTRY.source,
        verdict=overall(borne_out),
        drawings=(Drawing("by_depth", "A curve for each network.", RELATIVE),),
        shown=(RELATIVE,),
    )


def _name(heads: int, init: str) -> str:
    return f"{heads} head{'s' * (heads > 1)}, {init}"


def _network(config: Config, heads: int, init: str) -> Network:
    spec = Spec(
        config.layers, heads, config.width, mlp_ratio=0.0, norm="none", skip=False, init=init
    )
    return Network.random(spec, seed=config.seed)


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


def _sentence(config: Config, name: str, law: Law, above: int, checked: int) -> str:
    return (
        f"{ending(name, law, config.layers)}; above its bound in {above} of {checked} comparisons."
    )
