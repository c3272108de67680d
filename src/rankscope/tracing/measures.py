"""The metrics a trace knows by name, and what each is a function of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rankscope import metrics as m
from rankscope.errors import InputError


@dataclass(frozen=True)
class Measure:
    """A named function: ``compute(tensor, token_mask=...)`` of hidden states or attention
    matrices, or a function of the hidden states' ``Deviations`` or ``Spectra``, found once for all.
    """

    name: str
    of: Literal["hidden", "deviation", "spectrum", "attention"]
    compute: Callable[..., Tensor]


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("relative_residual", "deviation", m.Deviations.relative_residual),
        Measure("residual", "deviation", m.Deviations.residual),
        Measure("dispersion", "deviation", m.Deviations.dispersion),
        Measure("mean_cosine", "hidden", m.mean_cosine),
        Measure("effective_rank", "spectrum", m.Spectra.effective_rank),
        Measure("stable_rank", "spectrum", m.Spectra.stable_rank),
        Measure("numerical_rank", "spectrum", m.Spectra.numerical_rank),
        Measure("participation_ratio", "spectrum", m.Spectra.participation_ratio),
        Measure("spectral_ratio", "spectrum", m.Spectra.spectral_ratio),
        Measure("attention_entropy", "attention", m.attention_entropy),
        Measure("dobrushin", "attention", m.dobrushin),
        Measure("second_singular_value", "attention", m.second_singular_value),
        Measure("high_pass_ratio", "attention", m.high_pass_ratio),
    )
}
DEFAULT_METRICS = ("relative_residual", "residual", "dispersion", "mean_cosine")

Metrics = Sequence[str] | Mapping[str, Callable[..., Tensor]]


def chosen(metrics: Metrics) -> tuple[Measure, ...]:
    """The measures asked for: by name, or as ``{name: function(x, token_mask=...)}``."""
    if isinstance(metrics, str):
        metrics = (metrics,)
    if isinstance(metrics, Mapping) and metrics:
        return tuple(Measure(name, "hidden", compute) for name, compute in metrics.items())
    unknown = [name for name in metrics if name not in MEASURES]
    if unknown or not metrics:
        asked = f"unknown metric {unknown[0]!r}" if unknown else "no metric was asked for"
        raise InputError(f"{asked}; choose among {', '.join(MEASURES)}.")
    return tuple(MEASURES[name] for name in dict.fromkeys(metrics))
