"""Networks in BERT-base's shape with random weights, layer by layer, and in training mode.

Our networks have no dropout: it is no part of what they compute. Here is a plain forward pass of
one of them with dropout of attention weights and of what each part puts out, as in BERT, for the
one claim that asks what dropout does.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.metrics import residual, stable_rank
from rankscope.core.network import Attention, Block, Network, Spec, Visibility
from rankscope.experiments import depths, kit
from rankscope.experiments.norm_cases import NormSetting, random_network
from rankscope.streams import stream


@dataclass(frozen=True)
class DropoutRates:
    """The shares that are dropped, of attention weights and of every part's output (BERT: 0.1)."""

    attention: float = 0.1
    hidden: float = 0.1

    def floor(self, tokens: int, width: int) -> float:
        """Below which μ of normalised tokens does not stay under hidden dropout of p (derived).

        >>> round(DropoutRates(hidden=0.1).floor(128, 768), 1)
        98.8

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
    dropout: DropoutRates,
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
    survives = torch.rand(x.shape, generator=generator) >= share
    return x * survives / (1 - share)


NORMED, DROPOUT = "LayerNorm only", "LayerNorm only, dropout"
"""Panels: the claim's network, and the same in training mode, as BERT is trained."""
ATTENTION_DROPPED, OUTPUTS_DROPPED = f"{DROPOUT} of attention", f"{DROPOUT} of outputs"
PURE, SKIPPING, NORMED_SKIPPING = "attention only", "skips", "LayerNorm and skips"
"""Panels of the same figure beside the claim's."""
STABLE = "stable_rank"
_WITHOUT: Final[Mapping[str, tuple[str, ...]]] = {
    PURE: ("norm", "skip"),
    SKIPPING: ("norm",),
    NORMED_SKIPPING: (),
}
_BERT_WIDTH, _BERT_STD = 768, 0.02
_CHUNK = 8  # layers in memory at a time
_EQUAL = 1e-10  # of the tokens' size: below it float64 shows rounding soon, and a curve ends


@checked
@dataclass(frozen=True)
class Shape:
    """BERT-base's, its initialisation included; attention and LayerNorm, no skips and no MLPs.

    Dropout is drawn anew in every layer and needs no depth; the figure's ``other`` panels are of
    another width, their weights so large that products of them are as large as in BERT.
    """

    layers: int = 128
    draws: int = 3  # of all weights
    heads: int = 12
    width: int = 768
    tokens: int = 128
    masks: tuple[str, ...] = ("full", "causal", "window:4", "causal-window:4")
    dropout: DropoutRates = DropoutRates()
    dropout_layers: int = 16
    other_heads: int = 4
    other_width: int = 128

    def __str__(self) -> str:
        return f"{self.heads} heads, {self.width} features, {self.tokens} tokens"

    @property
    def dropout_floor(self) -> float:
        """The μ at which dropout as in training keeps tokens that agree (derived)."""
        return self.dropout.floor(self.tokens, self.width)

    @property
    def dropouts(self) -> dict[str, DropoutRates]:
        """What is dropped, by panel."""
        attention, hidden = self.dropout.attention, self.dropout.hidden
        return {
            DROPOUT: self.dropout,
            ATTENTION_DROPPED: DropoutRates(attention, 0.0),
            OUTPUTS_DROPPED: DropoutRates(0.0, hidden),
        }


def measure(shape: Shape, seed: int, on_step: kit.OnStep) -> pl.DataFrame:
    """log10 μ and stable ranks: a panel for each set of parts, a curve for each mask.

    The samples are draws of all weights. Plain float64 will do: whether tokens differ by a
    hundredth of what they did is far above its rounding.
    """
    on_normed, on_dropout, on_others = kit.parts(on_step, 8, 1, 1)
    tables_ = [
        _table(NORMED, mask, draw, states)
        for draw, on_draw in kit.tracked(range(shape.draws), on_normed)
        for mask, states in _follow(shape, seed + draw, on_draw).items()
    ]
    for (panel, dropout), on_panel in kit.tracked(shape.dropouts.items(), on_dropout):
        x, token_mask = embedded(seed, shape.width, shape.tokens)
        network = layers_of(shape, shape.dropout_layers, seed, 0).float()
        for mask, _ in kit.tracked(shape.masks, on_panel):  # in float32, as models are trained
            states = states_with_dropout(
                network.with_mask(mask), x.float(), token_mask, dropout, stream(seed, panel, mask)
            )
            rows = [_figures(state) for state in (x.float(), *states)]
            tables_.append(_table(panel, mask, 0, rows))
    for draw, _ in kit.tracked(range(shape.draws), on_others):
        tables_ += _others(shape, seed + draw, draw)
    return tables.stack(tables_)


def embedded(seed: int, width: int, tokens: int) -> tuple[Tensor, Tensor]:
    """A passage as BERT embeds it at initialisation, and which tokens are real.

    Words, positions and the segment are added, each as large as the others, and normalised: the
    segment, the same for all tokens, is a third of each, so that μ is √⅔ of the tokens' size.
    """
    words, token_mask = depths.Passages(width, tokens, 1, seed)()
    generator = stream(seed, "positions and segment")
    positions, segment = (
        torch.randn(rows, width, generator=generator, dtype=words.dtype)
        for rows in (words.shape[1], 1)
    )
    return torch.nn.functional.layer_norm(words + positions + segment, (width,)), token_mask


def layers_of(shape: Shape, layers: int, seed: int, first: int) -> Network:
    """Some layers of the claim's network from the ``first`` on."""
    setting = NormSetting(heads=shape.heads, width=shape.width, init="bert", tokens=shape.tokens)
    chosen = int(torch.randint(2**31, (), generator=stream(seed, "layers from", str(first))))
    return random_network(setting, layers, chosen)


Figures = tuple[float, float, float]
"""Of one state: μ, the size of all tokens, and the stable rank."""


@torch.no_grad()
def _follow(shape: Shape, seed: int, on_step: kit.OnStep) -> dict[str, list[Figures]]:
    """Every mask's figures under one draw; a curve ends where float64 no longer resolves it."""
    x, token_mask = embedded(seed, shape.width, shape.tokens)
    states = dict.fromkeys(shape.masks, x)
    followed = {mask: [_figures(x)] for mask in shape.masks}
    for first, _ in kit.tracked(range(0, shape.layers, _CHUNK), on_step):
        network = layers_of(shape, min(_CHUNK, shape.layers - first), seed, first)
        for mask in list(states):
            for state in network.with_mask(mask).states(states[mask], token_mask):
                states[mask] = state
                followed[mask].append(_figures(state))
                if followed[mask][-1][0] < _EQUAL * followed[mask][-1][1]:
                    del states[mask]
                    break
    return followed


@torch.no_grad()
def _others(shape: Shape, seed: int, draw: int) -> Iterator[pl.DataFrame]:
    """The figure's other panels at initialisation, of a smaller width."""
    spec = Spec(
        shape.layers,
        shape.other_heads,
        shape.other_width,
        mlp_ratio=0.0,
        norm_place="post",
        norm_eps=1e-12,
        init=_BERT_STD * math.sqrt(_BERT_WIDTH / shape.other_width),
    )
    network = Network.random(spec, seed=seed, dtype=torch.float64)
    x, token_mask = embedded(seed, shape.other_width, shape.tokens)
    for panel, left_out in _WITHOUT.items():
        bare = network.without(*left_out)
        for mask in shape.masks:
            states = (x, *bare.with_mask(mask).states(x, token_mask))
            yield _table(panel, mask, draw, [_figures(state) for state in states])


def _figures(x: Tensor) -> Figures:
    mu = residual(x, norm="fro")
    return float(mu), float(torch.linalg.vector_norm(x)), float(stable_rank(x))


def _table(panel: str, mask: str, draw: int, figures: Iterable[Figures]) -> pl.DataFrame:
    rows = []
    for layer, (mu, _, rank) in enumerate(figures):
        log10 = math.log10(mu) if mu > 0 else -math.inf
        rows += [(layer, depths.DISPERSION, log10), (layer, STABLE, rank)]
    table = tables.from_rows(("layer", "metric", "value"), rows)
    return table.with_columns(
        model=pl.lit(panel), variant=pl.lit(mask), sample=pl.lit(draw, pl.Int64)
    )
