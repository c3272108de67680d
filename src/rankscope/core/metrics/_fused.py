"""Figures of hidden states on a GPU: kernels are started, and nothing is waited for.

Figures of all layers gather on the device and come to the host together, at the end.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.core.metrics._fused_buffers import CHUNKS_AT_ONCE, STAGES, Buffers
from rankscope.core.metrics._kernels import (
    FUSED_DTYPES,
    Again,
    can_fuse,
    interpreted,
    on,
    power_of_two,
    start,
)
from rankscope.core.shapes import Hidden

_MOST_FEATURES, _MOST_SAMPLES = 2**16, 2**15
_NO_ROW = 2**31 - 1
IN_DOUBT = -2
"""Stands for the row that is no number, where float32 was too narrow to tell."""


def has_kernels_for(x: Hidden) -> bool:
    """Whether there are kernels for a state like this."""
    fits = x.shape[-1] <= _MOST_FEATURES and len(x) <= _MOST_SAMPLES
    return fits and x.dtype in FUSED_DTYPES and (can_fuse(x) or (not x.is_cuda and interpreted()))


class FusedStatistics:
    """Starts the kernels on the states it is shown; ``figures`` are those of all of them."""

    def __init__(self, expected: int) -> None:
        self._expected = max(expected, 1)
        self._open: dict[tuple[Any, ...], Buffers] = {}
        self._order: list[tuple[Buffers, int]] = []
        self._masks: dict[int, tuple[Tensor, ...]] = {}
        self._known: dict[tuple[Any, ...], _Repeated | None] = {}

    def add(
        self, x: Hidden, mask: Bool[Tensor, "batch token"] | None
    ) -> Float[Tensor, "batch feature"]:
        """Start on a state; given back is the mean of its tokens, until the next state comes."""
        buffers = self._buffers(x)
        sides = (x, x, x) if mask is None else self._read(mask)
        strides = (*x.stride(), *((0, 0) if mask is None else sides[0].stride()))
        form = (id(buffers), strides, x.data_ptr() % 16, mask is None)
        with on(x.device):
            if again := self._known.get(form):
                again.start([each.data_ptr() for each in (x, *sides)], buffers.used)
            else:
                has_mask = mask is not None
                self._known[form] = _start(buffers, x, sides, strides, has_mask=has_mask)
        self._order.append((buffers, buffers.used))
        buffers.counts.append(None if mask is None else sides[-1])
        return buffers.center

    def sides(self) -> tuple[Tensor, ...]:
        """Center, lengths of the tokens and sum of unit rows of the last state."""
        buffers, _ = self._order[-1]
        return buffers.center, buffers.lengths, buffers.column_parts[2].sum(1)

    def send(self) -> None:
        """Let the figures of all states come to the host, while other things are done."""
        for buffers in self._every():
            buffers.send()

    def figures(self) -> list[Tensor]:
        """``(figure, batch)`` of all states in their order, on the host: this waits."""
        self.send()
        host = {id(buffers): _on_host(buffers) for buffers in self._every()}
        return [host[id(buffers)][slot] for buffers, slot in self._order]

    def _every(self) -> list[Buffers]:
        return list({id(buffers): buffers for buffers, _ in self._order}.values())

    def _buffers(self, x: Hidden) -> Buffers:
        key = (x.shape, x.dtype, x.device)
        found = self._open.get(key)
        if found is None or found.is_full:
            found = self._open[key] = Buffers.like(x, self._expected)
        return found

    def _read(self, mask: Tensor) -> tuple[Tensor, ...]:
        """A mask as bytes, each sample's first token and the number of its tokens, found once."""
        if id(mask) not in self._masks:
            bits = mask.to(torch.uint8)
            count = mask.sum(-1, dtype=torch.int32)
            self._masks[id(mask)] = (bits, bits.argmax(-1), count, mask)
        return self._masks[id(mask)][:3]


class _Repeated(NamedTuple):
    """The two kernels on states of one form, and those of their arguments that stay the same."""

    mean_and_rows: Again
    rest_and_columns: Again
    of_means: tuple[Any, ...]
    of_rests: tuple[Any, ...]
    mean_rooms: tuple[int, ...]
    rest_rooms: tuple[int, ...]

    def start(self, given: list[int], layer: int) -> None:
        """Start them on a state and its mask, which are given by their addresses."""
        x, bits, first, count = given
        self.mean_and_rows(x, bits, first, count, *self.mean_rooms, layer, *self.of_means)
        self.rest_and_columns(x, bits, first, *self.rest_rooms, layer, *self.of_rests)


def _start(
    buffers: Buffers,
    x: Hidden,
    sides: tuple[Tensor, ...],
    strides: tuple[int, ...],
    *,
    has_mask: bool,
) -> _Repeated | None:
    """Start both kernels on a state of a new form."""
    plan, (bits, first, count) = buffers.plan, sides
    every = (not has_mask and x.shape[1] % plan.chunk_rows == 0, x.shape[2] % plan.columns == 0)
    sizes = (plan.rows, plan.columns, CHUNKS_AT_ONCE, power_of_two(plan.groups))
    tiles = (has_mask, *every, *sizes, STAGES)
    grid = (plan.groups, plan.chunks, len(x))
    shape, layer = (*x.shape[1:], plan.chunks, plan.chunk_rows), (buffers.used,)
    means, rests = (
        (*shape, apart, *strides) for apart in (buffers.row_apart, buffers.column_apart)
    )
    mean_and_rows = start(
        "_fused_kernels.mean_and_rows", grid, (x, bits, first, count, *buffers.of_means),
        means, tiles, free=layer,
    )  # fmt: skip
    rest_and_columns = start(
        "_fused_kernels.rest_and_columns", grid, (x, bits, first, *buffers.of_rests),
        rests, tiles, free=layer,
    )  # fmt: skip
    if mean_and_rows is None or rest_and_columns is None:
        return None
    # Addresses, which are asked for once: Triton would ask each tensor in every call.
    rooms = [tuple(map(Tensor.data_ptr, some)) for some in (buffers.of_means, buffers.of_rests)]
    return _Repeated(mean_and_rows, rest_and_columns, (*means, *tiles), (*rests, *tiles), *rooms)


def _on_host(buffers: Buffers) -> Float[Tensor, "layer figure batch"]:
    """The figures of ``StateStatistics``."""
    figures, counts = buffers.wait()
    plan = buffers.plan
    rows, columns = figures.split([plan.chunks, plan.groups], dim=-2)
    energy, unit = columns[..., 3].sum(-1), columns[..., 4].sum(-1)
    broken, rest = rows[..., 4].amin(-1), rows[..., 5].amax(-1)
    # Squares that vanish are below float32's least normal number, in units of the scale: of tokens
    # that are nearly all alike, they are doubted only where they would change a float32's digits.
    lost = 2.0**-126 * unit * plan.columns * plan.chunk_rows
    doubt = (rows[..., 2].amin(-1) < 0) | ((lost > 1e-6 * energy) & (rest > 0))
    found = [
        counts,
        columns[..., 0].amax(-1),
        rows[..., 0].amax(-1),
        rows[..., 1].sum(-1).sqrt(),
        columns[..., 1].amax(-1),
        rest,
        energy.sqrt(),
        columns[..., 2].sum(-1),
        rows[..., 3].sum(-1),
        torch.where(doubt, IN_DOUBT, torch.where(broken < _NO_ROW, broken, -1.0)),
    ]
    return torch.stack(found, dim=1)
