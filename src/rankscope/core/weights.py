"""Digests of a model's tensors, which change with any number, and checks for NaN and infinity."""

import hashlib
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rankscope.core.metrics import can_fuse
from rankscope.errors import InputError

_WORDS = 1024
"""Length of a row, in words of eight bytes, when a large tensor is hashed as a table."""
_KEYS = np.frombuffer(hashlib.shake_256(b"rankscope").digest(8 * _WORDS), "<u8").astype(np.uint64)
"""Fixed keys that are added to the words of a row, one per column."""
_ROWS_AT_ONCE = 64
_KEY_ROWS = np.tile(_KEYS, (_ROWS_AT_ONCE, 1))
"""The keys repeated for each row: NumPy adds tables of one shape twice as fast."""
_MANY_TENSORS = 8
"""From here on, kernels for all tensors of a GPU take less time than a few operations for each."""
_MANY_BYTES = 2**24
"""From here on, starting threads costs less than it saves."""


# A model's tensors.


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name; a shared tensor is listed under each of its names.

    Offloaded tensors are replaced by their copies in main memory, if there are any. Tensors that
    quantised layers hold instead of parameters are included.
    """
    tensors: dict[str, Tensor] = {}
    hidden: dict[str, Any] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for registered in (module._parameters, module._buffers):
            for name, tensor in registered.items():
                if tensor is not None:
                    tensors[prefix + name] = tensor
        if "_hf_hook" in vars(module):
            hidden |= _offloaded(prefix, module, module._hf_hook)
        if hasattr(vars(module).get("_packed_params"), "unpack"):
            hidden |= {
                f"{path}[{n}]": value for n, value in enumerate(module._packed_params.unpack())
            }
    return tensors | {name: value for name, value in hidden.items() if isinstance(value, Tensor)}


def _offloaded(prefix: str, module: nn.Module, hook: Any) -> dict[str, Any]:
    """The copies in main memory that fill a module's empty tensors before each call.

    Accelerate is not imported: its hooks are recognised by their attributes.
    """
    waiting: dict[str, Any] = {}
    for part in (hook, *getattr(hook, "hooks", ())):
        weights = getattr(part, "weights_map", None)
        stored = getattr(weights, "dataset", weights)
        stored = getattr(stored, "state_dict", stored)  # what is on disk is in its index
        if isinstance(stored, dict):
            start = getattr(weights, "prefix", "")
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if tensor.is_meta:
                    waiting[prefix + name] = stored.get(f"{start}{name}")
    return waiting


# Digests, which read every number close to the speed of memory.


def weights_digest(digests: Mapping[str, str]) -> str:
    """Twelve hex digits for named tensors; ``digests`` are those of ``tensor_digests``.

    >>> one, other = torch.zeros(3), torch.tensor([0.0, 0.0, 1e-30])
    >>> names = [weights_digest(tensor_digests({"a": each})) for each in (one, one + 0, other)]
    >>> names[0] == names[1] != names[2]
    True
    """
    return hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:12]


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A digest of each tensor: its shape, its dtype and its bytes, the same on every device.

    Small tensors are hashed directly. A large one is viewed as a table of words of eight bytes;
    each row is mixed into one word, modulo 2⁶⁴ and so exactly on every device, and these words are
    hashed. Two tensors that were not made to collide have equal digests with a probability of about
    2⁻³². A tensor that cannot be read (on disk) is represented by its shape and dtype.
    """
    return begin_digests(tensors)()


def begin_digests(tensors: Mapping[str, Tensor]) -> Callable[[], dict[str, str]]:
    """``tensor_digests`` of the current contents, whatever is written to the tensors later.

    The returned function synchronises with the device; this call does not.
    """
    distinct = {id(tensor): tensor for tensor in tensors.values()}
    kinds = {key: _kind(tensor) for key, tensor in distinct.items()}
    fused = {key: tensor for key, tensor in distinct.items() if _is_plain_on_gpu(tensor)}
    if len(fused) < _MANY_TENSORS:
        fused = {}
    others = {key: tensor for key, tensor in distinct.items() if key not in fused}
    finish_fused = _begin_fused(list(fused.values()))
    pieces = _each_apart(list(others.values()))
    keys = {name: id(tensor) for name, tensor in tensors.items()}

    def finish() -> dict[str, str]:
        contents = dict(zip(fused, finish_fused(), strict=True))
        contents |= zip(others, map(b"".join, _on_host(pieces)), strict=True)
        digests = {
            key: hashlib.sha256(kind + contents[key]).hexdigest()[:16]
            for key, kind in kinds.items()
        }
        return {name: digests[key] for name, key in keys.items()}

    if fused or any(piece.device.type != "cpu" for some in pieces for piece in some):
        return finish
    digests = finish()  # nothing to wait for, and less to keep
    return lambda: digests


def _kind(tensor: Tensor) -> bytes:
    shape = None if is_lazy(tensor) or tensor.is_nested else tuple(tensor.shape)
    return repr((shape, tensor.dtype, *map(_kind, _parts(tensor)))).encode()


def _is_readable(tensor: Tensor) -> bool:
    strange = tensor.is_nested or tensor.is_quantized or tensor.layout != torch.strided
    lazy = is_lazy(tensor)
    return not (strange or lazy or tensor.is_meta or hasattr(tensor, "__tensor_flatten__"))


_SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),  # as they lie: no sum waits for the device
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _parts(tensor: Tensor) -> list[Tensor]:
    """The components of a composite tensor: sparse, nested, or quantised by a library."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [getattr(tensor, name) for name in names]
    if tensor.is_nested:
        return list(tensor.unbind())
    return [getattr(tensor.detach(), name)() for name in _SPARSE.get(tensor.layout, ())]


def _pieces(tensor: Tensor) -> list[Tensor]:
    """The data of a tensor that are hashed, as bytes on its device."""
    if parts := _parts(tensor):
        return [piece for part in parts for piece in _pieces(part)]
    if tensor.is_quantized or tensor.is_mkldnn:
        return _pieces(tensor.dequantize() if tensor.is_quantized else tensor.to_dense())
    if not _is_readable(tensor) or not tensor.numel():
        return []
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    rows = len(flat) // (8 * _WORDS)
    table, rest = flat[: rows * 8 * _WORDS], flat[rows * 8 * _WORDS :].clone()
    return [_mixed(table, rows).view(torch.uint8), rest] if rows else [rest]


def _is_plain_on_gpu(tensor: Tensor) -> bool:
    """Whether one kernel can read it together with others like it."""
    if not (can_fuse(tensor) and type(tensor) in (Tensor, nn.Parameter, nn.Buffer)):
        return False
    complete = _is_readable(tensor) and tensor.is_contiguous() and tensor.data_ptr() % 8 == 0
    return complete and not (tensor.is_conj() or tensor.is_neg())


def _begin_fused(tensors: Sequence[Tensor]) -> Callable[[], list[bytes]]:
    """The bytes of ``_pieces`` of plain tensors on GPUs, by two kernels for each GPU."""
    if not tensors:
        return list
    kernels = import_module("rankscope.core.weights_kernels")  # needs Triton
    by_device: dict[torch.device, list[int]] = defaultdict(list)
    for place, tensor in enumerate(tensors):
        by_device[tensor.device].append(place)
    parts = {
        device: kernels.begin([tensors[place] for place in places], _keys_on(device))
        for device, places in by_device.items()
    }

    def finish() -> list[bytes]:
        contents = {
            place: content
            for device, places in by_device.items()
            for place, content in zip(places, parts[device](), strict=True)
        }
        return [contents[place] for place in range(len(tensors))]

    return finish


def _each_apart(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The pieces of each tensor; large models use as many threads as PyTorch does."""
    threads = torch.get_num_threads()
    size = sum(tensor.nbytes for tensor in tensors if _is_readable(tensor))
    if threads == 1 or size < _MANY_BYTES or any(tensor.is_cuda for tensor in tensors):
        return [_pieces(tensor) for tensor in tensors]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(_pieces, tensors))


def _mixed(table: Tensor, rows: int) -> Tensor:
    """One number per row of a table of words; it depends on the value and position of each word.

    Each word is added to the key of its column, and the sum is multiplied by its own upper half (as
    in the hash family NH), because plain sums would not detect changed signs, powers of two or
    swapped numbers. Integers overflow in the same way on every device.
    """
    if table.device.type == "cpu":  # NumPy is several times as fast with integers there
        return torch.from_numpy(_mixed_by_numpy(table.numpy().view(np.uint64).reshape(rows, -1)))
    aligned = table if table.storage_offset() % 8 == 0 else table.clone()
    return _mixed_by_torch(aligned.view(torch.int64).view(rows, _WORDS))


def _mixed_by_numpy(words: "np.ndarray[Any, np.dtype[np.uint64]]") -> Any:
    """The same with NumPy, in blocks of rows that fit into the processor's cache."""
    mixed = np.empty(len(words), np.uint64)
    keyed = np.empty((_ROWS_AT_ONCE, _WORDS), np.uint64)
    upper = np.empty_like(keyed)
    for first in range(0, len(words), _ROWS_AT_ONCE):
        some = words[first : first + _ROWS_AT_ONCE]
        t, high = keyed[: len(some)], upper[: len(some)]
        np.add(some, _KEY_ROWS[: len(some)], out=t)
        np.right_shift(t, np.uint64(32), out=high)
        np.multiply(t, high, out=t)  # and a sum: together quicker than einsum with integers
        np.add.reduce(t, axis=1, out=mixed[first : first + len(some)])
    return mixed.view(np.int64)


def _mixed_by_torch(words: Tensor) -> Tensor:
    """The same with PyTorch, whose integers are signed: a right shift would copy the sign bit."""
    mixed = []
    for some in words.split(64 * _ROWS_AT_ONCE):
        keyed = some + _keys_on(words.device)
        mixed.append((keyed * ((keyed >> 32) & 0xFFFFFFFF)).sum(1))
    return torch.cat(mixed)


@cache
def _keys_on(device: torch.device) -> Tensor:
    """The keys on a device, copied once and without synchronisation."""
    return torch.from_numpy(_KEYS.view(np.int64).copy()).to(device, non_blocking=True)


def _on_host(pieces: Sequence[Sequence[Tensor]]) -> list[list[bytes]]:
    """All pieces as bytes, with one copy per device, because each copy synchronises."""
    by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
    for some in pieces:
        for piece in some:
            by_device[piece.device].append(piece)
    taken = {device: iter(_copied(some, device)) for device, some in by_device.items()}
    return [[next(taken[piece.device]) for piece in some] for some in pieces]


def _copied(pieces: Sequence[Tensor], device: torch.device) -> Iterator[bytes]:
    if device.type == "cpu":
        yield from (piece.numpy().tobytes() for piece in pieces)
        return
    joined, start = torch.cat(list(pieces)).cpu().numpy(), 0
    for piece in pieces:
        yield joined[start : start + len(piece)].tobytes()
        start += len(piece)


# Values that are not finite.


def refuse_broken(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    tensors: Mapping[str, Tensor] | None = None,
) -> dict[str, str]:
    """Raise if a weight of the blocks is NaN or infinite; return which others are, or are unread.

    PyTorch's fused attention returns zeros for rows of NaN, so that broken weights would look like
    equal tokens. Buffers may contain infinity, because masks do. ``tensors`` are those of
    ``named_tensors``, for callers that have them.
    """
    tensors = named_tensors(model) if tensors is None else tensors
    broken = not_finite(tensors)
    if broken:
        buffers = dict(model.named_buffers(remove_duplicate=False))
        masks = {name: tensors[name] for name in broken if name in buffers}
        fine = masks.keys() - not_finite(masks, infinity=True)
        broken = [name for name in broken if name not in fine]
    layers = _layers(model, blocks) if broken else {}
    for name in broken:
        if name in layers:
            bad = ~tensors[name].detach().float().isfinite()
            first = bad.nonzero()[0].tolist()
            raise InputError(
                f"layer {layers[name]}, {name} is {tensors[name][tuple(first)].item()} at {first} "
                f"({int(bad.sum())} of {bad.numel()} entries are not finite), so nothing after it "
                "can be measured; reload the weights, or find where training diverged."
            )
    settings = {"not finite": ", ".join(broken)} if broken else {}
    elsewhere = sum(tensor.is_meta for tensor in tensors.values())
    if elsewhere:
        settings["unread weights"] = (
            f"{elsewhere} of {len(tensors)} are offloaded to disk; whether they are finite was "
            "not looked at"
        )
    return settings


def _layers(model: nn.Module, blocks: Sequence[nn.Module]) -> dict[str, int]:
    """The first layer that uses each tensor of the blocks, by its name in the model."""
    first: dict[int, int] = {}
    for layer, block in enumerate(blocks, start=1):
        for tensor in (*block.parameters(), *block.buffers()):
            first.setdefault(id(tensor), layer)
    named = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    return {name: first[id(tensor)] for name, tensor in named if id(tensor) in first}


Stamp = tuple[Any, ...]
"""The storage of a tensor, and PyTorch's version counter of writes to it."""
_FINITE: dict[int, tuple["weakref.ref[Tensor]", Stamp]] = {}
"""Tensors by identity, with their stamps when they were last checked and were finite."""
_MOST_REMEMBERED = 2**16


def stamp(tensor: Tensor) -> Stamp:
    """The storage of a tensor and PyTorch's count of writes; no number is read."""
    writes = None if tensor.is_inference() else tensor._version
    return tensor.shape, tensor.dtype, tensor.data_ptr(), tensor.stride(), writes


def not_finite(named: Mapping[str, Tensor], *, infinity: bool = False) -> list[str]:
    """The names of tensors that contain NaN, or infinity unless that is allowed.

    A tensor that was finite and has not been written to since, by PyTorch's counter, is not read
    again.
    """
    unknown: dict[torch.device, dict[str, Stamp]] = defaultdict(dict)
    for name, tensor in named.items():
        is_real = tensor.is_floating_point() or tensor.is_complex()
        if not (is_real and _is_readable(tensor) and tensor.numel() > 0):
            continue
        now, (known, before) = stamp(tensor), _FINITE.get(id(tensor), (None, None))
        is_known = known is not None and known() is tensor and before == now
        if not is_known or now[-1] is None:
            unknown[tensor.device][name] = now
    if len(_FINITE) > _MOST_REMEMBERED:
        _FINITE.clear()
    broken = []
    for some in unknown.values():  # a device is waited for once
        doubts = torch.stack([_doubts(named[name]) for name in some]).tolist()
        for (name, now), (is_nan, is_infinite) in zip(some.items(), doubts, strict=True):
            if is_nan or (is_infinite and not infinity):
                broken.append(name)
            elif not is_infinite:
                _FINITE[id(named[name])] = (weakref.ref(named[name]), now)
    return broken


def _doubts(tensor: Tensor) -> Tensor:
    """Whether a tensor contains NaN and whether it contains infinity, from its extremes."""
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    ends = torch.stack((plain.float() if plain.dtype.itemsize == 1 else plain).aminmax())
    return torch.stack((ends.isnan().any(), ends.isinf().any()))
