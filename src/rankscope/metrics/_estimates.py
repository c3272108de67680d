"""Ranks from bidiagonal matrices: values with errors that hold what was not computed."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.display import span
from rankscope.metrics._golub_kahan import Bidiagonal, Starts
from rankscope.metrics._mean_split import PerMatrix
from rankscope.metrics._stieltjes import (
    entropy_bounds,
    entropy_gradient,
    fractions,
    nodes,
)
from rankscope.shapes import PerSample

Array = npt.NDArray[np.float64]

_ROUNDING = 1e-5  # of all that is summed up in float32 or by the trapezoidal rule
_PART = 1e-6  # of a start, squared, that a vector must hold to count as found from it
_CLEAR = 2.0**10  # times the noise: steps that long still point somewhere
_LEADING = 3  # starts whose own values are looked at: the mean's direction and two more
_NORMAL = 2.576  # 99 % of a normal distribution lie within so many standard deviations


class Estimate(NamedTuple):
    """A value, and how far from it the truth lies at most, in at least 95 of 100 draws."""

    value: PerSample
    error: PerSample


class Evidence(NamedTuple):
    """What is known of a batch of matrices when all products are done; few numbers for each.

    ``least`` and ``most`` bound the entropy of ``σ/Σσ`` but for the probes, whose standard error
    is ``spread``. ``alpha`` and ``beta`` are those of the first starts.
    """

    least: PerMatrix
    most: PerMatrix
    spread: PerMatrix
    energy: PerMatrix
    noise: PerMatrix
    fourth: PerMatrix
    overlap: Float[Tensor, "batch leading leading"]
    alpha: Float[Tensor, "batch some step"]
    beta: Float[Tensor, "batch some step"]


class Moments(NamedTuple):
    """Sums of powers of the singular values that are known without probes, and the noise."""

    energy: PerMatrix
    noise: PerMatrix
    fourth: PerMatrix


@torch.no_grad()
def weigh(found: Bidiagonal, starts: Starts, moments: Moments) -> Evidence:
    """From bidiagonal matrices to bounds; on the device, and nothing waits for it."""
    found = _until_done(found, moments.noise)
    low, high = fractions(found, moments.energy)
    chance = starts.probes.shape[0] if starts.by_chance else 0
    fixed = low.shape[1] - chance
    middle = (low[:, fixed:] + high[:, fixed:]) / 2
    low, high, weight = (_summed(each, fixed) for each in (low, high, found.weight.double()))
    low, high = _below_noise(low, high, weight, moments)
    least, most = entropy_bounds(low, high)
    spread = torch.zeros_like(least)
    if chance:
        each = (middle * entropy_gradient((low + high) / 2)[:, None]).sum(-1)
        spread = each.std(-1) / math.sqrt(chance)
    moments = Moments(*(each.double() for each in moments))
    alpha, beta = found.alpha[:, :_LEADING].double(), found.beta[:, :_LEADING].double()
    return Evidence(least, most, spread, *moments, found.overlap, alpha, beta)


def _until_done(found: Bidiagonal, noise: PerMatrix) -> Bidiagonal:
    """Zeros after a start's space is exhausted: from there on steps were divided by noise."""
    level = noise[:, None, None]
    going = (found.beta > level).cumprod(-1).bool()
    began = torch.cat([torch.ones_like(going[..., :1]), going[..., :-1]], -1)
    alpha = torch.where(began, found.alpha, 0.0)
    return found._replace(alpha=alpha, beta=torch.where(going, found.beta, 0.0))


def _summed(parts: Tensor, fixed: int) -> Tensor:
    """The sum over all directions: of the fixed starts, and the mean of the probes."""
    total = parts[:, :fixed].sum(1)
    return total + parts[:, fixed:].mean(1) if parts.shape[1] > fixed else total


def _below_noise(
    low: Tensor, high: Tensor, weight: Tensor, moments: Moments
) -> tuple[Tensor, Tensor]:
    """Bounds that leave open what singular values below the noise really are."""
    energy = moments.energy.double()
    level = moments.noise.double().square() / torch.where(energy > 0, energy, 1.0)
    under = nodes(low).exp() < level[:, None]
    known = torch.where(under, 0.0, low).amax(-1, keepdim=True)
    return torch.where(under, known, low), torch.where(under, weight[:, None], high)


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
        return self._shaped((least + most) / 2, (most - least) / 2 + _rounding(known) * most)

    def stable_rank(self) -> Estimate:
        """``‖X‖_F² / σ₁²``."""
        first, _ = self._largest()
        return self._shaped(*_ratio(self.evidence.energy, first))

    def participation_ratio(self) -> Estimate:
        """``(Σσ²)² / Σσ⁴``, with no error but rounding; NaN if fourth powers were left out."""
        known = self.evidence
        value = known.energy.square() / torch.where(known.fourth > 0, known.fourth, 1.0)
        value = torch.where(known.fourth.isnan(), torch.nan, value)
        return self._shaped(value, value * _rounding(known))

    def spectral_ratio(self) -> Estimate:
        """``σ₂/σ₁``."""
        first, second = self._largest()
        value, error = _ratio(second.value, first, second.error)
        low, high = (value - error).clamp(min=0).sqrt(), (value + error).clamp(max=1).sqrt()
        return self._shaped((low + high) / 2, (high - low) / 2)

    def _shaped(self, value: Tensor, error: Tensor) -> Estimate:
        """Zero matrices have ranks of zero, exactly; those that are not finite have none."""
        energy = self.evidence.energy
        blank = torch.where(energy == 0, 0.0, torch.nan)
        known = energy.isfinite() & (energy > 0)
        value, error = (torch.where(known, each, blank) for each in (value, error))
        return Estimate(value.reshape(self.shape), error.reshape(self.shape))

    def _largest(self) -> tuple[Estimate, Estimate]:
        return largest_squares(self.evidence, whole=self.probes == 0)


def _quantile(freedom: int) -> float:
    """Student's 99 % quantile, by the first terms of its expansion around the normal one."""
    z, n = _NORMAL, freedom
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)


def _ratio(
    part: Tensor, whole: Estimate, part_error: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A quotient of positive numbers, and the error of both."""
    error = torch.zeros_like(part) if part_error is None else part_error
    least = (part - error).clamp(min=0) / _positive(whole.value + whole.error)
    most = (part + error) / _positive(whole.value - whole.error)
    return (least + most) / 2, (most - least) / 2


def _positive(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1.0)


def largest_squares(known: Evidence, *, whole: bool) -> tuple[Estimate, Estimate]:
    """``σ₁²`` and ``σ₂²``: the largest that any of the spaces looked at has shown.

    A space's values lie below the matrix's, one by one (Cauchy's interlacing), and each within its
    residual of one of them. Lanczos from one start sees a value once however often it is repeated;
    the space of the leading starts sees it as often as it is there, but knows no residual, so that
    its second value may be anything up to the first. With ``whole`` it is all of the matrix.
    """
    known = Evidence(*(each.nan_to_num() for each in known))  # NumPy decomposes no NaN
    block = np.linalg.eigvalsh(known.overlap.numpy())[:, ::-1].clip(min=0)
    if whole:
        return _blurred(block[:, 0], 0.0, known), _blurred(block[:, 1], 0.0, known)
    noise = known.noise.numpy()[:, None, None]
    values, slack = _ritz(known.alpha.numpy(), known.beta.numpy(), noise)
    lanczos, first_slack = _best(values, slack)
    first = np.maximum(lanczos, block[:, 0])
    found = _blurred(first, first - lanczos + first_slack, known)
    other = values + slack < (found.value - found.error).numpy()[:, None]
    second, error = _best(np.where(other, values, 0.0), slack)
    repeated = block[:, 1] > second
    error = np.where(repeated, first - block[:, 1], error)
    return found, _blurred(np.where(repeated, block[:, 1], second), error, known)


def _best(values: Array, slack: Array) -> tuple[Array, Array]:
    """The largest of each row, and its slack."""
    best = values.argmax(-1, keepdims=True)
    return np.take_along_axis(values, best, -1)[:, 0], np.take_along_axis(slack, best, -1)[:, 0]


def _blurred(squares: Array, error: Array | float, known: Evidence) -> Estimate:
    """Squares of values that are known up to an error, and to noise and rounding."""
    noise, found = known.noise, torch.from_numpy(squares.copy())
    rounding = 2 * found.sqrt() * noise + noise.square() + _rounding(known) * found
    return Estimate(found, torch.as_tensor(error) + rounding)


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
