"""Claim D11: where scores spread little, attention is close to rank one entry by entry."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.masks import as_mask
from rankscope.core.network import Attention, Block, Network, Spec, Visibility
from rankscope.core.theory import (
    SCORE_LIMIT,
    Departure,
    departure,
    head_weights,
    worst_departure_layer,
)
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.numerals import plural, short
from rankscope.streams import stream

ENTRY = kit.claim(
    "D11",
    "Where logits spread by at most 1.256, attention differs from rank one by no more than twice "
    "that spread, entry by entry: |P − 1qᵀ| ≤ 2D·1qᵀ.",
    source="Dong et al. 2021, appendix",
    domain="one layer of softmax attention, spread at most 1.256",
    seconds=3,
    metrics=(
        kit.Metric(
            "lemma_ratio",
            "Departure over twice the spread",
            "|P − 1q| / 2Dq",
            "log",
            "Above 1 = the lemma is false",
            "The largest entry of |P − 1qᵀ| / (2D·1qᵀ), with q the weights that all queries share "
            "and D_i the spread of a query's own scores.",
            includes=(1.0,),
            marks=((1.0, "exceeded above"),),
        ),
        kit.Metric(
            "sharp_lemma_ratio",
            "Departure over the sharp factor",
            "|P − 1q| / (exp D − 1)q",
            "log",
            "1 = nothing smaller would do",
            "The largest entry of |P − 1qᵀ| / ((e^D − 1)·1qᵀ), which is at most 1 at every spread.",
            includes=(1.0,),
        ),
    ),
)
_METRIC, _SHARP, _ERROR = "lemma_ratio", "sharp_lemma_ratio", "relative_error"
RANDOM, ADVERSE = "random layers", "worst layer"
LIMIT = "sharp factor"
_ROUNDING = 1e-9
_NEARLY = 1e-3
"""What comes as close as this to a bound shows that it is sharp."""

_BEYOND = "masks, compared among queries that see the same; spreads above 1.256"

Row = tuple[str, str, float, int, str, float]


@dataclass(frozen=True)
class Config(kit.Config):
    """Random layers of many shapes, their scores scaled to each spread, and one worst layer."""

    spreads: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0, SCORE_LIMIT)
    """The largest D of a layer; at most what the lemma allows."""
    wider: tuple[float, ...] = (1.3, 1.5, 2.0, 4.0)
    """Beyond the lemma."""
    layers: int = 24
    masks: tuple[str, ...] = ("causal", "window:2")
    """Masks beyond the lemma, under which each query is compared with those that see the same."""
    tokens: tuple[Annotated[int, Range(2, 4096)], ...] = (2, 5, 12, 24)
    heads: tuple[int, ...] = (1, 2, 4)
    width: int = 16
    tails: tuple[float, ...] = (0.0, 0.5, 2.0)
    """How far the logarithms of the tokens' sizes spread."""
    preference: float = 40.0
    """In the worst layer the key that stands out has a weight of ``e`` to minus this."""


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Measure ``|P − 1qᵀ|/(2D·1qᵀ)``, its largest entry in each layer, at each spread."""
    _check(config)
    table = _measure(config, on_step)
    judgement, beyond, sentences = judge(table)
    within = table.filter((pl.col("setting") <= SCORE_LIMIT) & (pl.col("metric") == _METRIC))
    return ENTRY.result(
        config,
        question="Is any weight of attention further from the shared one than twice the spread?",
        sentences=sentences,
        table=table,
        listings=(_listing(table),),
        judgement=judgement,
        beyond=beyond,
        key_figures={
            "largest |P − 1qᵀ| over 2D·1qᵀ": max(
                within.filter(pl.col("variant") != LIMIT)["value"].to_list()
            )
        },
        drawings=(
            kit.Drawing(
                "by_setting",
                "The largest entry in each layer; the lemma says that it is at most 1.",
                _METRIC,
                roles={LIMIT: "bound"},
            ),
        ),
        shown=(_METRIC,),
    )


def _measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """The largest entries of random layers and of the worst one, at each spread."""
    rows: list[Row] = []
    for spread, on_part in kit.tracked((*config.spreads, *config.wider), on_step):
        worst = departure(*worst_departure_layer(spread, config.preference))
        rows += _rows(ADVERSE, spread, 0, worst)
        rows.append((LIMIT, "spread", spread, 0, _METRIC, math.expm1(spread) / (2 * spread)))
        for number, _ in kit.tracked(range(config.layers), on_part):
            for mask in ("full", *config.masks):
                network, x = _random_layer(config, number, spread, mask)
                found = _departure(network, x)
                name = RANDOM if mask == "full" else f"{RANDOM}, {mask} mask"
                rows += _rows(name, spread, number, found)
                rows.append((name, "spread", spread, number, _ERROR, _error(network, x, found)))
    names = ("variant", "parameter", "setting", "sample", "metric", "value")
    return tables.from_rows(names, rows)


def _check(config: Config) -> None:
    if not config.spreads or not all(0 < each <= SCORE_LIMIT for each in config.spreads):
        raise InputError(f"spreads={config.spreads}: the lemma is about 0 to {SCORE_LIMIT:.4f}.")
    if not all(each > SCORE_LIMIT for each in config.wider):
        raise InputError(f"wider={config.wider} is for spreads beyond {SCORE_LIMIT:.4f}.")
    if config.layers < 1 or not (config.tokens and config.heads and config.tails):
        raise InputError("D11 needs at least one layer, number of tokens, of heads and of tails.")


def judge(table: pl.DataFrame) -> tuple[kit.Judgement, kit.Judgement | None, tuple[str, ...]]:
    """On the lemma's own domain every layer, by kind; beyond it masks, and each wider spread."""
    ratios = {key: value for key, value in _largest(table, _METRIC).items() if key[0] != LIMIT}
    within = {key: value for key, value in ratios.items() if key[1] <= SCORE_LIMIT}
    by_kind: dict[str, bool] = {}
    for (name, _), value in within.items():
        by_kind[name] = by_kind.get(name, True) and value <= 1 + _ROUNDING
    own = {name: holds for name, holds in by_kind.items() if name in (RANDOM, ADVERSE)}
    wider: dict[float, float] = {}
    for (_, spread), value in ratios.items():
        if spread > SCORE_LIMIT:
            wider[spread] = max(value, wider.get(spread, 0.0))
    exceeded = [spread for spread, value in wider.items() if value > 1 + _ROUNDING]
    others = {name: holds for name, holds in by_kind.items() if name not in own} | {
        f"spread {short(spread)}": spread not in exceeded for spread in wider
    }
    on = f"the spread: exceeded from D = {short(min(exceeded))} on" if exceeded else ""
    return (
        kit.judged(ENTRY.domain, own, _sharp(within) if all(own.values()) else ""),
        kit.judged(_BEYOND, others, on) if others else None,
        (*_closing(table),),
    )


def _sharp(within: Mapping[tuple[str, float], float]) -> str:
    """At which spreads of the lemma's own layers its bound is attained, and what it is elsewhere.

    Its factor of 2 is that of the largest spread; a smaller one leaves room.
    """
    by_spread: dict[float, float] = {}
    for (name, spread), value in within.items():
        if name in (RANDOM, ADVERSE):
            by_spread[spread] = max(value, by_spread.get(spread, 0.0))
    attained = [spread for spread, value in by_spread.items() if value > 1 - _NEARLY]
    if not attained:
        return ""
    words = f"sharp at D = {', '.join(short(each, digits=5) for each in sorted(attained))}"
    others = {spread: value for spread, value in by_spread.items() if spread not in attained}
    if not others:
        return words
    low = min(others)
    return f"{words} only (at D = {short(low)} no entry is above {short(others[low])} of it)"


def _largest(table: pl.DataFrame, metric: str) -> dict[tuple[str, float], float]:
    """By kind of layer and spread, over the layers."""
    grouped = table.filter(metric=metric).group_by("variant", "setting", maintain_order=True)
    return {
        (name, spread): value for name, spread, value in grouped.agg(pl.max("value")).iter_rows()
    }


def _listing(table: pl.DataFrame) -> kit.Listing:
    """The largest entry of all layers, at each spread."""
    largest = _largest(table.filter(pl.col("variant") != LIMIT), _METRIC)
    kinds = list(dict.fromkeys(name for name, _ in largest))
    rows = tuple(
        (short(spread, digits=4), *(largest.get((name, spread)) for name in kinds))
        for spread in dict.fromkeys(spread for _, spread in largest)
    )
    return kit.Listing(
        "Largest |P − 1qᵀ| over 2D·1qᵀ",
        ("D", *kinds),
        rows,
        f"The lemma says that it is at most 1 up to a spread of D = {SCORE_LIMIT:.4f}.",
    )


def _closing(table: pl.DataFrame) -> tuple[str, str]:
    """What is true at every spread, and how exact and how typical the figures are."""
    sharp = max(_largest(table, _SHARP).values())
    error = max(_largest(table, _ERROR).values(), default=0.0)
    every = table.filter(metric=_METRIC, variant=RANDOM).filter(pl.col("setting") <= SCORE_LIMIT)
    half = median(every["value"].to_list() or [0.0])
    return (
        f"Over (e^D − 1)·1qᵀ it is at most {short(sharp, digits=4)}, at every spread.",
        f"{plural(every.height, 'random layer')} within the lemma, half of them below "
        f"{short(half)} times 2D·1qᵀ; the weights computed here differ from those of the networks "
        f"by {short(error, digits=1)} at most.",
    )


def _random_layer(
    config: Config, number: int, spread: float, mask: str
) -> tuple[Network, Float[Tensor, "token feature"]]:
    """A layer with biases, some tokens far larger than others, its scale set for the spread."""
    generator = stream(config.seed, "layer", number)
    tokens = config.tokens[number % len(config.tokens)]
    heads = config.heads[number % len(config.heads)]
    x, sizes, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((tokens, config.width), (tokens, 1), (config.width,))
    )
    x = x * (config.tails[number // 2 % len(config.tails)] * sizes).exp()

    def made(scale: float) -> Network:
        spec = Spec.pure_attention(1, heads, config.width, score_scale=scale, mask=mask)
        network = Network.random(spec, seed=config.seed + number, dtype=torch.float64)
        with torch.no_grad():
            dict(network.named_parameters())["blocks.0.attention.query.bias"].copy_(bias)
        return network

    return made(spread / float(_departure(made(1.0), x).spread.max())), x


def _attention(network: Network) -> Attention:
    block = network.blocks[0]
    assert isinstance(block, Block)
    return block.attention


def _departure(network: Network, x: Float[Tensor, "token feature"]) -> Departure:
    """About the mean of the tokens."""
    center = x.mean(0)
    visible = as_mask(network.spec.mask).matrix(len(x))
    return departure(head_weights(_attention(network)), x - center, center, visible)


def _error(network: Network, x: Float[Tensor, "token feature"], found: Departure) -> float:
    """The largest difference to the attention of the network itself, of weights that are ≤ 1."""
    seen = Visibility.of(network.spec.mask, len(x), None, torch.device("cpu"))
    with torch.no_grad():
        pattern = _attention(network).pattern(x.unsqueeze(0), seen)[0]
    return float((found.shared * (1 + found.relative) - pattern).abs().max())


def _rows(name: str, setting: float, sample: int, found: Departure) -> list[Row]:
    """The largest entry over what the lemma allows, and over what is sharp."""
    spread = found.spread.unsqueeze(-1)
    size = torch.where(spread > 0, found.relative.abs(), 0.0)
    allowed = {_METRIC: 2 * spread, _SHARP: spread.expm1()}
    return [
        (name, "spread", setting, sample, metric, float((size / bound.clamp(min=1e-300)).max()))
        for metric, bound in allowed.items()
    ]
