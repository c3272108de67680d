"""A search for two heads that exceed the bound with βH: the control of claim N2.

Hill climbing over tokens and weights, from random layers and from the counterexample of its size.
It climbs on what is never below the true ratio: the output about the center that the bounds are
about, which is no better than the best one.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.metrics import matrix_norm
from rankscope.core.theory import (
    CenteredTokens,
    HeadWeights,
    TwoHeadLayer,
    a_priori_bound,
    find_best_center,
    log_beta,
    log_differences,
    log_paper_beta,
)
from rankscope.experiments import kit
from rankscope.streams import stream


@checked
@dataclass(frozen=True)
class Search:
    """How hard to look, at which widths."""

    widths: tuple[int, ...] = (6, 24, 200)
    """The last of them beyond what is proved to be safe."""
    tokens: int = 6
    starts: int = 2
    """Random ones, beside the counterexample."""
    steps: int = 1500
    score_difference: float = 0.05
    """D, the largest spread of scores; the smaller, the tighter the bounds."""


@dataclass(frozen=True)
class Layer:
    """Two heads of attention and tokens about a center."""

    weights: HeadWeights
    tokens: CenteredTokens


def climb(plan: Search, width: int, seed: int, *, start: int, on_step: kit.OnStep) -> float:
    """The largest ratio to the bound with βH that hill climbing reaches at this width.

    Start 0 is the counterexample of this size, every other a random layer. The layer it ends in is
    measured about its input's best center, as the theorem asks.
    """
    generator = stream(seed, "search", width, start)
    parts = _start(plan, width, generator, random=start > 0)
    ratio = paper_ratio(_layer(plan, parts))
    for step, _ in kit.tracked(range(plan.steps), on_step):
        name = list(parts)[step % len(parts)]
        changed = parts | {name: _changed(parts[name], generator)}
        new = paper_ratio(_layer(plan, changed))
        if new > ratio:
            parts, ratio = changed, new
    return paper_ratio(_about_best_center(_layer(plan, parts)))


def paper_ratio(layer: Layer) -> float:
    """The residual of the output, about the center of the bounds, over the bound with βH."""
    weights, tokens = layer.weights, layer.tokens
    rest = tokens.mantissa[0]
    query = tokens.center[0] @ weights.query_key + weights.key_bias
    shared = weights.scale * query @ rest.T
    own = weights.scale * rest @ weights.query_key @ rest.T
    weight = (shared.unsqueeze(1) + own).softmax(-1) - shared.softmax(-1).unsqueeze(1)
    output = (weight @ rest @ weights.values).sum(0)
    bound = a_priori_bound(weights, tokens) - log_beta(weights) + log_paper_beta(weights)
    ratio = float(matrix_norm(output, "composite") / bound.exp())
    return ratio if math.isfinite(ratio) else 0.0


def _start(
    plan: Search, width: int, generator: torch.Generator, *, random: bool
) -> dict[str, Tensor]:
    """Tokens, shared queries, query-key matrices and values: random, or the counterexample's."""
    if random:
        shapes = {
            "tokens": (plan.tokens, width),
            "query": (2, width),
            "query_key": (2, width, width),
            "values": (2, width, width),
        }
        return {
            name: torch.randn(shape, generator=generator, dtype=torch.float64)
            for name, shape in shapes.items()
        }
    made = TwoHeadLayer(width, plan.tokens, plan.score_difference)
    center, query_key = made.input.dense()[-1], made.query_key.dense()
    return {
        "tokens": made.rest.dense(),
        "query": (center @ query_key).expand(2, -1).clone(),
        "query_key": query_key.expand(2, -1, -1).clone(),
        "values": torch.stack([each.dense() for each in made.values]),
    }


def _changed(part: Tensor, generator: torch.Generator) -> Tensor:
    """Some entries moved, by normal numbers of a random size, or set to zero."""

    def draw() -> Tensor:
        return torch.rand((), generator=generator, dtype=torch.float64)

    chosen = torch.rand(part.shape, generator=generator, dtype=torch.float64) < draw() ** 2
    size = part.abs().amax() * 10 ** (-2 * draw())
    noise = torch.randn(part.shape, generator=generator, dtype=torch.float64)
    moved = torch.zeros_like(part) if float(draw()) < 0.2 else part + size * noise
    return torch.where(chosen, moved, part)


def _layer(plan: Search, parts: dict[str, Tensor]) -> Layer:
    """The layer about the medians of its tokens, its scores spread by the D that was chosen."""
    x = parts["tokens"]
    center = x.median(0).values
    tokens = CenteredTokens(
        torch.zeros_like(center)[None], (x - center)[None], x.new_zeros(1), None
    )
    heads = HeadWeights(
        parts["query_key"], parts["values"], parts["query"], torch.zeros_like(center), 1.0
    )
    spread = float(log_differences(heads, tokens).amax().exp())
    factor = plan.score_difference / spread if spread > 0 else 0.0
    return Layer(replace(heads, query_key=factor * heads.query_key), tokens)


def _about_best_center(layer: Layer) -> Layer:
    tokens = layer.tokens
    best = find_best_center(tokens.center, tokens.mantissa, tokens.log_scale)
    return replace(layer, tokens=best.tokens)
