"""Triton kernels that read all tensors of a model for their digests: each byte once.

What is computed is defined in ``weights``: a word for each row of 1,024 words, and the bytes that
are left over.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

_WORDS = tl.constexpr(1024)
_ROW_BYTES = 8 * 1024
_ROWS_AT_ONCE = 16
"""Rows that one program reads, one after another."""


@triton.jit
def mix_rows(addresses, counts, starts, keys, mixed):
    """A word for each row of some rows of one tensor."""
    part = tl.program_id(0)
    words = tl.load(addresses + part).to(tl.pointer_type(tl.int64))
    out = mixed + tl.load(starts + part)
    column = tl.arange(0, _WORDS)
    key = tl.load(keys + column)
    for row in range(tl.load(counts + part)):
        keyed = tl.load(words + row * _WORDS + column) + key
        tl.store(out + row, tl.sum(keyed * ((keyed >> 32) & 0xFFFFFFFF), 0))


@triton.jit
def copy_rests(addresses, counts, starts, out, BYTES: tl.constexpr):
    """The bytes after the last whole row of one tensor."""
    part = tl.program_id(0)
    source = tl.load(addresses + part).to(tl.pointer_type(tl.uint8))
    byte = tl.arange(0, BYTES)
    inside = byte < tl.load(counts + part)
    values = tl.load(source + byte, mask=inside, other=0)
    tl.store(out + tl.load(starts + part) + byte, values, mask=inside)


def begin(tensors: Sequence[Tensor], keys: Tensor) -> Callable[[], list[bytes]]:
    """Start both kernels on tensors of one device; the returned function waits for the bytes."""
    device = keys.device
    address = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
    size = np.array([tensor.nbytes for tensor in tensors], np.int64)
    rows, rest = size // _ROW_BYTES, size % _ROW_BYTES
    owner, first, count = divide(rows)
    row_ends, rest_ends = rows.cumsum(), rest.cumsum()
    begins = address[owner] + first * _ROW_BYTES
    of_rows = _sent(begins, count, (row_ends - rows)[owner] + first, device=device)
    of_rests = _sent(address + rows * _ROW_BYTES, rest, rest_ends - rest, device=device)
    mixed = torch.empty(int(row_ends[-1]), dtype=torch.int64, device=device)
    rests = torch.empty(int(rest_ends[-1]), dtype=torch.uint8, device=device)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        if len(owner):
            mix_rows[(len(owner),)](*of_rows, keys, mixed, num_warps=4)
        if len(rests):
            copy_rests[(len(tensors),)](*of_rests, rests, BYTES=_ROW_BYTES, num_warps=4)

    def finish() -> list[bytes]:
        words, bytes_left = mixed.cpu().numpy(), rests.cpu().numpy()
        ends = zip(row_ends - rows, row_ends, rest_ends - rest, rest_ends, strict=True)
        return [
            words[start:end].tobytes() + bytes_left[rest_start:rest_end].tobytes()
            for start, end, rest_start, rest_end in ends
        ]

    return finish


def divide(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The parts of the rows of each tensor: its number, its first row there, how many it has."""
    parts = -(-rows // _ROWS_AT_ONCE)
    owner = np.repeat(np.arange(len(rows)), parts)
    first = (np.arange(len(owner)) - np.repeat(parts.cumsum() - parts, parts)) * _ROWS_AT_ONCE
    return owner, first, np.minimum(rows[owner] - first, _ROWS_AT_ONCE)


def _sent(*columns: np.ndarray, device: torch.device) -> Tensor:
    """Numbers for a kernel, copied without waiting."""
    table = torch.from_numpy(np.stack(columns))
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table
