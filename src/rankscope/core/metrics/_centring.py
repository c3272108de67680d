"""Hidden states without their mean, written where they can be multiplied; nothing waits."""

from importlib import import_module
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.metrics._kernels import can_fuse
from rankscope.core.metrics._mean_split import MeanSplit
from rankscope.core.shapes import Hidden, TokenMask

_KERNEL = "rankscope.core.metrics._centring_kernel"  # it loads Triton, so only for a tensor on CUDA
_PIECE_BITS = 9  # what rounding to bfloat16 leaves of a number is at most 2⁻⁹ of it

Rows = Float[Tensor, "batch feature"]


class Moved(NamedTuple):
    """What was taken from matrices, and sums over what is left, up to a power of two for each.

    Sums come in parts, of some tokens or features each; the kernel has no other way to add up.
    """

    valid: Float[Tensor, "batch token"]
    shift: Rows
    sums: Float[Tensor, "batch part feature"]
    squares: Float[Tensor, "batch part"]


@torch.no_grad()
def move_mean(
    x: Hidden, mask: TokenMask | None, center: Rows | None, into: tuple[Tensor, ...]
) -> Moved:
    """Write each matrix into the terms without its mean, or without what is near it.

    ``center`` is the mean where it is known. It need not be exact: ``assemble`` sees what is left.
    """
    if into[0].dtype == torch.bfloat16 and can_fuse(x):
        found: Moved = Moved(*import_module(_KERNEL).move_mean(x, mask, center, into))
        return found
    return move_plainly(x, mask, center, into)


def move_plainly(
    x: Hidden, mask: TokenMask | None, center: Rows | None, into: tuple[Tensor, ...]
) -> Moved:
    """The same without a kernel, in several passes."""
    work = torch.float32 if into[0].dtype == torch.bfloat16 else torch.float64
    if mask is not None:
        x = torch.where(mask[..., None], x, x.new_zeros(()))
    valid = torch.ones_like(x[..., 0], dtype=work) if mask is None else mask.to(work)
    least, most = _extremes(x, mask, work)
    scale = 1 / _power_of_two(torch.maximum(most, -least).amax(-1, keepdim=True))
    left = x.to(work) * scale[..., None]
    shift = _mean(left, valid) if center is None else center.to(work) * scale
    if x.dtype == into[0].dtype == torch.bfloat16:
        shift = _exact_shift(shift, least * scale, most * scale)
    left = (left - shift[:, None]) * valid[..., None]
    sums, squares = left.sum(-2, keepdim=True), left.square().sum((-2, -1))[:, None]
    for term in into:
        term.copy_(left)
        left = left - term
    return Moved(valid, shift, sums, squares)


def assemble(terms: tuple[Tensor, ...], moved: Moved) -> MeanSplit:
    """The matrices as operators: with the mean that they really have."""
    count = moved.valid.sum(-1, keepdim=True)
    left = moved.sums.sum(1) / count
    mean = left + moved.shift
    size = torch.linalg.vector_norm(mean, dim=-1)
    s = count[:, 0].sqrt() * size
    squares = moved.squares.sum(-1)
    rest = (squares - count[:, 0] * left.square().sum(-1)).clamp(min=0)
    bits = 2 * _PIECE_BITS if terms[0].dtype == torch.bfloat16 else 50
    return MeanSplit(
        terms,
        e=moved.valid / count.sqrt(),
        c=mean / torch.where(size > 0, size, 1.0)[:, None],
        s=s,
        energy=s.square() + rest,
        noise=squares.sqrt() * 2.0**-bits,
    )


def _mean(x: Hidden, valid: Tensor) -> Rows:
    return x.sum(-2) / valid.sum(-1, keepdim=True)


def _extremes(x: Hidden, mask: TokenMask | None, work: torch.dtype) -> tuple[Tensor, Tensor]:
    """The least and the largest number of every feature, over the tokens."""
    if mask is None:
        least, most = torch.aminmax(x, dim=-2)
    else:
        outside = ~mask[..., None]
        least = x.masked_fill(outside, torch.inf).amin(-2)
        most = x.masked_fill(outside, -torch.inf).amax(-2)
    return least.to(work), most.to(work)


def _power_of_two(size: Tensor) -> Tensor:
    """The power of two below a size, so that dividing by it loses no digit.

    It is kept where its inverse is a normal number too: ends of the range are near enough.
    """
    most = 125 if size.dtype == torch.float32 else 1021
    exponent = (torch.frexp(size).exponent - 1).clamp(-most, most)
    return torch.ldexp(torch.ones_like(size), exponent)


def _exact_shift(mean: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """What can be subtracted from a feature's bfloat16 numbers without rounding any of them.

    If all of them lie between half and twice the (rounded) mean, their differences from it are
    bfloat16 numbers again (Sterbenz); otherwise the feature stays as it is. So a matrix near
    collapse comes down to what is left of it, and no matrix loses a bit.
    """
    near = mean.bfloat16().to(mean.dtype)
    low, high = torch.minimum(near / 2, near * 2), torch.maximum(near / 2, near * 2)
    return torch.where((least >= low) & (most <= high), near, 0.0)
