"""Small kernels that look at many numbers and keep few: of queries and keys, and of weights."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rankscope.core.metrics._kernels import (
    FUSED_DTYPES,
    Again,
    can_fuse,
    on,
    power_of_two,
    start,
)
from rankscope.core.metrics._transfer import Transfer

_QUERIES, _SAMPLED = 32, 1024
_CALLS = 64
"""Attentions whose peaks have room in one tensor."""


class GatheredPeaks:
    """The largest sizes of entries of queries and keys, as they come by; NaN counts as infinity.

    Nothing is waited for before ``finish``.
    """

    def __init__(self) -> None:
        self._rooms: dict[torch.device, list[_Room]] = {}
        self._order: list[tuple[_Room, int] | Tensor] = []
        self._sent: Transfer | None = None

    def add(self, query: Tensor, key: Tensor) -> None:
        """Look at the queries and the keys of one attention."""
        if not (_is_fit(query) and _is_fit(key) and query.dtype == key.dtype):
            self._order.append(torch.stack([_peak(query), _peak(key)]))
            return
        rooms = self._rooms.setdefault(query.device, [])
        if not rooms or rooms[-1].used == _CALLS:
            rooms.append(_Room(query.new_zeros((_CALLS, 2), dtype=torch.int32)))
        with on(query.device):
            self._order.append((rooms[-1], rooms[-1].look(query, key)))

    def send(self) -> None:
        """Let what was found come to the host, while other things are done."""
        rooms = [room.peaks for each in self._rooms.values() for room in each]
        plain = [each for each in self._order if isinstance(each, Tensor)]
        self._sent = Transfer([*rooms, *plain])

    def finish(self) -> list[list[float]]:
        """For each attention the peak of its queries and that of its keys."""
        if self._sent is None:
            self.send()
        assert self._sent is not None
        found = iter(self._sent.wait())
        rooms = [room for each in self._rooms.values() for room in each]
        peaks = {id(room): next(found).view(torch.float32).tolist() for room in rooms}
        return [
            next(found).tolist() if isinstance(each, Tensor) else peaks[id(each[0])][each[1]]
            for each in self._order
        ]


class _Room:
    """Peaks of so many attentions on one GPU, and how the kernel is started again."""

    def __init__(self, peaks: Tensor) -> None:
        self.peaks, self.used = peaks, 0
        self._address = peaks.data_ptr()
        self._known: dict[tuple[Any, ...], Again | None] = {}

    def look(self, query: Tensor, key: Tensor) -> int:
        """Start the kernel, and say where it puts what it finds."""
        place, self.used = self.used, self.used + 1
        programs, told = _shape(query, key)
        form = (query.dtype, programs, told, query.data_ptr() % 16, key.data_ptr() % 16)
        if again := self._known.get(form):
            again(query.data_ptr(), key.data_ptr(), self._address, place, *told)
        else:
            self._known[form] = start(
                "_fused_kernels.largest_entries", (programs,), (query, key, self.peaks),
                told[:-2], told[-2:], free=(place,), warps=4,
            )  # fmt: skip
        return place


def _shape(query: Tensor, key: Tensor) -> tuple[int, tuple[int, ...]]:
    """How many programs there are, and all that they are told of two tensors."""
    told: list[int] = []
    programs = []
    for x in (query, key):
        samples, heads, tokens, _ = x.shape
        rows = samples * heads * tokens
        programs.append(math.ceil(rows / _QUERIES))
        told += (rows, heads, tokens, *x.stride()[:3])
    width = query.shape[-1]
    return sum(programs), (programs[0], width, *told, _QUERIES, power_of_two(width))


def _is_fit(x: Tensor) -> bool:
    return can_fuse(x) and x.ndim == 4 and x.stride(3) == 1 and x.dtype in FUSED_DTYPES


def _peak(x: Tensor) -> Tensor:
    least, most = torch.aminmax(x)  # a norm takes PyTorch twenty times as long
    return torch.maximum(most, -least).double()


class SampledWords:
    """Words from all over some tensors of one GPU, which a single kernel gathers."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        table = [[each.data_ptr() for each in tensors], [each.nbytes // 4 for each in tensors]]
        self._addresses, self._lengths = torch.tensor(table).to(tensors[0].device).unbind()

    def gather(self) -> Tensor:
        """The words as they are now, of tensors that are still where they were."""
        found = self._lengths.new_empty((len(self._lengths), _SAMPLED), dtype=torch.int32)
        with on(found.device):
            tensors = (self._addresses, self._lengths, found)
            start("_fused_kernels.sampled_words", (len(found),), tensors, (), (_SAMPLED,))
        return found
