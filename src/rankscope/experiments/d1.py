"""Claim D1, theorem 2.1: the paths sum to the output, in networks of every kind."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from rankscope import tables
from rankscope.experiments.claims import Claim, overall
from rankscope.network import Network, Spec, Window
from rankscope.paths import enumerate_paths, path_lengths, path_outputs
from rankscope.streams import stream
from rankscope.tracing import Provenance

STATEMENT = "The output of a network is the sum of its paths, of every length, and of its biases."
TOLERANCE = 1e-10
_LAYERS, _HEADS, _WIDTH, _TOKENS = 4, 3, 12, 7

KINDS: dict[str, Spec] = {
    "pure attention": Spec(
        _LAYERS, _HEADS, _WIDTH, mlp_ratio=0.0, norm="none", skip=False, init=0.5
    ),
    "attention and skips": Spec(_LAYERS, _HEADS, _WIDTH, mlp_ratio=0.0, norm="none", init=0.5),
    "post-norm transformer": Spec(_LAYERS, _HEADS, _WIDTH, norm_place="post", init=0.5),
    "pre-norm, causal": Spec(_LAYERS, _HEADS, _WIDTH, mask="causal", init=0.5),
    "parallel, windowed": Spec(
        _LAYERS, _HEADS, _WIDTH, parallel=True, mask=Window(before=2, after=1), init=0.5
    ),
    "gated, RMS, grouped heads": Spec(
        _LAYERS, _HEADS, _WIDTH, gated=True, norm="rms", kv_heads=1, activation="silu", init=0.5
    ),
}
"""One network of each kind, small enough to add up every single path."""


def d1(*, seed: int = 0) -> Claim:
    """Add up all single paths, and all lengths, and hold both against the plain forward pass."""
    errors = {name: _errors(spec, seed) for name, spec in KINDS.items()}
    columns: dict[str, list[Any]] = {
        "model": [name for name, found in errors.items() for _ in found],
        "layer": [layer for found in errors.values() for layer in range(len(found))],
        "sample": [0 for found in errors.values() for _ in found],
        "metric": ["relative_error" for found in errors.values() for _ in found],
        "value": [error for found in errors.values() for error in found],
    }
    table = tables.frame(columns)
    paths = (_HEADS + 1) ** _LAYERS
    return Claim(
        "D1",
        STATEMENT,
        "Dong, Cordonnier, Loukas 2021, theorem 2.1",
        overall(
            {name: all(error < TOLERANCE for error in found) for name, found in errors.items()}
        ),
        tuple(
            f"{name}: the {paths} single paths and the biases miss the output by {found[0]:.0e}, "
            f"the lengths miss no layer by more than {max(found[1:]):.0e} (relative, float64)."
            for name, found in errors.items()
        ),
        table,
        tables.summary(table),
        asdict(Provenance("random networks", seed=seed)),
        metric="relative_error",
    )


def _errors(spec: Spec, seed: int) -> list[float]:
    """First that of the single paths at the output, then that of the lengths at each layer."""
    network = Network.random(spec, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 1:  # biases and gains start at zero and one: make them count
                parameter.add_(_drawn(seed, name, *parameter.shape), alpha=0.3)
        x = _drawn(seed, "inputs", 2, _TOKENS, _WIDTH)
        found = path_lengths(network, x)
        single = path_outputs(network, x, list(enumerate_paths(_LAYERS, _HEADS))).sum(0)
        output = network(x)
        missed = torch.linalg.vector_norm(single + found.bias - output)
    return [float(missed / torch.linalg.vector_norm(output)), *found.errors]


def _drawn(seed: int, purpose: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=stream(seed, purpose), dtype=torch.float64)
