"""Token matrices with their mean set apart, as operators that are only ever multiplied by vectors.

Near collapse the mean row is all there is to see: ``X = 1cᵀ + R`` with ``σ₁ ≈ √n‖c‖``, and rounding
errors of the size ``ε σ₁`` may exceed all of ``R``. So vectors of tokens are split into a number
along ``e = 1/√n`` and a rest orthogonal to it, vectors of features likewise along ``ĉ = c/‖c‖``:

    X (v_c, v)  = (s v_c,           R(v + v_c ĉ))          with s = √n‖c‖,
    Xᵀ(u_e, u)  = (s u_e + ĉᵀRᵀu,   (I − ĉĉᵀ) Rᵀu).

Derived: ``eᵀX = √n cᵀ`` and ``eᵀR = 0``. The large number ``s`` meets single numbers alone, and
what is rounded in a product with ``R`` is small against ``R``. Products are taken with
``Y = R + 1mᵀ`` for some ``m``: on the side of the tokens ``R = (I − eeᵀ)Y``.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.shapes import Hidden

PerMatrix = Float[Tensor, "batch"]
Block = Float[Tensor, "batch start entry"]
Image = Float[Tensor, "batch start other"]

MIXED_PRODUCTS = hasattr(torch.ops.aten.bmm, "dtype")
"""Whether this PyTorch multiplies bfloat16 matrices into float32 (2.8 and later, on CUDA)."""


class Side(NamedTuple):
    """Vectors of tokens or of features: numbers along the unit vector, rests orthogonal to it."""

    along: Float[Tensor, "batch start"]
    rest: Block
    pieces: Tensor | None = None
    """Two bfloat16 pieces of what the next product is taken of, where they are at hand."""


@dataclass(frozen=True)
class MeanSplit:
    """A batch of token matrices ``X = Σ terms + 1·shiftᵀ``, up to a power of two for each.

    ``terms`` are float64, or bfloat16 matrices whose sum is exact or nearly so. ``noise`` is the
    size from which on a singular value is more than rounding, ``energy`` is ``‖X‖_F²``.
    """

    terms: tuple[Tensor, ...]
    e: Float[Tensor, "batch token"]
    c: Float[Tensor, "batch feature"]
    s: PerMatrix
    energy: PerMatrix
    noise: PerMatrix

    @property
    def wide(self) -> bool:
        """Whether there are no more tokens than features: then tokens are the smaller side."""
        return self.e.shape[-1] <= self.c.shape[-1]

    def product(self, vectors: Block, *, transposed: bool) -> Image:
        """The sum of the terms (transposed, if asked) from the right onto rows."""
        return multiply_terms(self.terms, vectors, transposed=transposed)


def multiply_terms(terms: tuple[Tensor, ...], vectors: Block, *, transposed: bool) -> Image:
    """Rows times the sum of the terms, with float32 or better for every product."""
    if terms[0].dtype != torch.bfloat16:
        return torch.bmm(vectors, terms[0].mT if transposed else terms[0])
    rows = torch.cat(pieces(vectors, 2), 1)
    high, low = multiply_pieces(terms, rows, transposed=transposed).chunk(2, 1)
    return high + low


def multiply_pieces(terms: tuple[Tensor, ...], rows: Tensor, *, transposed: bool) -> Tensor:
    """bfloat16 rows times the sum of bfloat16 terms, in float32."""
    return sum_of([multiply_mixed(rows, term.mT if transposed else term) for term in terms])


def pieces(numbers: Tensor, count: int) -> list[Tensor]:
    """Numbers as a sum of bfloat16 numbers; each further piece adds eight bits."""
    found = []
    for _ in range(count):
        found.append(numbers.bfloat16())
        numbers = numbers - found[-1]
    return found


def multiply_mixed(rows: Tensor, matrix: Tensor) -> Tensor:
    """bfloat16 times bfloat16 in float32, whatever the user's flags allow float32 products."""
    if rows.is_cuda:
        found: Tensor = torch.bmm(rows, matrix, out_dtype=torch.float32)
        return found
    return torch.bmm(rows.double(), matrix.double()).float()


def sum_of(tensors: list[Tensor]) -> Tensor:
    """The sum of one tensor or several of one shape."""
    total = tensors[0]
    for each in tensors[1:]:
        total = total + each
    return total


def in_pieces(x: Tensor) -> bool:
    """Whether products are taken in bfloat16 pieces: on CUDA, of anything but float64."""
    return x.is_cuda and x.dtype != torch.float64 and MIXED_PRODUCTS


def room_for(x: Hidden, states: int, *, pieced: bool) -> tuple[Tensor, ...]:
    """Empty terms for so many states like ``x``, one after the other along the first axis."""
    dtype = torch.bfloat16 if pieced else torch.float64
    count = 1 if not pieced or x.dtype == torch.bfloat16 else 2
    shape = (states * x.shape[0], *x.shape[1:])
    return tuple(torch.empty(shape, dtype=dtype, device=x.device) for _ in range(count))
