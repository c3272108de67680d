"""Claim W9: the smaller the least weight ε of attention, the slower the collapse may be.

Theorem 1 of Wu et al. 2024 bounds the dispersion by ``C(1 − ε^r)^{t/r}`` after t layers: r is the
radius of the mask, ε the least weight of a key that a query may see. The constant need not be
known here: in the product of t layers the largest distance between rows, the ergodicity coefficient
τ, is at most ``(1 − ε^r)^⌊t/r⌋`` (theory, section 6), and μ is at most a constant times τ.

**The exponent r cannot be lowered** *(derived)*. Take ``2r + 1`` tokens in a row, each of which
sees itself and its neighbours, so that the middle one is a center and the radius is r. Let tokens
prefer the neighbour towards the nearer end, and the ends themselves, and give every other key ε.
The Markov chain of this pattern rests at either end for long: to leave it for the middle takes r
steps of chance ε in a row. Its spectral gap ``1 − |λ₂|`` is thus of order ``ε^r``.

A bound that is weaker for smaller ε does not make collapse slower. It is, where each token attends
mostly to itself. Tokens that attend mostly to one other token, drawn anew in each layer, become
alike because two of them choose the same one, and that has nothing to do with ε.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import linear_regression
from typing import Annotated

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.masks import as_mask
from rankscope.core.theory import ergodicity, graph_facts, second_modulus
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.numerals import plural, short
from rankscope.streams import stream

ENTRY = kit.claim(
    "W9",
    "Attention whose weights are at least ε loses differences between tokens at least as fast as "
    "(1 − ε^r)^(t/r), r the radius of the mask: more focused attention (a smaller ε) is slower.",
    source="Wu et al. 2024, theorem 1",
    question="Is the rate below the bound, slower for smaller ε, and is the exponent r needed?",
    domain="products of attention patterns under one mask with a center, weights at least ε",
    beyond="that the exponent r is attained (derived), and focus on other tokens",
    seconds=8,
    metrics=(
        kit.Metric(
            "loss_per_layer",
            "Loss a layer",
            "1 − τ^(1/t)",
            "log",
            "Smaller = slower collapse",
            "What a layer takes from the largest difference between two rows of the product of all "
            "attention patterns, on average over the layers.",
        ),
        kit.Metric(
            "spectral_gap",
            "Spectral gap",
            "1 − |λ2|",
            "log",
            "Smaller = slower collapse",
            "1 less the second largest modulus among the eigenvalues of a pattern with two wells.",
        ),
        kit.Metric(
            "layers_above_bound",
            "Layers above the bound",
            "layers",
            "linear",
            "0 = the bound holds in every layer",
            "The number of products of attention patterns above the bound.",
        ),
    ),
)
LOSS, GAP, ABOVE = "loss_per_layer", "spectral_gap", "layers_above_bound"
ITSELF, OTHERS, BOUND, WELLS = "mostly itself", "mostly random tokens", "bound", "two wells"
CHARTS = (
    kit.Drawing("by_setting", "A panel for each mask.", LOSS, roles={BOUND: "bound"}),
    kit.Drawing("by_setting", "A curve for each radius.", GAP),
)
_ROUNDING = 1e-6  # of ln τ
_SMALLEST = 1e-8  # what τ is known to
_NEAR = 0.1  # of a fitted exponent


@dataclass(frozen=True)
class Config(kit.Config):
    """Patterns of every ε under each mask, and wells of each radius."""

    masks: tuple[str, ...] = ("full", "causal", "star:1", "window:2", "window:1")
    tokens: Annotated[int, Range(2, 64)] = 8
    epsilons: tuple[float, ...] = (0.1, 0.05, 0.02, 0.01, 0.005)
    layers: int = 80
    draws: int = 3
    radii: tuple[Annotated[int, Range(1, 4)], ...] = (1, 2, 3)
    well_epsilons: tuple[float, ...] = (0.02, 0.01, 0.005, 0.002)


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Losses under random focused patterns, beside the bound, and the gaps of two wells."""
    if not (config.masks and config.epsilons) or len(config.well_epsilons) < 2:
        raise InputError("W9 needs at least one mask and one ε, and two ε for the wells.")
    if not all(0 < eps <= 1 / 3 for eps in config.well_epsilons):
        raise InputError(f"well_epsilons={config.well_epsilons}: expected numbers up to 1/3.")
    names = ("model", "variant", "setting", "sample", "metric", "value")
    rows: list[tuple[object, ...]] = []
    for mask, _ in kit.tracked(config.masks, on_step):
        radius = graph_facts(mask, config.tokens).contracts_after
        for eps, focus, draw in product(config.epsilons, (ITSELF, OTHERS), range(config.draws)):
            logs = ergodicity(focused(config, mask, eps, focus, draw)).log_products
            figures = {
                LOSS: -math.expm1(float(logs[-1]) / len(logs)),
                ABOVE: count_above(logs, eps, int(radius)),
            }
            rows += [(mask, focus, eps, draw, *figure) for figure in figures.items()]
        for eps in config.epsilons:
            bound = -math.expm1(math.log1p(-(eps**radius)) / radius)
            rows.append((mask, BOUND, eps, 0, LOSS, bound))
    for radius in config.radii:
        for eps in config.well_epsilons:
            pattern = two_wells(radius, eps)
            gap = 1 - float(second_modulus(pattern))
            logs = ergodicity([pattern] * config.layers).log_products
            figures = {GAP: gap, ABOVE: count_above(logs, eps, radius)}
            rows += [(WELLS, f"radius {radius}", eps, 0, *figure) for figure in figures.items()]
    return tables.joined({"ε": tables.from_rows(names, rows)}, column="parameter")


def focused(config: Config, mask: str, eps: float, focus: str, draw: int) -> Iterator[Tensor]:
    """Patterns that give ε to each key a query sees, and all the rest to itself or a random one.

    The choices are the same for every ε.
    """
    allowed = as_mask(mask).matrix(config.tokens).double()
    least = eps * allowed
    rest = 1 - least.sum(-1, keepdim=True)
    if float(rest.min()) < 0:
        raise InputError(f"ε = {eps:g} exceeds one over the number of keys that {mask} shows.")
    generator = stream(config.seed, "focus", mask, draw)
    for _ in range(config.layers):
        keys = torch.multinomial(allowed, 1, generator=generator)
        one_hot = torch.zeros_like(least).scatter(-1, keys, 1.0)
        yield least + rest * (torch.eye(len(least)) if focus == ITSELF else one_hot)


def two_wells(radius: int, eps: float) -> Tensor:
    """A row of ``2r + 1`` tokens that prefer the way to their end; all other weights are ε."""
    tokens = 2 * radius + 1
    pattern = eps * as_mask("window:1").matrix(tokens).double()
    for token in range(tokens):
        ends = [max(0, token - 1)] * (token <= radius) + [min(tokens - 1, token + 1)] * (
            token >= radius
        )
        rest = 1 - float(pattern[token].sum())
        for end in ends:
            pattern[token, end] += rest / len(ends)
    return pattern


def count_above(logs: Tensor, eps: float, radius: int) -> int:
    """In how many layers the product's ln τ is above ``⌊t/r⌋ ln(1 − ε^r)``."""
    bounds = torch.arange(1, len(logs) + 1) // radius * math.log1p(-(eps**radius))
    return int((logs > (1 - _ROUNDING) * bounds + _SMALLEST).sum())


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """No layer above the bound, and a smaller loss for every smaller ε; beyond, the exponents."""
    above = {
        mask: int(table.filter(model=mask, metric=ABOVE)["value"].sum())
        for mask in table["model"].unique(maintain_order=True).to_list()
    }
    slower = {
        focus: {mask: falls(mean_losses(table, mask, focus)) for mask in config.masks}
        for focus in (ITSELF, OTHERS)
    }
    exponents = {radius: exponent(table, radius) for radius in config.radii}
    products = config.layers * (
        2 * len(config.masks) * len(config.epsilons) * config.draws
        + len(config.radii) * len(config.well_epsilons)
    )
    fitted = ", ".join(f"{short(value)} for radius {r}" for r, value in exponents.items())
    return kit.Answer(
        (
            f"Above the bound: {sum(above.values())} of {plural(products, 'product')}.",
            f"The gap of two wells falls with ε by the exponents {fitted}.",
        ),
        stated={
            **{f"{mask}: below the bound": count == 0 for mask, count in above.items()},
            **{f"{mask}: slower for smaller ε": holds for mask, holds in slower[ITSELF].items()},
        },
        beyond={
            **{
                f"exponent {radius}": abs(value - radius) <= _NEAR
                for radius, value in exponents.items()
            },
            **{
                f"{mask}, random focus: slower for smaller ε": holds
                for mask, holds in slower[OTHERS].items()
            },
        },
        on_beyond={
            "depends": f"gaps of two wells scale with exponents {fitted}; "
            "with focus on random tokens, a smaller ε is slower under "
            f"{sum(slower[OTHERS].values())} of {plural(len(config.masks), 'mask')}"
        },
        key_figures={
            "products above the bound": float(sum(above.values())),
            **{f"exponent of the gap, radius {r}": value for r, value in exponents.items()},
        },
        listings=(
            kit.Listing(
                "Loss a layer",
                ("mask", "radius", "ε", ITSELF, OTHERS, BOUND),
                tuple(_listed(config, table)),
                "Means over the draws. The bound is a lower bound on it.",
            ),
        ),
    )


def _listed(config: Config, table: pl.DataFrame) -> Iterator[tuple[str | float, ...]]:
    """Losses of each mask and ε, of both kinds of focus and by the bound."""
    for mask in config.masks:
        columns = [mean_losses(table, mask, variant) for variant in (ITSELF, OTHERS, BOUND)]
        radius = graph_facts(mask, config.tokens).radius
        for eps in config.epsilons:
            yield (mask, radius, eps, *(losses[eps] for losses in columns))


def falls(losses: dict[float, float]) -> bool:
    """Whether every smaller ε loses less."""
    return all(losses[less] < losses[more] for less, more in pairwise(sorted(losses)))


def mean_losses(table: pl.DataFrame, mask: str, variant: str) -> dict[float, float]:
    """By ε, the mean over the draws."""
    rows = table.filter(model=mask, variant=variant, metric=LOSS)
    return dict(rows.group_by("setting", maintain_order=True).agg(pl.mean("value")).iter_rows())


def exponent(table: pl.DataFrame, radius: int) -> float:
    """The slope of the logarithm of the gap over that of ε."""
    rows = table.filter(model=WELLS, variant=f"radius {radius}", metric=GAP)
    points = [(math.log(eps), math.log(gap)) for eps, gap in rows.select("setting", "value").rows()]
    return linear_regression(*zip(*points, strict=True)).slope
