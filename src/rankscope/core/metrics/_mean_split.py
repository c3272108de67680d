"""Token matrices with their mean set apart, as operators that are only ever multiplied by vectors.

Near collapse the mean row dominates: ``X = 1cᵀ + R`` with ``σ₁ ≈ √n‖c‖``, and rounding
errors of the size ``ε σ₁`` may exceed all of ``R``. So vectors of tokens are split into a number
along ``e = 1/√n`` and a rest orthogonal to it, vectors of features likewise along ``ĉ = c/‖c‖``:

    X (v_c, v)  = (s v_c,           R(v + v_c ĉ))          with s = √n‖c‖,
    Xᵀ(u_e, u)  = (s u_e + ĉᵀRᵀu,   (I − ĉĉᵀ) Rᵀu).

Derived: ``eᵀX = √n cᵀ`` and ``eᵀR = 0``. The large number ``s`` meets single numbers alone, and
what is rounded in a product with ``R`` is small against ``R``. Products are taken with
``Y = R + 1mᵀ`` for some ``m``: on the side of the tokens ``R = (I − eeᵀ)Y``.
Nothing here synchronises.
"""

from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.metrics._fused import can_fuse
from rankscope.core.shapes import Hidden, TokenMask

PerMatrix = Float[Tensor, "batch"]
Block = Float[Tensor, "batch start entry"]
Image = Float[Tensor, "batch start other"]
Rows = Float[Tensor, "batch feature"]

MIXED_PRODUCTS = hasattr(torch.ops.aten.bmm, "dtype")
"""Whether this PyTorch multiplies bfloat16 matrices into float32 (2.8 and later, on CUDA)."""
_PIECE_BITS = 9  # what rounding to bfloat16 leaves of a number is at most 2⁻⁹ of it
_GRAM_ENTRIES = 2**25


class Split(NamedTuple):
    """Vectors of tokens or of features: numbers along the unit vector, rests orthogonal to it."""

    along: Float[Tensor, "batch start"]
    rest: Block
    pieces: Tensor | None = None
    """Two bfloat16 pieces of what the next product is taken of, if already computed."""


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
        """Rows times the sum of the terms (transposed, if asked), in float32 or better."""
        if self.terms[0].dtype != torch.bfloat16:
            return torch.bmm(vectors, self.terms[0].mT if transposed else self.terms[0])
        high, low = self.piece_product(in_two_pieces(vectors), transposed=transposed).chunk(2, 1)
        return high + low

    def piece_product(self, rows: Tensor, *, transposed: bool) -> Tensor:
        """bfloat16 rows times the sum of bfloat16 terms, in float32."""
        terms = [term.mT if transposed else term for term in self.terms]
        return reduce(torch.add, [_multiply_mixed(rows, term) for term in terms])


def in_two_pieces(numbers: Block) -> Tensor:
    """Numbers as sums of two bfloat16 numbers, sixteen bits in all; the second below the first."""
    high = numbers.bfloat16()
    return torch.cat([high, (numbers - high).bfloat16()], 1)


def _multiply_mixed(rows: Tensor, matrix: Tensor) -> Tensor:
    """bfloat16 times bfloat16 in float32, whatever the user's flags allow float32 products."""
    if rows.is_cuda:
        product: Tensor = torch.bmm(rows, matrix, out_dtype=torch.float32)
        return product
    return torch.bmm(rows.double(), matrix.double()).float()


def in_pieces(x: Tensor) -> bool:
    """Whether products are taken in bfloat16 pieces: on CUDA, of anything but float64."""
    return x.is_cuda and x.dtype != torch.float64 and MIXED_PRODUCTS


def allocate_terms(x: Hidden, states: int, *, pieced: bool) -> tuple[Tensor, ...]:
    """Uninitialised terms for ``states`` states like ``x``, stacked along the first axis."""
    dtype = torch.bfloat16 if pieced else torch.float64
    count = 1 if not pieced or x.dtype == torch.bfloat16 else 2
    shape = (states * x.shape[0], *x.shape[1:])
    return tuple(torch.empty(shape, dtype=dtype, device=x.device) for _ in range(count))


class Moved(NamedTuple):
    """What was taken from matrices, and sums over what is left, up to a power of two for each.

    Sums are partial, each over some tokens or features, as the kernel writes them.
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

    ``center`` is the mean where it is known. It need not be exact: ``assemble`` corrects it.
    """
    if into[0].dtype == torch.bfloat16 and can_fuse(x):
        kernels = import_module("rankscope.core.metrics._spectrum_kernels")  # they load Triton
        return Moved(*kernels.move_mean(x, mask, center, into))
    return move_plainly(x, mask, center, into)


def move_plainly(
    x: Hidden, mask: TokenMask | None, center: Rows | None, into: tuple[Tensor, ...]
) -> Moved:
    """The same without a kernel, in several passes."""
    work = torch.float32 if into[0].dtype == torch.bfloat16 else torch.float64
    if mask is None:
        valid = torch.ones_like(x[..., 0], dtype=work)
        least, most = torch.aminmax(x, dim=-2)
    else:
        outside = ~mask[..., None]
        x, valid = torch.where(outside, x.new_zeros(()), x), mask.to(work)
        least = x.masked_fill(outside, torch.inf).amin(-2)
        most = x.masked_fill(outside, -torch.inf).amax(-2)
    least, most = least.to(work), most.to(work)
    # By a power of two, which loses no digit, and whose inverse is a normal number too.
    size = torch.maximum(most, -least).amax(-1, keepdim=True)
    limit = 125 if work == torch.float32 else 1021
    exponent = (torch.frexp(size).exponent - 1).clamp(-limit, limit)
    scale = 1 / torch.ldexp(torch.ones_like(size), exponent)
    left = x.to(work) * scale[..., None]
    if center is None:
        shift = left.sum(-2) / valid.sum(-1, keepdim=True)
    else:
        shift = center.to(work) * scale
    if x.dtype == into[0].dtype == torch.bfloat16:
        shift = _exact_shift(shift, least * scale, most * scale)
    left = (left - shift[:, None]) * valid[..., None]
    sums, squares = left.sum(-2, keepdim=True), left.square().sum((-2, -1))[:, None]
    for term in into:
        term.copy_(left)
        left = left - term
    return Moved(valid, shift, sums, squares)


def _exact_shift(mean: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """What can be subtracted from a feature's bfloat16 numbers without rounding any of them.

    If all of them lie between half and twice the (rounded) mean, their differences from it are
    bfloat16 numbers again (Sterbenz); otherwise the feature stays as it is. So a matrix near
    collapse is reduced to its residual, and no matrix loses a bit.
    """
    near = mean.bfloat16().to(mean.dtype)
    low, high = torch.minimum(near / 2, near * 2), torch.maximum(near / 2, near * 2)
    return torch.where((least >= low) & (most <= high), near, 0.0)


def assemble(terms: tuple[Tensor, ...], moved: Moved) -> MeanSplit:
    """The matrices as operators, with their exact mean."""
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


@torch.no_grad()
def sum_of_fourth_powers(split: MeanSplit) -> PerMatrix:
    """``Σσ⁴ = ‖XXᵀ‖_F²``, from the smaller Gram matrix of the terms ``Y`` and no decomposition.

    With ``a = Rĉ``, ``XXᵀ`` is ``[[s², s aᵀ], [s a, RRᵀ]]`` in the split basis, and because
    ``R = Y − e(Yᵀe)ᵀ``, ``‖RRᵀ‖_F² = ‖YYᵀ‖_F² − 2‖YYᵀe‖² + ‖Yᵀe‖⁴``. Derived by multiplying out;
    the last two are large only where ``s`` is.
    """
    mean = split.product(split.e[:, None], transposed=False)
    both = split.product(torch.cat([mean, split.c[:, None]], 1), transposed=True)
    onto, along = both[:, 0].square().sum(-1), both[:, 1]
    a = along - (along * split.e).sum(-1, keepdim=True) * split.e
    rest = _gram_energy(split.terms) - 2 * onto + mean[:, 0].square().sum(-1).square()
    coupling = split.s.square() * a.square().sum(-1)
    return split.s.square().square() + 2 * coupling + rest.clamp(min=0)


def _gram_energy(terms: tuple[Tensor, ...]) -> PerMatrix:
    """``‖YYᵀ‖_F²``, a few matrices at a time so that little memory is needed."""
    if terms[0].shape[-2] > terms[0].shape[-1]:
        terms = tuple(term.mT for term in terms)
    some = max(1, _GRAM_ENTRIES // terms[0].shape[-2] ** 2)
    energies = []
    for high, *lower in zip(*(term.split(some) for term in terms), strict=True):
        multiply = _multiply_mixed if high.dtype == torch.bfloat16 else torch.bmm
        gram = multiply(high, high.mT)
        for low in lower:
            mixed = _multiply_mixed(high, low.mT)
            gram = gram + mixed + mixed.mT
        energies.append(torch.linalg.vector_norm(gram.flatten(1), dim=-1).square())
    return torch.cat(energies)
