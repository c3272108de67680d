"""What a model's tensors are: a digest that any changed number changes, and which are not finite.

Both read every number, close to the speed of memory, so that neither is felt much beside a forward
pass.
"""

import cmath
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rankscope.core._hidden_weights import offloaded, packed

_WORDS = 1024
"""Words of eight bytes in a row of the table that a large tensor is laid out as."""
_KEYS = np.frombuffer(hashlib.shake_256(b"rankscope").digest(8 * _WORDS), "<u8").astype(np.uint64)
"""What a word is added to by its place in the row: fixed, and like nothing a network holds."""
_ROWS_AT_ONCE = 64
_KEY_ROWS = np.tile(_KEYS, (_ROWS_AT_ONCE, 1))
"""The keys once for each row: NumPy takes half as long to add tables of one shape."""
_MANY_BYTES = 2**24
"""From here on, starting threads costs less than it saves."""
_FOUND_FINITE: set[str] = set()
"""Digests of tensors that were read and found finite: equal ones are not read again."""
_MOST_REMEMBERED = 2**16
_SUMMED_AS_THEY_ARE = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by name; one that has several names is there under each.

    Of one that is offloaded, what waits for it in main memory, if it does; and what quantised
    layers have in the place of parameters.
    """
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    return {**dict(parameters), **dict(buffers), **offloaded(model), **packed(model)}


def unread(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of those that are somewhere else, so that nothing can be said of their numbers."""
    return [name for name, tensor in tensors.items() if tensor.is_meta]


def weights_digest(digests: Mapping[str, str]) -> str:
    """Twelve hex digits for tensors by name; ``digests`` are theirs, from ``tensor_digests``.

    >>> import torch
    >>> one, other = torch.zeros(3), torch.tensor([0.0, 0.0, 1e-30])
    >>> names = [weights_digest(tensor_digests({"a": each})) for each in (one, one + 0, other)]
    >>> names[0] == names[1] != names[2]
    True
    """
    return hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:12]


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A digest of each tensor: its shape, its dtype and its bytes, the same on every device.

    Small tensors are hashed as they are. A large one is laid out as a table of words of eight
    bytes, each row is mixed into one word, modulo 2⁶⁴ and so exactly wherever it is computed, and
    those are hashed. Two tensors that were not made to deceive it have one digest with a
    probability of about 2⁻³².
    What has no numbers to read (on disk, sparse) is known by its shape and dtype.
    """
    distinct = {id(tensor): tensor for tensor in tensors.values()}
    pieces = _on_host(_each_apart(list(distinct.values())))
    digests = {
        key: hashlib.sha256(_kind(tensor) + b"".join(some)).hexdigest()[:16]
        for (key, tensor), some in zip(distinct.items(), pieces, strict=True)
    }
    return {name: digests[id(tensor)] for name, tensor in tensors.items()}


def not_finite(
    named: Mapping[str, Tensor],
    *,
    infinity: bool = False,
    digests: Mapping[str, str] | None = None,
) -> list[str]:
    """The names of tensors that hold NaN, or infinity unless that is allowed.

    With their ``digests``, tensors that were found finite before are not read again.
    """
    digests = digests or {}
    real = {
        name: tensor
        for name, tensor in named.items()
        if digests.get(name) not in _FOUND_FINITE
        and _is_readable(tensor)
        and (tensor.is_floating_point() or tensor.is_complex())
    }
    by_device: dict[torch.device, list[str]] = defaultdict(list)
    for name, tensor in real.items():
        by_device[tensor.device].append(name)
    suspects = []
    for device, names in by_device.items():
        tensors = [_wide(real[name]) for name in names]
        fine = _sums_are_finite(tensors) if device.type == "cpu" else _all_finite(tensors)
        suspects += [name for name, is_fine in zip(names, fine, strict=True) if not is_fine]
    _remember(digests[name] for name in digests.keys() & real.keys() - set(suspects))
    return [name for name in suspects if _is_broken(_wide(real[name]), infinity=infinity)]


def _remember(digests: Iterable[str]) -> None:
    if len(_FOUND_FINITE) > _MOST_REMEMBERED:
        _FOUND_FINITE.clear()
    _FOUND_FINITE.update(digests)


def _sums_are_finite(tensors: Sequence[Tensor]) -> list[bool]:
    """Whether each tensor's sum is; where it is not, the sum may have overflowed."""
    return [cmath.isfinite(tensor.sum().item()) for tensor in tensors]


def _all_finite(tensors: Sequence[Tensor]) -> list[bool]:
    """Whether all are, as a whole: one answer from an accelerator, which waits for it only once."""
    largest = nn.utils.get_total_norm(tensors, float("inf"))
    return [bool(torch.isfinite(largest))] * len(tensors)


def _is_broken(tensor: Tensor, *, infinity: bool) -> bool:
    return bool((torch.isnan(tensor) if infinity else ~torch.isfinite(tensor)).any())


def _wide(tensor: Tensor) -> Tensor:
    """Halves and quarters in single precision: their own sums overflow, or do not exist."""
    plain = tensor.detach()
    return plain if plain.dtype in _SUMMED_AS_THEY_ARE else plain.float()


def _is_readable(tensor: Tensor) -> bool:
    lazy = is_lazy(tensor)
    strange = tensor.is_nested or tensor.is_quantized or tensor.layout != torch.strided
    return not (lazy or strange or tensor.is_meta or hasattr(tensor, "__tensor_flatten__"))


def _kind(tensor: Tensor) -> bytes:
    lazy = is_lazy(tensor)
    return repr((None if lazy or tensor.is_nested else tuple(tensor.shape), tensor.dtype)).encode()


def _pieces(tensor: Tensor) -> list[Tensor]:
    """What is hashed of a tensor, as bytes on its own device."""
    if hasattr(tensor, "__tensor_flatten__"):  # made of others: what quantisation leaves behind
        inner, _ = tensor.__tensor_flatten__()
        return [piece for name in inner for piece in _pieces(getattr(tensor, name))]
    if tensor.is_quantized:
        return _pieces(tensor.dequantize())
    if not _is_readable(tensor) or not tensor.numel():
        return []
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
    rows = len(flat) // (8 * _WORDS)
    table, rest = flat[: rows * 8 * _WORDS], flat[rows * 8 * _WORDS :]
    return [_mixed(table, rows).view(torch.uint8), rest] if rows else [rest]


def _each_apart(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The pieces of each tensor; large models in as many threads as PyTorch itself would take."""
    threads = torch.get_num_threads()
    size = sum(tensor.nbytes for tensor in tensors if _is_readable(tensor))
    if threads == 1 or size < _MANY_BYTES or any(tensor.is_cuda for tensor in tensors):
        return [_pieces(tensor) for tensor in tensors]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(_pieces, tensors))


def _mixed(table: Tensor, rows: int) -> Tensor:
    """A number for each row of a table of words, which follows what stands in which place.

    Each word is added to its column's key and the sum is multiplied by its own upper half (as in
    the hash family NH): signs, powers of two and numbers that change places would leave plain sums
    as they are. Integers wrap in the same way on every device.
    """
    if table.device.type == "cpu":  # NumPy is several times as fast with integers there
        return torch.from_numpy(_mixed_by_numpy(table.numpy().view(np.uint64).reshape(rows, -1)))
    aligned = table if table.storage_offset() % 8 == 0 else table.clone()
    return _mixed_by_torch(aligned.view(torch.int64).view(rows, _WORDS))


def _mixed_by_numpy(words: "np.ndarray[Any, np.dtype[np.uint64]]") -> Any:
    """Some rows at a time, which fit into the processor's cache."""
    found = np.empty(len(words), np.uint64)
    keyed = np.empty((_ROWS_AT_ONCE, _WORDS), np.uint64)
    upper = np.empty_like(keyed)
    for first in range(0, len(words), _ROWS_AT_ONCE):
        some = words[first : first + _ROWS_AT_ONCE]
        t, high = keyed[: len(some)], upper[: len(some)]
        np.add(some, _KEY_ROWS[: len(some)], out=t)
        np.right_shift(t, np.uint64(32), out=high)
        np.multiply(t, high, out=t)  # and a sum: together quicker than einsum with integers
        np.add.reduce(t, axis=1, out=found[first : first + len(some)])
    return found.view(np.int64)


def _mixed_by_torch(words: Tensor) -> Tensor:
    """The same where integers have a sign, which a shift would spread."""
    keys = torch.from_numpy(_KEYS.view(np.int64).copy()).to(words.device)
    found = []
    for some in words.split(64 * _ROWS_AT_ONCE):
        keyed = some + keys
        found.append((keyed * ((keyed >> 32) & 0xFFFFFFFF)).sum(1))
    return torch.cat(found)


def _on_host(pieces: Sequence[Sequence[Tensor]]) -> list[list[bytes]]:
    """All pieces as bytes, with one copy from each device: a copy waits for everything before."""
    by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
    for piece in _flat(pieces):
        by_device[piece.device].append(piece)
    taken = {device: iter(_copied(some, device)) for device, some in by_device.items()}
    return [[next(taken[piece.device]) for piece in some] for some in pieces]


def _copied(pieces: Sequence[Tensor], device: torch.device) -> Iterator[bytes]:
    if device.type == "cpu":
        yield from (piece.numpy().tobytes() for piece in pieces)
        return
    whole, start = torch.cat(list(pieces)).cpu().numpy(), 0
    for piece in pieces:
        yield whole[start : start + len(piece)].tobytes()
        start += len(piece)


def _flat(pieces: Iterable[Sequence[Tensor]]) -> Iterator[Tensor]:
    for some in pieces:
        yield from some
