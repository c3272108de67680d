"""What a probe measures of hidden states, attention and sublayers while the model runs.

Figures of every sample stay on the device until the pass is over, are then copied to the host, and
are summed over processes before anything that is not a sum (a median, a rank) is made of them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import ClassVar, Final

import torch
import torch.distributed as dist
from torch import Tensor

from rankscope.core.metrics import (
    AttentionScores,
    GatheredStatistics,
    SpectrumProbe,
    effective_rank,
    mean_cosine,
    probe_attention,
    spectra,
)
from rankscope.core.pooling import LAST, pool
from rankscope.core.tracing import Columns, LayerRecord, Sublayer
from rankscope.monitor._history import Place
from rankscope.monitor._names import MONITORED

MOST_ENTRIES: Final = 4096
"""Entries of a sample of which the median is taken."""
_LARGE_GRAM: Final = 512
"""Tokens and features from which on effective ranks are estimated, on a CPU too."""
_SHARES: Final = {
    "attention": "stream/attention_share",
    "mixer": "stream/attention_share",
    "MLP": "stream/mlp_share",
}


@dataclass(frozen=True)
class SampleFigures:
    """Figures of each sample on the host: by metric and layer, ``(sample,)`` in float64.

    ``pooled`` are the embeddings ``(sample, feature)``, ``routed`` the number of tokens that each
    expert of a layer got.
    """

    values: dict[Place, Tensor]
    pooled: Tensor | None = None
    routed: Mapping[int, Tensor] = field(default_factory=dict)

    def gathered(self, rows: slice, samples: int, device: torch.device) -> "SampleFigures":
        """The figures of all ``samples``, of which every process has some ``rows``.

        One sum over all processes, in which each fills its own rows.
        """
        width = 0 if self.pooled is None else self.pooled.shape[1]
        table = torch.zeros(len(self.values) + width, samples, dtype=torch.float64)
        for row, values in enumerate(self.values.values()):
            table[row, rows] = values
        if self.pooled is not None:
            table[len(self.values) :, rows] = self.pooled.T.double()
        routed = [counts.double() for counts in self.routed.values()]
        packed = torch.cat([table.flatten(), *routed]).to(device)
        dist.all_reduce(packed)
        table, rest = packed.cpu().split([table.numel(), len(packed) - table.numel()])
        table = table.reshape(-1, samples)
        counts = rest.split([len(layer) for layer in routed])
        return SampleFigures(
            dict(zip(self.values, table, strict=False)),
            table[len(self.values) :].T if width else None,
            dict(zip(self.routed, counts, strict=True)),
        )

    def summary(self) -> dict[Place, float]:
        """One value by metric and layer: the median or the largest of the samples.

        Figures of the stream and of attention show that a sample is not finite; ranks and cosines
        are of the other samples, and are left out if there are none.
        """
        summary: dict[Place, float] = {}
        for (name, layer), samples in self.values.items():
            values: list[float] = samples.tolist()
            finite = [value for value in values if math.isfinite(value)]
            if name.startswith(("stream/", "attention/")):
                # A median entry of 0 makes a ratio infinite; the others are not finite themselves.
                as_usual = math.inf if name == "stream/max_over_median" else None
                broken = [v for v in values if not math.isfinite(v) and v != as_usual]
            else:
                broken = []
            if broken:
                summary[name, layer] = broken[0]
            elif finite:
                reduce = max if MONITORED[name].over == "max" else median
                summary[name, layer] = reduce(finite)
        if self.pooled is not None and bool(self.pooled.isfinite().all()) and len(self.pooled) > 1:
            summary["pooled/effective_rank", None] = float(effective_rank(self.pooled))
            summary["pooled/mean_cosine", None] = float(mean_cosine(self.pooled))
        for layer, counts in self.routed.items():
            summary["router/entropy", layer] = float(
                torch.special.entr(counts / counts.sum()).sum()
            )
            summary["router/dead", layer] = float((counts == 0).double().mean())
        return summary


class ProbeFigures:
    """Given to a ``Recorder``: measures hidden states, attention and outputs of sublayers.

    ``pooling`` is how the tokens of the last layer become one vector. Nothing waits for a GPU
    before ``finish``, and nothing raises because a number is not finite.
    """

    of_states = of_attention = ()
    words: ClassVar[dict[str, str]] = {}

    def __init__(self, layers: int, *, pooling: str) -> None:
        self._pooling = pooling
        self.token_mask: Tensor | None = None
        """Which tokens are not padding, for attention."""
        self._statistics = GatheredStatistics(layers + 1)
        self._layers: list[int] = []  # of the states, in the order in which they were measured
        self._spectra = SpectrumProbe(fourth_powers=False)
        self._estimated: list[int] = []  # layers
        self._kept: dict[Place, Tensor] = {}
        self._masks: dict[int, Tensor | None] = {}
        self._outputs: dict[Place, Tensor] = {}  # squares of tokens
        self._pooled: tuple[int, Tensor] | None = None
        self.shapes: dict[int, torch.Size] = {}
        """Those of the states (sample, token, feature) by layer."""

    def measure(self, hidden: Tensor, layer: int, mask: Tensor | None) -> None:
        """The figures of a state."""
        hidden = hidden.detach()
        self._masks[layer], self.shapes[layer] = mask, hidden.shape
        with _unobserved(hidden.device):
            center = self._statistics.add(hidden, mask)
            self._layers.append(layer)
            if hidden.is_cuda or min(hidden.shape[1:]) > _LARGE_GRAM:
                self._spectra.feed(hidden, token_mask=mask, center=center)
                self._estimated.append(layer)
            else:
                self._keep("rank/effective_rank", layer, _exact_rank(hidden, mask))
            self._keep("stream/max_over_median", layer, _max_over_median(hidden, mask))
            if self._pooled is None or layer > self._pooled[0]:
                self._pooled = layer, self._pool(hidden, mask)

    def measure_layer(self, layer: int, record: LayerRecord, sublayers: Sequence[Sublayer]) -> str:
        """Attention and sublayers of a block that has run; why attention was not read, if so.

        What was measured is taken out of the record, so that no layer is kept.
        """
        parts = {(sublayer.path, sublayer.call): sublayer.part for sublayer in sublayers}
        samples, tokens = next(reversed(self.shapes.values()), torch.Size((-1, -1)))[:2]
        scores, why = record.attention(tokens, samples)
        if scores is not None:
            with _unobserved(scores.key.device):
                self._attend(scores, layer)
        for call in record.calls:
            name = _SHARES.get(parts.get((call.path, call.call), ""))
            if call.output is not None and name is not None:
                rows = call.output.detach().flatten(0, -2)
                with _unobserved(rows.device):
                    squares = torch.linalg.vector_norm(rows, dim=-1, dtype=_sums(rows)).square()
                # Several attentions or MLPs of a layer: their squares, not the square of their sum.
                self._outputs[name, layer] = squares + self._outputs.get((name, layer), 0.0)
        for kept in (record.calls, record.heard, record.fused):
            kept.clear()
        return why

    def send(self) -> None:
        """Start copying to the host, without waiting."""
        self._statistics.send()

    def finish(self) -> tuple[Columns, None]:
        """No columns: ``figures`` has all."""
        return {}, None

    def figures(self, *, token_first: bool) -> SampleFigures:
        """All figures on the host; this waits for the device."""
        statistics = self._statistics.finish()
        kept = dict(zip(self._kept, _on_host(list(self._kept.values())), strict=True))
        for layer, spectrum in zip(self._estimated, self._spectra.finish(), strict=True):
            kept["rank/effective_rank", layer] = spectrum.effective_rank().value
        sizes = dict(zip(self._outputs, _on_host(list(self._outputs.values())), strict=True))
        for state, layer in sorted(enumerate(self._layers), key=lambda entry: entry[1]):
            states = statistics.only(state)
            features = self.shapes[layer][2]
            size = torch.where(states.broken >= 0, torch.nan, states.fro)
            ratio = kept["stream/max_over_median", layer]
            kept["stream/max_over_median", layer] = torch.where(size.isnan(), torch.nan, ratio)
            kept["rank/residual", layer] = states.relative_dispersion()
            kept["rank/mean_cosine", layer] = states.mean_cosine()
            kept["stream/rms", layer] = size / (states.tokens * features).sqrt()
            for name in dict.fromkeys(_SHARES.values()):
                if (name, layer) in sizes:
                    output = self._norms(sizes[name, layer], layer, token_first=token_first)
                    if output is not None:
                        kept[name, layer] = output / size.clamp_min(torch.finfo(size.dtype).tiny)
        pooled = None if self._pooled is None else self._pooled[1].double().cpu()
        values = {place: values.double().cpu() for place, values in kept.items()}
        order = {name: number for number, name in enumerate(MONITORED)}
        places = sorted(values, key=lambda place: (order[place[0]], place[1] or 0))
        return SampleFigures({place: values[place] for place in places}, pooled)

    def drop_attention(self, layer: int) -> None:
        """Forget the attention of a layer that turned out to be read wrongly."""
        for place in [place for place in self._kept if place[1] == layer]:
            if place[0].startswith("attention/"):
                del self._kept[place]

    def _attend(self, scores: AttentionScores, layer: int) -> None:
        mask = self.token_mask
        if mask is not None and mask.shape == (scores.shape[0], scores.shape[3]):
            scores = replace(scores, token_mask=mask.to(scores.key.device, torch.bool))
        figures = probe_attention(scores)
        over_heads: dict[str, tuple[Tensor, Callable[..., Tensor]]] = {
            "attention/entropy": (figures.entropy, torch.mean),
            "attention/entropy_min": (figures.entropy, torch.amin),
            "attention/max_logit": (figures.max_logit, torch.amax),
            "attention/logit_deviation": (figures.deviation, torch.mean),
            "attention/sink": (figures.sink, torch.mean),
        }
        for name, (values, reduce) in over_heads.items():
            self._keep(name, layer, reduce(values, -1))

    def _pool(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        if self._pooling != LAST:
            center, *_ = self._statistics.sides()
            return center.float().clone()
        real = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        return pool(hidden, real if mask is None else mask.expand_as(real), LAST).float()

    def _norms(self, squares: Tensor, layer: int, *, token_first: bool) -> Tensor | None:
        """Norm of an output of each sample, over the tokens that count; None if it has others."""
        samples, tokens, _ = self.shapes[layer]
        if squares.numel() != samples * tokens:
            return None
        by_token = squares.reshape(tokens, samples).T if token_first else squares
        by_token = by_token.reshape(samples, tokens)
        mask = self._masks[layer]
        if mask is not None:
            by_token = torch.where(mask.cpu(), by_token, 0.0)
        return by_token.sum(-1).sqrt()

    def _keep(self, name: str, layer: int, values: Tensor) -> None:
        self._kept[name, layer] = values.detach().clone()


@contextmanager
def _unobserved(device: torch.device) -> Iterator[None]:
    """Without gradients and autocast, and outside the modes that follow a model's operations."""
    with (
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        torch._C.DisableTorchFunction(),
    ):
        yield


def _exact_rank(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Effective rank of each sample on a CPU; NaN where a sample is not finite."""
    if mask is not None:
        hidden = torch.where(mask.unsqueeze(-1), hidden, hidden.new_zeros(()))
    fits = hidden.isfinite().flatten(1).all(1)
    ranks = torch.full((len(hidden),), torch.nan, dtype=torch.float64)
    if bool(fits.any()):
        masks = None if mask is None else mask.expand(hidden.shape[:2])[fits]
        ranks[fits] = spectra(hidden[fits], token_mask=masks).effective_rank().double()
    return ranks


def _max_over_median(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Largest absolute entry over the median one, of evenly spread entries if there are many."""
    size = hidden.abs()
    if mask is not None:
        size = torch.where(mask.unsqueeze(-1), size, size.new_full((), -1.0))
    flat = size.flatten(1)
    step = max(1, flat.shape[1] // MOST_ENTRIES)
    while step > 1 and math.gcd(step, hidden.shape[2]) > 1:  # else a few features stand for all
        step += 1
    some = flat[:, ::step].float()
    middle = torch.where(some < 0, torch.nan, some).nanmedian(-1).values
    largest = flat.amax(-1).float()
    return torch.where(largest > 0, largest / middle, largest)


def _sums(tensor: Tensor) -> torch.dtype:
    """The numbers in which squares are summed."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _on_host(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors in float64 on the host, with one copy for each device."""
    by_device: dict[torch.device, list[int]] = {}
    for number, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append(number)
    copies: dict[int, Tensor] = {}
    for numbers in by_device.values():
        flat = torch.cat([tensors[number].flatten().double() for number in numbers]).cpu()
        parts = flat.split([tensors[number].numel() for number in numbers])
        for number, part in zip(numbers, parts, strict=True):
            copies[number] = part.reshape(tensors[number].shape)
    return [copies[number] for number in range(len(tensors))]
