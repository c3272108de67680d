"""One way to run through more samples than fit at once."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from rankscope.errors import InputError


class Batch(NamedTuple):
    """Some samples, their masks, and the number of the first among all."""

    start: int
    x: Tensor
    token_mask: Tensor | None
    measured: Tensor | None


def batches(
    x: Tensor,
    token_mask: Tensor | None = None,
    measured: Tensor | None = None,
    *,
    size: int,
) -> Iterator[Batch]:
    """Samples, ``size`` at a time; a mask ``(token,)`` belongs to all of them.

    >>> import torch
    >>> [batch.start for batch in batches(torch.zeros(5, 3, 2), size=2)]
    [0, 2, 4]
    """
    if size < 1:
        raise InputError(f"batch_size={size} is out of range; expected 1 or more.")
    if not len(x):
        raise InputError("there is no sample to run; x has no rows.")
    for start in range(0, len(x), size):
        chunk = slice(start, start + size)
        yield Batch(start, x[chunk], _part(token_mask, chunk), _part(measured, chunk))


def _part(mask: Tensor | None, chunk: slice) -> Tensor | None:
    return mask if mask is None or mask.ndim < 2 else mask[chunk]
