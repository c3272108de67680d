"""What ``predict`` is given: tokens or their Gram matrix, checked and in coordinates."""

import torch
from torch import Tensor

from rankscope.core.checks import finite, real, valid_mask
from rankscope.core.network import Spec
from rankscope.core.prediction._coordinates import Coordinates, coordinates, from_kernel
from rankscope.errors import InputError, ShapeError

_NEGLIGIBLE = 1e-6
"""Parts of a Gram matrix that may be rounding."""


def as_tokens(
    spec: Spec, x: Tensor | None, kernel: Tensor | None, token_mask: Tensor | None
) -> tuple[Coordinates, Tensor | None]:
    """The tokens in coordinates, by sample, and their mask."""
    if (x is None) == (kernel is None):
        raise InputError("give the tokens x, or kernel=, their Gram matrix, and not both.")
    given, name = (x, "x") if kernel is None else (kernel, "kernel")
    assert given is not None  # one of them is
    given = _as_batch(given, name)
    batch, count, last = given.shape
    expected = spec.width if kernel is None else count
    if last != expected:
        raise ShapeError(f"{name} has shape {tuple(given.shape)}, expected (..., {expected}) last.")
    if token_mask is not None:
        by_sample = token_mask if token_mask.ndim > 1 else token_mask.unsqueeze(0)
        token_mask = valid_mask(by_sample.cpu(), (batch, count))
        given = torch.where(token_mask.unsqueeze(-1), given, 0.0)
    if kernel is None:
        return coordinates(given), token_mask
    if token_mask is not None:
        given = torch.where(token_mask.unsqueeze(-2), given, 0.0)
    return from_kernel(_gram(given, spec.width), spec.width), token_mask


def _as_batch(given: Tensor, name: str) -> Tensor:
    """One sample or a batch of them, in float64 on the CPU, where networks are drawn."""
    given = real(given, name=name, axes="(batch, token, feature)", least=2)
    given = given.to("cpu", torch.float64)
    finite(given, name=name)
    if given.ndim not in (2, 3) or 0 in given.shape:
        raise ShapeError(
            f"{name} has shape {tuple(given.shape)}, expected (token, ·) or (batch, token, ·)."
        )
    return given if given.ndim == 3 else given.unsqueeze(0)


def _gram(kernel: Tensor, width: int) -> Tensor:
    """A Gram matrix, which is symmetric and has no negative eigenvalue, or an error."""
    size = kernel.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(kernel.dtype).tiny)
    kernel = kernel / size
    if not torch.allclose(kernel, kernel.mT, rtol=0.0, atol=_NEGLIGIBLE):
        raise InputError("kernel is not symmetric; it is the Gram matrix XXᵀ/width of the tokens.")
    kernel = (kernel + kernel.mT) / 2
    values = torch.linalg.eigvalsh(kernel)
    if bool((values[:, :-width] > _NEGLIGIBLE).any()):
        raise InputError(
            f"kernel has more than {width} eigenvalues above zero, but tokens of {width} features "
            "have no more directions than that."
        )
    if bool((values < -_NEGLIGIBLE).any()):
        least = float((values * size.squeeze(-1)).amin())
        raise InputError(
            f"kernel has an eigenvalue of {least:.3g}; a Gram matrix has none below zero."
        )
    return kernel * size
