"""What part of a hidden state each stream carries: three answers, one row each."""

import math
from collections import defaultdict
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.display import mean
from rankscope.errors import InputError
from rankscope.metrics import matrix_norm, mean_center
from rankscope.paths._frozen import Streams
from rankscope.shapes import Hidden, PerSample

Columns = dict[str, list[Any]]
Sizes = Float[Tensor, "stream batch"]


def mean_shares(
    columns: Columns, *by: str, metric: str = "residual_share"
) -> dict[tuple[Any, ...], float]:
    """Shares averaged over the samples, for each value of some columns."""
    found: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    places = zip(*(columns[name] for name in by), strict=True)
    for place, name, value in zip(places, columns["metric"], columns["value"], strict=True):
        if name == metric:
            found[place].append(value)
    return {place: mean(values) for place, values in found.items()}


class Shares:
    """Collects shares layer by layer, of the tokens that are measured, and keeps only numbers."""

    def __init__(self, measured: Tensor | None) -> None:
        some = measured is not None and not bool(measured.all())
        self._measured = measured if some else None
        self.columns: Columns = {
            name: [] for name in ("layer", "length", "sample", "metric", "value")
        }

    def record(self, layer: int, streams: Streams, bias: Hidden, state: Hidden) -> None:
        """The shares of every length and of the biases in one layer's state."""
        mask = None if self._measured is None else self._measured.to(state.device)
        whole = _sizes(state.unsqueeze(0), state, mask)
        for name, sizes in _sizes(streams, state, mask).items():
            for length, size in enumerate(sizes):
                self._keep(layer, length, name, _ratio(size, whole[name][0]))
        for name, sizes in _sizes(bias.unsqueeze(0), state, mask).items():
            self._keep(layer, None, name, _ratio(sizes[0], whole[name][0]))

    def record_heads(
        self, streams: Float[Tensor, "layer head batch token feature"], state: Hidden
    ) -> None:
        """The shares of what flows through each head in the last layer's state."""
        self.columns["head"] = []
        mask = None if self._measured is None else self._measured.to(state.device)
        whole = _sizes(state.unsqueeze(0), state, mask)
        for layer, heads in enumerate(streams, start=1):
            for name, sizes in _sizes(heads, state, mask).items():
                for head, size in enumerate(sizes):
                    self._keep(layer, None, name, _ratio(size, whole[name][0]))
                    self.columns["head"] += [head] * len(size)
        del self.columns["length"]

    def _keep(self, layer: int, length: int | None, name: str, values: PerSample) -> None:
        numbers = values.double().tolist()
        if not all(map(math.isfinite, numbers)):
            raise InputError(
                f"layer {layer}: the {name.replace('_', ' ')} of some paths overflows "
                f"{values.dtype}; scale the input down, or use network.double() and x.double()."
            )
        self.columns["layer"] += [layer] * len(numbers)
        self.columns["length"] += [length] * len(numbers)
        self.columns["sample"] += list(range(len(numbers)))
        self.columns["metric"] += [name] * len(numbers)
        self.columns["value"] += numbers


def _sizes(streams: Streams, state: Hidden, mask: Tensor | None) -> dict[str, Sizes]:
    """Residual, norm and projection on the state, by stream and sample, of measured tokens."""
    if mask is not None:
        streams = torch.where(mask.unsqueeze(-1), streams, streams.new_zeros(()))
        mask = mask.expand(streams.shape[:-1])
    left = streams - mean_center(streams, mask).unsqueeze(-2)
    if mask is not None:
        left = torch.where(mask.unsqueeze(-1), left, left.new_zeros(()))
    flat = streams.flatten(2).transpose(0, 1)
    along = (flat @ state.flatten(1).unsqueeze(-1)).squeeze(-1).T
    return {
        "residual_share": matrix_norm(left, "composite"),
        "norm_share": torch.linalg.vector_norm(streams, dim=(-2, -1)),
        "projection": along,
    }


def _ratio(part: PerSample, whole: PerSample) -> PerSample:
    return part / torch.where(whole == 0, torch.ones_like(whole), whole)
