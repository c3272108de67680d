"""Ranks from bidiagonal matrices: values with errors that hold what was not computed."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.metrics._evidence import Evidence
from rankscope.core.metrics._mean_split import PerMatrix
from rankscope.core.metrics._stieltjes import Array
from rankscope.core.shapes import PerSample
from rankscope.display import span

_ROUNDING = 1e-5  # of all that is summed up in float32 or by the trapezoidal rule
_PART = 1e-6  # of a start, squared, that a vector must hold to count as found from it
_CLEAR = 2.0**10  # times the noise: steps that long still point somewhere
_SKEW = 1.4
_NORMAL = 2.576  # 99 % of a normal distribution lie within so many standard deviations


class Estimate(NamedTuple):
    """A value, and how far from it the truth lies at most, in at least 95 of 100 draws."""

    value: PerSample
    error: PerSample


@checked
@dataclass(frozen=True, repr=False)
class EstimatedSpectra:
    """What products with a batch of token matrices say of their singular values.

    Every method gives an ``Estimate``: a value and its error, on the CPU in float64. ``shape`` are
    the leading axes; ``probes`` is zero where there was nothing left to chance.
    """

    evidence: Evidence
    shape: tuple[int, ...]
    probes: int

    def __repr__(self) -> str:
        sizes = span(self.effective_rank().value.flatten().tolist())
        return f"EstimatedSpectra: {self.evidence.energy.numel()} matrices, effective ranks {sizes}"

    def effective_rank(self) -> Estimate:
        """``exp H(σ/Σσ)``, by stochastic Lanczos quadrature."""
        known = self.evidence
        around = _quantile(self.probes - 1) * known.spread if self.probes else 0.0
        least, most = (known.least - around).exp(), (known.most + around).exp()
        value = (least + most) / 2
        # Probes seldom meet a direction that stands alone, so that sums are skewed: upwards, errors
        # of a normal distribution would be too small.
        above = (known.most + _SKEW * around).exp() - value
        error = torch.maximum(torch.as_tensor(above), value - least)
        return self._shaped(value, error + _rounding(known) * most)

    def stable_rank(self) -> Estimate:
        """``‖X‖_F² / σ₁²``."""
        energy = self.evidence.energy
        first = largest_square(self.evidence, whole=self.probes == 0)
        least, most = (energy / _positive(first.value + sign * first.error) for sign in (1, -1))
        return self._shaped((least + most) / 2, (most - least) / 2)

    def participation_ratio(self) -> Estimate:
        """``(Σσ²)² / Σσ⁴``, with no error but rounding; NaN if fourth powers were left out."""
        known = self.evidence
        value = known.energy.square() / torch.where(known.fourth > 0, known.fourth, 1.0)
        value = torch.where(known.fourth.isnan(), torch.nan, value)
        return self._shaped(value, value * _rounding(known))

    def _shaped(self, value: Tensor, error: Tensor) -> Estimate:
        """Zero matrices have ranks of zero, exactly; those that are not finite have none."""
        energy = self.evidence.energy
        blank = torch.where(energy == 0, 0.0, torch.nan)
        known = energy.isfinite() & (energy > 0)
        value, error = (torch.where(known, each, blank) for each in (value, error))
        return Estimate(value.reshape(self.shape), error.reshape(self.shape))


def _quantile(freedom: int) -> float:
    """Student's 99 % quantile, by the first terms of its expansion around the normal one."""
    z, n = _NORMAL, freedom
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)


def _positive(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1.0)


def largest_square(known: Evidence, *, whole: bool) -> Estimate:
    """``σ₁²``: the largest that any of the spaces looked at has shown.

    A space's values lie below the matrix's (Cauchy's interlacing), and each within its residual of
    one of them. The space of the leading starts knows no residual, but may have seen more; with
    ``whole`` it is all of the matrix.
    """
    known = Evidence(*(each.nan_to_num() for each in known))  # NumPy decomposes no NaN
    block = np.linalg.eigvalsh(known.overlap.numpy())[:, -1].clip(min=0)
    if whole:
        return _blurred(block, np.zeros_like(block), known)
    noise = known.noise.numpy()[:, None, None]
    values, slack = _ritz(known.alpha.numpy(), known.beta.numpy(), noise)
    best = values.argmax(-1, keepdims=True)
    lanczos, error = (np.take_along_axis(each, best, -1)[:, 0] for each in (values, slack))
    first = np.maximum(lanczos, block)
    return _blurred(first, first - lanczos + error, known)


def _blurred(squares: Array, error: Array, known: Evidence) -> Estimate:
    """Squares of values that are known up to an error, and to noise and rounding."""
    noise, found = known.noise, torch.from_numpy(squares)
    rounding = 2 * found.sqrt() * noise + noise.square() + _rounding(known) * found
    return Estimate(found, torch.from_numpy(error) + rounding)


def _rounding(known: Evidence) -> PerMatrix:
    """What sums and products of numbers of one sign are off by, relative to them."""
    return _ROUNDING + 64 * known.noise / _positive(known.energy.sqrt())


def _ritz(alpha: Array, beta: Array, noise: Array) -> tuple[Array, Array]:
    """Eigenvalues of ``BᵀB`` of all starts of a matrix, and twice the residuals of their vectors.

    A start's matrix ends where a step was divided by little more than noise. Vectors that the start
    has no part in are left out: copies of what was found before, which come up because Lanczos
    vectors do not stay orthogonal (Cullum and Willoughby 1985).
    """
    count = alpha.shape[-1]
    steps = np.arange(count)
    ends = beta <= _CLEAR * noise
    last = np.where(ends.any(-1), ends.argmax(-1), count - 1)[..., None]
    b = np.zeros((*alpha.shape, count))
    b[..., steps, steps] = np.where(steps <= last, alpha, 0.0)
    b[..., steps[:-1], steps[1:]] = np.where(steps < last, beta, 0.0)[..., :-1]
    values, vectors = np.linalg.eigh(np.swapaxes(b, -1, -2) @ b)
    left = np.take_along_axis(alpha * beta, last, -1)
    residual = 2 * left * np.abs(np.take_along_axis(vectors, last[..., None], -2)[..., 0, :])
    values = np.where(vectors[..., 0, :] ** 2 > _PART, values.clip(min=0), 0.0)
    return values.reshape(len(values), -1), residual.reshape(len(values), -1)
