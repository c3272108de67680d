"""Golub and Kahan's bidiagonalisation of many matrices at once, and bounds of entropies from it.

From a unit vector it finds the bidiagonal matrix ``B`` with ``BᵀB`` the Jacobi matrix of the
start's spectral measure under ``XᵀX`` (or ``XXᵀ``), without ever squaring ``X``. Sums over singular
values follow from the bidiagonal matrices, between proven bounds, with no decomposition.

For ``0 < r < 1``, ``λʳ = (sin πr/π) ∫ eʳˣ λ/(λ + eˣ) dx``; at ``r = ½`` and its derivative there,

    σ = (1/π) ∫ e^{x/2} φ(x) dx,    σ log σ = (1/2π) ∫ x e^{x/2} φ(x) dx,    φ = λ/(λ + eˣ),

and the trapezoidal rule in x with steps of h is off by ``4 e^{−2π²/h}`` at most. For a start
vector, φ is a Stieltjes continued fraction in its ``α²`` and ``β²``: positive numbers alone, so
that nothing cancels and float32 will do. Cut off after ``α`` it is Gauss's rule, cut off before it
is Gauss and Radau's with a node at zero; the truth lies between them (Golub and Meurant 2010,
section 6). That part is NumPy, on the host: arrays of ``(node, …)``, so that what is long is
contiguous.
"""

import math
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.metrics._fused import can_fuse
from rankscope.core.metrics._mean_split import Block, MeanSplit, PerMatrix, Split, in_two_pieces
from rankscope.streams import stream

PerStart = Float[Tensor, "batch start"]
Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

_LEAK = 1e-6  # of the random directions stays in the deflated ones, so that they are independent
_LEADING = 3  # starts whose own values are used: the mean's direction and two more
_AT_ONCE = 2048  # starts whose fractions are taken together: that many fit into a processor's cache
_STEP = 1.25  # the rule is then off by less than 10⁻⁶
NODES: Array = np.arange(-50.0, 30.0 + _STEP, _STEP)
"""Logarithms of eigenvalues relative to ``‖X‖_F²``: from σ of e⁻²⁵, to a tail past the largest."""
LEVELS: Array = np.exp(NODES)
PLAIN: Array = _STEP * np.exp(NODES / 2) / np.pi
"""What φ at every node counts for in ``Σσ``."""
MIXED: Array = PLAIN * NODES / 2
"""What φ at every node counts for in ``Σσ log σ``."""


class Starts(NamedTuple):
    """Random numbers for one size: starts of the search for the largest directions, and the probes.

    ``probes`` are all unit vectors where there are few of them: then the result is deterministic.
    """

    seekers: Float[Tensor, "seeker entry"]
    probes: Float[Tensor, "probe entry"]

    @property
    def by_chance(self) -> bool:
        """Whether random probes represent the directions that are not searched."""
        return self.seekers.shape[0] > 0


class Bidiagonal(NamedTuple):
    """Diagonals and upper diagonals; ``weight`` is the square of each start's length.

    ``overlap`` is ``BMBᵀ`` of those starts (rows of B) that span the largest directions, or all.
    ``energy`` and ``fourth`` are sums of powers of the singular values that need no probes.
    """

    alpha: Float[Tensor, "batch start step"]
    beta: Float[Tensor, "batch start step"]
    weight: Float[Tensor, "batch start"]
    overlap: Float[Tensor, "batch leading leading"]
    energy: PerMatrix
    noise: PerMatrix
    fourth: PerMatrix


def draw_starts(
    size: int, device: torch.device, dtype: torch.dtype, seekers: int, probes: int, seed: int
) -> Starts:
    """The starts for matrices whose smaller side is ``size``; the same for all of that size."""
    if size <= seekers + probes:
        every = torch.eye(size, dtype=dtype, device=device)
        return Starts(every[:0], every)
    drawn = _draw(seekers + probes, size, seed, dtype, pinned=device.type == "cuda")
    drawn = drawn.to(device, non_blocking=True)
    return Starts(drawn[:seekers], drawn[seekers:])


@lru_cache(maxsize=16)
def _draw(count: int, size: int, seed: int, dtype: torch.dtype, *, pinned: bool) -> Tensor:
    """Random numbers on the host, cached: drawing them takes longer than using them."""
    generator = stream(seed, "spectrum probes", size)
    drawn = torch.randn(count, size, generator=generator, dtype=torch.float64).to(dtype)
    return drawn.pin_memory() if pinned else drawn


@torch.no_grad()
def bidiagonalise(matrix: MeanSplit, starts: Starts, steps: int, fourth: PerMatrix) -> Bidiagonal:
    """Run ``steps`` steps from the mean's direction, the deflated directions and the probes."""
    forth, back = not matrix.wide, matrix.wide  # from the smaller side to the other, and back
    here, length = normalise(_start_block(matrix, starts))
    there, alpha = step(matrix, here, None, None, to_tokens=forth)
    leading = 1 + (starts.seekers if starts.by_chance else starts.probes).shape[0]
    # Products of the images of the leading starts, in float64 so that it may square them.
    size = (alpha * length)[:, :leading].double()
    along, rest = there.along[:, :leading].double() * size, there.rest[:, :leading].double()
    rest = rest * size[..., None]
    overlap = torch.bmm(rest, rest.mT) + along[..., None] * along[:, None]
    alphas, betas = [alpha], []
    for _ in range(steps - 1):
        here, beta = step(matrix, there, here, alphas[-1], to_tokens=back)
        betas.append(beta)
        there, alpha = step(matrix, here, there, beta, to_tokens=forth)
        alphas.append(alpha)
    betas.append(step(matrix, there, here, alphas[-1], to_tokens=back)[1])
    diagonals = torch.stack(alphas, -1), torch.stack(betas, -1)
    return Bidiagonal(*diagonals, length.square(), overlap, matrix.energy, matrix.noise, fourth)


def _start_block(matrix: MeanSplit, starts: Starts) -> Split:
    """The mean's direction; directions that hold the largest values; probes orthogonal to both."""
    near = matrix.e if matrix.wide else matrix.c
    inside = (matrix.e > 0).to(near.dtype) if matrix.wide else torch.ones_like(near)
    count = starts.seekers.shape[0]
    rows = _without(torch.cat(starts) * inside[:, None], near)
    if starts.by_chance:
        # One step of subspace iteration turns the seekers towards the largest directions.
        seekers, probes = rows[:, :count], rows[:, count:].double()
        block = Split(torch.zeros_like(seekers[..., 0]), seekers)
        there, _ = step(matrix, block, None, None, to_tokens=not matrix.wide)
        turned, _ = step(matrix, there, None, None, to_tokens=matrix.wide)
        basis = _orthonormal(_unit(turned.rest.double()) + _LEAK * _unit(seekers), near)
        probes = torch.baddbmm(probes, torch.bmm(probes, basis.mT), basis, alpha=-1)
        # Points on a sphere, whose radius is such that they stand for all directions left over.
        left = inside.sum(-1) - near.square().sum(-1) - basis.square().sum((-2, -1))
        radius = torch.where(left > 0.5, left, 0.0).sqrt()[:, None, None]
        rows = torch.cat([basis, _unit(probes) * radius], 1).to(near.dtype)
    rest = torch.nn.functional.pad(rows, (0, 0, 1, 0))
    along = torch.zeros_like(rest[..., 0])
    along[:, 0] = 1.0
    return Split(along, rest)


def _orthonormal(rows: Block, direction: Tensor) -> Block:
    """An orthonormal basis of the rows' span beside a direction; zeros where there are too many.

    By two Cholesky factorisations in float64: no library routine, none of which is batched, and
    nothing that waits. Rows are independent by ``_LEAK`` or, where tokens are few, not at all.
    """
    q = _without(rows, _unit(direction.double()[:, None])[:, 0])
    eye = torch.eye(rows.shape[1], dtype=q.dtype, device=q.device)
    for _ in range(2):
        factor = torch.linalg.cholesky_ex(torch.bmm(q, q.mT) + 1e-14 * eye).L
        # The inverse of a small matrix and a product: quicker than solving for long rows.
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
        q = torch.bmm(inverse, q)
        q = torch.where(q.square().sum(-1, keepdim=True) > 0.25, q, 0.0)
    return q


def _without(rows: Block, direction: Tensor) -> Block:
    """Rows less their parts along a direction, of length one or zero."""
    along = (rows * direction[:, None]).sum(-1, keepdim=True)
    return torch.addcmul(rows, along, direction[:, None], value=-1)


def _unit(rows: Block) -> Block:
    size = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / torch.where(size > 0, size, 1.0)


def step(
    matrix: MeanSplit,
    here: Split,
    behind: Split | None,
    factor: PerStart | None,
    *,
    to_tokens: bool,
) -> tuple[Split, PerStart]:
    """Half a step: unit vectors along ``X here − factor · behind``, and their lengths before.

    ``to_tokens`` it is ``X``, otherwise its transpose.
    """
    term = matrix.terms[0]
    take = fused_step if term.dtype == torch.bfloat16 and can_fuse(term) else plain_step
    return take(matrix, here, behind, factor, to_tokens=to_tokens)


def plain_step(
    matrix: MeanSplit,
    here: Split,
    behind: Split | None,
    factor: PerStart | None,
    *,
    to_tokens: bool,
) -> tuple[Split, PerStart]:
    """Half a step by PyTorch alone."""
    product = matrix.product(_with_mean(matrix, here, to_tokens), transposed=to_tokens)
    unit = (matrix.e if to_tokens else matrix.c)[:, None]
    dot = (product * unit).sum(-1)
    rest = torch.addcmul(product, dot[..., None], unit, value=-1)
    along = matrix.s[:, None] * here.along
    along = along if to_tokens else along + dot
    if behind is not None and factor is not None:
        rest = torch.addcmul(rest, factor[..., None], behind.rest, value=-1)
        along = along - factor * behind.along
    return normalise(Split(along, rest))


def fused_step(
    matrix: MeanSplit,
    here: Split,
    behind: Split | None,
    factor: PerStart | None,
    *,
    to_tokens: bool,
) -> tuple[Split, PerStart]:
    """Half a step in two launches; the pieces for the next product come along."""
    rows = here.pieces
    if rows is None:
        rows = in_two_pieces(_with_mean(matrix, here, to_tokens))
    product = matrix.piece_product(rows, transposed=to_tokens)
    unit = matrix.e if to_tokens else matrix.c
    kernels = import_module("rankscope.core.metrics._spectrum_kernels")  # they load Triton
    side, length = kernels.finish_half_step(
        product, unit, matrix.s, here.along, behind, factor, to_tokens=to_tokens
    )
    return side, length


def _with_mean(matrix: MeanSplit, here: Split, to_tokens: bool) -> Block:
    """What is multiplied: ``v + v_c ĉ`` on the way to tokens, ``u`` on the way back."""
    if not to_tokens:
        return here.rest
    return torch.addcmul(here.rest, here.along[..., None], matrix.c[:, None])


def normalise(side: Split) -> tuple[Split, PerStart]:
    """Unit vectors (zero for zero), and the lengths."""
    length = torch.hypot(side.along, torch.linalg.vector_norm(side.rest, dim=-1))
    safe = torch.where(length > 0, length, math.inf)
    return Split(side.along / safe, side.rest / safe[..., None]), length


class SpectralEvidence(NamedTuple):
    """What is known of a batch of matrices when all products are done; few numbers for each.

    >>> import torch
    >>> from rankscope.core.metrics import estimated_spectra
    >>> estimated_spectra(torch.eye(8)[None]).evidence.energy
    tensor([8.], dtype=torch.float64)

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


def weigh(matrices: Bidiagonal, chance: int) -> SpectralEvidence:
    """From bidiagonal matrices to bounds; the last ``chance`` starts stand for all they are not.

    All tensors are in float64 and on the CPU. What is not finite comes to NaN, and is no error.
    """
    alpha, beta, weight, _, energy, noise, _ = (part.numpy() for part in matrices)
    # Zeros after a start's space is exhausted: from there on steps were divided by noise.
    going = np.logical_and.accumulate(beta > noise[:, None, None], -1)
    began = np.concatenate([np.ones_like(going[..., :1]), going[..., :-1]], -1)
    alpha, beta = np.where(began, alpha, 0.0), np.where(going, beta, 0.0)
    size = max(1, _AT_ONCE // alpha.shape[1])
    parts = []
    with np.errstate(all="ignore"):
        for at in range(0, len(alpha), size):
            some = slice(at, at + size)
            parts.append(
                _entropies(alpha[some], beta[some], weight[some], energy[some], noise[some], chance)
            )
    bounds = (torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True))
    leading = (torch.from_numpy(part[:, :_LEADING]) for part in (alpha, beta))
    moments = matrices.energy, matrices.noise, matrices.fourth
    return SpectralEvidence._make((*bounds, *moments, matrices.overlap, *leading))


def _entropies(
    alpha: Array, beta: Array, weight: Array, energy: Array, noise: Array, chance: int
) -> tuple[Array, Array, Array]:
    """Bounds of the entropy of each matrix, and the standard error that the probes leave."""
    batch, starts, steps = alpha.shape
    scale = np.sqrt(np.where(energy > 0, energy, 1.0))[:, None, None]
    bounds = fractions((alpha / scale).reshape(-1, steps), (beta / scale).reshape(-1, steps))
    low, high = (bound.reshape(-1, batch, starts) for bound in bounds)
    share = np.ones(starts)
    share[starts - chance :] = 1 / max(chance, 1)
    counts = weight * share
    lower, upper = (np.einsum("nms,ms->nm", bound, counts) for bound in (low, high))
    # What singular values below the noise really are stays open.
    under = LEVELS[:, None] < np.square(noise / scale[:, 0, 0])
    lower = np.where(under, np.where(under, 0.0, lower).max(0), lower)
    upper = np.where(under, counts.sum(-1), upper)
    least, most = entropy_bounds(lower, upper)
    if not chance:
        return least, most, np.zeros_like(least)
    total, mixed = (part[:, None] for part in sums((lower + upper) / 2))
    by_total, by_mixed = (
        weight[:, -chance:] * part / 2 for part in sums(low[..., -chance:] + high[..., -chance:])
    )
    # What small changes of S and T change the entropy by: ((1 + T/S) dS − dT)/S.
    changes = ((1 + mixed / total) * by_total - by_mixed) / total
    return least, most, changes.std(-1, ddof=1) / math.sqrt(chance)


def fractions(alpha: Array, beta: Array) -> tuple[Single, Single]:
    """Lower and upper bounds of φ at every node, ``(node, start)``.

    The starts are unit vectors; ``alpha`` and ``beta``, ``(start, step)``, relative to ``‖X‖_F``.
    """
    a, b = (np.square(part).T.astype(np.float32, order="C") for part in (alpha, beta))
    t = LEVELS.astype(np.float32)[:, None]
    return _fraction(a, b, t, np.zeros_like(a[-1])), _fraction(a, b, t, a[-1])


def _fraction(a: Single, b: Single, t: Single, end: Single) -> Single:
    """``α₁²/(t D₁ + α₁²)`` with ``D_j = 1 + β_j²/y_{j+1}`` and ``y_j = t + α_j²/D_j``."""
    if len(a) == 1:
        return end / (t + end)
    y = t + end
    for at in range(len(a) - 2, 0, -1):
        np.divide(b[at], y, out=y)
        y += 1
        np.divide(a[at], y, out=y)
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


def entropy_bounds(low: Array, high: Array) -> tuple[Array, Array]:
    """The least and the largest entropy of any φ ``(node, matrix)`` between two others.

    Its derivative by φ changes sign once, at ``x = 2(1 + T/S)``: the largest entropy has ``high``
    to the left of some node and ``low`` to the right, the least the other way round.
    """
    return entropy(*_switched(low, high)).min(0), entropy(*_switched(high, low)).max(0)


def _switched(left: Array, right: Array) -> tuple[Array, Array]:
    """``S`` and ``T`` of every φ that is ``left`` before some node and ``right`` from there on."""
    both = []
    for weight in (PLAIN[:, None], MIXED[:, None]):
        change = np.cumsum(weight * (left - right), 0)
        both.append((weight * right).sum(0) + np.concatenate([0 * change[:1], change]))
    return both[0], both[1]
