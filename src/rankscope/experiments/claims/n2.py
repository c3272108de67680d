"""Claim N2: the constant βH for several heads is too small in general, safe at small widths.

Beyond it, a reader's note on the theorem, which has ``‖W_QK‖₁ ‖W_V‖∞ ≤ β`` where the paper has the
composite norm of the values: with it the bound is false for one head, too.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import checked
from rankscope.core.metrics import matrix_norm, residual
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
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.numerals import short
from rankscope.streams import stream

ENTRY = kit.claim(
    "N2",
    "The constant βH of the 2021 theorem for several heads is too small in general; it is safe up "
    "to 125 features.",
    source="derived for rankscope",
    question="Can two heads leave a larger residual than the theorem's bound with βH?",
    domain="one layer of two heads that meets the theorem's condition",
    beyond="one head, with ‖W_V‖∞ instead of the composite norm, as in a reader's note",
    seconds=22,
    small=False,
    metrics=(
        kit.Metric(
            "bound_ratio",
            "Residual over its bound",
            "r′ / bound",
            "log",
            "Above 1 = the bound is false",
            "The residual after a layer over a bound on it, in the composite norm around the best "
            "center.",
            includes=(1.0,),
            marks=((1.0, "exceeded above"),),
        ),
    ),
)
_METRIC = "bound_ratio"
PAPER_CONSTANT, PROVED_CONSTANT = "βH of Dong et al. 2021", "the constant proved here"
CEILING = "proved ceiling for βH"
MANY = "βH of Dong et al. 2021, many tokens"
NOTED, NOTED_INF = "‖W_V‖∞ of a reader's note, one head", "‖W_V‖∞, residual in the ∞-norm"
SEARCHES = ("βH, search from the construction", "βH, search from random layers")
CHARTS = (
    kit.Drawing(
        "by_setting",
        "The residual of two heads over bounds on it; the ceiling is what βH can be exceeded by at "
        "most.",
        _METRIC,
        roles={CEILING: "bound"},
    ),
)
SAFE_WIDTH = math.floor((math.sqrt(32) + math.sqrt(31)) ** 2)
"""The largest width d with ``½(√d + 1/√d) ≤ √32``: 125."""
_WIDEST = 2**24  # up to which the smallest width is looked for

Ratios = Mapping[float, float]
"""By the number of features."""


@checked
@dataclass(frozen=True)
class Search:
    """How hard to look, at which widths."""

    widths: tuple[int, ...] = (6, 24, 200)  # the last of them beyond what is proved to be safe
    tokens: int = 6
    starts: int = 2  # random ones, beside the counterexample
    steps: int = 1500
    score_difference: float = 0.05  # D, the largest spread of scores; smaller, bounds are tighter


@dataclass(frozen=True)
class Config(kit.Config):
    """Sizes of the counterexample, and a search for one in small layers."""

    sizes: tuple[tuple[int, int], ...] = (
        *((width, 1500) for width in (50, 125, 1_000, 5_000, 10_000, 20_000, 30_000)),
        (1_000_000, 1_000_000),
    )
    """Features and tokens."""
    score_difference: float = 0.05
    """D, the spread of the only scores that differ; the smaller, the tighter the bounds."""
    many: tuple[int, float] = (10**9, 1e-5)
    """Tokens and D of the construction whose smallest width above the bound is looked for."""
    search: Search = field(default_factory=Search)
    noted: tuple[int, ...] = (8, 16, 32, 41, 64, 128, 512)  # widths for the reader's note


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """The counterexample at many sizes, exactly, and a search for others by hill climbing."""
    on_sizes, on_search = kit.parts(on_step, 0.05, 0.95)
    rows = [
        (name, "features", width, _METRIC, ratio)
        for name, width, ratio in (
            *_construction(config, on_sizes),
            *_noted(config),
            *_searched(config, on_search),
        )
    ]
    return tables.from_rows(("variant", "parameter", "setting", "metric", "value"), rows)


def judge(_: Config, table: pl.DataFrame) -> kit.Answer:
    """Exceeded somewhere, the corrected constant nowhere, and nothing at widths that are safe."""
    sizes, many, proved, *searches = (
        dict(table.filter(variant=name).select("setting", "value").iter_rows())
        for name in (PAPER_CONSTANT, MANY, PROVED_CONSTANT, *SEARCHES)
    )
    paper = sizes | many
    over = [width for width, ratio in paper.items() if ratio > 1]
    safe = [
        ratio
        for ratios in (paper, *searches)
        for width, ratio in ratios.items()
        if width <= SAFE_WIDTH
    ]
    stated = {
        "βH is exceeded": bool(over),
        "the constant proved here is not": max(proved.values()) <= 1,
        f"βH is safe up to {SAFE_WIDTH} features": max(safe, default=0.0) <= 1,
    }
    noted, noted_inf = (
        dict(table.filter(variant=name).select("setting", "value").iter_rows())
        for name in (NOTED, NOTED_INF)
    )
    above = [width for width, ratio in noted.items() if ratio > 1]
    beyond = {
        "‖W_V‖∞ is too small in the composite norm": bool(above),
        "it suffices in the ∞-norm": max(noted_inf.values(), default=0.0) <= 1,
    }
    return kit.Answer(
        _sentences(paper, proved, searches),
        stated=stated,
        beyond=beyond if noted else None,
        on_beyond={
            "holds": f"its constant is exceeded from {min(above, default=0):,.0f} features on, up "
            f"to {short(max(noted.values(), default=0.0))} times; in the ∞-norm it suffices, with "
            "‖R‖₁‖R‖∞² for the cube"
        },
        on={"holds": f"βH is exceeded at {min(over, default=0):,.0f} features and more"},
        key_figures={
            "residual over the bound with βH, largest": max(sizes.values()),
            "smallest width at which it is above": min(many, default=math.nan),
        },
    )


def _sentences(paper: Ratios, proved: Ratios, searches: list[dict[float, float]]) -> Iterator[str]:
    def at(width: float, ratio: float) -> str:
        return f"{short(ratio, digits=4)} at {width:,.0f} features"

    def largest(ratios: Ratios) -> str:
        return at(*max(ratios.items(), key=lambda item: item[1]))

    first = min((width for width, ratio in paper.items() if ratio > 1), default=None)
    enough = "" if first is None else f"; with enough tokens above it from {first:,.0f} features on"
    yield f"The residual of two heads over the bound with βH: up to {largest(paper)}{enough}."
    yield f"Over the bound with the constant proved here it is at most {largest(proved)}."
    safe = [ratio for width, ratio in paper.items() if width <= SAFE_WIDTH]
    if safe:
        yield (
            f"Up to {SAFE_WIDTH} features βH is proved to be safe; the construction reaches "
            f"{short(max(safe))} there."
        )
    if first is not None and first > SAFE_WIDTH + 1:
        yield f"Whether βH can fail from {SAFE_WIDTH + 1} to {first - 1:,.0f} features is open."
    for name, ratios in zip(SEARCHES, searches, strict=True):
        if ratios:
            reached = ", ".join(at(*item) for item in ratios.items())
            yield f"{name.replace('βH, s', 'S')}, changed step by step: {reached}."
    searched = sorted({width for ratios in searches for width in ratios})
    if searched:
        control = f"Up to {SAFE_WIDTH} features the search is a control of the code, not evidence"
        widths = ", ".join(f"{width:,.0f}" for width in searched if width > SAFE_WIDTH)
        worth = f"; at {widths} finding no counterexample proves nothing" if widths else ""
        yield f"{control}{worth}."


def _construction(config: Config, on_step: kit.OnStep) -> Iterator[tuple[str, float, float]]:
    """The ratios at each size, and at the smallest width that many tokens need."""
    for (width, tokens), _ in kit.tracked(config.sizes, on_step):
        layer = TwoHeadLayer(width, tokens, config.score_difference)
        yield PAPER_CONSTANT, width, layer.residual / layer.paper_bound
        yield PROVED_CONSTANT, width, layer.residual / layer.proved_bound
        yield CEILING, width, ceiling(width)
    width = first_width(*config.many)
    layer = TwoHeadLayer(width, *config.many)
    yield MANY, width, layer.residual / layer.paper_bound


def _noted(config: Config) -> Iterator[tuple[str, float, float]]:
    """The tall head of the construction alone, from whole matrices, over the note's bound."""
    for width in config.noted:
        layer = TwoHeadLayer(width, config.search.tokens, config.score_difference)
        x, rest, query_key = (part.dense() for part in (layer.input, layer.rest, layer.query_key))
        tall, scale = layer.values[0].dense(), 1 / math.sqrt(2)  # d_qk = 2
        output = (scale * x @ query_key @ x.T).softmax(-1) @ rest @ tall
        beta = float(matrix_norm(query_key, "one") * matrix_norm(tall, "inf"))
        before = float(residual(rest, center="optimal"))
        after = float(residual(output, center="optimal"))
        after_inf = float(residual(output, norm="inf", center="optimal"))
        sizes = float(matrix_norm(rest, "one") * matrix_norm(rest, "inf") ** 2)
        yield NOTED, width, after / (4 * beta * scale * before**3)
        yield NOTED_INF, width, after_inf / (4 * beta * scale * sizes)


def first_width(tokens: int, score_difference: float) -> int:
    """The smallest width at which the construction exceeds the bound with βH.

    >>> first_width(1500, 0.05)
    19347

    Derived: as long as n is far above √d the ratio grows with the width, as d to the power ¼, so
    that bisection finds it. Scores that differ so much that attention is one-hot stay below.
    """
    widths = range(SAFE_WIDTH, _WIDEST)

    def above(width: int) -> bool:
        layer = TwoHeadLayer(width, tokens, score_difference)
        return layer.residual / layer.paper_bound > 1

    if not above(_WIDEST):
        raise InputError(
            f"many={tokens, score_difference}: the construction stays below βH; use a smaller D."
        )
    return widths[bisect_left(widths, True, key=above)]


def ceiling(width: int) -> float:
    """What no residual over the bound with βH can exceed at this width.

    Derived: ``½(√d + 1/√d)`` for adding the heads (a matrix of d × d has norms ‖·‖₁ and ‖·‖∞ that
    differ by a factor d at most), times √(1/32) because the sharp bound holds.
    """
    root = math.sqrt(width)
    return (root + 1 / root) / 2 / math.sqrt(32)


def _searched(config: Config, on_step: kit.OnStep) -> Iterator[tuple[str, float, float]]:
    """The largest ratio that hill climbing reaches at each width, by where it starts."""
    for width, on_part in kit.tracked(config.search.widths, on_step):
        reached = [
            climb(config.search, width, config.seed, start=start, on_step=on_start)
            for start, on_start in kit.tracked(range(1 + config.search.starts), on_part)
        ]
        for name, ratios in zip(SEARCHES, (reached[:1], reached[1:]), strict=True):
            if ratios:
                yield name, width, max(ratios)


def climb(plan: Search, width: int, seed: int, *, start: int, on_step: kit.OnStep) -> float:
    """The largest ratio to the bound with βH that hill climbing reaches at this width.

    It climbs over tokens and weights, on what is never below the true ratio: the output about the
    center that the bounds are about, which is no better than the best one. Start 0 is the
    counterexample of this size, every other a random layer. The layer it ends in is measured about
    its input's best center, as the theorem asks.
    """
    generator = stream(seed, "search", width, start)
    parts = _start(plan, width, generator, random=start > 0)
    ratio = paper_ratio(*_layer(plan, parts))
    for step, _ in kit.tracked(range(plan.steps), on_step):
        name = list(parts)[step % len(parts)]
        changed = parts | {name: _changed(parts[name], generator)}
        new = paper_ratio(*_layer(plan, changed))
        if new > ratio:
            parts, ratio = changed, new
    weights, tokens = _layer(plan, parts)
    best = find_best_center(tokens.center, tokens.mantissa, tokens.log_scale)
    return paper_ratio(weights, best.tokens)


def paper_ratio(weights: HeadWeights, tokens: CenteredTokens) -> float:
    """The residual of the output, about the center of the bounds, over the bound with βH."""
    rest = tokens.mantissa[0]
    query = tokens.center[0] @ weights.query_key + weights.key_bias
    shared = weights.scale * query @ rest.T
    scores = weights.scale * rest @ weights.query_key @ rest.T
    weight = (shared.unsqueeze(1) + scores).softmax(-1) - shared.softmax(-1).unsqueeze(1)
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
    layer = TwoHeadLayer(width, plan.tokens, plan.score_difference)
    center, query_key = layer.input.dense()[-1], layer.query_key.dense()
    return {
        "tokens": layer.rest.dense(),
        "query": (center @ query_key).expand(2, -1).clone(),
        "query_key": query_key.expand(2, -1, -1).clone(),
        "values": torch.stack([values.dense() for values in layer.values]),
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


def _layer(plan: Search, parts: dict[str, Tensor]) -> tuple[HeadWeights, CenteredTokens]:
    """Two heads and tokens about their medians, the scores spread by the D that was chosen."""
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
    return replace(heads, query_key=factor * heads.query_key), tokens
