"""Claim N1: scores that depend on the pair of positions make collapse exponential only."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from rankscope import tables
from rankscope.experiments.claims import Claim, overall
from rankscope.experiments.depths import RELATIVE, Texts, deep_table, ending, laws
from rankscope.masks import Mask, as_mask
from rankscope.network import ALiBi, Network, ScoreKind, Scores, Sink, Spec
from rankscope.network.positions import BucketedBias, Rotary
from rankscope.streams import stream
from rankscope.tracing import Provenance

STATEMENT = (
    "Pure attention collapses doubly exponentially where its rows agree once the tokens do, and "
    "only exponentially where scores or a mask depend on the pair of positions."
)
LAYERS = 24
Kind = ScoreKind | Literal["dot"]


@dataclass(frozen=True)
class Turning:
    """Rotary positions with the usual frequencies, for a network drawn at random."""

    base: float = 10000.0

    def build(self, heads: int, head_width: int) -> Scores:
        del heads
        return Rotary(self.base ** -(torch.arange(0, head_width, 2) / head_width))


@dataclass(frozen=True)
class Buckets:
    """A relative bias by distance, as T5's, drawn at random."""

    seed: int = 0

    def build(self, heads: int, head_width: int) -> Scores:
        del head_width
        table = nn.Embedding(32, heads)
        generator = stream(self.seed, "relative bias")
        with torch.no_grad():
            table.weight.copy_(torch.randn(32, heads, generator=generator))
        return BucketedBias(table, farthest=128)


_ALIKE: dict[str, Kind] = {"absolute positions": "dot", "sink": Sink()}
_PAIRWISE: dict[str, Kind] = {
    "rotary": Turning(),
    "relative bias": Buckets(),
    "ALiBi": ALiBi(),
}
_MASKED = {"causal mask": "causal", "window mask": "window:8"}


def n1(*, seed: int = 0, on_network: Callable[[], None] | None = None) -> Claim:
    """The same weights under scores and masks of both kinds, followed in scaled arithmetic."""
    reading = Texts(seed=seed)
    x, token_mask = reading()
    networks = {
        name: partial(_network, kind, as_mask("full"), seed)
        for name, kind in (_ALIKE | _PAIRWISE).items()
    } | {name: partial(_network, "dot", as_mask(mask), seed) for name, mask in _MASKED.items()}
    table = deep_table(networks, x, token_mask, on_network=on_network)
    summary = tables.summary(table)
    found = laws(summary)
    expected = {
        name: "doubly exponential" if name in _ALIKE else "exponential" for name in networks
    }
    return Claim(
        "N1",
        STATEMENT,
        "derived for rankscope",
        overall({name: found[name].kind == kind for name, kind in expected.items()}),
        tuple(f"{ending(name, law, LAYERS)}." for name, law in found.items()),
        table,
        summary,
        asdict(Provenance("pure attention", seed=seed)) | {"input": str(reading)},
        metric=RELATIVE,
        figure="by_depth",
        lowest=-60.0,
    )


def steps() -> int:
    """How often ``on_network`` is called."""
    return len(_ALIKE) + len(_PAIRWISE) + len(_MASKED)


def _network(kind: Kind, mask: Mask, seed: int) -> Network:
    spec = Spec(
        LAYERS,
        1,
        64,
        mlp_ratio=0.0,
        norm="none",
        skip=False,
        init="orthogonal",
        mask=mask,
        scores=kind,
    )
    return Network.random(spec, seed=seed)
