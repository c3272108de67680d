"""From bidiagonal matrices to few numbers for each matrix, with bounds; on the host."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.metrics._golub_kahan import Bidiagonal
from rankscope.core.metrics._mean_split import PerMatrix
from rankscope.core.metrics._stieltjes import (
    LEVELS,
    Array,
    entropy_bounds,
    entropy_change,
    fractions,
    sums,
)

_LEADING = 3  # starts whose own values are looked at: the mean's direction and two more
_AT_ONCE = 2048  # starts whose fractions are taken together: so many stay in a processor's cache


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


def weigh(found: Bidiagonal, moments: Moments, chance: int) -> Evidence:
    """From bidiagonal matrices to bounds; the last ``chance`` starts stand for all they are not.

    All tensors are in float64 and on the CPU. What is not finite comes to NaN, and is no error.
    """
    alpha, beta = _until_done(found.alpha.numpy(), found.beta.numpy(), moments.noise.numpy())
    some = max(1, _AT_ONCE // alpha.shape[1])
    parts = []
    with np.errstate(all="ignore"):
        for at in range(0, len(alpha), some):
            own = slice(at, at + some)
            energy, noise = moments.energy[own].numpy(), moments.noise[own].numpy()
            weight = found.weight[own].numpy()
            parts.append(_entropies(alpha[own], beta[own], weight, energy, noise, chance))
    least, most, spread = (torch.from_numpy(np.concatenate(e)) for e in zip(*parts, strict=True))
    leading = (torch.from_numpy(each[:, :_LEADING]) for each in (alpha, beta))
    return Evidence(least, most, spread, *moments, found.overlap, *leading)


def _until_done(alpha: Array, beta: Array, noise: Array) -> tuple[Array, Array]:
    """Zeros after a start's space is exhausted: from there on steps were divided by noise."""
    going = np.logical_and.accumulate(beta > noise[:, None, None], -1)
    began = np.concatenate([np.ones_like(going[..., :1]), going[..., :-1]], -1)
    return np.where(began, alpha, 0.0), np.where(going, beta, 0.0)


def _entropies(
    alpha: Array, beta: Array, weight: Array, energy: Array, noise: Array, chance: int
) -> tuple[Array, Array, Array]:
    """Bounds of the entropy of each matrix, and the standard error that the probes leave."""
    batch, starts, steps = alpha.shape
    scale = np.sqrt(np.where(energy > 0, energy, 1.0))[:, None, None]
    found = fractions((alpha / scale).reshape(-1, steps), (beta / scale).reshape(-1, steps))
    low, high = (each.reshape(-1, batch, starts) for each in found)
    share = np.ones(starts)
    share[starts - chance :] = 1 / max(chance, 1)
    counts = weight * share
    lower, upper = (np.einsum("nms,ms->nm", each, counts) for each in (low, high))
    level = np.square(noise / scale[:, 0, 0])
    lower, upper = _below_noise(lower, upper, counts.sum(-1), level)
    least, most = entropy_bounds(lower, upper)
    if not chance:
        return least, most, np.zeros_like(least)
    total, mixed = sums((lower + upper) / 2)
    own = [weight[:, -chance:] * each for each in sums(low[..., -chance:] + high[..., -chance:])]
    each = entropy_change(total[:, None], mixed[:, None], own[0] / 2, own[1] / 2)
    return least, most, each.std(-1, ddof=1) / math.sqrt(chance)


def _below_noise(low: Array, high: Array, weight: Array, level: Array) -> tuple[Array, Array]:
    """Bounds that leave open what singular values below the noise really are."""
    under = LEVELS[:, None] < level
    known = np.where(under, 0.0, low).max(0)
    return np.where(under, known, low), np.where(under, weight, high)
