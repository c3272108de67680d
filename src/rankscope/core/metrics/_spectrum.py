"""Norms, singular values and ranks of the token matrix."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import measurable, number, real, valid_counts
from rankscope.core.shapes import PerSample, Spectrum, Tokens
from rankscope.errors import InputError
from rankscope.numerals import span


@checked
@dataclass(frozen=True, repr=False)
class Spectra:
    """The singular values of a batch, computed once for several ranks.

    >>> import torch
    >>> from rankscope.core.metrics import spectra
    >>> found = spectra(torch.diag(torch.tensor([2.0, 1.0])))
    >>> found.sigma, found.stable_rank()
    (tensor([2., 1.]), tensor(1.2500))

    ``scaled`` is ``σ/σ₁``, so that powers neither overflow nor vanish (zeros for a zero matrix);
    ``noise`` is the fraction of ``σ₁`` below which a value is rounding error of the dtype.
    """

    sigma: Spectrum
    scaled: Spectrum
    noise: PerSample

    def __repr__(self) -> str:
        sizes = span(self.sigma[..., 0].detach().flatten().tolist())
        return f"Spectra: singular values {tuple(self.sigma.shape)}, the largest {sizes}"

    def numerical_rank(self, rtol: float | None = None) -> Int[Tensor, "*batch"]:
        """The number of values above ``rtol`` (by default the noise) times the largest."""
        threshold = self.noise
        if rtol is not None:
            most = torch.finfo(threshold.dtype).max
            threshold = torch.full_like(threshold, min(number("rtol", rtol, least=0), most))
        return (self.scaled > threshold.unsqueeze(-1)).sum(-1)

    def stable_rank(self) -> PerSample:
        """``Σσ² / σ₁²``."""
        return self.scaled.square().sum(-1)

    def effective_rank(self) -> PerSample:
        """``exp H(σ/Σσ)``."""
        total = self.scaled.sum(-1, keepdim=True)
        p = self.scaled / torch.where(total > 0, total, 1.0)
        # p log p → 0 as p → 0; the inner where keeps the logarithm's gradient finite there.
        entropy = -(p * torch.where(p > 0, p, 1.0).log()).sum(-1)
        return torch.where(total[..., 0] > 0, entropy.exp(), 0.0)

    def participation_ratio(self) -> PerSample:
        """``(Σσ²)² / Σσ⁴``."""
        energy = self.scaled.square()
        fourth = energy.square().sum(-1)
        return energy.sum(-1).square() / torch.where(fourth > 0, fourth, 1.0)

    def spectral_ratio(self) -> PerSample:
        """``σ₂/σ₁``."""
        return second(self.scaled)


@checked
def spectra(x: Tensor, *, token_mask: Tensor | None = None) -> Spectra:
    """Decompose each sample's token matrix once; the ranks are methods of the result.

    >>> import torch
    >>> from rankscope.core.metrics import spectra
    >>> spectra(torch.eye(3)).numerical_rank()
    tensor(3)
    """
    tokens, token_mask = measurable(x, token_mask)
    if _can_square(tokens):
        sigma, scale = _by_squares(tokens), tokens.new_ones(())
    else:
        scaled, scale = unit_scale(tokens)
        sigma, scale = svdvals(scaled), scale.unsqueeze(-1)
    first = sigma[..., :1]
    longest = valid_counts(tokens, token_mask).clamp(min=tokens.shape[-1])
    return Spectra(
        (sigma * scale).to(tokens.dtype),
        (sigma / torch.where(first > 0, first, 1.0)).to(tokens.dtype),
        longest * torch.finfo(x.dtype).eps,  # of the dtype the values came in, not of the upcast
    )


@checked
def singular_values(x: Tensor, *, token_mask: Tensor | None = None) -> Spectrum:
    """Singular values of each sample's token matrix, largest first.

    >>> singular_values(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor([4., 3.])

    There are ``min(token, feature)`` of them; padding adds zeros at the end and changes no other.
    """
    return spectra(x, token_mask=token_mask).sigma


@checked
def numerical_rank(
    x: Tensor, *, rtol: float | None = None, token_mask: Tensor | None = None
) -> Int[Tensor, "*batch"]:
    """How many singular values exceed ``rtol`` times the largest; a zero matrix has rank 0.

    >>> numerical_rank(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))
    tensor(1)

    The default ``rtol`` is NumPy's, ``max(tokens, features)`` times the machine epsilon of the
    dtype the values came in: what lies below is the number format's noise, not rank.
    """
    if rtol is not None and not 0 <= rtol < 1:
        raise InputError(f"rtol={rtol} is out of range; expected 0 <= rtol < 1.")
    return spectra(x, token_mask=token_mask).numerical_rank(rtol)


@checked
def stable_rank(x: Tensor, *, token_mask: Tensor | None = None) -> PerSample:
    """``‖X‖_F² / ‖X‖₂²``: between 1 and the rank; 0 for a zero matrix.

    >>> stable_rank(torch.eye(3))
    tensor(3.)
    """
    return spectra(x, token_mask=token_mask).stable_rank()


@checked
def effective_rank(x: Tensor, *, token_mask: Tensor | None = None) -> PerSample:
    """``exp`` of the entropy of ``σ/Σσ`` (Roy and Vetterli 2007); 0 for a zero matrix.

    >>> effective_rank(torch.eye(3))
    tensor(3.)
    """
    return spectra(x, token_mask=token_mask).effective_rank()


@checked
def participation_ratio(x: Tensor, *, token_mask: Tensor | None = None) -> PerSample:
    """``(Σσ²)² / Σσ⁴``: how many directions share the energy; 0 for a zero matrix.

    >>> participation_ratio(torch.eye(3))
    tensor(3.)
    """
    return spectra(x, token_mask=token_mask).participation_ratio()


@checked
def spectral_ratio(x: Tensor, *, token_mask: Tensor | None = None) -> PerSample:
    """``σ₂/σ₁``: 0 exactly at rank one, and for a zero matrix.

    >>> spectral_ratio(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor(0.7500)
    """
    return spectra(x, token_mask=token_mask).spectral_ratio()


def svdvals(x: Tokens) -> Spectrum:
    """Singular values of checked matrices.

    With gradients by the plain decomposition: those of the ways below break down at deficient rank,
    exactly where this project looks.
    """
    if _can_square(x):
        return _by_squares(x).to(x.dtype)
    if x.shape[-2] != x.shape[-1] and not (x.requires_grad and torch.is_grad_enabled()):
        # Several times faster for the wide matrices of transformers.
        x = torch.linalg.qr(x if x.shape[-2] > x.shape[-1] else x.mT, mode="r").R
    sigma: Spectrum = torch.linalg.svdvals(x)
    return sigma


def _can_square(x: Tensor) -> bool:
    """Whether float64 has the square of every number, to all its digits, and no gradient flows."""
    plain = x.dtype == torch.float32 and x.device.type in ("cpu", "cuda")
    return plain and not (x.requires_grad and torch.is_grad_enabled())


def _by_squares(x: Tokens) -> Spectrum:
    """Roots of the eigenvalues of ``XXᵀ``, in float64.

    A decomposition in float32 takes half as long again, and what it says of values below 10^−7 of
    the largest is noise; here that begins at 10^−8. Nothing overflows, so nothing is scaled.
    """
    few = (x if x.shape[-2] <= x.shape[-1] else x.mT).double()
    squares: Spectrum = torch.linalg.eigvalsh(few @ few.mT).flip(-1)
    return squares.clamp(min=0).sqrt()


def svdvals_or_nan(x: Tokens) -> Spectrum:
    """Singular values of any matrices, NaN for those that are not finite.

    Nothing is waited for; a decomposition would refuse such matrices in the middle of a pass.
    """
    broken = ~x.isfinite().flatten(-2).all(-1)
    sigma = svdvals(x.masked_fill(broken[..., None, None], 0.0))
    return sigma.masked_fill(broken.unsqueeze(-1), torch.nan)


def unit_scale(m: Tensor) -> tuple[Tensor, Tensor]:
    """``m`` divided so that squares neither overflow nor vanish: by the power of two below its
    largest entry, which changes no digit."""
    largest = m.detach().abs().flatten(-2).amax(-1)  # flat: over two axes it is far slower
    power = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 1)
    scale = torch.where(largest > 0, power, torch.ones_like(largest))
    return m / scale[..., None, None], scale


def second(sigma: Spectrum) -> PerSample:
    """The second value of a spectrum; zero where there is only one."""
    return sigma[..., 1] if sigma.shape[-1] > 1 else torch.zeros_like(sigma[..., 0])


Norm = Literal["composite", "one", "inf", "fro", "spectral"]
_SMALL, _LARGE = 1e-12, 1e15


@checked
def matrix_norm(m: Float[Tensor, "*batch row column"], norm: Norm) -> PerSample:
    """The norms of docs/theory.md, section 1; the composite one is ``√(‖m‖₁ ‖m‖∞)``.

    >>> import torch
    >>> from rankscope.core.metrics import matrix_norm
    >>> matrix_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), "fro")
    tensor(5.)
    """
    wide = real(m, name="m", axes="(..., row, column)", least=2)
    match norm:
        case "one":
            return m.abs().sum(-2).amax(-1)
        case "inf":
            return m.abs().sum(-1).amax(-1)
        case "composite":
            size = m.abs()  # two roots, so that a product of large sums cannot overflow
            return _sqrt(size.sum(-2).amax(-1)) * _sqrt(size.sum(-1).amax(-1))
        case "spectral":  # infinite where an entry is, which no decomposition takes; nor halves
            size, scale = unit_scale(wide)
            fits = torch.isfinite(size).flatten(-2).all(-1)
            size = torch.where(fits[..., None, None], size, size.new_zeros(()))
            return torch.where(fits, scale * svdvals(size)[..., 0], torch.inf).to(m.dtype)
        case "fro":  # scaled only where squares might overflow or vanish: that costs
            length: PerSample = torch.linalg.vector_norm(m.flatten(-2), dim=-1)
            if bool(((length > _SMALL) & (length < _LARGE)).all()):
                return length
            size, scale = unit_scale(m)
            return scale * _sqrt(size.square().flatten(-2).sum(-1))


def _sqrt(value: Tensor) -> Tensor:
    """A square root whose gradient at zero is zero instead of NaN."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0).sqrt(), value)
