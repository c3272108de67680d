"""The metrics a trace knows by name, and what each is a function of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter

from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.tracing._digest import function_name
from rankscope.errors import InputError
from rankscope.metric_catalogue import METRICS, Of


@dataclass(frozen=True)
class Measure:
    """A named function: ``compute(x, token_mask=...)`` of hidden states, or a function of their
    ``StateStatistics`` or ``Spectra``, or of a layer's ``AttentionScores``, found once for all.
    """

    name: str
    of: Of
    compute: Callable[..., Tensor]

    def __str__(self) -> str:
        """Its name; with that of a function of the user's own, and a digest of what it does."""
        if MEASURES.get(self.name) is self:
            return self.name
        return f"{self.name} ({function_name(self.compute)})"


def _find(where: str) -> Callable[..., Tensor]:
    """The function at ``module:name``."""
    module, _, name = where.partition(":")
    function: Callable[..., Tensor] = attrgetter(name)(import_module(module))
    return function


MEASURES: dict[str, Measure] = {
    name: Measure(name, each.of, _find(each.compute))
    for name, each in METRICS.items()
    if each.compute
}
"""Those of the catalogue that a trace computes."""
DEFAULT_METRICS = ("relative_residual", "residual", "dispersion", "mean_cosine")

Metrics = str | Sequence[str] | Mapping[str, Callable[..., Tensor]]


@checked
def choose_measures(metrics: Metrics) -> tuple[Measure, ...]:
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
