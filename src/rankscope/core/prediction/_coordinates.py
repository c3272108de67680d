"""Tokens in as few coordinates as they need: their inner products are all that matters.

The first coordinate is along the row of ones, because LayerNorm takes that direction away; the
others are any orthonormal ones. Token by token, lengths and inner products stay what they were.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.deep import ScaledTensor, SplitState

Coordinates = Float[Tensor, "batch token _"]
"""Tokens in any number of coordinates."""


def coordinates(x: Coordinates) -> Coordinates:
    """Tokens as they are given, reflected so that the row of ones is the first coordinate."""
    width = x.shape[-1]
    normal = torch.full((width,), 1 / math.sqrt(width), dtype=x.dtype)
    normal[0] -= 1.0
    square = normal.square().sum()
    if square == 0:  # one feature: it is the row of ones already
        return x
    return x - 2 * (x @ normal / square).unsqueeze(-1) * normal


def from_kernel(kernel: Float[Tensor, "batch token token"], width: int) -> Coordinates:
    """Tokens whose Gram matrix ``XXᵀ/width`` this is, if possible none along the row of ones."""
    size = kernel.abs().amax((-2, -1), keepdim=True)
    values, vectors = torch.linalg.eigh(kernel / torch.where(size > 0, size, 1.0))
    roots = values.clamp(min=0.0).sqrt() * size.squeeze(-1).sqrt() * math.sqrt(width)
    kept: Tensor = (vectors * roots.unsqueeze(-2))[..., -width:]
    if kept.shape[-1] == width:  # no direction is left over: the one of least weight is the ones'
        return kept
    return torch.cat((torch.zeros_like(kept[..., :1]), kept), -1)


def compress(x: Coordinates) -> Coordinates:
    """The same tokens in no more coordinates than there are tokens, and one for the ones."""
    return torch.cat((x[..., :1], triangular(x[..., 1:])), -1)


def compress_split(state: SplitState, *, first: int = 1) -> SplitState:
    """The same for a state, whose common row is one token more; the ``first`` columns stay."""
    common, own = state.common, state.deviation
    rows = torch.cat((common.mantissa.unsqueeze(1), own.mantissa), 1)
    rows = torch.cat((rows[..., :first], triangular(rows[..., first:])), -1)
    return SplitState(
        ScaledTensor.of(rows[:, 0], common.log, lost=common.lost),
        ScaledTensor.of(rows[:, 1:], own.log, lost=own.lost),
        state.token_mask,
    )


def triangular(rows: Float[Tensor, "batch row column"]) -> Float[Tensor, "batch row short"]:
    """C with ``CCᵀ = RRᵀ``, as many columns as there are rows, or as R has if these are fewer."""
    if rows.shape[-1] <= rows.shape[-2]:
        return rows
    factor: Tensor = torch.linalg.qr(rows.mT, mode="r").R.mT
    return factor
