"""Random networks, drawn only where they are looked at: tokens in few coordinates, and matrices.

Inner products are all that matters of tokens. The first coordinate is along the row of ones,
because LayerNorm takes that direction away; the others are any orthonormal ones.

A matrix W of independent normal entries is the same in law after any rotation. The rows of X span
at most n of d dimensions, so ``XW`` needs W in those alone: in coordinates L with ``LLᵀ = XXᵀ`` it
is ``LZ`` with Z normal, whatever the width. What leaves the heads, ``AW`` for A of n rows, is
``CZ`` with ``CCᵀ = AAᵀ`` and Z of n rows and d columns, of which the first are the coordinates X
has already, and of all the others only their inner products matter: those are a Wishart matrix,
whose triangular factor is known (Bartlett 1933). So each is drawn exactly, at any width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rankscope.core.deep import ScaledTensor, SplitState
from rankscope.core.network import MatrixName, Spec
from rankscope.streams import stream

Coordinates = Float[Tensor, "batch token _"]
"""Tokens in any number of coordinates."""
Figures = dict[str, Float[Tensor, "network"]]
"""Each metric, network by network."""
Course = dict[str, Float[Tensor, "layer network"]]
"""Each metric, by layer and network."""
Matrix = Float[Tensor, "batch _ _"]


def coordinates(x: Coordinates) -> Coordinates:
    """Tokens as they are given, reflected so that the row of ones is the first coordinate."""
    width = x.shape[-1]
    normal = torch.full((width,), 1 / math.sqrt(width), dtype=x.dtype)
    normal[0] -= 1.0
    square = normal.square().sum()
    if square == 0:  # one feature: it is the row of ones already
        return x
    return x - 2 * (x @ normal / square).unsqueeze(-1) * normal


def from_kernel(kernel: Float[Tensor, "batch token token"], width: int) -> Coordinates:
    """Tokens whose Gram matrix ``XXᵀ/width`` this is, if possible none along the row of ones."""
    size = kernel.abs().amax((-2, -1), keepdim=True)
    values, vectors = torch.linalg.eigh(kernel / torch.where(size > 0, size, 1.0))
    roots = values.clamp(min=0.0).sqrt() * size.squeeze(-1).sqrt() * math.sqrt(width)
    kept: Tensor = (vectors * roots.unsqueeze(-2))[..., -width:]
    if kept.shape[-1] == width:  # no direction is left over: the one of least weight is the ones'
        return kept
    return torch.cat((torch.zeros_like(kept[..., :1]), kept), -1)


def compress(x: Coordinates) -> Coordinates:
    """The same tokens in no more coordinates than there are tokens, and one for the ones."""
    return torch.cat((x[..., :1], triangular(x[..., 1:])), -1)


def compress_split(state: SplitState, *, first: int = 1) -> SplitState:
    """The same for a state, whose common row is one token more; the ``first`` columns stay."""
    common, own = state.common, state.deviation
    rows = torch.cat((common.mantissa.unsqueeze(1), own.mantissa), 1)
    rows = torch.cat((rows[..., :first], triangular(rows[..., first:])), -1)
    return SplitState(
        ScaledTensor.of(rows[:, 0], common.log, lost=common.lost),
        ScaledTensor.of(rows[:, 1:], own.log, lost=own.lost),
        state.token_mask,
    )


def triangular(rows: Float[Tensor, "batch row column"]) -> Float[Tensor, "batch row short"]:
    """C with ``CCᵀ = RRᵀ``, as many columns as there are rows, or as R has if these are fewer."""
    if rows.shape[-1] <= rows.shape[-2]:
        return rows
    factor: Tensor = torch.linalg.qr(rows.mT, mode="r").R.mT
    return factor


@dataclass(frozen=True)
class Streams:
    """One generator for each network drawn, so that none depends on how many others there are."""

    generators: Sequence[torch.Generator]

    @classmethod
    def of(cls, seed: int, networks: Sequence[tuple[int, int]], use: str = "tokens") -> "Streams":
        """For each ``(draw, sample)``; two samples of one draw are as independent as two draws."""
        return cls([stream(seed, "prediction", use, draw, sample) for draw, sample in networks])

    def __len__(self) -> int:
        return len(self.generators)

    def select(self, chosen: Sequence[int]) -> "Streams":
        """The streams of some of the networks, which go on where they are."""
        return Streams([self.generators[index] for index in chosen])

    def normal(self, *shape: int) -> Float[Tensor, "batch *shape"]:
        """Standard normal numbers, a tensor of this shape for each network."""
        out = torch.empty(len(self), *shape, dtype=torch.float32)
        for part, generator in zip(out, self.generators, strict=True):
            part.normal_(generator=generator)
        return out

    def chi(self, freedom: Int[Tensor, "row"]) -> Float[Tensor, "batch row"]:
        """Lengths of standard normal vectors of ``freedom`` entries."""
        half = freedom.double() / 2
        drawn = [torch._standard_gamma(half, generator=each) for each in self.generators]
        return (2 * torch.stack(drawn)).sqrt()


@dataclass(frozen=True)
class Weights:
    """The weights of one network for each stream; ``limit`` is that of infinite width."""

    spec: Spec
    streams: Streams
    dtype: torch.dtype
    limit: bool = False

    def select(self, chosen: list[int], dtype: torch.dtype) -> "Weights":
        """Those of some of the networks, in another precision."""
        return Weights(self.spec, self.streams.select(chosen), dtype, self.limit)

    def from_stream(self, matrix: MatrixName, known: int, outputs: int) -> Matrix:
        """A matrix from the stream, in the ``known`` coordinates that X has of its ``width``."""
        width, init = self.spec.width, self.spec.init
        drawn = self.normal(known, outputs)
        if not init.is_orthogonal(matrix) or self.limit:
            return drawn * init.deviation(matrix, width, outputs)
        beyond = self._factor(known, max(0, width - outputs))
        return self._gain(matrix) * _orthonormal(drawn, beyond)

    def into_stream(self, matrix: MatrixName, rows: int, inputs: int, known: int) -> Matrix:
        """A matrix into the stream, on ``rows`` of the ``inputs`` directions it acts on.

        Its columns are the ``known`` coordinates of the stream, and new ones beside them.
        """
        width, init = self.spec.width, self.spec.init
        deviation = init.deviation(matrix, inputs, width)
        if self.limit:
            beside = self.normal(rows, known) * 0.0
            new = torch.eye(rows, dtype=self.dtype).expand(len(self.streams), -1, -1)
            return torch.cat((beside, new * math.sqrt(width) * deviation), -1)
        inside, new = self.normal(rows, known), self._factor(rows, width - known)
        drawn = torch.cat((inside, new), -1)
        if not init.is_orthogonal(matrix):
            return drawn * deviation
        beyond = self._factor(rows, max(0, inputs - width))
        return self._gain(matrix) * _orthonormal(drawn, beyond)

    def _gain(self, matrix: MatrixName) -> float:
        """By how much an orthogonal matrix lengthens rows."""
        return self.spec.init.scale * self.spec.init.scales.get(matrix, 1.0)

    def normal(self, *shape: int) -> Matrix:
        """Standard normal numbers for each network; more digits than float32's mean nothing."""
        return self.streams.normal(*shape).to(self.dtype)

    def _factor(self, rows: int, columns: int) -> Matrix:
        """A matrix as good as a normal one of this shape: its rows have the same inner products.

        Where it is wider than high, its triangular factor: lengths on the diagonal, normal numbers
        below it.
        """
        if columns <= rows:
            return self.normal(rows, columns)
        freedom = columns - torch.arange(rows)
        lengths = self.streams.chi(freedom).to(self.dtype)
        return self.normal(rows, rows).tril(-1) + torch.diag_embed(lengths)


def _orthonormal(drawn: Matrix, beyond: Matrix) -> Matrix:
    """Some columns of random orthonormal rows, of which ``beyond`` holds what is not asked for."""
    whole = torch.cat((drawn, beyond), -1).double()
    lower = torch.linalg.cholesky(whole @ whole.mT)
    out: Tensor = torch.linalg.solve_triangular(lower, drawn.double(), upper=False)
    return out.to(drawn.dtype)
