"""The main job: how do a network and its ablations treat the differences between tokens?"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.experiments.fates import Finding, findings
from rankscope.experiments.variants import TRANSFORMER, Reading, four_variants
from rankscope.network import Network
from rankscope.tracing import Trace, trace_in_batches

DIAGNOSTIC_METRICS = ("relative_residual", "mean_cosine", "effective_rank", "spectral_ratio")


@dataclass(frozen=True)
class Diagnosis:
    """Every number measured, its summary over samples, and what it says in words."""

    table: pl.DataFrame
    summary: pl.DataFrame
    findings: tuple[Finding, ...]
    provenance: Mapping[str, object]


def diagnose(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None = None,
    *,
    measured: Tensor | None = None,
    reading: Reading | None = None,
    batch_size: int = 8,
    on_batch: Callable[[], None] | None = None,
) -> Diagnosis:
    """Trace SAN, SAN+MLP, SAN+skip and the transformer on the same input and say what is seen.

    >>> x, token_mask = embed(passages()[:2], 16)
    >>> diagnose(Network.random(Spec(2, 2, 16)), x, token_mask).findings[0].variant
    'SAN'

    ``measured`` leaves tokens out of the figures that the network still sees (CLS and the like);
    ``reading`` says what is meant by SAN; ``on_batch`` is called after each batch of each variant.
    """
    traces: dict[str, Trace] = {}
    for name, variant in four_variants(network, reading).items():
        traces[name] = trace_in_batches(
            variant,
            x,
            metrics=DIAGNOSTIC_METRICS,
            token_mask=token_mask,
            measured=measured,
            batch_size=batch_size,
            on_batch=on_batch,
        )
    table = tables.joined({name: one.table for name, one in traces.items()})
    summary = tables.summary(table)
    return Diagnosis(
        table,
        summary,
        findings(summary, epsilon=torch.finfo(x.dtype).eps),
        asdict(traces[TRANSFORMER].provenance),
    )
