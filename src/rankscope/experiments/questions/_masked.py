"""One network under one mask: its graph, its attention matrices, its dispersion."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.ask import MOST_TOKENS_CUBED, Subject
from rankscope.core import theory
from rankscope.core.masks import Mask
from rankscope.core.metrics import dobrushin
from rankscope.core.paths import attention_patterns
from rankscope.core.theory import Law
from rankscope.core.tracing import Trace
from rankscope.experiments.depths import (
    RELATIVE_DISPERSION,
    different_laws,
    dispersions,
    law_of_medians,
)
from rankscope.process.progress import OnStep, silent

PRODUCTS = "log10_product_ergodicity"
BY_MASK = (
    "radius",
    "smallest_weight",
    "mean_ergodicity",
    "product_ergodicity_rate",
    "log10_promised_loss",
    "largest_limit_weight",
)
"""Metrics with one number for each mask."""
_MOST_TOKENS_BY_HEAD = 256
"""Tokens up to which every head is given figures that take cubic time."""


def left_out(tokens: int) -> str:
    """Which figures there are none of with so many tokens; a sentence, or nothing."""
    beyond = {
        "ergodicity coefficients of single heads": _MOST_TOKENS_BY_HEAD,
        "ergodicity coefficients of products and Perron weights": MOST_TOKENS_CUBED,
    }
    told = [f"{what} (above {most:,} tokens)" for what, most in beyond.items() if tokens > most]
    if not told:
        return ""
    return f"Left out, because their cost is cubic in the tokens: {' and '.join(told)}."


@dataclass(frozen=True)
class Masked:
    """What one mask does to a network: its graph, the law that was measured, every number."""

    name: str
    facts: theory.GraphFacts
    law: Law
    different_laws: str
    """How many samples follow which law, where they differ."""
    table: pl.DataFrame
    trace: Trace


def measure_mask(
    name: str, subject: Subject, mask: Mask, depth: int, on_step: OnStep = silent
) -> Masked:
    """Everything about one mask; the network of ``subject`` has it already."""
    trace = subject.deep_trace(on_step, norm="fro")
    traced = dispersions(trace.table.filter(pl.col("layer") <= depth))
    first, real = subject.x[:1], subject.token_mask
    if real is not None:  # padding is cut away
        first = first[:, real if real.ndim == 1 else real[0]]
    patterns, tokens = attention_patterns(subject.network, first, layers=depth), first.shape[1]
    facts = theory.graph_facts(mask, tokens)
    found = law_of_medians(tables.summary(traced), RELATIVE_DISPERSION)
    return Masked(
        name,
        facts,
        found,
        different_laws(traced, RELATIVE_DISPERSION),
        tables.stack([traced, _figures(patterns, facts, mask.matrix(tokens))]),
        trace,
    )


@torch.no_grad()
def _figures(patterns: Iterable[Tensor], facts: theory.GraphFacts, allowed: Tensor) -> pl.DataFrame:
    """Ergodicity coefficients by layer and head, and of products of layers; what is left of each
    position's input in the end, and what one layer's matrix says of it; and one number each."""
    tokens, smallest = len(allowed), math.inf
    shared, of_heads = [], []
    for pattern in patterns:
        shared.append(pattern.mean(0))
        smallest = min(smallest, float(theory.smallest_allowed_weight(pattern, allowed).min()))
        if tokens <= _MOST_TOKENS_BY_HEAD:
            of_heads.append(dobrushin(pattern))
    limits = torch.stack(theory.limit_weights(shared, facts.closed_classes)).mean(0)
    promised = theory.a_priori_log_loss(smallest, facts.contracts_after) / math.log(10)
    numbers = {
        "radius": facts.radius,
        "smallest_weight": smallest,
        "log10_promised_loss": promised,
        "largest_limit_weight": float(limits.max()),
    }
    rows: list[tuple[Any, ...]] = [
        (None, None, None, None, metric, value) for metric, value in numbers.items()
    ]
    rows += _by_position(limits, metric="limit_weight")
    if of_heads:
        average = float(torch.cat(of_heads).mean())
        rows += [(None, None, None, None, "mean_ergodicity", average)]
    rows += [
        (layer, head, None, None, "dobrushin", value)
        for layer, each in enumerate(of_heads, start=1)
        for head, value in enumerate(each.tolist())
    ]
    if tokens <= MOST_TOKENS_CUBED:
        of_products = theory.ergodicity(shared)
        log10 = of_products.log_products / math.log(10)
        # Rows that plain numbers cannot tell apart any more need not be equal.
        products = torch.where(log10.isneginf(), math.nan, log10).tolist()
        rate = float(of_products.rate)
        rows += [(None, None, None, None, "product_ergodicity_rate", rate)]
        rows += [
            (layer, None, None, None, PRODUCTS, value)
            for layer, value in enumerate(products, start=1)
        ]
        perron = torch.stack(theory.class_weights(shared[-1])).mean(0)
        rows += _by_position(perron, metric="perron_weight")
    return tables.from_rows(("layer", "head", "parameter", "setting", "metric", "value"), rows)


def _by_position(weights: Tensor, *, metric: str) -> list[tuple[Any, ...]]:
    return [
        (None, None, "position", float(position), metric, value)
        for position, value in enumerate(weights.tolist())
    ]
