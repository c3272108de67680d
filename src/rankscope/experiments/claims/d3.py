"""Claim D3: MLPs slow the collapse by their Lipschitz constant and do not stop it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.experiments.laws import Law
from rankscope.metrics import matrix_norm
from rankscope.network import MLP, Network, Spec
from rankscope.numerals import short
from rankscope.theory.residual_bounds import row_gain

ENTRY = kit.entry("D3")
_NONE = "no MLP"


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Attention with MLPs of every activation and slope, and without any."""

    layers: int = 8
    heads: int = 4
    mlp_ratio: float = 4.0
    activations: tuple[str, ...] = ("relu", "gelu")
    gains: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """What the MLPs' last weights are multiplied by: their Lipschitz constants go with it."""
    init: str = "lecun"


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Pure attention with MLPs of growing slope, without skips.

    An activation bears the claim out if every network stays doubly exponential and a larger slope
    never ends lower.
    """
    if not config.gains:
        raise InputError("gains is empty; give at least one slope to try.")
    networks = {_NONE: _network(config, None)} | {
        _name(kind, gain): _network(config, kind, gain)
        for kind in config.activations
        for gain in config.gains
    }
    compared = depths.compare(networks, *config.texts(), on_step=on_step)
    found = depths.laws(tables.summary(compared.table))
    slopes = {name: _lipschitz(network) for name, network in networks.items() if name != _NONE}
    return ENTRY.result(
        config,
        question="Does the fall stay doubly exponential, and is it slower where MLPs are steeper?",
        sentences=(
            f"{depths.ending(_NONE, found[_NONE], config.layers)}.",
            *(_sentence(config, name, found, slope) for name, slope in slopes.items()),
        ),
        table=compared.table,
        notes=compared.notes,
        judgement=kit.judged(
            ENTRY.domain,
            {
                kind: bears_out([found[_name(kind, gain)] for gain in sorted(config.gains)])
                for kind in config.activations
            },
        ),
        drawings=(kit.Drawing("by_depth", "A curve for each network.", depths.RELATIVE),),
        shown=(depths.RELATIVE,),
    )


def bears_out(found: Sequence[Law]) -> bool:
    """From the flattest MLPs to the steepest: all cubic, and none ends lower than the one before.

    >>> bears_out([Law("doubly exponential", 3.0, -9.0, last) for last in (-50.0, -20.0)])
    True
    """
    rising = all(flat.last <= steep.last for flat, steep in pairwise(found))
    return rising and all(law.cubic for law in found)


def _name(kind: str, gain: float) -> str:
    return f"{kind} × {gain:g}"


def _network(config: Config, kind: str | None, gain: float = 1.0) -> Network:
    spec = Spec(
        config.layers,
        config.heads,
        config.width,
        mlp_ratio=config.mlp_ratio,
        activation=kind or "gelu",
        norm="none",
        skip=False,
        init=config.init,
    )
    network = Network.random(spec, seed=config.seed).double()
    if kind is None:
        return network.without("mlp")
    for mlp in _mlps(network):
        assert isinstance(mlp.down, nn.Linear)
        mlp.down.weight.data.mul_(gain)
    return network


def _sentence(config: Config, name: str, found: dict[str, Law], slope: float) -> str:
    pace = "slower" if found[name].last > found[_NONE].last else "faster"
    return (
        f"{depths.ending(name, found[name], config.layers)}; Lipschitz constant at most "
        f"{short(slope)}, {pace} than without MLPs."
    )


def _lipschitz(network: Network) -> float:
    """The largest λ of the layers, in the composite sense of ``rankscope.theory``."""
    gains = [row_gain(mlp, width=network.spec.width) for mlp in _mlps(network)]
    return max(float(matrix_norm(gain, "composite")) for gain in gains if gain is not None)


def _mlps(network: Network) -> list[MLP]:
    return [module for module in network.modules() if isinstance(module, MLP)]
