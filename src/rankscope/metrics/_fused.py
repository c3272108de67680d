"""Figures of hidden states on a GPU: kernels are started, and nothing is waited for.

Figures of all layers gather in buffers on the device and come to the host together, at the end.
"""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.metrics._kernels import (
    FUSED_DTYPES,
    Again,
    can_fuse,
    interpreted,
    on,
    power_of_two,
    start,
)
from rankscope.metrics._transfer import Transfer
from rankscope.shapes import Hidden

_MOST_FEATURES, _MOST_SAMPLES = 2**16, 2**15
_LINE_BYTES = 512
"""What a warp reads at once: 16 bytes for each of its threads; so much of a row has a program."""
_ROWS, _STAGES = 8, 3
_PROGRAMS = 2**10
"""How many programs there should be: some for each processor of a large GPU."""
_SHORTEST_CHUNK, _LONGEST_CHUNK = 32, 128
_CHUNKS, _BLOCK = 8, 128
_HELD_BYTES = 2**22
"""Parts are put together when so much of them has gathered."""
_ROW_FIGURES, _COLUMN_FIGURES = 8, 4
_NO_ROW = 2**31 - 1


class Plan(NamedTuple):
    """How the work on states of one shape is shared out: columns in groups, rows in chunks."""

    groups: int
    columns: int
    chunks: int
    chunk_rows: int
    rows: int


@cache
def plan_for(samples: int, tokens: int, features: int, entry: int) -> Plan:
    """As many columns as a warp reads at once, and chunks so short that all processors work."""
    columns = min(_LINE_BYTES // entry, power_of_two(features))
    groups = math.ceil(features / columns)
    wanted = power_of_two(math.ceil(samples * tokens * groups / _PROGRAMS))
    shortest = min(_SHORTEST_CHUNK, max(_ROWS, power_of_two(tokens)))
    chunk_rows = max(shortest, min(wanted, _LONGEST_CHUNK))
    return Plan(groups, columns, math.ceil(tokens / chunk_rows), chunk_rows, _ROWS)


def has_kernels_for(x: Hidden) -> bool:
    """Whether there are kernels for a state like this."""
    fits = x.shape[-1] <= _MOST_FEATURES and len(x) <= _MOST_SAMPLES
    return fits and x.dtype in FUSED_DTYPES and (can_fuse(x) or (not x.is_cuda and interpreted()))


@dataclass
class _Buffers:
    """What the kernels write for states of one shape, on one device."""

    plan: Plan
    tokens: int
    rows: Float[Tensor, "layer batch block figure"]
    columns: Float[Tensor, "layer batch line figure"]
    energies: Float[Tensor, "layer batch chunk group 2"]
    center: Float[Tensor, "batch feature"]
    mean_parts: Float[Tensor, "batch chunk feature"]
    weights: Float[Tensor, "batch token"]
    row_parts: Float[Tensor, "2 batch token group"]
    row_totals: Float[Tensor, "held batch token 2"]
    rest_parts: Float[Tensor, "held batch token group"]
    column_parts: Float[Tensor, "3 held batch chunk feature"]
    arrived: Tensor
    """How many programs are done with a group of columns, then with a chunk of rows; zero before
    and after a kernel."""
    counts: list[Tensor | None] = field(default_factory=list)
    closed: int = 0
    known: dict[tuple[Any, ...], "_Repeated | None"] = field(default_factory=dict)
    """How kernels that have run on states of a form are started again."""
    sent: tuple[int, tuple[int, ...], Transfer] | None = None
    """How many states' figures are on their way, and whose masks' counts."""

    def __post_init__(self) -> None:
        self.row_apart = self.row_parts[0].numel()
        self.column_apart = self.column_parts[0].numel()
        # Addresses, which are asked for once: Triton would ask each tensor in every call.
        self.of_means = tuple(each.data_ptr() for each in (
            self.center, self.weights, self.row_parts, self.row_totals, self.mean_parts,
            self.arrived,
        ))  # fmt: skip
        self.of_rests = tuple(
            each.data_ptr() for each in (self.center, self.weights, self.rest_parts)
        )

    @classmethod
    def like(cls, x: Hidden, layers: int) -> "_Buffers":
        samples, tokens, features = x.shape
        plan = plan_for(samples, tokens, features, x.element_size())
        state = 4 * samples * (3 * plan.chunks * features + tokens * (plan.groups + 2))
        held = max(1, min(layers, _HELD_BYTES // state))
        some = x.new_empty(0, dtype=torch.float32)
        wide = torch.float64
        blocks = math.ceil(tokens / _BLOCK)
        return cls(
            plan,
            tokens,
            some.new_empty((layers, samples, blocks, _ROW_FIGURES), dtype=wide),
            some.new_empty((layers, samples, plan.groups, _COLUMN_FIGURES), dtype=wide),
            some.new_empty((layers, samples, plan.chunks, plan.groups, 2), dtype=wide),
            some.new_empty((samples, features)),
            some.new_empty((samples, plan.chunks, features)),
            some.new_empty((samples, tokens)),
            some.new_empty((2, samples, tokens, plan.groups)),
            some.new_empty((held, samples, tokens, 2)),
            some.new_empty((held, samples, tokens, plan.groups)),
            some.new_empty((3, held, samples, plan.chunks, features)),
            some.new_zeros(samples * (plan.groups + plan.chunks), dtype=torch.int32),
        )

    def send(self) -> None:
        """Let what was found come to the host, unless it is under way or there already."""
        if self.sent is None or self.sent[0] != self.used:
            found = [each[: self.used] for each in (self.rows, self.columns, self.energies)]
            masked = (each for each in self.counts if each is not None)
            counts = {id(each): each for each in masked}
            self.sent = (self.used, tuple(counts), Transfer([*found, *counts.values()]))

    @property
    def used(self) -> int:
        return len(self.counts)

    @property
    def held(self) -> int:
        return self.used - self.closed

    @property
    def is_full(self) -> bool:
        return self.used == len(self.rows)


class FusedStatistics:
    """Starts the kernels on the states it is shown; ``figures`` are those of all of them."""

    def __init__(self, expected: int) -> None:
        self._expected = max(expected, 1)
        self._open: dict[tuple[Any, ...], _Buffers] = {}
        self._order: list[tuple[_Buffers, int]] = []
        self._masks: dict[int, tuple[Tensor, ...]] = {}

    def add(
        self, x: Hidden, mask: Bool[Tensor, "batch token"] | None
    ) -> Float[Tensor, "batch feature"]:
        """Start on a state; given back is the mean of its tokens, until the next state comes."""
        buffers = self._buffers(x)
        sides = (x, x, x) if mask is None else self._read(mask)
        form = (x.stride(), x.data_ptr() % 16, None if mask is None else sides[0].stride())
        with on(x.device):
            if again := buffers.known.get(form):
                again.start(buffers, [each.data_ptr() for each in (x, *sides)])
            else:
                buffers.known[form] = _start(buffers, x, sides, has_mask=mask is not None)
        self._order.append((buffers, buffers.used))
        buffers.counts.append(None if mask is None else sides[-1])
        if buffers.held == len(buffers.row_totals) or buffers.is_full:
            _close(buffers)
        return buffers.center

    def sides(self) -> tuple[Tensor, ...]:
        """Center, lengths of the tokens and sum of unit rows of the last state."""
        buffers, place = self._order[-1]
        held = place % len(buffers.row_totals)
        lengths = buffers.row_totals[held, ..., 1]
        return buffers.center, lengths, buffers.column_parts[2, held].sum(1)

    def send(self) -> None:
        """Let the figures of all states come to the host, while other things are done."""
        for buffers in self._every():
            _close(buffers)
            buffers.send()

    def figures(self) -> list[Tensor]:
        """``(figure, batch)`` of all states in their order, on the host: this waits."""
        self.send()
        host = {id(buffers): _on_host(buffers) for buffers in self._every()}
        return [host[id(buffers)][slot] for buffers, slot in self._order]

    def _every(self) -> list[_Buffers]:
        return list({id(buffers): buffers for buffers, _ in self._order}.values())

    def _buffers(self, x: Hidden) -> _Buffers:
        key = (x.shape, x.dtype, x.device)
        found = self._open.get(key)
        if found is None or found.is_full:
            found = self._open[key] = _Buffers.like(x, self._expected)
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
    rest_of_means: tuple[Any, ...]
    rest_of_rests: tuple[Any, ...]

    def start(self, buffers: _Buffers, given: list[int]) -> None:
        """Start them on a state and its mask, which are given by their addresses."""
        x, bits, first, count = given
        held, energies = buffers.held, buffers.energies
        there = energies.data_ptr() + buffers.closed * energies.stride(0) * energies.itemsize
        self.mean_and_rows(x, bits, first, count, *buffers.of_means, held, *self.rest_of_means)
        self.rest_and_columns(
            x, bits, first, *buffers.of_rests, there, buffers.column_parts.data_ptr(), held,
            *self.rest_of_rests,
        )  # fmt: skip


def _start(
    buffers: _Buffers, x: Hidden, sides: tuple[Tensor, ...], *, has_mask: bool
) -> _Repeated | None:
    """Start both kernels on a state of a new form."""
    plan, (bits, first, count) = buffers.plan, sides
    strides = (*x.stride(), *(bits.stride() if has_mask else (0, 0)))
    shape = (*x.shape[1:], plan.chunks, plan.chunk_rows)
    every = (not has_mask and x.shape[1] % plan.chunk_rows == 0, x.shape[2] % plan.columns == 0)
    tiles = (has_mask, *every, plan.rows, plan.columns)
    grid = (plan.groups, plan.chunks, len(x))
    apart = (buffers.row_apart, buffers.column_apart)
    key = (x.shape, x.dtype, x.device, strides, x.data_ptr() % 16, has_mask, *apart)
    means = (*shape, buffers.row_apart, *strides)
    of_means = (*tiles, _CHUNKS, power_of_two(plan.groups), _STAGES)
    rests = (*shape, buffers.column_apart, *strides)
    of_rests = (*tiles, _STAGES)
    mean_and_rows = start(
        ("mean_and_rows", *key), grid,
        (x, bits, first, count, buffers.center, buffers.weights, buffers.row_parts,
         buffers.row_totals, buffers.mean_parts, buffers.arrived, buffers.held, *means),
        of_means,
    )  # fmt: skip
    rest_and_columns = start(
        ("rest_and_columns", *key), grid,
        (x, bits, first, buffers.center, buffers.weights, buffers.rest_parts,
         buffers.energies[buffers.closed :], buffers.column_parts, buffers.held, *rests),
        of_rests,
    )  # fmt: skip
    if mean_and_rows is None or rest_and_columns is None:
        return None
    return _Repeated(mean_and_rows, rest_and_columns, (*means, *of_means), (*rests, *of_rests))


def _close(buffers: _Buffers) -> None:
    """Put together the parts of the states that are held."""
    plan, held = buffers.plan, buffers.held
    if not held:
        return
    samples, features = buffers.center.shape
    rows, columns = buffers.rows[buffers.closed :], buffers.columns[buffers.closed :]
    shape = (buffers.tokens, plan.groups)
    key = (*shape, features, plan.chunks, buffers.column_apart, rows.device)
    with on(rows.device):
        start(
            ("close_rows", *key), (rows.shape[2], held * samples),
            (buffers.row_totals, buffers.rest_parts, rows, *shape),
            (_BLOCK, power_of_two(plan.groups)), warps=4,
        )  # fmt: skip
        start(
            ("close_columns", *key), (columns.shape[2], held * samples),
            (buffers.column_parts, columns, features, plan.chunks, buffers.column_apart),
            (_CHUNKS, plan.columns), warps=4,
        )  # fmt: skip
    buffers.closed = buffers.used


def _on_host(buffers: _Buffers) -> Float[Tensor, "layer figure batch"]:
    """The figures of ``StateStatistics``, and last whether they are in doubt."""
    assert buffers.sent is not None
    _, masks, transfer = buffers.sent
    rows, columns, energies, *counted = transfer.wait()
    energy, unit = energies.sum((-3, -2)).unbind(-1)
    known = dict(zip(masks, counted, strict=True))
    every = torch.full(rows.shape[1:2], float(buffers.tokens), dtype=torch.float64)
    counts = [every if each is None else known[id(each)].double() for each in buffers.counts]
    broken, rest = rows[..., 4].amin(-1), rows[..., 5].amax(-1)
    # Squares that vanish are below float32's least normal number, in units of the scale: of tokens
    # that are nearly all alike, they are doubted only where they would change a float32's digits.
    lost = 2.0**-126 * unit * buffers.plan.columns * buffers.plan.chunk_rows
    doubt = (rows[..., 2].amin(-1) < 0) | ((lost > 1e-6 * energy) & (rest > 0))
    found = [
        torch.stack(counts),
        columns[..., 0].amax(-1),
        rows[..., 0].amax(-1),
        rows[..., 1].sum(-1).sqrt(),
        columns[..., 1].amax(-1),
        rest,
        energy.sqrt(),
        columns[..., 2].sum(-1),
        rows[..., 3].sum(-1),
        torch.where(broken < _NO_ROW, broken, -1.0),
        doubt.double(),
    ]
    return torch.stack(found, dim=1)
