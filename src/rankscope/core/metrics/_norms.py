"""The matrix norms of docs/theory.md, section 1, each defined once."""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import real
from rankscope.core.metrics._spectrum import svdvals, unit_scale
from rankscope.core.shapes import PerSample
from rankscope.errors import InputError

_SMALL, _LARGE = 1e-12, 1e15
Norm = Literal["composite", "one", "inf", "fro", "spectral"]


@checked
def matrix_norm(m: Float[Tensor, "*batch row column"], norm: Norm) -> PerSample:
    """The norms of docs/theory.md, section 1; the composite one is ``√(‖m‖₁ ‖m‖∞)``."""
    real(m, name="m", axes="(..., row, column)", least=2)
    match norm:
        case "one":
            return m.abs().sum(-2).amax(-1)
        case "inf":
            return m.abs().sum(-1).amax(-1)
        case "composite":
            size = m.abs()  # two roots, so that a product of large sums cannot overflow
            return _sqrt(size.sum(-2).amax(-1)) * _sqrt(size.sum(-1).amax(-1))
        case "fro":
            return _frobenius(m)
        case "spectral":
            return _spectral(m)
        case _:
            raise InputError(f"norm={norm!r} is unknown; choose {', '.join(get_args(Norm))}.")


def _spectral(m: Float[Tensor, "*batch row column"]) -> PerSample:
    """The largest singular value; infinite where an entry is, which no decomposition takes."""
    size, scale = unit_scale(m)
    fits = torch.isfinite(size).flatten(-2).all(-1)
    size = torch.where(fits[..., None, None], size, size.new_zeros(()))
    return torch.where(fits, scale * svdvals(size)[..., 0], torch.inf)


def _frobenius(m: Float[Tensor, "*batch row column"]) -> PerSample:
    """Scaled by the largest entry only where squares might overflow or vanish: that costs."""
    size: PerSample = torch.linalg.vector_norm(m.flatten(-2), dim=-1)
    if bool(((size > _SMALL) & (size < _LARGE)).all()):
        return size
    scaled, scale = unit_scale(m)
    return scale * _sqrt(scaled.square().flatten(-2).sum(-1))


def _sqrt(value: Tensor) -> Tensor:
    """A square root whose gradient at zero is zero instead of NaN."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0).sqrt(), value)
