"""Attention of the collapsed state: what positions alone make of it, layer by layer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean
from typing import cast

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.deep import deep_states
from rankscope.core.network import Block, Network, Visibility
from rankscope.core.theory import Law, LawKind, ergodicity, law, second_modulus
from rankscope.experiments.depths import RELATIVE
from rankscope.experiments.laws import law_of_medians, medians

TAU, PRODUCT, SECOND = "dobrushin", "log10_product_ergodicity", "second_eigenvalue"
ROUNDING = 1e-12
"""An ergodicity coefficient below this is that of rows which agree."""


@torch.no_grad()
def collapsed_patterns(network: Network, x: Tensor, token_mask: Tensor) -> Iterator[Tensor]:
    """In each layer the first head's ``(sample, query, key)`` matrix if all tokens were their mean.

    Once tokens agree, attention depends on positions and on the row they have in common. What is in
    doubt about these states is what is noted about a deep trace of the same network and input.
    """
    network = network.double()
    states = deep_states(network, x, token_mask)
    for mask, block, (_, state) in zip(network.spec.masks, network.blocks, states, strict=False):
        seen = Visibility.of(mask, x.shape[1], token_mask, x.device)
        common = state.common.at(0.0).unsqueeze(1).expand(x.shape)
        yield cast(Block, block).attention.pattern(common, seen)[:, 0]


def position_table(network: Network, x: Tensor, token_mask: Tensor) -> pl.DataFrame:
    """By layer and sample, of the collapsed state's attention: by how much its rows differ, τ, and
    unless they agree somewhere, τ of all layers so far and its second eigenvalue.
    """
    matrices = list(collapsed_patterns(network, x, token_mask))
    found = ergodicity(matrices, token_mask=token_mask)
    differ = bool((found.each > ROUNDING).all())
    columns = {
        TAU: found.each,
        PRODUCT: found.log_products / math.log(10),
        SECOND: second_modulus(torch.stack(matrices)),
    }
    rows = [
        (layer, sample, metric, value)
        for metric, by_layer in columns.items()
        if differ or metric == TAU
        for layer, values in enumerate(by_layer.tolist(), start=1)
        for sample, value in enumerate(values)
    ]
    return tables.from_rows(("layer", "sample", "metric", "value"), rows)


@dataclass(frozen=True)
class Found:
    """One pattern: its law, and what its collapsed state says about it, by medians over samples."""

    law: Law
    positions: Law | None
    """The law of the products of the collapsed state's attention; none where its rows agree."""
    second: float
    """|λ₂| of that attention, its geometric mean over the later layers; NaN where rows agree."""
    rows_agree: bool
    shrinks: float
    """log₁₀ of the factor by which a layer multiplies the hidden states."""

    @property
    def expected(self) -> LawKind:
        """The law of the claim."""
        return "doubly exponential" if self.rows_agree else "exponential"

    @property
    def gap(self) -> float:
        """How many standard errors the measured rate is off that of positions alone."""
        if self.positions is None or self.law.kind != "exponential":
            return math.nan
        error = math.hypot(self.law.rate_error, self.positions.rate_error)
        return abs(self.law.rate - self.positions.rate) / error if error else math.inf


def read(table: pl.DataFrame, panel: str) -> dict[str, Found]:
    """What the table says about every pattern of a panel."""
    summary = tables.summary(table.filter(model=panel))
    return {
        name: _found(summary.filter(variant=name))
        for name in summary["variant"].unique(maintain_order=True).to_list()
    }


def _found(summary: pl.DataFrame) -> Found:
    taus, seconds = medians(summary, TAU), medians(summary, SECOND)
    whole = medians(summary, "log10_residual")
    sizes = [a - b for a, b in zip(whole, medians(summary, RELATIVE), strict=True)]
    products = medians(summary, PRODUCT)
    later = [math.log10(value) for value in seconds[len(seconds) // 2 :]]
    return Found(
        law_of_medians(summary, RELATIVE),
        law([0.0, *products]) if products else None,
        10 ** mean(later) if later else math.nan,
        rows_agree=taus[0] < ROUNDING,
        shrinks=(sizes[-1] - sizes[len(sizes) // 2]) / max(1, len(sizes) - 1 - len(sizes) // 2),
    )
