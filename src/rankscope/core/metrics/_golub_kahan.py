"""Golub and Kahan's bidiagonalisation of many matrices at once, from many starts each.

From a unit vector it finds the bidiagonal matrix ``B`` with ``BᵀB`` the Jacobi matrix of the
start's spectral measure under ``XᵀX`` (or ``XXᵀ``), without ever squaring ``X``.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.metrics._half_steps import normalise, stepper, ways
from rankscope.core.metrics._mean_split import Block, MeanSplit, Side
from rankscope.streams import stream

_LEAK = 1e-6  # of the random directions stays in the deflated ones, so that they are independent


class Starts(NamedTuple):
    """Random numbers for one size: what the largest directions are sought from, and the probes.

    ``probes`` are all unit vectors where there are few of them: then nothing is left to chance.
    """

    seekers: Float[Tensor, "seeker entry"]
    probes: Float[Tensor, "probe entry"]

    @property
    def by_chance(self) -> bool:
        """Whether probes stand for directions that no one looked along."""
        return self.seekers.shape[0] > 0


class Bidiagonal(NamedTuple):
    """Diagonals and upper diagonals; ``weight`` is the square of each start's length.

    ``overlap`` is ``BMBᵀ`` of those starts (rows of B) that span the largest directions, or all.
    """

    alpha: Float[Tensor, "batch start step"]
    beta: Float[Tensor, "batch start step"]
    weight: Float[Tensor, "batch start"]
    overlap: Float[Tensor, "batch leading leading"]


def draw_starts(
    size: int, device: torch.device, dtype: torch.dtype, seekers: int, probes: int, seed: int
) -> Starts:
    """The starts for matrices whose smaller side is ``size``; the same for all of that size."""
    if size <= seekers + probes:
        return Starts(
            torch.zeros(0, size, dtype=dtype, device=device),
            torch.eye(size, dtype=dtype, device=device),
        )
    drawn = _draw(seekers + probes, size, seed, dtype, pinned=device.type == "cuda")
    drawn = drawn.to(device, non_blocking=True)
    return Starts(drawn[:seekers], drawn[seekers:])


@lru_cache(maxsize=16)
def _draw(count: int, size: int, seed: int, dtype: torch.dtype, *, pinned: bool) -> Tensor:
    """Random numbers on the host, kept for the next time: drawing them takes longer than using."""
    generator = stream(seed, "spectrum probes", size)
    drawn = torch.randn(count, size, generator=generator, dtype=torch.float64).to(dtype)
    return drawn.pin_memory() if pinned else drawn


@torch.no_grad()
def bidiagonalise(matrix: MeanSplit, starts: Starts, steps: int) -> Bidiagonal:
    """Run ``steps`` steps from the mean's direction, the deflated directions and the probes."""
    forth, back = ways(matrix)
    first = _start_block(matrix, starts)
    here, length = normalise(first)
    take = stepper(matrix)
    there, alpha = take(matrix, forth, here, None, None)
    leading = 1 + (starts.seekers if starts.by_chance else starts.probes).shape[0]
    overlap = _overlap(there, alpha * length, leading)
    alphas, betas = [alpha], []
    for _ in range(steps - 1):
        here, beta = take(matrix, back, there, here, alphas[-1])
        betas.append(beta)
        there, alpha = take(matrix, forth, here, there, beta)
        alphas.append(alpha)
    betas.append(take(matrix, back, there, here, alphas[-1])[1])
    return Bidiagonal(torch.stack(alphas, -1), torch.stack(betas, -1), length.square(), overlap)


def _overlap(directions: Side, length: Tensor, leading: int) -> Tensor:
    """Products of the images of the leading starts, in float64 so that it may square them."""
    size = length[:, :leading].double()
    along, rest = directions.along[:, :leading].double(), directions.rest[:, :leading].double()
    along, rest = along * size, rest * size[..., None]
    return torch.bmm(rest, rest.mT) + along[..., None] * along[:, None]


def _start_block(matrix: MeanSplit, starts: Starts) -> Side:
    """The mean's direction; directions that hold the largest values; probes orthogonal to both."""
    near = matrix.e if matrix.wide else matrix.c
    inside = (matrix.e > 0).to(near.dtype) if matrix.wide else torch.ones_like(near)
    seekers = starts.seekers.shape[0]
    rows = _without(torch.cat(starts) * inside[:, None], near)
    if starts.by_chance:
        basis = _largest_directions(matrix, rows[:, :seekers], near)
        probes = rows[:, seekers:].double()
        probes = torch.baddbmm(probes, torch.bmm(probes, basis.mT), basis, alpha=-1)
        # Points on a sphere, whose radius is such that they stand for all directions left over.
        left = inside.sum(-1) - near.square().sum(-1) - basis.square().sum((-2, -1))
        radius = torch.where(left > 0.5, left, 0.0).sqrt()[:, None, None]
        rows = torch.cat([basis, _unit(probes) * radius], 1).to(near.dtype)
    rest = torch.nn.functional.pad(rows, (0, 0, 1, 0))
    along = torch.zeros_like(rest[..., 0])
    along[:, 0] = 1.0
    return Side(along, rest)


def _largest_directions(matrix: MeanSplit, seekers: Block, near: Tensor) -> Block:
    """An orthonormal basis of what one step of subspace iteration makes of the seekers."""
    forth, back = ways(matrix)
    take = stepper(matrix)
    there, _ = take(matrix, forth, Side(torch.zeros_like(seekers[..., 0]), seekers), None, None)
    found, _ = take(matrix, back, there, None, None)
    return _orthonormal(_unit(found.rest.double()) + _LEAK * _unit(seekers), near)


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
