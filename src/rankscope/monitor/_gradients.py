"""Sizes of gradients and updates by layer, at the optimizer steps of any training loop.

PyTorch calls the hooks of this file around the step of every optimizer in the process, also inside
Trainer, Accelerate, Lightning and GradScaler. Between measured steps a hook compares two numbers.
"""

import math
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from rankscope.monitor._roles import Role, Roles

Values = dict[tuple[str, int | None], float]
MOST_ENTRIES: Final = 4096
"""Entries of a parameter, or of this process's shard of it, from which its update is estimated."""
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_QK, _VALUE, _MLP, _UPDATE, _WEIGHT = range(5)
_COLUMNS: Final = 5
_PARTS: Final = {"query": _QK, "key": _QK, "value": _VALUE, "MLP": _MLP}
_RATIOS: Final[dict[str, tuple[int, int]]] = {
    "grad/qk_over_v": (_QK, _VALUE),
    "grad/qk_over_mlp": (_QK, _MLP),
    "update/ratio": (_UPDATE, _WEIGHT),
}


class GradientWatch:
    """Measure gradients and updates of a model's layers at the steps of its optimizers.

    ``count`` and ``due`` are set by the owner: the steps it has counted, and the count at which it
    reads ``values``. It counts after the optimizer steps, once a step or once a micro-batch. An
    optimizer that last stepped g counts ago is expected to step again in g: a step is measured if
    no other one is expected before ``due``. Ratios do not change with clipping or with the scale
    of the loss. Squares are summed in float32 (float64 for float64 gradients): entries below about
    1e-22 count as zero.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        self.count = 0
        self.due: float = math.inf
        self._model, self._blocks = model, tuple(blocks)
        self._ids: list[int] = []
        self._mesh: Any = None
        self._roles = Roles(self._blocks)
        self._looked_at = -1
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Steps]
        self._optimizers = weakref.WeakKeyDictionary()
        self._done: dict[_Steps, _Measurement] = {}
        self._started_at = 0
        self.seconds = 0.0
        """Time spent on measuring; the owner sets it to zero when it has read it."""
        self._handles: tuple[RemovableHandle, ...] = ()

    def start(self) -> None:
        """Listen to optimizer steps."""
        if not self._handles:
            self._started_at, self._looked_at = self.count, -1
            self._handles = (
                register_optimizer_step_pre_hook(_weak_hook(self, GradientWatch._before)),
                register_optimizer_step_post_hook(_weak_hook(self, GradientWatch._after)),
            )

    def stop(self) -> None:
        """Stop listening; what was measured can still be read."""
        for handle in self._handles:
            handle.remove()
        self._handles = ()
        self._optimizers.clear()

    @property
    def unclear(self) -> dict[int, str]:
        """The matrix in which queries, keys and values cannot be told apart, by layer.

        ``grad/qk_over_v`` and ``grad/qk_over_mlp`` are not measured in these layers.
        """
        return self._roles.unclear()

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the model's parameters that have stepped."""
        ids = {id(parameter) for parameter in self._model.parameters()}
        return [
            optimizer
            for optimizer in self._optimizers
            if any(id(p) in ids for group in optimizer.param_groups for p in group["params"])
        ]

    def values(self) -> Values:
        """What the last measured steps gave, by metric and layer; it is then forgotten.

        If parameters are sharded over processes (FSDP2), every process must call this equally
        often, because it sums over all of them.
        """
        self._look()
        measured = list(self._done.values())
        self._done.clear()
        if self._mesh is not None:
            device = torch.device(self._mesh.device_type)
        elif measured:
            device = measured[0].device
        else:
            return {}
        sums = torch.zeros(2, len(self._blocks), _COLUMNS, dtype=_wide(device), device=device)
        for measurement in measured:
            measurement.add_to(sums)
        if self._mesh is not None:
            torch.distributed.all_reduce(sums)
        left_out = {layer for measurement in measured for layer in measurement.unclear}
        return dict(_ratios(sums.tolist(), self._roles.complete - left_out))

    def _before(self, optimizer: Optimizer) -> None:
        steps = self._optimizers.get(optimizer)
        if steps is None:
            steps = self._optimizers[optimizer] = _Steps(self._started_at - 1)
        gap, steps.last = max(self.count - steps.last, 1), self.count
        if self.count + gap < self.due:
            return
        begun = time.perf_counter()
        steps.open = None
        nested = any(other.open and other.last == self.count for other in self._optimizers.values())
        if nested or _is_captured():
            return  # an optimizer inside another one, which measures its parameters
        if self._looked_at != self.count:  # once for many optimizers
            self._look()
            self._looked_at = self.count
        matrices = list(self._matrices(optimizer))
        if matrices:
            world = 1 if self._mesh is None else torch.distributed.get_world_size()
            with torch.no_grad():
                steps.open = _Measurement(matrices, world)
        self.seconds += time.perf_counter() - begun

    def _after(self, optimizer: Optimizer) -> None:
        steps = self._optimizers.get(optimizer)
        if steps is not None and steps.open is not None:
            begun = time.perf_counter()
            with torch.no_grad():
                steps.open.finish()
            self._done[steps], steps.open = steps.open, None
            self.seconds += time.perf_counter() - begun

    def _look(self) -> None:
        """Find out the roles of the parameters, which are replaced when a model is sharded.

        They are known by their ids: weak references would keep ``model.to`` from swapping them.
        """
        parameters = list(self._model.parameters())
        ids = [id(parameter) for parameter in parameters]
        if self._ids != ids:
            self._ids, self._roles = ids, Roles(self._blocks)
            meshes = (getattr(p, "device_mesh", None) for p in parameters if _is_sharded(p))
            self._mesh = next(meshes, None)

    def _matrices(self, optimizer: Optimizer) -> Iterator["_Matrix"]:
        """The matrices of the layers that this optimizer is about to change."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                role = self._roles.of(parameter)
                if role.layer is None or parameter.grad is None:
                    continue
                gradient, weight = _local(parameter.grad), _local(parameter)
                if gradient is not None and weight is not None:
                    yield _Matrix(parameter, role, gradient, weight)


def _weak_hook(
    watch: GradientWatch, method: Callable[[GradientWatch, Optimizer], None]
) -> Callable[[Optimizer, Any, Any], None]:
    """A hook that does not keep the watch, and through it the model, alive."""
    reference = weakref.ref(watch)

    def hook(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        watch = reference()
        if watch is not None:
            method(watch, optimizer)

    # A compiled step is cut here; PyTorch cuts it beside the hooks anyway.
    disabled: Callable[[Optimizer, Any, Any], None] = torch.compiler.disable(hook)
    return disabled


class _Steps:
    """What is known of one optimizer: the count at its last step, and what it is measuring."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.open: _Measurement | None = None


class _Matrix(NamedTuple):
    """A parameter, and what this process has of its gradient and of itself."""

    parameter: nn.Parameter
    role: Role
    gradient: Tensor
    weight: Tensor


class _Sample(NamedTuple):
    """Entries of a matrix before a step, each of which stands for ``share`` entries."""

    matrix: _Matrix
    places: Tensor
    before: Tensor
    share: float


class _Norms(NamedTuple):
    """Norms on one device; the slot of each in the table of sums, and how often it counts."""

    norms: Tensor
    slots: list[int]
    shares: list[float]


class _Measurement:
    """The sizes of gradients and updates at one step of one optimizer, on the devices.

    ``world`` is the number of processes over which sums will be taken: of what several of them
    have, each counts its part. Nothing waits for a device before ``add_to``.
    """

    def __init__(self, matrices: Sequence[_Matrix], world: int) -> None:
        self.unclear: set[int] = set()
        """Layers with a fused matrix that is sharded in a way that hides its parts."""
        self._norms: list[_Norms] = []
        self._samples: list[_Sample] = []
        places: dict[tuple[int, torch.device], Tensor] = {}
        gradients: list[tuple[Tensor, int, float]] = []
        for matrix in matrices:
            share = 1 / _copies(matrix.parameter, world)
            for part, column in self._parts(matrix):
                gradients.append((part, _slot(matrix.role, column), share))
            weight = matrix.weight
            if size := weight.numel():
                key = (size, weight.device)
                if key not in places:
                    places[key] = _places(*key)
                before = weight.take(places[key]).to(_wide(weight.device))
                share *= size / before.numel()
                self._samples.append(_Sample(matrix, places[key], before, share))
        self._add(gradients)

    @property
    def device(self) -> torch.device:
        """A device that holds some of the sizes."""
        return self._norms[0].norms.device

    def finish(self) -> None:
        """Compare the matrices with what they were before the step."""
        sizes: list[tuple[Tensor, int, float]] = []
        for matrix, places, before, share in self._samples:
            after = _local(matrix.parameter)
            if after is not None and after.shape == matrix.weight.shape:
                change = after.take(places).to(before.dtype) - before
                sizes.append((change, _slot(matrix.role, _UPDATE), share))
                sizes.append((before, _slot(matrix.role, _WEIGHT), share))
        self._samples = []
        self._add(sizes)

    def add_to(self, sums: Tensor) -> None:
        """Add squares, and how many there are, to a table ``(2, layer, column)``."""
        squares, counts = sums.flatten(1)
        for norms, slots, shares in self._norms:
            sizes = norms.to(sums.device, sums.dtype)
            at = torch.tensor(slots, device=sums.device)
            square = sizes.square() * torch.tensor(shares, dtype=sums.dtype, device=sums.device)
            squares.index_add_(0, at, square)
            counts.index_add_(0, at, torch.ones_like(sizes))

    def _parts(self, matrix: _Matrix) -> Iterator[tuple[Tensor, int]]:
        """Gradients of the roles that a matrix has."""
        role, fused = matrix.role, matrix.role.fused
        if fused is None:
            if role.part in _PARTS:
                yield matrix.gradient, _PARTS[role.part]
            return
        start = _start(matrix.parameter, fused.axis)
        if start is None:
            assert role.layer is not None
            self.unclear.add(role.layer)
            return
        across = 1 - fused.axis
        gradient = matrix.gradient
        lines = torch.linalg.vector_norm(gradient, dim=across, dtype=_summed(gradient.dtype))
        places = torch.arange(start, start + len(lines), device=lines.device) % fused.size
        for stretches, column in ((fused.queries_keys, _QK), (fused.values, _VALUE)):
            for first, stop in stretches:
                inside = (places >= first) & (places < stop)
                yield torch.where(inside, lines, 0.0), column

    def _add(self, tensors: Sequence[tuple[Tensor, int, float]]) -> None:
        """The norms of some tensors in few kernels."""
        groups: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, int, float]]] = {}
        for entry in tensors:
            groups.setdefault((entry[0].device, entry[0].dtype), []).append(entry)
        for (_, dtype), entries in groups.items():
            parts, slots, shares = (list(column) for column in zip(*entries, strict=True))
            norms = torch._foreach_norm(parts, 2, dtype=_summed(dtype))
            self._norms.append(_Norms(torch.stack(norms), slots, shares))


def _ratios(
    sums: list[list[list[float]]], complete: frozenset[int]
) -> Iterator[tuple[tuple[str, int | None], float]]:
    """Ratios of norms; those of 0 to 0, and of what no parameter has, are left out."""
    for name, (above, below) in _RATIOS.items():
        for layer, (squares, counts) in enumerate(zip(*sums, strict=True), start=1):
            over, under = squares[above], squares[below]
            if (above == _QK and layer not in complete) or not (counts[above] and counts[below]):
                continue
            if under:
                yield (name, layer), math.sqrt(over / under)
            elif over:
                yield (name, layer), math.nan if math.isnan(over) else math.inf


def _slot(role: Role, column: int) -> int:
    assert role.layer is not None
    return (role.layer - 1) * _COLUMNS + column


def _wide(device: torch.device) -> torch.dtype:
    """The widest floating-point numbers of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def _summed(dtype: torch.dtype) -> torch.dtype:
    """The numbers in which squares are summed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _places(size: int, device: torch.device) -> Tensor:
    """Places spread evenly over the entries of a tensor; all of them if they are few.

    Multiples of a step close to the golden ratio of the size are spread evenly over rows and over
    columns; equal distances would fall into one column where they are a multiple of its width.
    """
    if size <= MOST_ENTRIES:
        return torch.arange(size, device=device)
    step = round(size * _GOLDEN)
    while math.gcd(step, size) > 1:
        step += 1
    return torch.arange(MOST_ENTRIES, device=device) * step % size


def _is_captured() -> bool:
    """Whether a CUDA graph is recorded, which would repeat all that is measured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor; there is none before its module is imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _local(tensor: Tensor) -> Tensor | None:
    """What this process has of a tensor; None if it cannot be summed (sparse, quantised, …)."""
    local: Tensor = tensor
    if _is_sharded(tensor):
        sharded: Any = tensor
        if any(placement.is_partial() for placement in sharded.placements):
            return None
        local = sharded.to_local()
    plain = type(local) in (Tensor, nn.Parameter) and local.layout == torch.strided
    return local.detach() if plain and local.is_floating_point() else None


def _copies(tensor: Tensor, world: int) -> float:
    """How many processes of ``world`` have each entry of a tensor."""
    if not _is_sharded(tensor):
        return world
    sharded: Any = tensor
    mesh, placements = sharded.device_mesh, sharded.placements
    sizes = [mesh.size(k) for k, placement in enumerate(placements) if not placement.is_replicate()]
    return world / float(math.prod(sizes))


def _start(tensor: Tensor, axis: int) -> int | None:
    """Where this process's part of an axis begins; None if it is no single stretch."""
    sharded: Any = tensor
    if not _is_sharded(tensor) or sharded.device_mesh.get_coordinate() is None:
        return 0
    start, size = 0, int(sharded.shape[axis])
    for k, placement in enumerate(sharded.placements):
        if getattr(placement, "dim", None) != axis:
            continue
        if type(placement).__name__ != "Shard":
            return None
        part = -(-size // sharded.device_mesh.size(k))
        before = min(part * sharded.device_mesh.get_local_rank(k), size)
        start, size = start + before, min(part, size - before)
    return start
