"""GPU kernels: how they are launched, and the metrics of hidden states that they compute.

Launches do not synchronise: results of all layers stay on the device and are transferred to the
host together at the end. The kernels themselves are in the modules that import Triton.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from os import environ
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.core.shapes import Hidden

FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
IN_DOUBT = -2
"""Instead of the first row that is not finite, where float32's range was too small to tell."""
_NO_ROW = 2**31 - 1
_MOST_FEATURES, _MOST_SAMPLES = 2**16, 2**15
_LINE_BYTES = 512
"""What a warp reads at once: 16 bytes per thread; one program handles that much of a row."""
_ROWS, _STAGES = 8, 3
_MANY_TOKENS = 1024
"""From this number of tokens on, twice as many rows at once are faster."""
_PROGRAMS = 2**9
"""How many programs there should be: some for each processor of a large GPU."""
_SHORTEST_CHUNK, _LONGEST_CHUNK = 32, 128
_CHUNKS_AT_ONCE = 4
_FIGURES = 8

Again = Callable[..., None]
"""Launches a kernel again on the same grid; takes all its arguments, tensors as addresses."""
_compiled: dict[tuple[Any, ...], Any] = {}


def can_fuse(x: Tensor) -> bool:
    """Whether a kernel can work on a tensor: on CUDA, where Triton is installed."""
    return x.is_cuda and _triton_is_here()


@cache
def _triton_is_here() -> bool:
    return find_spec("triton") is not None


@cache
def _interpreted() -> bool:
    """Whether Triton runs kernels on the CPU, one program after another, as in our tests."""
    return environ.get("TRITON_INTERPRET") == "1" and _triton_is_here()


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton starts kernels on the current device."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def start(
    kernel: str,
    grid: tuple[int, ...],
    tensors: Sequence[Tensor],
    numbers: tuple[int, ...],
    options: tuple[bool | int, ...],
    *,
    free: tuple[int, ...] = (),
    warps: int = 1,
) -> Again | None:
    """Start a kernel, named by its file and itself: ``_fused_kernels.mean_and_rows``.

    It takes tensors, numbers for which it is not specialised (``free``), other numbers, and
    options. Triton inspects every argument of every call, which takes longer than the kernel; one
    that was compiled for arguments like these is launched without that. Returns a function that
    launches it again; None where kernels are interpreted instead of compiled.
    """
    full_grid = (*grid, 1, 1)[:3]
    addresses = [tensor.data_ptr() for tensor in tensors]
    kinds = [(tensor.dtype, at % 16) for tensor, at in zip(tensors, addresses, strict=True)]
    key = (kernel, tensors[0].device, *kinds, numbers, options, warps)
    compiled = _compiled.get(key)
    if compiled is None:
        file, _, name = kernel.partition(".")
        function = getattr(import_module(f"rankscope.core.metrics.{file}"), name)
        compiled = function[full_grid](*tensors, *free, *numbers, *options, num_warps=warps)
        _compiled[key] = compiled
        return None if compiled is None else cast(Again, compiled[full_grid])
    again: Again = compiled[full_grid]
    again(*addresses, *free, *numbers, *options)
    return again


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least this number."""
    return 1 << (number - 1).bit_length()


class Transfer:
    """Copies of tensors to the host, started at once; ``wait`` returns them when complete."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        owned = list(tensors)
        # Only CUDA copies asynchronously; other devices block.
        self._copies = [x.to("cpu", non_blocking=True) if x.is_cuda else x.detach() for x in owned]
        self._ends = []
        for device in {x.device for x in owned if x.is_cuda}:
            self._ends.append(torch.cuda.Event())
            self._ends[-1].record(torch.cuda.current_stream(device))

    def wait(self) -> list[Tensor]:
        """The tensors on the host."""
        for end in self._ends:
            end.synchronize()
        return [copy.cpu() for copy in self._copies]


class TilingPlan(NamedTuple):
    """How states of one shape are divided among programs: columns in groups, rows in chunks."""

    groups: int
    columns: int
    chunks: int
    chunk_rows: int
    rows: int


@cache
def plan_for(samples: int, tokens: int, features: int, entry: int) -> TilingPlan:
    """As many columns as a warp reads at once, and chunks so short that all processors work."""
    columns = min(_LINE_BYTES // entry, power_of_two(features))
    groups = math.ceil(features / columns)
    wanted = power_of_two(math.ceil(samples * tokens * groups / _PROGRAMS))
    shortest = min(_SHORTEST_CHUNK, max(_ROWS, power_of_two(tokens)))
    chunk_rows = max(shortest, min(wanted, _LONGEST_CHUNK))
    rows = _ROWS if tokens < _MANY_TOKENS else 2 * _ROWS
    return TilingPlan(groups, columns, math.ceil(tokens / chunk_rows), chunk_rows, rows)


class Buffers:
    """Kernel outputs for states of one shape; the next state overwrites all but ``figures``."""

    def __init__(self, like: Hidden, layers: int) -> None:
        samples, self.tokens, features = like.shape
        self.plan = plan = plan_for(samples, self.tokens, features, like.element_size())

        def allocate(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=like.device)

        # First of each chunk of rows: the largest sum of a row's sizes, the sum of squares, whether
        # a length is in doubt (-1), how many rows are not zero, the first that is no number, the
        # largest sum of what is left. Then of each group of columns: the largest sum of a column's
        # sizes, that of what is left, the square of the sum of unit rows, that of what is left, and
        # its unit.
        self.figures = allocate(
            layers, samples, plan.chunks + plan.groups, _FIGURES, dtype=torch.float64
        )
        self.center = allocate(samples, features)
        weights = allocate(samples, self.tokens)
        self.lengths = allocate(samples, self.tokens)
        row_parts = allocate(2, samples, self.tokens, plan.groups)
        mean_parts = allocate(samples, plan.chunks, features)
        rest_parts = allocate(samples, self.tokens, plan.groups)
        self.column_parts = allocate(3, samples, plan.chunks, features)
        energies = allocate(samples, plan.groups, plan.chunks)
        # How many programs are done with a group of columns, then with a chunk of rows; zero before
        # and after a kernel.
        arrived = allocate(samples * (plan.groups + plan.chunks), dtype=torch.int32).zero_()
        ends = (arrived, self.figures)
        self.of_means = (self.center, weights, self.lengths, row_parts, mean_parts, *ends)
        self.of_rests = (self.center, weights, rest_parts, self.column_parts, energies, *ends)
        self.strides = row_parts.stride(0), self.column_parts.stride(0)
        self.counts: list[Tensor | None] = []
        """Per state, the number of tokens of each sample; None where all count."""
        self._sent: tuple[int, Transfer] | None = None

    @property
    def used(self) -> int:
        """How many states have been measured."""
        return len(self.counts)

    @property
    def is_full(self) -> bool:
        """Whether no other state fits."""
        return self.used == len(self.figures)

    def send(self) -> None:
        """Start the transfer of the results to the host, unless it has started."""
        if self._sent is None or self._sent[0] != self.used:
            self._sent = self.used, Transfer([self.figures[: self.used], *self._masked().values()])

    def wait(self) -> Float[Tensor, "layer figure batch"]:
        """The figures of ``StateStatistics``, on the host."""
        assert self._sent is not None
        figures, *counted = self._sent[1].wait()
        every = torch.full(figures.shape[1:2], float(self.tokens), dtype=torch.float64)
        known = dict(zip(self._masked(), counted, strict=True))
        counts = [every if count is None else known[id(count)].double() for count in self.counts]
        plan = self.plan
        rows, columns = figures.split([plan.chunks, plan.groups], dim=-2)
        energy, unit = columns[..., 3].sum(-1), columns[..., 4].sum(-1)
        broken, rest = rows[..., 4].amin(-1), rows[..., 5].amax(-1)
        # Squares that vanish are below float32's least normal number, in units of the scale: of
        # tokens that are nearly all alike, they are doubted only where they would change a
        # float32's digits.
        lost = 2.0**-126 * unit * plan.columns * plan.chunk_rows
        doubt = (rows[..., 2].amin(-1) < 0) | ((lost > 1e-6 * energy) & (rest > 0))
        statistics = [
            torch.stack(counts),
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
        return torch.stack(statistics, dim=1)

    def _masked(self) -> dict[int, Tensor]:
        """Counts of tokens under a mask, which many states share."""
        return {id(count): count for count in self.counts if count is not None}


def has_kernels_for(x: Hidden) -> bool:
    """Whether there are kernels for a state like this."""
    fits = x.shape[-1] <= _MOST_FEATURES and len(x) <= _MOST_SAMPLES
    return fits and x.dtype in FUSED_DTYPES and (can_fuse(x) or (not x.is_cuda and _interpreted()))


class FusedStatistics:
    """Launches the kernels on each state that is added; ``figures`` returns those of all states."""

    def __init__(self, expected: int) -> None:
        self._expected = max(expected, 1)
        self._open: dict[tuple[Any, ...], Buffers] = {}
        self._order: list[tuple[Buffers, int]] = []
        self._masks: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._known: dict[tuple[Any, ...], Again | None] = {}

    def add(
        self, x: Hidden, mask: Bool[Tensor, "batch token"] | None
    ) -> Float[Tensor, "batch feature"]:
        """Start on a state; returns the mean of its tokens, valid until the next state is added."""
        key = (x.shape, x.dtype, x.device)
        buffers = self._open.get(key)
        if buffers is None or buffers.is_full:
            buffers = self._open[key] = Buffers(x, self._expected)
        sides = (x, x, x)
        if mask is not None:  # as bytes, each sample's first token and the number of its tokens
            if id(mask) not in self._masks:
                bits = mask.to(torch.uint8)
                count = mask.sum(-1, dtype=torch.int32)
                self._masks[id(mask)] = (bits, bits.argmax(-1), count, mask)
            sides = self._masks[id(mask)][:3]
        strides = (*x.stride(), *((0, 0) if mask is None else sides[0].stride()))
        form = (id(buffers), strides, x.data_ptr() % 16, mask is None)
        with on(x.device):
            if again := self._known.get(form):
                again(*(tensor.data_ptr() for tensor in (x, *sides)), buffers.used)
            else:
                self._known[form] = _start(buffers, x, sides, strides, has_mask=mask is not None)
        self._order.append((buffers, buffers.used))
        buffers.counts.append(None if mask is None else sides[-1])
        return buffers.center

    def sides(self) -> tuple[Tensor, ...]:
        """Center, lengths of the tokens and sum of unit rows of the last state."""
        buffers, _ = self._order[-1]
        return buffers.center, buffers.lengths, buffers.column_parts[2].sum(1)

    def send(self) -> None:
        """Start the transfer of the results of all states to the host, without waiting."""
        for buffers in {id(buffers): buffers for buffers, _ in self._order}.values():
            buffers.send()

    def figures(self) -> list[Tensor]:
        """``(figure, batch)`` of all states in their order, on the host: this waits."""
        self.send()
        host: dict[int, Tensor] = {}
        for buffers, _ in self._order:
            if id(buffers) not in host:
                host[id(buffers)] = buffers.wait()
        return [host[id(buffers)][slot] for buffers, slot in self._order]


def _start(
    buffers: Buffers,
    x: Hidden,
    sides: tuple[Tensor, Tensor, Tensor],
    strides: tuple[int, ...],
    *,
    has_mask: bool,
) -> Again | None:
    """Start both kernels on a new layout; returns a function of addresses that restarts them."""
    plan, (bits, first, count) = buffers.plan, sides
    every = (not has_mask and x.shape[1] % plan.chunk_rows == 0, x.shape[2] % plan.columns == 0)
    sizes = (plan.rows, plan.columns, _CHUNKS_AT_ONCE, power_of_two(plan.groups))
    tiles = (has_mask, *every, *sizes, _STAGES)
    grid = (plan.groups, plan.chunks, len(x))
    shape, layer = (*x.shape[1:], plan.chunks, plan.chunk_rows), (buffers.used,)
    means, rests = ((*shape, apart, *strides) for apart in buffers.strides)
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
    # Addresses are read once: Triton would read those of all tensors in every call.
    mean_addresses, rest_addresses = (
        [buffer.data_ptr() for buffer in group] for group in (buffers.of_means, buffers.of_rests)
    )

    def again(state: int, bits: int, first: int, count: int, layer: int) -> None:
        mean_and_rows(state, bits, first, count, *mean_addresses, layer, *means, *tiles)
        rest_and_columns(state, bits, first, *rest_addresses, layer, *rests, *tiles)

    return again
