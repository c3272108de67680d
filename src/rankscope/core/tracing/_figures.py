"""The metrics of a trace, computed layer by layer while the model runs."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import upcast
from rankscope.core.metrics import (
    AttentionScores,
    GatheredStatistics,
    RankEstimate,
    SampledAttention,
    SampledRows,
    SpectrumProbe,
    StateStatistics,
    spectra,
)
from rankscope.core.shapes import Hidden, TokenMask
from rankscope.core.tracing._described import function_name
from rankscope.errors import InputError, RankscopeError, ShapeError
from rankscope.metric_catalogue import METRICS, Of


@dataclass(frozen=True)
class Measure:
    """A named function: ``compute(x, token_mask=...)`` of hidden states, or a function of their
    ``StateStatistics`` or ``Spectra``, or of a layer's ``AttentionScores``.
    """

    name: str
    of: Of
    compute: Callable[..., Tensor]

    def __str__(self) -> str:
        """Its name; for a user's function also the function's name and a digest of its code."""
        if MEASURES.get(self.name) is self:
            return self.name
        return f"{self.name} ({function_name(self.compute)})"


MEASURES: dict[str, Measure] = {
    name: Measure(name, metric.of, resolve_name(metric.compute))
    for name, metric in METRICS.items()
    if metric.compute
}
"""The metrics of the catalogue that a trace computes."""
DEFAULT_METRICS = ("relative_residual", "residual", "dispersion", "mean_cosine")

Metrics = str | Sequence[str] | Mapping[str, Callable[..., Tensor]]


@checked
def choose_measures(metrics: Metrics) -> tuple[Measure, ...]:
    """The requested measures: by name, or as ``{name: function(x, token_mask=...)}``.

    >>> from rankscope.core.tracing import choose_measures
    >>> [measure.name for measure in choose_measures(["relative_residual", "token_norm"])]
    ['relative_residual', 'token_norm']
    """
    if isinstance(metrics, str):
        metrics = (metrics,)
    if isinstance(metrics, Mapping) and metrics:
        return tuple(Measure(name, "hidden", compute) for name, compute in metrics.items())
    unknown = [name for name in metrics if name not in MEASURES]
    if unknown or not metrics:
        asked = f"unknown metric {unknown[0]!r}" if unknown else "no metric is requested"
        raise InputError(f"{asked}; choose among {', '.join(MEASURES)}.")
    return tuple(MEASURES[name] for name in dict.fromkeys(metrics))


Columns = dict[str, list[Any]]


class LayerFault(NamedTuple):
    """An error detected after the model ran, and its layer."""

    layer: int
    words: str


SpectraBy = Literal["auto", "exact", "estimated"]
ESTIMATED = ("effective_rank", "stable_rank", "participation_ratio")
"""Spectral metrics that can be estimated from matrix products."""
AttentionBy = Literal["all", "sampled"]


@checked
def refuse_unsampled(measures: Sequence[Measure], attention: AttentionBy) -> None:
    """Raise for metrics of attention that some queries cannot estimate, if only some are used."""
    refused = [
        measure.name
        for measure in measures
        if measure.of == "attention" and measure.name not in SampledAttention._fields
    ]
    if attention == "sampled" and refused:
        raise InputError(
            f'attention="sampled" is for means over queries, and {", ".join(refused)} '
            f"{'are' if len(refused) > 1 else 'is'} not one; request only "
            f'{", ".join(SampledAttention._fields)}, or attention="all".'
        )


class _Row(NamedTuple):
    """One metric of one layer: its values, or the index of what was gathered, probed or sampled."""

    layer: int
    measure: Measure
    values: Tensor | None = None
    errors: Tensor | None = None
    state: int = 0
    is_estimate: bool = False

    def fault(self, words: str) -> LayerFault:
        return LayerFault(self.layer, f"layer {self.layer}, {self.measure.name}: {words}")


class Figures:
    """Measures states and attention while a model runs; GPU synchronisation is left to ``finish``.

    Only users' functions and exact spectra may synchronise earlier.
    """

    def __init__(
        self,
        measures: Sequence[Measure],
        expected: int,
        *,
        spectra_by: SpectraBy = "auto",
        attention_by: AttentionBy = "all",
    ) -> None:
        self.of_states = [measure for measure in measures if measure.of != "attention"]
        self.of_attention = [measure for measure in measures if measure.of == "attention"]
        self._has_statistics = any(measure.of == "statistics" for measure in self.of_states)
        self._gathered = GatheredStatistics(expected)
        self._layers: list[tuple[int, torch.dtype]] = []  # of the gathered states
        self._probe = SpectrumProbe(
            fourth_powers=any(measure.name == "participation_ratio" for measure in measures)
        )
        self._probed = 0
        self._spectra_by = spectra_by
        self._is_sampled = bool(self.of_attention) and attention_by == "sampled"
        self._sampled, self._sampled_layers = SampledRows(), 0
        self._rows: list[_Row] = []
        self._samples = 0

    def measure(self, hidden: Hidden, layer: int, mask: TokenMask | None) -> None:
        """Every metric of a layer's hidden states."""
        self._samples = len(hidden)
        spectrum, center = None, None
        if self._has_statistics:
            with own_precision(hidden.device):
                center = self._gathered.add(hidden, mask)
            self._layers.append((layer, upcast(hidden[:0]).dtype))
        if any(self._is_estimated(measure, hidden) for measure in self.of_states):
            with own_precision(hidden.device):
                self._probe.feed(hidden, token_mask=mask, center=center)
            self._probed += 1
        for measure in self.of_states:
            match measure.of:
                case "statistics":
                    self._rows.append(_Row(layer, measure, state=len(self._layers) - 1))
                case "spectrum" if self._is_estimated(measure, hidden):
                    state = self._probed - 1
                    self._rows.append(_Row(layer, measure, state=state, is_estimate=True))
                case "spectrum":
                    if spectrum is None:
                        find = partial(spectra, token_mask=mask)
                        spectrum = _apply(measure.name, layer, find, hidden)
                    self._keep(layer, measure, measure.compute(spectrum))
                case _:
                    compute = partial(measure.compute, token_mask=mask)
                    self._keep(layer, measure, _apply(measure.name, layer, compute, hidden))

    def _is_estimated(self, measure: Measure, hidden: Hidden) -> bool:
        """Whether a metric is estimated: on a GPU, a decomposition takes as long as many layers."""
        wanted = self._spectra_by == "estimated" or (self._spectra_by == "auto" and hidden.is_cuda)
        return wanted and measure.of == "spectrum" and measure.name in ESTIMATED

    @property
    def words(self) -> dict[str, str]:
        """How spectra and attention were estimated, if they were."""
        words = {}
        if self._probed:
            names = [measure.name for measure in self.of_states if measure.name in ESTIMATED]
            how = "estimated from products with random probes, seed 0; errors in the table"
            words["spectra"] = f"{', '.join(names)} {how}"
        if self._is_sampled:
            words["attention"] = "64 queries of each sample, seed 0; standard errors in the table"
        return words

    def attend(self, scores: AttentionScores, layer: int) -> None:
        """Every metric of a layer's attention."""
        self._samples = scores.shape[0]
        if self._is_sampled:
            names = ", ".join(measure.name for measure in self.of_attention)
            _apply(names, layer, self._sampled.add, scores)
            for measure in self.of_attention:
                self._rows.append(_Row(layer, measure, state=self._sampled_layers))
            self._sampled_layers += 1
            return
        for measure in self.of_attention:
            self._keep(layer, measure, _apply(measure.name, layer, measure.compute, scores))

    def send(self) -> None:
        """Start copying the figures to the host after the model has run, without waiting."""
        self._gathered.send()

    def finish(self) -> tuple[Columns, LayerFault | None]:
        """All figures as columns, ``head`` only if attention was measured; and the first fault."""
        if self._is_sampled:
            sampled = self._sampled.finish()
            self._rows = [
                row
                if row.measure.of != "attention"
                else _Row(row.layer, row.measure, *getattr(sampled[row.state], row.measure.name))
                for row in self._rows
            ]
        self._rows.sort(key=lambda row: row.layer)  # layer 0 may be measured after layer 1
        statistics = self._gathered.finish() if self._layers else None
        if statistics is not None and (fault := self._fault(statistics)) is not None:
            return {}, fault
        gathered = {
            measure.name: measure.compute(statistics).tolist()
            for measure in self.of_states
            if measure.of == "statistics"
        }
        estimates = self._probe.finish() if self._probed else []
        measured = [tensor for row in self._rows for tensor in (row.values, row.errors)]
        host_values = iter(_on_host([tensor for tensor in measured if tensor is not None]))
        head = ["head"] * bool(self.of_attention)
        error = ["error"] * bool(self._probed or self._is_sampled)
        columns: Columns = {
            name: [] for name in ("layer", *head, "sample", "metric", "value", *error)
        }
        for row in self._rows:
            if row.is_estimate:
                estimate: RankEstimate = getattr(estimates[row.state], row.measure.name)()
                if not bool(estimate.value.isfinite().all()):
                    return {}, row.fault(
                        "x is not finite; find the layer that overflows, or compute in a wider "
                        "dtype."
                    )
                _fill(columns, row, estimate.value.tolist(), estimate.error.tolist())
                continue
            if row.values is None:
                _fill(columns, row, gathered[row.measure.name][row.state])
                continue
            values = next(host_values)
            if row.measure.of == "attention" and not all(map(math.isfinite, values)):
                return {}, row.fault(
                    "attention is not a distribution over the real tokens; its scores are not "
                    "finite, or the token mask is not the one that the model used."
                )
            _fill(columns, row, values, () if row.errors is None else next(host_values))
        return columns, None

    def _fault(self, statistics: StateStatistics) -> LayerFault | None:
        """The fault of the first state that has one."""
        if not any(statistics.fault(dtype) for dtype in {dtype for _, dtype in self._layers}):
            return None
        name = next(measure.name for measure in self.of_states if measure.of == "statistics")
        for layer, dtype, state in sorted(
            ((layer, dtype, state) for state, (layer, dtype) in enumerate(self._layers)),
            key=lambda entry: entry[0],
        ):
            if words := statistics.only(state).fault(dtype):
                return LayerFault(layer, f"layer {layer}, {name}: {words}")
        return None

    def _keep(
        self, layer: int, measure: Measure, values: Any, errors: Tensor | None = None
    ) -> None:
        axes = 2 if measure.of == "attention" else 1
        is_fit = isinstance(values, Tensor) and values.ndim == axes
        if not is_fit or values.shape[0] != self._samples:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(
                f"metric {measure.name!r} returned {got} for {self._samples} samples; "
                "it must return a tensor with one number per sample."
            )
        # A copy: a view would keep a whole layer alive.
        self._rows.append(_Row(layer, measure, values.detach().clone(), errors))


def _fill(
    columns: Columns, row: _Row, values: Sequence[float], errors: Sequence[float] = ()
) -> None:
    """Add one row of the table for each sample and head."""
    count = len(values)
    heads = row.values.shape[1] if row.measure.of == "attention" and row.values is not None else 1
    is_attention = row.measure.of == "attention"
    columns["layer"] += [row.layer] * count
    columns["sample"] += [index // heads for index in range(count)]
    columns["metric"] += [row.measure.name] * count
    columns["value"] += values
    if "head" in columns:
        columns["head"] += [index % heads if is_attention else None for index in range(count)]
    if "error" in columns:
        columns["error"] += errors or [None] * count


def _on_host(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The values of all tensors, with one copy and one synchronisation per device."""
    by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_device[tensor.device].append(tensor.flatten().double())
    taken = {device: iter(torch.cat(some).tolist()) for device, some in by_device.items()}
    return [list(islice(taken[tensor.device], tensor.numel())) for tensor in tensors]


def own_precision(device: torch.device) -> AbstractContextManager[Any]:
    """A context without autocast, so that figures keep their precision."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _apply(name: str, layer: int, compute: Callable[[Any], Any], tensor: Any) -> Any:
    try:
        with own_precision(torch.device("cpu")), own_precision(torch.device("cuda")):
            return compute(tensor)
    except RankscopeError as error:
        raise type(error)(f"layer {layer}, {name}: {error}") from error
