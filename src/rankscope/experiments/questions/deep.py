"""How small does a residual get? Scaled arithmetic compared with float64 and float32."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.ask import Cost
from rankscope.core.metrics import Center, Norm, residual
from rankscope.core.tracing import Trace
from rankscope.experiments import depths, kit
from rankscope.experiments.depths import FLOORS, FORMATS, RELATIVE, SCALED
from rankscope.numerals import plural, power_of_ten

ENTRY = kit.question(
    "deep",
    "How small does the residual get?",
    asks=kit.Asks(samples=4, without="skip,mlp,norm"),
)
_LARGEST = "log10_largest"
_DIGITS = 8.0
"""Decades above a format's smallest number in which residuals lose their digits."""
_NORMS = {
    "fro": " in the Frobenius norm (relative dispersion)",
    "one": " in the 1-norm",
    "inf": " in the ∞-norm",
    "spectral": " in the spectral norm",
}
"""The note for norms other than the composite one."""
_PARTED = 1.0
"""Decades between a plain residual and the true one at which the number format has stopped."""
_DRAWINGS = (
    kit.Drawing(
        "by_depth",
        "All layers, on a linear axis of exponents.",
        RELATIVE,
        roles=FLOORS,
        title="How small it gets",
    ),
    kit.Drawing(
        "by_depth",
        "The upper end of it: where plain numbers stop.",
        RELATIVE,
        {"lowest": -24.0},
        {"variant": (SCALED, *FORMATS)},
        FLOORS,
        "Where plain numbers stop",
    ),
    kit.Drawing(
        "by_depth",
        "The ratio of successive logarithms of the residual: 3 where collapse is doubly "
        "exponential, 1 where it is exponential; it means little while the residual is about 1.",
        "local_exponent",
        only={"variant": (SCALED,)},
        title="Law of the collapse",
    ),
)


@dataclass(frozen=True)
class Config(kit.Question):
    """The matrix norm of the residuals, and the center."""

    in_norm: Norm = "composite"
    center: Center = "mean"


def cost(config: Config) -> Cost:
    """The cost: scaled arithmetic, and a plain pass in either format."""
    subject, searched = config.subject, config.center == "optimal"
    passes = Cost.of_deep_trace(subject) + Cost.of_forward(subject).times(3)
    return passes + Cost.of_centers(subject).times(3 * searched)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """The residual of every layer in scaled arithmetic and in floats, and where they diverge."""
    subject = config.subject
    traces = {
        name: _trace(config, FORMATS.get(name), on_part)
        for name, on_part in kit.tracked((SCALED, *FORMATS), on_step)
    }
    table = tables.joined({name: traced.table for name, traced in traces.items()})
    return ENTRY.result(
        config,
        question="How small does the residual get, and is it the network or the number format "
        "that stops it?",
        sentences=(*subject.reduced, *_sentences(table, _NORMS.get(config.in_norm, ""))),
        table=table,
        notes=depths.doubts({subject.name: traces[SCALED]}),
        drawings=_DRAWINGS,
        shown=(RELATIVE,),
    )


def _trace(config: Config, dtype: torch.dtype | None, on_step: kit.OnStep) -> Trace:
    """Every layer's residual in a number format, or in scaled arithmetic if there is none."""
    options: dict[str, Any] = {"norm": config.in_norm, "center": config.center}
    if dtype is None:
        return config.subject.deep_trace(on_step, **options)
    metrics: dict[str, Callable[..., Tensor]] = {
        "log10_residual": partial(_log10_residual, relative=False, **options),
        RELATIVE: partial(_log10_residual, relative=True, **options),
        _LARGEST: _log10_largest,
    }
    return config.subject.to(dtype).trace(metrics, on_step)


def _log10_residual(x: Tensor, *, token_mask: Tensor | None = None, **options: Any) -> Tensor:
    """NaN where the plain pass has overflowed: there the scaled one goes on alone."""
    finite = x.isfinite().all(-1) if token_mask is None else x.isfinite().all(-1) | ~token_mask
    known = torch.nan_to_num(x, 0.0, 0.0, 0.0)
    size: Tensor = residual(known, token_mask=token_mask, **options).log10()
    return torch.where(finite.all(-1), size, math.nan)


def _log10_largest(x: Tensor, *, token_mask: Tensor | None = None) -> Tensor:
    """The size of the numbers themselves: they may leave a format's range, too."""
    x = x if token_mask is None else torch.where(token_mask.unsqueeze(-1), x, 0.0)
    return x.abs().flatten(1).amax(1).log10()


def _sentences(table: pl.DataFrame, norm: str) -> tuple[str, ...]:
    """What the medians over the samples show, or how the samples differ; and where formats part.

    The relative residual is that in the composite norm, unless ``norm`` says otherwise.
    """
    summary = tables.summary(table)
    true = depths.sure_medians(summary, RELATIVE, variant=SCALED)
    partings = [_parting(name, true, summary) for name in FORMATS]
    if apart := depths.disagreement(table, RELATIVE, variant=SCALED):
        layers = len(depths.medians(summary, RELATIVE, variant=SCALED)) - 1
        return (f"After {plural(layers, 'layer')} {apart}.", *partings)
    followed = depths.law_of_medians(summary, RELATIVE, variant=SCALED)
    return (
        f"After {plural(len(true) - 1, 'layer')} the relative residual{norm} is "
        f"{power_of_ten(true[-1])} (median over the samples); {followed}.",
        *partings,
    )


def _parting(name: str, true: Sequence[float], summary: pl.DataFrame) -> str:
    """Where plain numbers stop following, and whether digits or the range ran out.

    ``true`` ends where it is in doubt itself.
    """
    limits = torch.finfo(FORMATS[name])
    plain, sizes = (
        depths.medians(summary, metric, variant=name) for metric in (RELATIVE, _LARGEST)
    )
    for layer, (a, b, size) in enumerate(zip(true, plain, sizes, strict=False)):
        if a == b or abs(a - b) <= _PARTED:
            continue
        if math.isnan(b) or not size < math.log10(limits.max):
            return f"In {name} the hidden states overflow at layer {layer}."
        if size < math.log10(limits.tiny) + _DIGITS:
            return (
                f"In {name} the hidden states underflow at layer {layer}: they are at most "
                f"{power_of_ten(size)}."
            )
        return (
            f"In {name} it is {power_of_ten(b)} at layer {layer}, but the true value is "
            f"{power_of_ten(a)}: from there on {name} shows rounding error."
        )
    if len(true) < len(plain):
        return (
            f"{name} agrees within a factor of ten to layer {len(true) - 1}; then it is in doubt."
        )
    return f"{name} agrees within a factor of ten to the last layer."
