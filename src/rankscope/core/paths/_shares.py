"""The share of a hidden state that each stream carries: three metrics."""

import math
from collections import defaultdict
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.metrics import matrix_norm, mean_center
from rankscope.core.paths._frozen import Streams
from rankscope.core.shapes import Hidden
from rankscope.errors import InputError
from rankscope.numerals import mean

Columns = dict[str, list[Any]]
Sizes = Float[Tensor, "metric stream batch"]
Totals = Float[Tensor, "metric 1 batch"]

METRICS = ("residual_share", "norm_share", "projection")
_CPU_CHUNK = 2**20
_LARGE_CHUNK = 2**26
"""Values of streams processed at once. On a CPU, larger chunks would leave the cache; on a GPU
larger products are faster. Either way memory does not grow with lengths times MLP width."""


def chunk_size(streams: Streams) -> int:
    """The number of streams to process at once, at least one."""
    most = _CPU_CHUNK if streams.device.type == "cpu" else _LARGE_CHUNK
    return max(1, most // streams[0].numel())


def mean_shares(
    columns: Columns, *by: str, metric: str = "residual_share"
) -> dict[tuple[Any, ...], float]:
    """Shares averaged over the samples, for each value of some columns."""
    shares: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    keys = zip(*(columns[name] for name in by), strict=True)
    for key, name, value in zip(keys, columns["metric"], columns["value"], strict=True):
        if name == metric:
            shares[key].append(value)
    return {key: mean(values) for key, values in shares.items()}


class _Group(NamedTuple):
    """Shares of some streams in one layer, on their device."""

    layer: int
    column: str
    """The column that identifies the streams, and its values."""
    names: list[int | None]
    values: Sizes


class Shares:
    """Collects shares of the measured tokens.

    Values stay on their device until ``columns`` reads all of them: each single read would be a GPU
    synchronisation.
    """

    def __init__(self, measured: Tensor | None) -> None:
        some = measured is not None and not bool(measured.all())
        self._measured = measured if some else None
        self._groups: list[_Group] = []

    def record(self, layer: int, streams: Streams, bias: Hidden, state: Hidden) -> None:
        """Record the shares of every length and of the biases in the state of one layer."""
        mask = None if self._measured is None else self._measured.to(state.device)
        totals = _sizes(state.unsqueeze(0), state, mask)
        lengths: list[int | None] = list(range(len(streams)))
        self._keep(layer, "length", lengths, _sizes(streams, state, mask), totals)
        self._keep(layer, "length", [None], _sizes(bias.unsqueeze(0), state, mask), totals)

    def record_heads(
        self, streams: Float[Tensor, "layer head batch token feature"], state: Hidden
    ) -> None:
        """Record the share of each head in the state of the last layer."""
        mask = None if self._measured is None else self._measured.to(state.device)
        totals = _sizes(state.unsqueeze(0), state, mask)
        for layer, heads in enumerate(streams, start=1):
            self._keep(layer, "head", list(range(len(heads))), _sizes(heads, state, mask), totals)

    def _keep(
        self, layer: int, column: str, names: list[int | None], sizes: Sizes, totals: Totals
    ) -> None:
        ratios = sizes / torch.where(totals == 0, torch.ones_like(totals), totals)
        self._groups.append(_Group(layer, column, names, ratios))

    def columns(self) -> Columns:
        """All shares so far as a table; raises if one overflows."""
        columns: Columns = defaultdict(list)
        device = self._groups[-1].values.device
        flat = [group.values.flatten().to(device) for group in self._groups]
        # All values in one transfer.
        parts = torch.cat(flat).double().cpu().split([len(values) for values in flat])
        for group, part in zip(self._groups, parts, strict=True):
            numbers = part.view(group.values.shape).tolist()
            for metric, by_stream in zip(METRICS, numbers, strict=True):
                for name, values in zip(group.names, by_stream, strict=True):
                    if not all(map(math.isfinite, values)):
                        raise InputError(
                            f"layer {group.layer}: the {metric.replace('_', ' ')} of some paths "
                            f"overflows {group.values.dtype}; scale the input down, or use "
                            "network.double() and x.double()."
                        )
                    columns["layer"] += [group.layer] * len(values)
                    columns[group.column] += [name] * len(values)
                    columns["sample"] += range(len(values))
                    columns["metric"] += [metric] * len(values)
                    columns["value"] += values
        return dict(columns)


def _sizes(streams: Streams, state: Hidden, mask: Tensor | None) -> Sizes:
    """Residual, norm and projection on the state, by stream and sample, of measured tokens."""
    few_at_once = streams.split(chunk_size(streams))
    return torch.cat([_sizes_of_few(few, state, mask) for few in few_at_once], dim=1)


def _sizes_of_few(streams: Streams, state: Hidden, mask: Tensor | None) -> Sizes:
    if mask is not None:
        streams = torch.where(mask.unsqueeze(-1), streams, 0.0)
        mask = mask.expand(streams.shape[:-1])
    left = streams - mean_center(streams, mask).unsqueeze(-2)
    if mask is not None:
        left = torch.where(mask.unsqueeze(-1), left, 0.0)
    flat = streams.flatten(2).transpose(0, 1)
    along = (flat @ state.flatten(1).unsqueeze(-1)).squeeze(-1).T
    length = torch.linalg.vector_norm(streams, dim=(-2, -1))
    return torch.stack([matrix_norm(left, "composite"), length, along])
