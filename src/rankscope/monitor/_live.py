"""Live mode: the size of the blocks' outputs on the training batch, at recorded steps.

Hooks on the blocks add up squares and largest entries in float64 (of sums in float32) on the
device of the model; nothing waits for the device until ``values`` copies them to the host.

Eager models have hooks only while the watch is armed. Compiled models must have them before their
first call, because compiled code ignores hooks that come later. There the hooks stay, and are
traced into the graph as a call of the custom operator ``rankscope::observe``: the graph has no
break, arming compiles nothing anew, and while the watch is not armed the operator returns at once
and launches no kernel. When the hooks are removed, PyTorch compiles the model once more.

Three limits. Compiled models that were called before ``start`` ignore the hooks. CUDA graphs
(``mode="reduce-overhead"``) run no Python when they are replayed, so that there is nothing to see.
In both cases ``values`` is empty and ``note`` says why. The inductor backend must store an output
that is observed, which may change how it fuses operations in half precision.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankscope.core.tracing import before_compilation, first_tensor, listen
from rankscope.errors import InputError

RMS: Final = "live/rms"
LARGEST: Final = "live/max"
_SQUARES, _LARGEST, _ENTRIES = range(3)
"""The columns of sums: of squares, the largest absolute entry, and the number of entries."""

_numbers = count()
_armed: dict[int, "LiveWatch"] = {}
"""The watches that are armed, by their number: compiled code knows only the number."""


@contextmanager
def paused() -> Iterator[None]:
    """A context in which no watch hears anything, for the pass of a probe."""
    armed = dict(_armed)
    _armed.clear()
    try:
        yield
    finally:
        _armed.update(armed)


class LiveWatch:
    """Listens to the outputs of blocks on training batches.

    >>> import torch
    >>> from rankscope import Network, Spec
    >>> from rankscope.monitor import LiveWatch
    >>> net = Network.random(Spec(2, 2, 8), seed=0).train()
    >>> watch = LiveWatch(net.blocks)
    >>> watch.start(2)
    >>> watch.arm()
    >>> _ = net(torch.randn(1, 5, 8))
    >>> sorted(watch.values())
    [('live/max', 1), ('live/max', 2), ('live/rms', 1), ('live/rms', 2)]
    >>> watch.stop()

    ``compiled`` says whether the blocks are, or will be, part of compiled code; by default they
    are if ``torch.compile`` was called in this process. With ``distributed``, ``values`` covers
    the batches of all processes of ``group``, if ``torch.distributed`` is initialised; then all of
    them must call it.

    What runs inside a backward pass is not counted: with activation checkpointing blocks run there
    a second time. Neither are blocks in evaluation mode, nor the passes of a probe (``paused``).
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        *,
        compiled: bool | None = None,
        distributed: bool = True,
        group: Any = None,
    ) -> None:
        self.note = ""
        """Why values are missing, in a sentence; empty if none are."""
        self._blocks = [before_compilation(block) for block in blocks]
        self._compiled = compiled
        self._distributed, self._group = distributed, group
        self._number = next(_numbers)
        self._layers: list[int] = []
        self._sums: list[Tensor] = []
        self._listeners: list[tuple[nn.Module, _Listener]] = []
        self._remove: list[Callable[[], object]] = []
        self._calls = 0

    def start(self, layers: int | Sequence[int]) -> None:
        """Begin to listen; does nothing if it has begun.

        ``layers`` is the number of layers, which are counted from 1, or the number of each. If it
        is not one layer per block, because blocks run several times in a forward pass (ALBERT),
        the n-th call of any block is the n-th layer.
        """
        if self._listeners:
            return
        self._layers = list(range(1, layers + 1) if isinstance(layers, int) else layers)
        modules = list({id(block): block for block in self._blocks}.values())
        if not modules or not self._layers:
            raise InputError(
                f"live mode got {len(modules)} blocks and {len(self._layers)} layers, expected at "
                "least one of each; name the blocks of the model (blocks='encoder.layers')."
            )
        if len(modules) == len(self._layers):
            self._sums = [_zeros(1, block) for block in modules]
        else:
            self._sums = [_zeros(len(self._layers), modules[0])] * len(modules)
        self._listeners = [
            (block, _Listener(sums, self._number))
            for block, sums in zip(modules, self._sums, strict=True)
        ]
        if self._is_compiled():
            self._register()

    def stop(self) -> None:
        """Stop listening and remove all hooks; does nothing if it has stopped."""
        _armed.pop(self._number, None)
        self._unregister()
        self._listeners, self._sums = [], []

    def arm(self) -> None:
        """Record from now on, beginning with nothing. Does nothing unless ``start`` was called."""
        if self._listeners:
            self._forget()
            self._register()
            _armed[self._number] = self

    def disarm(self) -> None:
        """Record nothing more; what was recorded is kept for ``values``."""
        _armed.pop(self._number, None)
        if not self._is_compiled():
            self._unregister()

    def values(self) -> dict[tuple[str, int | None], float]:
        """Size and largest entry by layer since ``arm``, NaN and infinity included; forgets them.

        Several micro-batches count as one batch. Layers of which nothing was recorded are missing;
        ``note`` says why. One copy to the host, and two all-reduces if there are more processes.
        """
        if not self._listeners:
            return {}
        rows = self._reduce().tolist()
        self._forget()
        values: dict[tuple[str, int | None], float] = {}
        for layer, (squares, largest, entries) in zip(self._layers, rows, strict=True):
            if entries:
                values[RMS, layer] = math.sqrt(squares / entries)
                values[LARGEST, layer] = math.nan if math.isnan(squares) else largest
        self.note = self._missing([row[_ENTRIES] > 0 for row in rows])
        return values

    def _reduce(self) -> Tensor:
        """All sums in one tensor with a row per layer, of all processes."""
        unique = list({id(sums): sums for sums in self._sums}.values())
        rows = torch.cat([sums.to(unique[0].device) for sums in unique])
        if not (self._distributed and dist.is_available() and dist.is_initialized()):
            return rows
        if dist.get_backend(self._group) == "nccl":
            rows = rows.to("cuda")
        # A maximum may lose NaN on the way. The sum of squares is NaN at the same time.
        largest = rows[:, _LARGEST].nan_to_num(nan=math.inf, posinf=math.inf)
        dist.all_reduce(rows, dist.ReduceOp.SUM, self._group)
        dist.all_reduce(largest, dist.ReduceOp.MAX, self._group)
        rows[:, _LARGEST] = largest
        return rows

    def _forget(self) -> None:
        if not self._calls:  # nothing was added: launch no kernel
            return
        self._calls = 0
        with torch.no_grad():
            for sums in self._sums:
                sums.zero_()

    def _register(self) -> None:
        if not self._remove:
            self._remove = [listen(block, listener.hear) for block, listener in self._listeners]

    def _unregister(self) -> None:
        while self._remove:
            self._remove.pop()()

    def _is_compiled(self) -> bool:
        return bool(_backends()) if self._compiled is None else self._compiled

    def _missing(self, seen: Sequence[bool]) -> str:
        if all(seen):
            return ""
        if any(seen) or not self._is_compiled():
            layers = [
                str(layer) for layer, is_seen in zip(self._layers, seen, strict=True) if not is_seen
            ]
            return (
                f"Live mode saw no output of layers {', '.join(layers)}: their blocks did not run "
                "in this step, or returned no floating-point tensor."
            )
        if any(_uses_cuda_graphs(backend) for backend in _backends()):
            return (
                "Live mode saw no layer: the model runs as CUDA graphs, which run no Python when "
                "they are replayed. Compile it without them (mode='default' or "
                "'max-autotune-no-cudagraphs'), or use the probe alone (live=False)."
            )
        return (
            "Live mode saw no layer: the model was compiled and called before the monitor "
            "listened, and compiled code ignores hooks that come later. First call torch.compile, "
            "then start the monitor, then call the model; or call torch.compiler.reset() now."
        )

    def _add(self, hidden: Tensor, sums: Tensor) -> None:
        """Add an output to the sums of its layer, unless this is inside a backward pass."""
        if torch._C._current_graph_task_id() != -1 or not hidden.numel():
            return
        if hidden.is_cuda and torch.cuda.is_current_stream_capturing():
            return  # the replays would add to the sums as well
        row = sums[self._calls % len(sums)]
        self._calls += 1
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            precise = torch.float64 if hidden.dtype == torch.float64 else torch.float32
            norm = torch.linalg.vector_norm(hidden, dtype=precise).to(row)
            largest = torch.linalg.vector_norm(hidden, math.inf).to(row)
            row[_SQUARES] += norm.square()
            row[_LARGEST] = torch.maximum(row[_LARGEST], largest)
            row[_ENTRIES] += hidden.numel()


class _Listener:
    """The hook of one block; blocks differ in a tensor alone, so that compiled code is shared."""

    def __init__(self, sums: Tensor, watch: int) -> None:
        self.sums = sums
        self.watch = watch

    def hear(self, module: nn.Module, _arguments: Any, output: Any) -> None:
        compiling = torch.compiler.is_compiling()
        if not module.training or (not compiling and self.watch not in _armed):
            return
        try:
            hidden = first_tensor(output).detach()
        except InputError:  # no tensor inside: training goes on, and ``note`` names the layer
            return
        if hasattr(hidden, "to_local"):  # a DTensor: the part of this process
            hidden = hidden.to_local()
        if compiling:
            torch.ops.rankscope.observe(hidden, self.sums, self.watch)
        else:
            _armed[self.watch]._add(hidden, self.sums)


@torch.library.custom_op("rankscope::observe", mutates_args=("sums",))
def _observe(hidden: Tensor, sums: Tensor, watch: int) -> None:
    """Add the outputs of a block to sums if the watch is armed; part of compiled graphs."""
    armed = _armed.get(watch)
    if armed is not None:
        armed._add(hidden, sums)


@_observe.register_fake
def _observe_nothing(hidden: Tensor, sums: Tensor, watch: int) -> None:
    """The shapes that the operator returns: none."""


def _zeros(rows: int, block: nn.Module) -> Tensor:
    """Sums of nothing, on the device of a block."""
    parameter = next(block.parameters(), None)
    device = torch.device("cpu") if parameter is None or parameter.is_meta else parameter.device
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return torch.zeros(rows, 3, device=device, dtype=dtype)


def _backends() -> list[Any]:
    """The compilers that ``torch.compile`` was called with in this process."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None:
        return []
    cached: dict[int, Any] = getattr(compiler, "cached_backends", {0: "unknown"})
    return [backend for backend in cached.values() if backend is not None]


def _uses_cuda_graphs(backend: Any) -> bool:
    options = getattr(backend, "config", None)
    return isinstance(options, dict) and bool(options.get("triton.cudagraphs"))
