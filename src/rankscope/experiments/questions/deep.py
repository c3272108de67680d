"""How small does a residual really get? Scaled arithmetic beside float64 and float32."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.depths import RELATIVE
from rankscope.experiments.formats import FLOORS, FORMATS, SCALED
from rankscope.experiments.laws import law, medians
from rankscope.experiments.notes import doubts, note_sentences
from rankscope.experiments.progress import OnStep, tracked
from rankscope.experiments.subject import Question, Subject
from rankscope.metrics import Center, Norm, residual
from rankscope.numerals import power_of_ten
from rankscope.results import Drawing, Result
from rankscope.tracing import Trace

ENTRY = CATALOGUE["deep"]
_LARGEST = "log10_largest"
_DIGITS = 8.0
"""Decades above a format's smallest number in which residuals lose their digits."""
_PARTED = 1.0
"""Decades between a plain residual and the true one at which the number format has stopped."""


@dataclass(frozen=True)
class Config(Question):
    """The matrix norm residuals are taken in, and what is subtracted before."""

    norm: Norm = "composite"
    center: Center = "mean"


def run(config: Config, on_step: OnStep) -> Result:
    """Every layer's residual in scaled arithmetic and in plain numbers, and where they part."""
    subject = config.subject
    found: dict[str, pl.DataFrame] = {}
    noted: dict[str, str] = {}
    for name, on_part in tracked((SCALED, *FORMATS), on_step):
        if name == SCALED:
            parts = _scaled(config, on_part)
            found[name] = Trace.joined(parts).table
            noted = doubts({subject.name: parts})
        else:
            found[name] = _plain(config, subject.to(FORMATS[name]), on_part)
    table = tables.joined(found)
    return Result(
        id=ENTRY.id,
        title=subject.name,
        question="How small does the residual get, and is it the network or the number format "
        "that stops it?",
        sentences=_sentences(tables.summary(table), noted),
        table=table,
        provenance=ENTRY.provenance(config, notes=noted),
        drawings=(
            Drawing(
                "by_depth", "All of it, on a linear axis of exponents.", RELATIVE, roles=FLOORS
            ),
            Drawing(
                "by_depth",
                "The top of it: where plain numbers stop.",
                RELATIVE,
                {"lowest": -24.0},
                {"variant": (SCALED, *FORMATS)},
                FLOORS,
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
        shown=(RELATIVE,),
    )


def _scaled(config: Config, on_step: OnStep) -> list[Trace]:
    """The traces in scaled arithmetic, batch by batch."""
    subject = config.subject.to(torch.float64)
    return [
        deep_trace(
            subject.network,
            batch.x,
            norm=config.norm,
            center=config.center,
            token_mask=batch.token_mask,
            measured=batch.measured,
        )
        for batch, _ in tracked(subject.batches(), on_step)
    ]


def _plain(config: Config, subject: Subject, on_step: OnStep) -> pl.DataFrame:
    """The same figures in a number format of its own."""
    options: dict[str, Any] = {"norm": config.norm, "center": config.center}
    metrics: dict[str, Callable[..., Tensor]] = {
        "log10_residual": partial(_log10_residual, relative=False, **options),
        RELATIVE: partial(_log10_residual, relative=True, **options),
        _LARGEST: _log10_largest,
    }
    return subject.trace(metrics, on_step).table


def _log10_residual(x: Tensor, *, token_mask: Tensor | None = None, **options: Any) -> Tensor:
    """NaN where the plain pass has overflowed: there the scaled one goes on alone."""
    finite = x.isfinite().all(-1) if token_mask is None else x.isfinite().all(-1) | ~token_mask
    size: Tensor = residual(
        torch.nan_to_num(x, 0.0, 0.0, 0.0), token_mask=token_mask, **options
    ).log10()
    return torch.where(finite.all(-1), size, math.nan)


def _log10_largest(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    """The size of the numbers themselves: they may leave a format's range, too."""
    x = x if token_mask is None else torch.where(token_mask.unsqueeze(-1), x, 0.0)
    return x.abs().flatten(1).amax(1).log10()


def _sentences(summary: pl.DataFrame, noted: Mapping[str, str]) -> tuple[str, ...]:
    """What the medians over the samples show."""
    true = medians(summary, RELATIVE, variant=SCALED)
    parted = [
        _where_parted(
            name,
            true,
            medians(summary, RELATIVE, variant=name),
            medians(summary, _LARGEST, variant=name),
        )
        for name in FORMATS
    ]
    return (
        f"After {len(true) - 1} layers the relative residual is {power_of_ten(true[-1])} "
        f"(median over the samples); {law(true)}.",
        *note_sentences(noted),
        *parted,
    )


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
