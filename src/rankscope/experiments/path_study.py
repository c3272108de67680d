"""How much do paths of each length carry, over many samples?"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.errors import InputError
from rankscope.network import Network
from rankscope.paths import count_paths, head_shares, path_lengths
from rankscope.paths.lengths import Count
from rankscope.tracing import Provenance


@dataclass(frozen=True)
class PathStudy:
    """Shares by layer, length and sample; by head if asked for; and how exact they are."""

    table: pl.DataFrame
    summary: pl.DataFrame
    heads: pl.DataFrame | None
    paths: int
    reconstruction_error: float
    sentence: str
    provenance: Mapping[str, Any]


def path_study(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None = None,
    *,
    count: Count = "attention",
    max_length: int | None = None,
    heads: bool = False,
    batch_size: int = 8,
    on_batch: Callable[[], None] | None = None,
) -> PathStudy:
    """``path_lengths``, and ``head_shares`` if asked for, batch by batch.

    The reconstruction error is that of the first batch: it costs two more passes.
    """
    if batch_size < 1 or not len(x):
        raise InputError(f"batch_size={batch_size} and {len(x)} samples leave nothing to add up.")
    parts: list[pl.DataFrame] = []
    by_head: list[pl.DataFrame] = []
    error = float("nan")
    for start in range(0, len(x), batch_size):
        chunk = slice(start, start + batch_size)
        mask = None if token_mask is None else token_mask[chunk]
        found = path_lengths(network, x[chunk], count=count, max_length=max_length, token_mask=mask)
        parts.append(_shifted(found.table, start))
        if start == 0 and found.complete:
            error = found.reconstruction_error
        _tell(on_batch)
        if heads:
            by_head.append(_shifted(head_shares(network, x[chunk], token_mask=mask).table, start))
            _tell(on_batch)
    table = pl.concat(parts)
    summary = tables.summary(table)
    spec = network.spec
    return PathStudy(
        table,
        summary,
        pl.concat(by_head) if by_head else None,
        count_paths(spec.layers, spec.heads).total,
        error,
        _sentence(summary),
        asdict(Provenance(network.name, spec.digest(seed=network.seed), network.seed)),
    )


def _shifted(table: pl.DataFrame, by: int) -> pl.DataFrame:
    return table.with_columns(pl.col("sample") + by)


def _tell(on_batch: Callable[[], None] | None) -> None:
    if on_batch is not None:
        on_batch()


def _sentence(summary: pl.DataFrame) -> str:
    """What the shares at the last layer say."""
    last = summary.filter(
        (pl.col("metric") == "residual_share")
        & (pl.col("layer") == pl.col("layer").max())
        & pl.col("length").is_not_null()
    ).sort("length")
    shares = last["mean"].to_list()
    most = max(range(len(shares)), key=shares.__getitem__)
    words = f"Paths of length {most} carry most of the residual ({shares[most]:.2g} of the whole)"
    if len(shares) > 1:
        words += f", the longest added up ({len(shares) - 1}) {shares[-1]:.2g}"
    return words + "."
