"""Half a step of Golub and Kahan's recursion: to the other side, less where one came from."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.metrics._kernels import can_fuse
from rankscope.core.metrics._mean_split import MeanSplit, Side, multiply_pieces, pieces

PerStart = Float[Tensor, "batch start"]

_KERNEL = "rankscope.core.metrics._half_step_kernel"  # loads Triton: only if a tensor needs it


class Way(NamedTuple):
    """From one side to the other: whether by ``X`` or its transpose, and where it leads to."""

    to_tokens: bool

    def arrival(self, matrix: MeanSplit) -> Tensor:
        """The unit vector of the side it leads to."""
        return matrix.e if self.to_tokens else matrix.c


def ways(matrix: MeanSplit) -> tuple[Way, Way]:
    """From the smaller side to the other, and back."""
    return Way(not matrix.wide), Way(matrix.wide)


def step(
    matrix: MeanSplit, way: Way, here: Side, behind: Side | None, factor: PerStart | None
) -> tuple[Side, PerStart]:
    """Unit vectors along ``X here − factor · behind`` (or ``Xᵀ``), and their lengths before."""
    rows = here.rest
    if way.to_tokens:
        rows = torch.addcmul(rows, here.along[..., None], matrix.c[:, None])
    found = matrix.product(rows, transposed=way.to_tokens)
    unit = way.arrival(matrix)[:, None]
    dot = (found * unit).sum(-1)
    rest = torch.addcmul(found, dot[..., None], unit, value=-1)
    along = matrix.s[:, None] * here.along
    along = along if way.to_tokens else along + dot
    if behind is not None and factor is not None:
        rest = torch.addcmul(rest, factor[..., None], behind.rest, value=-1)
        along = along - factor * behind.along
    return normalise(Side(along, rest))


def normalise(side: Side) -> tuple[Side, PerStart]:
    """Unit vectors (zero for zero), and the lengths."""
    length = torch.hypot(side.along, torch.linalg.vector_norm(side.rest, dim=-1))
    safe = torch.where(length > 0, length, math.inf)
    return Side(side.along / safe, side.rest / safe[..., None]), length


def fused_step(
    matrix: MeanSplit, way: Way, here: Side, behind: Side | None, factor: PerStart | None
) -> tuple[Side, PerStart]:
    """The same as ``step`` in two launches; the pieces for the next product come along."""
    kernel = import_module(_KERNEL)
    rows = here.pieces
    if rows is None:
        whole = here.rest
        if way.to_tokens:
            whole = torch.addcmul(whole, here.along[..., None], matrix.c[:, None])
        rows = torch.cat(pieces(whole, 2), 1)
    found = multiply_pieces(matrix.terms, rows, transposed=way.to_tokens)
    unit = way.arrival(matrix)
    side, length = kernel.finish_half_step(
        found, unit, matrix.s, here.along, behind, factor, to_tokens=way.to_tokens
    )
    return side, length


def stepper(matrix: MeanSplit) -> Callable[..., tuple[Side, PerStart]]:
    """The way to take half a step that is quickest for a matrix."""
    term = matrix.terms[0]
    return fused_step if term.dtype == torch.bfloat16 and can_fuse(term) else step
