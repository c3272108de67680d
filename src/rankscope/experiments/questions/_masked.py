"""One network under one mask: its graph, its attention matrices, its residual."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope import tables, theory
from rankscope.experiments.depths import RELATIVE, dispersions
from rankscope.experiments.laws import Law, law, medians
from rankscope.experiments.progress import OnStep, silent
from rankscope.experiments.subject import Subject
from rankscope.masks import Mask
from rankscope.paths import attention_patterns
from rankscope.tracing import Trace

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


@dataclass(frozen=True)
class Masked:
    """What one mask does to a network: its graph, the law that was measured, every number."""

    name: str
    facts: theory.GraphFacts
    law: Law
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
    return Masked(
        name,
        facts,
        law(medians(tables.summary(traced), RELATIVE)),
        tables.stack([traced, _figures(patterns, facts, mask.matrix(tokens))]),
        trace,
    )


def _figures(patterns: Sequence[Tensor], facts: theory.GraphFacts, allowed: Tensor) -> pl.DataFrame:
    """Ergodicity coefficients by layer and head, and of products of layers; what is left of each
    position's input in the end, and what one layer's matrix says of it; and one number each."""
    shared = [p.mean(0) for p in patterns]
    # One by one: layers may differ in silent heads.
    of_heads = [theory.ergodicity([p]).each[0] for p in patterns]
    of_products = theory.ergodicity(shared)
    log10 = of_products.log_products / math.log(10)
    # Rows that plain numbers cannot tell apart any more need not be equal.
    products = torch.where(log10.isneginf(), math.nan, log10)
    limits = torch.stack(theory.limit_weights(shared, facts.closed_classes)).mean(0)
    by_position = {
        "limit_weight": limits,
        "perron_weight": torch.stack(theory.class_weights(shared[-1])).mean(0),
    }
    smallest = min(float(theory.smallest_allowed_weight(p, allowed).min()) for p in patterns)
    numbers = {
        "radius": facts.radius,
        "smallest_weight": smallest,
        "mean_ergodicity": float(torch.cat(of_heads).mean()),
        "product_ergodicity_rate": float(of_products.rate),
        "log10_promised_loss": theory.a_priori_log_loss(smallest, facts.contracts_after)
        / math.log(10),
        "largest_limit_weight": float(limits.max()),
    }
    rows: list[tuple[Any, ...]] = [
        (layer, head, None, None, "dobrushin", value)
        for layer, each in enumerate(of_heads, start=1)
        for head, value in enumerate(each.tolist())
    ]
    rows += [
        (layer, None, None, None, PRODUCTS, value)
        for layer, value in enumerate(products.tolist(), start=1)
    ]
    rows += [
        (None, None, "position", float(position), metric, value)
        for metric, weights in by_position.items()
        for position, value in enumerate(weights.tolist())
    ]
    rows += [(None, None, None, None, metric, value) for metric, value in numbers.items()]
    return tables.from_rows(("layer", "head", "parameter", "setting", "metric", "value"), rows)
