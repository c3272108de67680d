"""What Wu et al. 2024 promise of masked attention, as a number for every layer.

Derived, with the constant that the theorem leaves open. A product of r layers' attention in which
some token's column is full has at least ε^r in that column, so it leaves at most ``1 − ε^r`` of the
distance between any two tokens; values multiply distances by at most their spectral norm. With D
the largest distance between two input tokens, ``μ² = Σ_ij ‖x_i − x_j‖² / 2n ≤ (n/2)·max distance²``
gives ``μ(t) ≤ √(n/2)·D·Π‖W‖·Π(1 − ε^r)``. Nothing here asks that all layers have the same mask.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.masks import Mask
from rankscope.core.network import Block, Network
from rankscope.core.paths import attention_patterns
from rankscope.core.theory import SMOOTH, UNEVEN, Law, graph_facts, smallest_allowed_weight
from rankscope.experiments import depths

WINDOWS, OTHERS, NO_CENTER = "two-sided windows", "other masks", "masks without a center"
CHANGING, FEW, VALUES = "masks that change", "few tokens, weak scores", "other values"
"""Panels of the table."""
PROMISED, SMALLEST = "log10_promised_dispersion", "smallest_weight"
_ROUNDING = 1e-6  # decades by which a bound may seem to be passed


class Promise(NamedTuple):
    """The smallest weight ε, and log₁₀ of the bound on μ after layers that complete a column."""

    smallest: float
    bounds: dict[int, float]


@torch.no_grad()
def promise(network: Network, x: Tensor) -> Promise:
    """The bound for one head and one ``(1, token, feature)`` input without padding."""
    tokens = x.shape[1]
    allowed = [mask.matrix(tokens) for mask in network.spec.masks]
    patterns = attention_patterns(network, x, layers=network.spec.layers)
    smallest = min(
        float(smallest_allowed_weight(weights, seen).min())
        for weights, seen in zip(patterns, allowed, strict=True)
    )
    attentions = [cast(Block, block).attention for block in network.blocks]
    values = [attention.output.weight @ attention.value.weight for attention in attentions]
    growth = [math.log10(float(torch.linalg.matrix_norm(weights, 2))) for weights in values]
    log = math.log10(math.sqrt(tokens / 2) * float(torch.cdist(x[0], x[0]).max()))
    bounds: dict[int, float] = {}
    before = 0
    for layer in full_columns(allowed):
        log += math.log1p(-(smallest ** (layer - before))) / math.log(10)
        log += sum(growth[before:layer])
        bounds[layer] = log
        before = layer
    return Promise(smallest, bounds)


def full_columns(allowed: Sequence[Tensor]) -> Iterator[int]:
    """The layers by which every token has heard of some one token, each time anew.

    >>> from rankscope.core.masks import Causal
    >>> list(full_columns([Causal().matrix(4)] * 3))
    [1, 2, 3]
    """
    heard = None
    for layer, matrix in enumerate(allowed, start=1):
        heard = matrix.double() if heard is None else (matrix.double() @ heard > 0).double()
        if bool((heard > 0).all(0).any()):
            yield layer
            heard = None


def radius_of(masks: Sequence[Mask], tokens: int) -> float:
    """Of masks that layers take in turn: the layers until every token has heard of some one."""
    if len(masks) == 1:
        return graph_facts(masks[0], tokens).contracts_after
    turns = [mask.matrix(tokens) for mask in masks] * tokens
    return next(full_columns(turns), math.inf)


def promise_table(network: Network, x: Tensor, token_mask: Tensor) -> pl.DataFrame:
    """The bound by layer and sample, and each sample's smallest weight."""
    network = network.double()
    rows: list[tuple[int | None, int, str, float]] = []
    for sample, (tokens, real) in enumerate(zip(x, token_mask, strict=True)):
        smallest, bounds = promise(network, tokens[real].unsqueeze(0))
        rows.append((None, sample, SMALLEST, smallest))
        rows += [(layer, sample, PROMISED, bound) for layer, bound in bounds.items()]
    return tables.from_rows(("layer", "sample", "metric", "value"), rows)


class Curve(NamedTuple):
    """One mask, or one kind of values: two laws, and how it compares with the bound.

    A bound that is not below the input's own μ is vacuous, so only those below are compared.
    """

    panel: str
    radius: float  # infinite without a center
    relative: Law
    dispersion: Law
    smallest: float
    compared: int
    above: int
    nearest: float  # the largest μ over its bound, in decades


def read_curves(table: pl.DataFrame, radii: Mapping[str, float]) -> dict[str, Curve]:
    """By name; attention that hardens as states grow makes uneven ones."""
    curves = {}
    for part in table.partition_by("model", maintain_order=True):
        panel, summary = part["model"][0], tables.summary(part)
        evidence = UNEVEN if panel == VALUES else SMOOTH
        relative, dispersion = (
            depths.laws(summary, metric, evidence=evidence)
            for metric in (depths.RELATIVE_DISPERSION, depths.DISPERSION)
        )
        for name in relative:
            rows = part.filter(variant=name)
            over = _over_bounds(rows)
            curves[name] = Curve(
                panel,
                radii.get(name, math.inf),
                relative[name],
                dispersion[name],
                min(rows.filter(metric=SMALLEST)["value"].to_list(), default=math.nan),
                len(over),
                sum(decades > _ROUNDING for decades in over),
                max(over, default=-math.inf),
            )
    return curves


def _over_bounds(rows: pl.DataFrame) -> list[float]:
    """μ over the bounds that promise a smaller μ than the input's, in decades."""
    dispersions = rows.filter(metric=depths.DISPERSION)
    first = dispersions.filter(layer=0).select("sample", first="value")
    bounds = rows.filter(metric=PROMISED).select("layer", "sample", bound="value")
    compared = dispersions.join(bounds, on=("layer", "sample")).join(first, on="sample")
    says = compared.filter(pl.col("bound") < pl.col("first") - _ROUNDING)
    return (says["value"] - says["bound"]).to_list()
