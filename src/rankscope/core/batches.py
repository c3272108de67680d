"""Iterate over samples in batches."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from rankscope.core.checks import whole
from rankscope.errors import InputError, ShapeError


class Batch(NamedTuple):
    """Some samples, their masks, and the index of the first."""

    start: int
    x: Tensor
    token_mask: Tensor | None
    measured: Tensor | None


def batches(
    x: Tensor, token_mask: Tensor | None = None, measured: Tensor | None = None, *, size: int
) -> Iterator[Batch]:
    """Samples, ``size`` at a time; a mask ``(token,)`` belongs to all of them."""
    whole("batch_size", size, least=1)
    if not x.ndim:
        raise ShapeError("x has no axis, expected (batch, token, feature).")
    if not len(x):
        raise InputError("x has no samples; expected at least one.")
    for name, mask in (("token_mask", token_mask), ("measured", measured)):
        if mask is not None and mask.ndim > 1 and len(mask) not in (1, len(x)):
            raise ShapeError(
                f"{name} has {len(mask)} rows for {len(x)} samples; expected one per sample."
            )
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        masks = (
            mask if mask is None or mask.ndim < 2 or len(mask) == 1 else mask[rows]
            for mask in (token_mask, measured)
        )
        yield Batch(start, x[rows], *masks)
