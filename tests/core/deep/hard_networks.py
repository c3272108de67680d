"""Random networks chosen to be hard for scaled arithmetic, for the campaign against mpmath.

Attention so sharp that some tokens agree to more digits than a float has, features far apart,
states too large or too small for floats, norms over forty layers, values of rank one, groups of
tokens that almost agree: whatever has once gone wrong, and everything else that can be combined.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankscope.core.masks import Window
from rankscope.core.metrics import Center, Norm
from rankscope.core.network import (
    ALiBi,
    GaussianKernel,
    LinearKernel,
    Linformer,
    Network,
    RelativeBias,
    Rotary,
    Sink,
    Sparsemax,
    Spec,
)
from rankscope.streams import stream, stream_seed

from .kinds import Kind

Fields = dict[str, Any]
_NORMS: tuple[Norm, ...] = ("composite", "one", "inf", "fro")
_CENTERS: tuple[Center, ...] = ("mean", "median")


@dataclass(frozen=True)
class Case:
    """One network, what it is run on, and how its residuals are taken."""

    kind: str
    network: Network
    x: Tensor
    token_mask: Tensor | None
    norm: Norm = "composite"
    center: Center = "mean"
    measured: Tensor | None = None


def draw(seed: int, number: int) -> Case:
    """The ``number``-th hard network under a seed; the kinds take turns."""
    pick = random.Random(stream_seed(seed, "hard network", number))
    kind = list(KINDS)[number % len(KINDS)]
    fields, wild = KINDS[kind](pick)
    shape = (fields.pop("layers"), fields.pop("heads"), fields.pop("width"))
    network = Network.random(
        Spec(*shape, **fields), seed=pick.randrange(10**9), dtype=torch.float64
    )
    noise = stream(seed, "hard network", number, "biases")
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                drawn = torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
                parameter += pick.choice([0.1, 0.3, 1.0]) * drawn
    x, token_mask = _input(pick, stream(seed, "hard network", number, "input"), shape[2], wild)
    return Case(kind, network, x, token_mask, *_measurement(seed, number, x, token_mask))


def _measurement(
    seed: int, number: int, x: Tensor, token_mask: Tensor | None
) -> tuple[Norm, Center, Tensor | None]:
    """For a third of the networks another norm and center, for some of these not all tokens."""
    pick = random.Random(stream_seed(seed, "hard network", number, "measurement"))
    if pick.random() < 2 / 3:
        return "composite", "mean", None
    norm, center = pick.choice(_NORMS), pick.choice(_CENTERS)
    if pick.random() < 0.5:
        return norm, center, None
    real = torch.ones(x.shape[:2], dtype=torch.bool) if token_mask is None else token_mask
    measured = real.clone()
    for row in measured:
        tokens = row.nonzero().flatten().tolist()
        row[pick.sample(tokens, pick.randint(0, len(tokens) - 2))] = False
    return norm, center, measured


def _input(
    pick: random.Random, generator: torch.Generator, width: int, wild: bool
) -> tuple[Tensor, Tensor | None]:
    """Tokens apart by much or little, some of them in groups, of any size, padded or not."""
    tokens = pick.randint(3, 6)
    samples = []
    for _ in range(pick.choice([1, 1, 2])):
        common, own = (
            torch.randn(count, width, generator=generator, dtype=torch.float64)
            for count in (1, tokens)
        )
        if pick.random() < 0.2:  # some tokens nearly agree, others do not
            group = pick.randint(2, tokens)
            own[:group] = own[:1] + 10.0 ** -pick.randint(3, 18) * own[:group]
        apart = pick.choice([1.0, 1.0, 3.0, 1e-3, 1e-8, 1e-14])
        size = pick.choice([1.0, 2.0, 5.0, 20.0] if wild else [1.0, 1.0, 1e-7, 1e-90])
        samples.append((pick.choice([0.0, 1.0, 3.0]) * common + apart * own) * size)
    if pick.random() < 0.7:
        return torch.stack(samples), None
    mask = torch.ones(len(samples), tokens, dtype=torch.bool)
    for row in mask:
        row[pick.sample(range(tokens), pick.randint(0, tokens - 2))] = False
    return torch.stack(samples), mask


def _shape(pick: random.Random) -> Fields:
    return {
        "layers": pick.randint(1, 5),
        "heads": pick.choice([1, 1, 2, 3]),
        "width": pick.randint(2, 5),
        "head_width": pick.choice([1, 2, 2, 3]),
        "bias": pick.random() < 0.5,
    }


def _bare(pick: random.Random) -> Fields:
    """Attention alone, with a skip or without."""
    skip = pick.choice([0.0, 0.0, 0.0, 0.5, 1.0])
    return {**_shape(pick), "mlp_ratio": 0.0, "norm": "none", "skip": skip}


def _mask(pick: random.Random) -> Any:
    near = [Window(before=1, after=0), Window(before=1, after=1), Window(before=2, after=0)]
    return pick.choice(["full", "full", "full", "causal", *near])


def _saturated(pick: random.Random) -> tuple[Fields, bool]:
    init = pick.choice([1.0, 1.5, 2.0, 3.0])
    return {**_bare(pick), "init": init, "mask": _mask(pick)}, True


def _sharp_biases(pick: random.Random) -> tuple[Fields, bool]:
    scores = pick.choice(
        [
            ALiBi(),
            RelativeBias(buckets=8, farthest=6, seed=1),
            Sink(tokens=1, strength=pick.choice([2.0, 30.0, 800.0])),
            GaussianKernel(bandwidth=pick.choice([0.1, 0.5, 2.0])),
            Kind("buckets"),
        ]
    )
    init = pick.choice([0.5, 1.0, 2.0])
    return {**_bare(pick), "init": init, "scores": scores, "mask": _mask(pick)}, True


def _positions(pick: random.Random) -> tuple[Fields, bool]:
    names = ["rotary", "rotary in part", "sinusoids", "sinusoids, clamped", "normed"]
    scores = pick.choice([Rotary(base=10.0), *map(Kind, names)])
    fields = {**_bare(pick), "init": pick.choice([0.5, 1.0, 2.0]), "scores": scores}
    return {**fields, "head_width": 4, "mask": _mask(pick)}, True


def _far_features(pick: random.Random) -> tuple[Fields, bool]:
    fields = {**_bare(pick), "scores": LinearKernel(), "mask": _mask(pick)}
    scale = pick.choice([0.3, 1.0, 3.0])
    return {**fields, "init": pick.choice([0.5, 1.0, 3.0, 6.0]), "score_scale": scale}, True


def _sharp_sparsemax(pick: random.Random) -> tuple[Fields, bool]:
    fields = {**_bare(pick), "scores": Sparsemax(), "mask": _mask(pick)}
    scale = pick.choice([1.0, 4.0, 30.0, 100.0])
    return {**fields, "init": pick.choice([0.4, 1.0, 1.5]), "score_scale": scale}, True


def _pooled(pick: random.Random) -> tuple[Fields, bool]:
    fields = {**_bare(pick), "scores": Linformer(segments=pick.randint(1, 4))}
    return {**fields, "init": pick.choice([0.5, 1.0, 2.0])}, True


def _forty_norms(pick: random.Random) -> tuple[Fields, bool]:
    fields = {**_shape(pick), "layers": 40, "width": pick.choice([3, 4]), "heads": 1}
    fields |= {"mlp_ratio": pick.choice([0.0, 0.0, 1.0]), "norm": pick.choice(["layer", "rms"])}
    fields |= {"norm_place": pick.choice(["pre", "post", "both"])}
    skip = pick.choice([0.0, 0.0, 0.5, 1.0])
    return {**fields, "skip": skip, "init": pick.choice([0.3, 0.7, 1.2])}, False


def _huge(pick: random.Random) -> tuple[Fields, bool]:
    fields = {**_bare(pick), "layers": pick.randint(2, 4), "width": 2, "heads": 1}
    scores = pick.choice(["dot", LinearKernel(), Sparsemax(), Sink(tokens=1, strength=2.0)])
    return {**fields, "init": pick.choice([1e10, 1e40, 1e70]), "scores": scores}, True


def _one_value(pick: random.Random) -> tuple[Fields, bool]:
    """Values of rank one before a norm."""
    fields = {**_shape(pick), "heads": 1, "head_width": 1, "norm": pick.choice(["layer", "rms"])}
    fields |= {"norm_place": pick.choice(["post", "both"]), "skip": pick.choice([0.0, 0.0, 1.0])}
    fields |= {"mlp_ratio": pick.choice([0.0, 1.0]), "norm_eps": pick.choice([1e-12, 1e-5, 0.3])}
    return {**fields, "init": pick.choice([0.3, 0.8, 1.5])}, False


def _anything(pick: random.Random) -> tuple[Fields, bool]:
    """All parts of a block in any combination."""
    plain = ["dot", LinearKernel(), GaussianKernel(bandwidth=1.5), Sparsemax(), ALiBi()]
    scores = pick.choice([*plain, Sink(tokens=1, strength=2.0), Kind("buckets")])
    parallel = pick.random() < 0.25
    skip = pick.choice([0.0, 0.3, 1.0, 1.7])
    fields = {**_shape(pick), "layers": pick.randint(1, 6), "scores": scores, "skip": skip}
    if not parallel:
        fields["attention_skip"] = pick.choice([0.0, 0.3, 1.0])
    return {
        **fields,
        "parallel": parallel,
        "mlp_ratio": pick.choice([1.0, 1.5]),
        "activation": pick.choice(["gelu", "gelu_tanh", "silu", "relu"]),
        "gated": pick.random() < 0.4,
        "norm": pick.choice(["none", "layer", "rms", "sphere"]),
        "norm_place": pick.choice(["pre", "post", "both"]),
        "norm_eps": pick.choice([1e-12, 1e-5, 0.3]),
        "mask": _mask(pick),
        "init": pick.choice([0.1, 0.4, 0.8, 1.5, 3.0]),
    }, pick.random() < 0.5


KINDS: dict[str, Callable[[random.Random], tuple[Fields, bool]]] = {
    "saturated": _saturated,
    "biases": _sharp_biases,
    "positions": _positions,
    "linear kernel": _far_features,
    "sparsemax": _sharp_sparsemax,
    "linformer": _pooled,
    "forty norms": _forty_norms,
    "huge states": _huge,
    "rank-one values": _one_value,
    "whole blocks": _anything,
    "whole blocks, again": _anything,
}
