"""Edges as sorted numbers ``query · tokens + key``: made from structure, merged, never dense."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Codes = NDArray[np.int64]

_PAIRS_AT_ONCE = 2**22
"""Pairs asked about at a time where a mask has no structure: 32 MiB of positions."""


def span_codes(first: Codes, last: Codes, tokens: int) -> Codes:
    """Row i holds the keys ``first[i] … last[i]``."""
    widths = last - first + 1
    starts = np.arange(tokens) * tokens + first
    before = np.cumsum(widths) - widths
    return np.repeat(starts - before, widths) + np.arange(widths.sum())


def offset_codes(offsets: Codes, tokens: int) -> Codes:
    """Row i holds the keys ``i + offset``, as far as they exist; ``offsets`` are sorted."""
    query = np.arange(tokens)[:, None]
    key = query + offsets
    inside = (key >= 0) & (key < tokens)
    return np.asarray((query * tokens + key)[inside])


def row_codes(keys: Codes, tokens: int) -> Codes:
    """Row i holds the keys ``keys[i]``, in any order, perhaps repeated."""
    return np.asarray(np.unique(np.arange(tokens)[:, None] * tokens + keys))


def merge(parts: Sequence[Codes]) -> Codes:
    """The union of sorted codes; a stable sort merges sorted runs in linear time."""
    every = np.sort(np.concatenate(parts), kind="stable")
    return np.asarray(every[np.diff(every, prepend=-1) > 0])


def find_codes(
    allows_in: Callable[[Tensor, Tensor, Tensor], Tensor], tokens: int
) -> Iterator[Codes]:
    """Every pair asked about, some rows at a time, for masks without a structure to go by."""
    position = torch.arange(tokens)
    for query in position.split(max(1, _PAIRS_AT_ONCE // tokens)):
        allowed = allows_in(query[:, None], position[None, :], torch.tensor(tokens))
        yield np.flatnonzero(allowed.expand(len(query), tokens).numpy()) + int(query[0]) * tokens
