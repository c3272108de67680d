"""Claim D2: pure attention contracts cubically by layer, hence doubly exponentially with depth."""

from dataclasses import dataclass

from rankscope import tables
from rankscope.experiments import depths, kit, laws
from rankscope.numerals import plural
from rankscope.theory import Bounds, bounds
from rankscope.theory.residual_bounds import BOUNDS

ENTRY = kit.entry("D2")
_ROUNDING = 5e-5
"""Decades: the best center is known to a ten-thousandth."""


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Networks of every number of heads under every initialisation."""

    layers: int = 10
    heads: tuple[int, ...] = (1, 2, 4, 8)
    inits: tuple[str, ...] = ("bert", "lecun")
    mask: str = "full"
    """The theorems are about the full one."""


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Follow pure attention in scaled arithmetic, beside every bound of the theory.

    A network bears the claim out if its last steps grow threefold, to within 0.1, and no layer of
    the first sample is above a bound that applies to it, of which there must be some.
    """
    x, token_mask = config.texts()
    networks = {
        f"{plural(heads, 'head')}, {init}": config.pure_attention(
            heads, init=init, mask=config.mask
        )
        for heads in config.heads
        for init in config.inits
    }
    on_traces, on_bounds = kit.parts(on_step, 1, 3)  # as long as each takes
    compared = depths.compare(networks, x, token_mask, on_step=on_traces)
    found = depths.laws(tables.summary(compared.table))
    # One sample is enough to hold against the bounds, whose centers take time to find.
    above = {
        name: count_above(bounds(network.double(), x[:1], token_mask=token_mask[:1]))
        for (name, network), _ in kit.tracked(networks.items(), on_bounds)
    }
    growths = [law.growth for law in found.values()]
    return ENTRY.result(
        config,
        question="Do the last steps grow threefold, and does every layer keep below its bounds?",
        sentences=(
            f"{depths.ending(name, law, config.layers)}; above its bound in {above[name][0]} of "
            f"{above[name][1]} comparisons."
            for name, law in found.items()
        ),
        table=compared.table,
        notes=compared.notes,
        judgement=kit.judged(
            ENTRY.domain, {name: bears_out(law, *above[name]) for name, law in found.items()}
        ),
        key_figures={
            "smallest growth of the last steps": min(growths),
            "largest growth of the last steps": max(growths),
        },
        drawings=(kit.Drawing("by_depth", "A curve for each network.", depths.RELATIVE),),
        shown=(depths.RELATIVE,),
    )


def bears_out(law: laws.Law, above: int, checked: int) -> bool:
    """Cubic, and of all comparisons with a bound, of which there are some, none is above."""
    return law.cubic and above == 0 and checked > 0


def count_above(found: Bounds) -> tuple[int, int]:
    """How many layers and samples are above a bound, and how many have one."""
    above = checked = 0
    for layer in found.layers:
        for name in BOUNDS:
            bound = getattr(layer, name)
            applies = ~bound.isnan()
            checked += int(applies.sum())
            above += int(((layer.log10_residual > bound + _ROUNDING) & applies).sum())
    return above, checked
