"""What Wu et al. 2024 promise of masked attention, as a number for every layer.

Derived, with the constant that the theorem leaves open. A product of r layers' attention in which
some token's column is full has at least ε^r in that column, so it leaves at most ``1 − ε^r`` of the
distance between any two tokens; values multiply distances by at most their spectral norm. With D
the largest distance between two input tokens, ``μ² = Σ_ij ‖x_i − x_j‖² / 2n ≤ (n/2)·max distance²``
gives ``μ(t) ≤ √(n/2)·D·Π‖W‖·Π(1 − ε^r)``. Nothing here asks that all layers have the same mask.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.network import Block, Network
from rankscope.core.paths import attention_patterns
from rankscope.core.theory import smallest_allowed_weight

PROMISED, SMALLEST = "log10_promised_dispersion", "smallest_weight"


@dataclass(frozen=True)
class Promise:
    """The smallest weight ε, and log₁₀ of the bound on μ after layers that complete a column."""

    smallest: float
    bounds: dict[int, float]


@torch.no_grad()
def promise(network: Network, x: Tensor) -> Promise:
    """The bound for one head and one ``(1, token, feature)`` input without padding."""
    tokens = x.shape[1]
    allowed = [mask.matrix(tokens) for mask in network.spec.masks]
    weights = attention_patterns(network, x, layers=network.spec.layers)
    smallest = min(
        float(smallest_allowed_weight(each, seen).min())
        for each, seen in zip(weights, allowed, strict=True)
    )
    log = math.log10(math.sqrt(tokens / 2) * float(torch.cdist(x[0], x[0]).max()))
    growth = list(_log10_norms(network))
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


def promise_table(network: Network, x: Tensor, token_mask: Tensor) -> pl.DataFrame:
    """The bound by layer and sample, and each sample's smallest weight."""
    network = network.double()
    rows: list[tuple[int | None, int, str, float]] = []
    for sample, (one, real) in enumerate(zip(x, token_mask, strict=True)):
        found = promise(network, one[real].unsqueeze(0))
        rows.append((None, sample, SMALLEST, found.smallest))
        rows += [(layer, sample, PROMISED, bound) for layer, bound in found.bounds.items()]
    return tables.from_rows(("layer", "sample", "metric", "value"), rows)


def _log10_norms(network: Network) -> Iterator[float]:
    """log₁₀ of the spectral norm of each layer's values, ``W_V W_O``."""
    for block in network.blocks:
        attention = cast(Block, block).attention
        whole = attention.output.weight @ attention.value.weight
        yield math.log10(float(torch.linalg.matrix_norm(whole, 2)))
