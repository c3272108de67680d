"""A network in training mode: dropout of attention weights and of what each part puts out, as BERT.

Our networks have no dropout: it is no part of what they compute. This is a plain forward pass of
one of them with dropout, for the one claim that asks what dropout does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Final, cast

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.deep import deep_trace
from rankscope.core.metrics import residual
from rankscope.core.network import Attention, Block, Network, Visibility
from rankscope.core.tracing import Trace
from rankscope.experiments import depths, kit, norm_outcomes
from rankscope.experiments.norm_cases import Setting, random_network
from rankscope.experiments.studies.layernorm import PLAIN
from rankscope.streams import stream


@dataclass(frozen=True)
class Dropout:
    """The shares that are dropped, of attention weights and of every part's output (BERT: 0.1)."""

    attention: float = 0.1
    hidden: float = 0.1

    def floor(self, tokens: int, width: int) -> float:
        """Below which μ of normalised tokens does not stay under hidden dropout of p (derived).

        >>> round(Dropout(hidden=0.1).floor(64, 768), 1)
        69.6

        Tokens that agree, y, become different all the same: each keeps its own features, of which
        a mean of y and squares of ``y²/(1 − p)`` are left. Normalised to the length √width, their
        mean row has the square ``width·(1 − p + p/n)``, and ``μ² = n·width·p·(1 − 1/n)``.
        """
        return float((width * self.hidden * (tokens - 1)) ** 0.5)


@torch.no_grad()
def states_with_dropout(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None,
    dropout: Dropout,
    generator: torch.Generator,
) -> Iterator[Tensor]:
    """The output of each block in turn, in training mode; draws come from ``generator``."""
    x, token_mask = network.prepare(x, token_mask)
    for mask, block in zip(network.spec.masks, network.blocks, strict=True):
        seen = Visibility.of(mask, x.shape[1], token_mask, x.device)
        for step in cast(Block, block).steps:
            total = step.skip * x
            for branch in step.branches:
                part, inner = branch.part, branch.before(x)
                if isinstance(part, Attention):
                    weights = drop(part.pattern(inner, seen), dropout.attention, generator)
                    mixed = weights @ part.split(part.value(inner), part.kv_heads)
                    out = part.output(mixed.transpose(1, 2).flatten(2))
                else:
                    out = part(inner, seen)
                total = total + branch.inside(drop(out, dropout.hidden, generator))
            x = step.after(total)
        yield x


def drop(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Zero a share of the entries at random and scale up the others, which keeps the mean."""
    kept = torch.rand(x.shape, generator=generator) >= share
    return x * kept / (1 - share)


DROPOUT: Final = "dropout"
"""The variant with all of it, as BERT is trained."""


@checked
@dataclass(frozen=True)
class Shape:
    """BERT-base's, its initialisation included; attention and LayerNorm, no skips and no MLPs.

    Where a sample is level and its tokens differ after ``layers``, it is followed ``deeper`` times
    as far.
    """

    layers: int = 96
    deeper: int = 2
    heads: int = 12
    width: int = 768
    tokens: int = 64
    samples: int = 1
    masks: tuple[str, ...] = ("full", "causal", "window:4", "causal-window:4")
    dropouts: tuple[tuple[str, Dropout], ...] = (
        (DROPOUT, Dropout()),
        ("dropout of attention alone", Dropout(hidden=0.0)),
        ("dropout of outputs alone", Dropout(attention=0.0)),
    )

    def __str__(self) -> str:
        return f"{self.heads} heads, {self.width} features, {self.tokens} tokens"

    def panel(self, mask: str) -> str:
        """What a mask's curves are called in the table."""
        return f"LayerNorm only, {mask}"

    @property
    def dropout_floor(self) -> float:
        """The μ at which dropout as in training keeps tokens that agree (derived)."""
        return dict(self.dropouts)[DROPOUT].floor(self.tokens, self.width)

    @property
    def panels(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self.panel(mask) for mask in self.masks)


def measure(shape: Shape, seed: int, on_step: kit.OnStep) -> depths.Measured:
    """Every mask in scaled arithmetic, in plain formats, and in float32 with dropout."""
    x, token_mask = depths.Texts(shape.width, shape.tokens, shape.samples, seed)()

    @cache
    def draw(layers: int, dtype: torch.dtype) -> Network:
        if dtype != torch.float64:
            return draw(layers, torch.float64).float()
        setting = Setting(heads=shape.heads, width=shape.width, init="bert", tokens=shape.tokens)
        return random_network(setting, layers, seed)

    def trace(layers: int, mask: str) -> Trace:
        network = draw(layers, torch.float64).with_mask(mask)
        return deep_trace(network, x, norm="fro", token_mask=token_mask)

    parts: dict[str, pl.DataFrame] = {}
    traces: dict[str, Trace] = {}
    for mask, on_mask in kit.tracked(shape.masks, on_step):
        layers = shape.layers
        scaled = trace(layers, mask)
        on_mask(0.25)
        if norm_outcomes.some_stay(scaled.table):
            layers *= shape.deeper
            scaled = trace(layers, mask)
        on_mask(0.5)
        wanted = pl.col("metric").is_in(["log10_residual", depths.RELATIVE])
        found = {depths.SCALED: depths.dispersions(scaled.table.filter(wanted))}
        for name, dtype in depths.FORMATS.items():
            plain, start = draw(layers, dtype).with_mask(mask), x.to(dtype)
            found[name] = _table(start, plain.states(start, token_mask), token_mask)
        for name, dropout in shape.dropouts:  # in float32, as models are trained
            generator = stream(seed, name, mask)
            states = states_with_dropout(plain, start, token_mask, dropout, generator)
            found[name] = _table(start, states, token_mask)
        traces[shape.panel(mask)] = scaled
        parts[shape.panel(mask)] = tables.joined(found)
    return depths.Measured(tables.joined(parts, column="model"), depths.doubts(traces))


@torch.no_grad()
def _table(x: Tensor, states: Iterable[Tensor], token_mask: Tensor) -> pl.DataFrame:
    """What is measured of the input and of every layer, in plain numbers."""
    rows = []
    for layer, state in enumerate((x, *states)):
        values = {depths.DISPERSION: residual(state, norm="fro", token_mask=token_mask).log10()}
        values |= {metric: of(state, token_mask=token_mask) for metric, of in PLAIN.items()}
        rows += [
            (layer, sample, metric, value)
            for metric, by_sample in values.items()
            for sample, value in enumerate(by_sample.tolist())
        ]
    return tables.from_rows(("layer", "sample", "metric", "value"), rows)


def last_dispersions(table: pl.DataFrame, variant: str) -> dict[str, float]:
    """By panel, log₁₀ μ at the end: the median over samples of the last layer.

    Dropout is drawn anew in every layer, so that there the median runs over the last quarter of the
    layers, too.
    """
    drawn = variant not in (depths.SCALED, *depths.FORMATS)
    ends: dict[str, float] = {}
    rows = table.filter(metric=depths.DISPERSION, variant=variant)
    for (panel,), part in rows.group_by("model", maintain_order=True):
        depth = max(part["layer"].to_list())
        last = part.filter(pl.col("layer") >= (depth - depth // 4 if drawn else depth))
        ends[str(panel)] = median(last["value"].to_list())
    return ends
