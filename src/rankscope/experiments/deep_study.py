"""How small does a residual really get? Scaled arithmetic beside float64 and float32."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.errors import InputError
from rankscope.experiments.laws import law, medians, power_of_ten
from rankscope.experiments.study import Drawing, Study
from rankscope.metrics import residual
from rankscope.metrics.norms import Norm
from rankscope.metrics.residual import Center
from rankscope.network import Network
from rankscope.tracing import Trace, trace_in_batches

SCALED = "scaled"
FORMATS = {"float64": torch.float64, "float32": torch.float32}
_DIGITS = 8.0
"""Decades above a format's smallest number in which residuals lose their digits."""
_PARTED = 1.0
"""Decades between a plain residual and the true one at which the number format has stopped."""


@dataclass(frozen=True)
class _Asked:
    """What is measured, on which tokens, and how many samples at a time."""

    token_mask: Tensor | None
    measured: Tensor | None
    norm: Norm
    center: Center
    batch_size: int
    on_batch: Callable[[], None] | None


def deep_study(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None = None,
    *,
    measured: Tensor | None = None,
    norm: Norm = "composite",
    center: Center = "mean",
    title: str = "",
    batch_size: int = 8,
    on_batch: Callable[[], None] | None = None,
) -> Study:
    """Every layer's residual in scaled arithmetic and in plain numbers, and where they part."""
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} is out of range; expected 1 or more.")
    asked = _Asked(token_mask, measured, norm, center, batch_size, on_batch)
    scaled = _in_batches(network, x, asked)
    found = {SCALED: scaled.table}
    for name, dtype in FORMATS.items():
        plain = network.double() if dtype == torch.float64 else network.float()
        found[name] = _plain(plain, x.to(dtype), asked)
    table = tables.joined(found)
    summary = tables.summary(table)
    relative = "log10_relative_residual"
    variants = {"variant": (SCALED, *FORMATS)}
    return Study(
        name="deep",
        title=title,
        question="How small does the residual get, and is it the network or the number format "
        "that stops it?",
        sentences=_sentences(summary, scaled.provenance.notes),
        table=table,
        summary=summary,
        provenance=asdict(scaled.provenance),
        drawings=(
            Drawing("by_depth", "All of it, on a linear axis of exponents.", relative),
            Drawing(
                "by_depth",
                "The top of it: where plain numbers stop.",
                relative,
                {"lowest": -24.0},
                variants,
            ),
            Drawing(
                "by_depth",
                "The ratio of successive logarithms of the residual: 3 where collapse is doubly "
                "exponential, 1 where it is exponential; it means little while the residual is "
                "about 1.",
                "local_exponent",
                only={"variant": (SCALED,)},
            ),
        ),
        shown=(relative,),
    )


def passes(batches: int) -> int:
    """How often ``on_batch`` is called."""
    return batches * (1 + len(FORMATS))


def _in_batches(network: Network, x: Tensor, asked: _Asked) -> Trace:
    """As ``trace_in_batches``, in scaled arithmetic."""
    parts = []
    exact = network.double()  # once for all batches
    for start in range(0, len(x), asked.batch_size):
        chunk = slice(start, start + asked.batch_size)
        part = deep_trace(
            exact,
            x[chunk].double(),
            norm=asked.norm,
            center=asked.center,
            token_mask=None if asked.token_mask is None else asked.token_mask[chunk],
            measured=None if asked.measured is None else asked.measured[chunk],
        )
        parts.append(part)
        if asked.on_batch is not None:
            asked.on_batch()
    return Trace.joined(parts)


def _plain(network: Network, x: Tensor, asked: _Asked) -> pl.DataFrame:
    """The same figures in a network's own number format."""
    options: dict[str, Any] = {"norm": asked.norm, "center": asked.center}
    traced = trace_in_batches(
        network,
        x,
        metrics={
            "log10_residual": partial(_log10_residual, relative=False, **options),
            "log10_relative_residual": partial(_log10_residual, relative=True, **options),
            "log10_largest": _log10_largest,
        },
        token_mask=asked.token_mask,
        measured=asked.measured,
        batch_size=asked.batch_size,
        on_batch=asked.on_batch,
    )
    return traced.table


def _log10_residual(x: Tensor, *, token_mask: Tensor | None = None, **options: Any) -> Tensor:
    """NaN where the plain pass has overflowed: there the scaled one goes on alone."""
    held = x.isfinite().all(-1) if token_mask is None else x.isfinite().all(-1) | ~token_mask
    size: Tensor = residual(
        torch.nan_to_num(x, 0.0, 0.0, 0.0), token_mask=token_mask, **options
    ).log10()
    return torch.where(held.all(-1), size, math.nan)


def _log10_largest(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    """The size of the numbers themselves: they may leave a format's range, too."""
    x = x if token_mask is None else torch.where(token_mask.unsqueeze(-1), x, 0.0)
    return x.abs().flatten(1).amax(1).log10()


def _sentences(summary: pl.DataFrame, notes: Mapping[str, str]) -> tuple[str, ...]:
    """What the medians over the samples show."""
    metric = "log10_relative_residual"
    true = medians(summary, metric, variant=SCALED)
    found = law(true)
    told = [
        f"After {len(true) - 1} layers the relative residual is {power_of_ten(true[-1])} "
        f"(median over the samples); {found}."
    ]
    told += [f"Note: {notes[kind]}." for kind in ("beyond", "doubt") if kind in notes]
    for name in FORMATS:
        plain = medians(summary, metric, variant=name)
        sizes = medians(summary, "log10_largest", variant=name)
        told.append(_where_parted(name, true, plain, sizes))
    return tuple(told)


def _where_parted(
    name: str, true: Sequence[float], plain: Sequence[float], sizes: Sequence[float]
) -> str:
    """Where plain numbers stop following, and whether digits or the range ran out."""
    for layer, (a, b, size) in enumerate(zip(true, plain, sizes, strict=True)):
        if a == b or abs(a - b) <= _PARTED:
            continue
        limits = torch.finfo(FORMATS[name])
        if math.isnan(b) or not size < math.log10(limits.max):
            return f"In {name} the numbers themselves overflow at layer {layer}."
        if size < math.log10(limits.tiny) + _DIGITS:
            return (
                f"In {name} the numbers themselves become too small at layer {layer}, "
                f"{power_of_ten(size)} at most."
            )
        return (
            f"In {name} it is {power_of_ten(b)} at layer {layer}, where it truly is "
            f"{power_of_ten(a)}: from there on {name} shows its own rounding."
        )
    return f"{name} follows it to the last layer within a factor of ten."
