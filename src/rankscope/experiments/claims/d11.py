"""Claim D11: where scores spread little, attention is close to rank one entry by entry."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope import tables
from rankscope.experiments import kit
from rankscope.masks import as_mask
from rankscope.network import Attention, Block, Network, Spec, Visibility
from rankscope.numerals import plural, short
from rankscope.streams import stream
from rankscope.theory.residual_bounds import SCORE_LIMIT, HeadWeights, head_weights

ENTRY = kit.entry("D11")
_METRIC, _SHARP, _ERROR = "lemma_ratio", "sharp_lemma_ratio", "relative_error"
RANDOM, ADVERSE = "random layers", "worst layer"
LIMIT = "sharp factor"
_ROUNDING = 1e-9
_NEARLY = 1e-3
"""What comes as close as this to a bound shows that it is sharp."""

Row = tuple[str, str, float, int, str, float]


@dataclass(frozen=True)
class Config(kit.Config):
    """Random layers of many shapes, their scores scaled to each spread, and one worst layer."""

    spreads: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0, SCORE_LIMIT)
    """The largest D of a layer; at most what the lemma allows."""
    wider: tuple[float, ...] = (1.3, 1.5, 2.0, 4.0)
    """Beyond the lemma."""
    layers: int = 40
    masks: tuple[str, ...] = ("causal", "window:2")
    """Masks beyond the lemma, under which each query is compared with those that see the same."""
    tokens: tuple[int, ...] = (2, 5, 12, 24)
    heads: tuple[int, ...] = (1, 2, 4)
    width: int = 16
    tails: tuple[float, ...] = (0.0, 0.5, 2.0)
    """How far the logarithms of the tokens' sizes spread."""
    preference: float = 40.0
    """In the worst layer the key that stands out has a weight of ``e`` to minus this."""


class Departure(NamedTuple):
    """By how much attention departs from what all queries share, for every pair that is allowed."""

    relative: Float[Tensor, "head query key"]
    """``P_ij/q_j − 1``; zero where nothing is seen."""
    spread: Float[Tensor, "head query"]
    """``D_i``."""
    shared: Float[Tensor, "head #query key"]
    """``q_j``, over what each query sees."""


def departure(
    weights: HeadWeights,
    rest: Float[Tensor, "token feature"],
    center: Float[Tensor, "feature"],
    visible: Bool[Tensor, "query key"] | None = None,
) -> Departure:
    """``P_ij/q_j − 1`` of tokens ``1cᵀ + R`` without cancellation.

    ``P_ij = q_j e^{E_ij} / Σ_k q_k e^{E_ik}``, so the ratio less one is ``expm1(E_ij − m_i)`` with
    ``m_i = log1p(Σ_k q_k expm1(E_ik))``: exact to rounding however close P and q are. Under a mask
    q is taken over the keys that query i sees, hence is the same for all queries that see the same.
    """
    seen = torch.ones((), dtype=torch.bool) if visible is None else visible
    own = weights.scale * rest @ weights.query_key @ rest.T
    query = center @ weights.query_key + weights.key_bias
    logits = (weights.scale * query @ rest.T).unsqueeze(1).expand_as(own)
    shared = logits.masked_fill(~seen, -math.inf).softmax(-1)
    mean = torch.log1p((shared * own.expm1()).sum(-1, keepdim=True))
    relative = torch.where(seen, (own - mean).expm1(), 0.0)
    high = torch.where(seen, own, -math.inf).amax(-1)
    low = torch.where(seen, own, math.inf).amin(-1)
    return Departure(relative, high - low, shared)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Measure ``|P − 1qᵀ|/(2D·1qᵀ)``, its largest entry in each layer, at each spread."""
    rows: list[Row] = []
    settings = (*config.spreads, *config.wider)
    for spread, on_part in kit.tracked(settings, on_step):
        rows += _rows(ADVERSE, spread, 0, departure(*worst_layer(spread, config.preference)))
        rows.append((LIMIT, "spread", spread, 0, _METRIC, math.expm1(spread) / (2 * spread)))
        for number, _ in kit.tracked(range(config.layers), on_part):
            for mask in ("full", *config.masks):
                network, x = _random_layer(config, number, spread, mask)
                found = _departure(network, x)
                name = RANDOM if mask == "full" else f"{RANDOM}, {mask} mask"
                rows += _rows(name, spread, number, found)
                rows.append((name, "spread", spread, number, _ERROR, _error(network, x, found)))
    names = ("variant", "parameter", "setting", "sample", "metric", "value")
    table = tables.from_rows(names, rows)
    judgement, beyond, sentences = judge(table)
    within = table.filter((pl.col("setting") <= SCORE_LIMIT) & (pl.col("metric") == _METRIC))
    return ENTRY.result(
        config,
        question="Is any weight of attention further from the shared one than twice the spread?",
        sentences=sentences,
        table=table,
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


def judge(table: pl.DataFrame) -> tuple[kit.Judgement, kit.Judgement | None, tuple[str, ...]]:
    """On the lemma's own domain every layer, by kind; beyond it masks, and each wider spread."""
    largest = {
        metric: {
            (name, spread): value
            for name, spread, value in table.filter(metric=metric)
            .group_by("variant", "setting", maintain_order=True)
            .agg(pl.max("value"))
            .iter_rows()
        }
        for metric in (_METRIC, _SHARP, _ERROR)
    }
    ratios = {key: value for key, value in largest[_METRIC].items() if key[0] != LIMIT}
    holds = {key: value <= 1 + _ROUNDING for key, value in ratios.items()}
    within = {key for key in ratios if key[1] <= SCORE_LIMIT}
    own = {name: _all(holds, within, name) for name, _ in ratios if name in (RANDOM, ADVERSE)}
    masked = {name: _all(holds, within, name) for name, _ in ratios if name not in own}
    wider = sorted({spread for _, spread in ratios} - {spread for _, spread in within})
    failing = [
        spread for spread in wider if not all(ok for key, ok in holds.items() if key[1] == spread)
    ]
    others = masked | {f"spread {short(spread)}": spread not in failing for spread in wider}
    most = max(ratios[key] for key in within)
    sharp = most > 1 - _NEARLY and all(own.values())
    beyond = kit.judged(
        "masks, compared among queries that see the same; spreads above 1.256", others, _on(failing)
    )
    every = table.filter(metric=_METRIC, variant=RANDOM).filter(pl.col("setting") <= SCORE_LIMIT)
    return (
        kit.judged(ENTRY.domain, own, "and is sharp" if sharp else ""),
        beyond if others else None,
        (
            *(_within(name, ratios, within) for name in (*own, *masked)),
            *(_beyond(spread, ratios) for spread in wider),
            f"The factor e^D − 1 in the place of 2D is never exceeded: at most "
            f"{short(max(largest[_SHARP].values()), digits=4)} of it, at every spread."
            if max(largest[_SHARP].values()) <= 1 + _ROUNDING
            else "The factor e^D − 1 in the place of 2D is exceeded.",
            f"{plural(every.height, 'random layer')} within the lemma, half of them below "
            f"{short(median(every['value'].to_list() or [0.0]))} times 2D·1qᵀ; the weights "
            "computed here differ from those of the networks by "
            f"{short(max(largest[_ERROR].values(), default=0.0), digits=1)} at most.",
        ),
    )


def worst_layer(
    spread: float, preference: float
) -> tuple[HeadWeights, Float[Tensor, "token feature"], Float[Tensor, "feature"]]:
    """One query scores one key by D above all others, and nobody else looks at that key.

    Then ``P/q = e^D/(1 + q(e^D − 1))`` there, which tends to ``e^D`` as q → 0: no factor below
    ``(e^D − 1)/D`` can take the place of 2 in the lemma.
    """
    rest = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    query_key = torch.tensor([[[0.0, spread], [0.0, 0.0]]], dtype=torch.float64)
    key_bias = torch.tensor([[0.0, -preference]], dtype=torch.float64)
    nothing = torch.zeros(2, dtype=torch.float64)
    return (
        HeadWeights(query_key, torch.zeros_like(query_key), key_bias, nothing, 1.0),
        rest,
        nothing,
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


def _all(holds: Mapping[tuple[str, float], bool], keys: set[tuple[str, float]], name: str) -> bool:
    return all(holds[key] for key in keys if key[0] == name)


def _on(failing: list[float]) -> str:
    return f"the spread: exceeded from D = {short(failing[0])} on" if failing else ""


def _within(
    name: str, ratios: Mapping[tuple[str, float], float], within: set[tuple[str, float]]
) -> str:
    value, spread = max((ratios[key], key[1]) for key in within if key[0] == name)
    return (
        f"{name[:1].upper()}{name[1:]}: |P − 1qᵀ| is at most {short(value, digits=4)} times "
        f"2D·1qᵀ, at D = {short(spread, digits=4)}."
    )


def _beyond(spread: float, ratios: Mapping[tuple[str, float], float]) -> str:
    value, name = max((value, key[0]) for key, value in ratios.items() if key[1] == spread)
    return f"D = {short(spread)}: up to {short(value)} times 2D·1qᵀ ({name})."
