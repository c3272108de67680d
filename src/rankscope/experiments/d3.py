"""Claim D3: MLPs slow the collapse by their Lipschitz constant and do not stop it."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import pairwise

from torch import nn

from rankscope import tables
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.depths import RELATIVE, Texts, deep_table, ending, laws
from rankscope.experiments.laws import Law
from rankscope.metrics.norms import matrix_norm
from rankscope.network import Network, Spec
from rankscope.network.mlp import MLP
from rankscope.theory.residual_bounds import row_gain
from rankscope.tracing import Provenance

STATEMENT = (
    "MLPs between the layers leave the collapse of pure attention doubly exponential; the larger "
    "their Lipschitz constant, the slower it is."
)
LAYERS = 8
GAINS = (0.5, 1.0, 2.0, 4.0)
"""What the MLPs' last weights are multiplied by: their Lipschitz constants go with it."""
ACTIVATIONS = ("relu", "gelu")
_NONE = "no MLP"


def d3(*, seed: int = 0, on_network: Callable[[], None] | None = None) -> Claim:
    """Pure attention with MLPs of growing slope, without skips.

    An activation bears the claim out if every network stays doubly exponential and a larger slope
    never ends lower.
    """
    reading = Texts(seed=seed)
    x, token_mask = reading()
    networks = {_NONE: partial(_network, None, 1.0, seed)} | {
        _name(kind, gain): partial(_network, kind, gain, seed)
        for kind in ACTIVATIONS
        for gain in GAINS
    }
    table = deep_table(networks, x, token_mask, on_network=on_network)
    summary = tables.summary(table)
    found = laws(summary)
    return Claim(
        "D3",
        STATEMENT,
        "Dong, Cordonnier, Loukas 2021, corollary 3.2",
        overall({kind: _bears_out(kind, found) for kind in ACTIVATIONS}),
        tuple(_reason(name, law, found[_NONE], networks[name]()) for name, law in found.items()),
        table,
        summary,
        asdict(Provenance("attention and MLPs", seed=seed)) | {"input": str(reading)},
        metric=RELATIVE,
        figure="by_depth",
    )


def steps() -> int:
    """How often ``on_network`` is called."""
    return 1 + len(ACTIVATIONS) * len(GAINS)


def _name(kind: str, gain: float) -> str:
    return f"{kind} × {gain:g}"


def _network(kind: str | None, gain: float, seed: int) -> Network:
    spec = Spec(
        LAYERS,
        4,
        64,
        mlp_ratio=4.0,
        activation=kind or "gelu",
        norm="none",
        skip=False,
        init="lecun",
    )
    network = Network.random(spec, seed=seed).double()
    if kind is None:
        return network.without("mlp")
    for block in network.blocks:
        mlp = block.mlp
        assert isinstance(mlp, MLP)
        assert isinstance(mlp.down, nn.Linear)
        mlp.down.weight.data.mul_(gain)
    return network


def _bears_out(kind: str, found: dict[str, Law]) -> bool:
    ends = [found[_name(kind, gain)] for gain in GAINS]
    rising = all(a.last <= b.last for a, b in pairwise(ends))
    return rising and all(law.cubic for law in ends)


def _reason(name: str, law: Law, without: Law, network: Network) -> str:
    told = ending(name, law, LAYERS)
    if name == _NONE:
        return f"{told}."
    pace = "slower" if law.last > without.last else "faster"
    return (
        f"{told}; Lipschitz constant at most {_lipschitz(network):.3g}, {pace} than without MLPs."
    )


def _lipschitz(network: Network) -> float:
    """The largest λ of the layers, in the composite norm, from ``row_gain``."""
    mlps = [module for module in network.modules() if isinstance(module, MLP)]
    gains = [row_gain(mlp, width=network.spec.width) for mlp in mlps]
    return max(float(matrix_norm(gain, "composite")) for gain in gains if gain is not None)
