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


def gathered(x: Tensor, token_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens in a mask, in their order and at the front, and their mask.

    >>> import torch
    >>> x = torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]])
    >>> gathered(x, torch.tensor([[True, False, True], [False, True, False]]))[0].squeeze(-1)
    tensor([[1., 3.],
            [5., 4.]])

    A network counts positions over real tokens, so their states are the same as with padding
    between them, and cost less.
    """
    most = max(1, int(token_mask.sum(-1).max()))
    order = (~token_mask).sort(stable=True).indices[:, :most]
    index = order.to(x.device).unsqueeze(-1).expand(-1, -1, x.shape[-1])
    return x.gather(1, index), token_mask.gather(1, order)


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
