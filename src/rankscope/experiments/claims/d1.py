"""Claim D1, Dong et al. 2021, theorem 2.1: the paths sum to the output, in every network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.masks import Window
from rankscope.core.network import Network, Spec
from rankscope.core.paths import Path, count_paths, enumerate_paths, path_lengths, path_outputs
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.numerals import short
from rankscope.streams import stream

ENTRY = kit.claim(
    "D1",
    "The output of a network is the sum of its paths, of every length, and of its biases.",
    source="Dong et al. 2021, theorem 2.1",
    question="Does the sum of all paths equal the output of a plain forward pass?",
    domain="pure attention, with and without skips",
    beyond="transformers with MLPs and norms, with gates and scales frozen at this input",
    seconds=1,
)
CHARTS = (kit.Drawing("by_model", "A panel for each network.", "relative_error"),)
_SINGLE, _LENGTHS = "single paths", "path lengths"

KINDS: Final[dict[str, Callable[..., Spec]]] = {
    "pure attention": Spec.pure_attention,
    "attention and skips": partial(Spec, mlp_ratio=0.0, norm="none"),
    "post-norm transformer": partial(Spec, norm_place="post"),
    "pre-norm, causal": partial(Spec, mask="causal"),
    "parallel, windowed": partial(Spec, parallel=True, mask=Window(before=2, after=1)),
    "gated, RMS, grouped heads": partial(
        Spec, gated=True, norm="rms", kv_heads=1, activation="silu"
    ),
}
"""One network of each kind, given its layers, heads, width and initialisation."""
STATED: Final = ("pure attention", "attention and skips")
"""The kinds that the theorem is about."""


@dataclass(frozen=True)
class Config(kit.Config):
    """Networks of several kinds, small enough to add up every single path."""

    kinds: tuple[str, ...] = tuple(KINDS)
    layers: int = 4
    heads: int = 3
    width: int = 12
    init: float = 0.5
    tokens: int = 7
    samples: int = 2
    tolerance: float = 1e-10  # relative errors under this are rounding


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Add up all single paths, and all lengths, and hold both against the plain forward pass."""
    x = _draw(config.seed, "inputs", config.samples, config.tokens, config.width)
    paths = list(enumerate_paths(config.layers, config.heads))
    by_kind = {
        kind: errors(_network(config, kind), x, paths)
        for kind, _ in kit.tracked(config.kinds, on_step)
    }
    return tables.joined(by_kind, column="model")


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """The theorem is supported for a kind of network if all its errors are rounding errors."""
    largest = table.group_by("model", "variant").agg(pl.max("value")).rows()
    worst = {(kind, variant): value for kind, variant, value in largest}
    exact = {
        kind: bool((rows["value"] < config.tolerance).all())
        for (kind,), rows in table.group_by("model", maintain_order=True)
    }
    return kit.Answer(
        [
            f"{kind}: the {count_paths(config.layers, config.heads).total:,} single paths and the "
            f"biases miss the output by {short(worst[kind, _SINGLE], digits=1)}, the lengths miss "
            f"no layer by more than {short(worst[kind, _LENGTHS], digits=1)} (relative, float64)."
            for kind in exact
        ],
        stated={kind: holds for kind, holds in exact.items() if kind in STATED},
        beyond={kind: holds for kind, holds in exact.items() if kind not in STATED},
        key_figures={"largest relative error": max(worst.values())},
    )


def errors(network: Network, x: Tensor, paths: Sequence[Path]) -> pl.DataFrame:
    """How far single paths miss the output, and lengths every layer, relative to their size."""
    with torch.no_grad():
        lengths = path_lengths(network, x)
        single = path_outputs(network, x, paths).sum(0)
        output = network(x)
        missed = torch.linalg.vector_norm(single + lengths.bias - output)
        error = float(missed / torch.linalg.vector_norm(output))
    rows = [
        (_SINGLE, len(lengths.errors), error),
        *((_LENGTHS, layer, missed) for layer, missed in enumerate(lengths.errors, start=1)),
    ]
    return tables.from_rows(
        ("variant", "layer", "sample", "metric", "value"),
        [(variant, layer, 0, "relative_error", value) for variant, layer, value in rows],
    )


def _network(config: Config, kind: str) -> Network:
    if kind not in KINDS:
        raise InputError(f"unknown kind of network {kind!r}; choose one of {', '.join(KINDS)}.")
    spec = KINDS[kind](config.layers, config.heads, config.width, init=config.init)
    network = Network.random(spec, seed=config.seed, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 1:  # biases and gains start at zero and one: make them count
                parameter.add_(_draw(config.seed, name, *parameter.shape), alpha=0.3)
    return network


def _draw(seed: int, purpose: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=stream(seed, purpose), dtype=torch.float64)
