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

from rankscope.shapes import Hidden, TokenMask

PerMatrix = Float[Tensor, "batch"]
Block = Float[Tensor, "batch start entry"]
Image = Float[Tensor, "batch start other"]

MIXED_PRODUCTS = hasattr(torch.ops.aten.bmm, "dtype")
"""Whether this PyTorch multiplies bfloat16 matrices into float32 (2.8 and later, on CUDA)."""
_GRAM_ENTRIES = 2**25
_PIECE_BITS = 9  # what rounding to bfloat16 leaves of a number is at most 2⁻⁹ of it


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
    return sum_of([_mixed(rows, term.mT if transposed else term) for term in terms])


def pieces(numbers: Tensor, count: int) -> list[Tensor]:
    """Numbers as a sum of bfloat16 numbers; each further piece adds eight bits."""
    found = []
    for _ in range(count):
        found.append(numbers.bfloat16())
        numbers = numbers - found[-1]
    return found


def _mixed(rows: Tensor, matrix: Tensor) -> Tensor:
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


@torch.no_grad()
def split_mean(x: Hidden, mask: TokenMask | None, into: tuple[Tensor, ...]) -> MeanSplit:
    """Set the mean of each matrix apart and write what is left into the terms; nothing waits."""
    pieced = into[0].dtype == torch.bfloat16
    work = torch.float32 if pieced else torch.float64
    if mask is not None:
        x = torch.where(mask[..., None], x, x.new_zeros(()))
    valid = torch.ones_like(x[..., 0], dtype=work) if mask is None else mask.to(work)
    count = valid.sum(-1, keepdim=True)
    least, most = _extremes(x, mask, work)
    unit = _power_of_two(torch.maximum(most, -least).amax(-1, keepdim=True))
    # Divided first where sums may be too large for the format; a power of two costs nothing.
    mean = unit * (x / unit[..., None]).mean(-2) if work == x.dtype else x.sum(-2, dtype=work)
    mean = mean * (x.shape[-2] / count if work == x.dtype else 1 / count)
    if pieced and x.dtype == torch.bfloat16:
        mean = _exact_shift(mean, least, most)
    _write_terms(x, mask, mean, unit, into)
    return _finish(into, valid, count, mean / unit)


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
    """A power of two near a size, 1 for zero: dividing by it loses no digit."""
    exponent = torch.frexp(size).exponent
    return torch.where(size > 0, torch.ldexp(torch.ones_like(size), exponent), 1.0)


def _exact_shift(mean: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """What can be subtracted from a feature's bfloat16 numbers without rounding any of them.

    If all of them lie between half and twice the (rounded) mean, their differences from it are
    bfloat16 numbers again (Sterbenz); otherwise the feature stays as it is. So a matrix near
    collapse comes down to what is left of it, and no matrix loses a bit.
    """
    near = mean.bfloat16().to(mean.dtype)
    low, high = torch.minimum(near / 2, near * 2), torch.maximum(near / 2, near * 2)
    return torch.where((least >= low) & (most <= high), near, 0.0)


def _write_terms(
    x: Hidden, mask: TokenMask | None, shift: Tensor, unit: Tensor, into: tuple[Tensor, ...]
) -> None:
    """``(x − shift)/unit``, in one pass where nothing is rounded anyway."""
    scale = 1 / unit[..., None]
    if x.dtype == into[0].dtype == torch.bfloat16 and mask is None:
        torch.addcmul((-shift[:, None] * scale).to(x.dtype), x, scale.to(x.dtype), out=into[0])
        return
    moved = (x.to(shift.dtype) - shift[:, None]) * scale
    if mask is not None:
        moved = torch.where(mask[..., None], moved, moved.new_zeros(()))
    for term in into:
        term.copy_(moved)
        moved = moved - term


def _finish(terms: tuple[Tensor, ...], valid: Tensor, count: Tensor, shift: Tensor) -> MeanSplit:
    e = valid / count.sqrt()
    left = multiply_terms(terms, e[:, None], transposed=False)[:, 0] / count.sqrt()
    mean = left + shift
    size = torch.linalg.vector_norm(mean, dim=-1)
    c = mean / torch.where(size > 0, size, 1.0)[:, None]
    s = count[:, 0].sqrt() * size
    moved = _frobenius(terms, s.dtype)
    rest = (moved.square() - count[:, 0] * left.square().sum(-1)).clamp(min=0)
    energy = s.square() + rest
    bits = 2 * _PIECE_BITS if terms[0].dtype == torch.bfloat16 else 50
    noise = moved * 2.0**-bits
    return MeanSplit(terms, e, c, s, energy, noise)


def _frobenius(terms: tuple[Tensor, ...], dtype: torch.dtype) -> PerMatrix:
    whole = terms[0] if len(terms) == 1 else sum_of([term.to(dtype) for term in terms])
    size: PerMatrix = torch.linalg.vector_norm(whole.flatten(1), dim=-1, dtype=dtype)
    return size


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
    found = []
    for part in zip(*(term.split(some) for term in terms), strict=True):
        if part[0].dtype != torch.bfloat16:
            gram = torch.bmm(part[0], part[0].mT)
        else:
            gram = _mixed(part[0], part[0].mT)
        for lower in part[1:]:
            mixed = _mixed(part[0], lower.mT)
            gram = gram + mixed + mixed.mT
        found.append(torch.linalg.vector_norm(gram.flatten(1), dim=-1).square())
    return torch.cat(found)
