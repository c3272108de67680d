"""Sums over singular values from bidiagonal matrices, between proven bounds, with no decomposition.

For ``0 < r < 1``, ``λʳ = (sin πr/π) ∫ eʳˣ λ/(λ + eˣ) dx``; at ``r = ½`` and its derivative there,

    σ = (1/π) ∫ e^{x/2} φ(x) dx,    σ log σ = (1/2π) ∫ x e^{x/2} φ(x) dx,    φ = λ/(λ + eˣ),

and the trapezoidal rule in x with steps of h is off by ``4 e^{−2π²/h}`` at most. For a start
vector, φ is a Stieltjes continued fraction in its ``α²`` and ``β²``: positive numbers alone, so
that nothing cancels and float32 will do. Cut off after ``α`` it is Gauss's rule, cut off before it
is Gauss and Radau's with a node at zero; the truth lies between them (Golub and Meurant 2010,
section 6).

All of it is NumPy, on the host: arrays of ``(node, …)``, so that what is long is contiguous.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

_STEP = 1.25  # the rule is then off by less than 10⁻⁶
NODES: Array = np.arange(-50.0, 30.0 + _STEP, _STEP)
"""Logarithms of eigenvalues relative to ``‖X‖_F²``: from σ of e⁻²⁵, to a tail past the largest."""
LEVELS: Array = np.exp(NODES)
PLAIN: Array = _STEP * np.exp(NODES / 2) / np.pi
"""What φ at every node counts for in ``Σσ``."""
MIXED: Array = PLAIN * NODES / 2
"""What φ at every node counts for in ``Σσ log σ``."""


class Fractions(NamedTuple):
    """Lower and upper bounds of φ at every node, ``(node, start)``."""

    low: Single
    high: Single


def fractions(alpha: Array, beta: Array) -> Fractions:
    """φ of unit starts, from the diagonals ``(start, step)`` relative to ``‖X‖_F``."""
    a, b = (np.square(each).T.astype(np.float32, order="C") for each in (alpha, beta))
    t = LEVELS.astype(np.float32)[:, None]
    return Fractions(*(_fraction(a, b, t, end) for end in (np.zeros_like(a[-1]), a[-1])))


def _fraction(a: Single, b: Single, t: Single, end: Single) -> Single:
    """``α₁²/(t D₁ + α₁²)`` with ``D_j = 1 + β_j²/y_{j+1}`` and ``y_j = t + α_j²/D_j``."""
    if len(a) == 1:
        return end / (t + end)
    y = t + end
    for step in range(len(a) - 2, 0, -1):
        np.divide(b[step], y, out=y)
        y += 1
        np.divide(a[step], y, out=y)
        y += t
    # y₁ = t + α₁²/D₁, so that φ = (y₁ − t)/y₁; written so that small parts keep their digits.
    np.divide(b[0], y, out=y)
    y += 1
    y *= t
    y += a[0]
    np.divide(a[0], y, out=y)
    return y


def sums(phi: Array | Single) -> tuple[Array, Array]:
    """``S = Σσ`` and ``T = Σσ log σ`` from φ, ``(node, …)``."""
    both = np.stack([PLAIN, MIXED]) @ phi.reshape(len(phi), -1)
    return both[0].reshape(phi.shape[1:]), both[1].reshape(phi.shape[1:])


def entropy(total: Array, mixed: Array) -> Array:
    """``H(σ/Σσ) = log S − T/S``."""
    return np.log(total) - mixed / total


def entropy_change(total: Array, mixed: Array, by_total: Array, by_mixed: Array) -> Array:
    """What small changes of ``S`` and ``T`` change the entropy by: ``((1 + T/S) dS − dT)/S``."""
    return ((1 + mixed / total) * by_total - by_mixed) / total


def entropy_bounds(low: Array, high: Array) -> tuple[Array, Array]:
    """The least and the largest entropy of any φ ``(node, matrix)`` between two others.

    Its derivative by φ changes sign once, at ``x = 2(1 + T/S)``: the largest entropy has ``high``
    to the left of some node and ``low`` to the right, the least the other way round.
    """
    least, most = (entropy(*_switched(*pair)) for pair in ((low, high), (high, low)))
    return least.min(0), most.max(0)


def _switched(left: Array, right: Array) -> tuple[Array, Array]:
    """``S`` and ``T`` of every φ that is ``left`` before some node and ``right`` from there on."""
    found = []
    for weight in (PLAIN[:, None], MIXED[:, None]):
        change = np.cumsum(weight * (left - right), 0)
        found.append((weight * right).sum(0) + np.concatenate([0 * change[:1], change]))
    return found[0], found[1]
