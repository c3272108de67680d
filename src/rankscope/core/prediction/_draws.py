"""Random networks, drawn only in the directions that the tokens use.

Only inner products of tokens matter. The first coordinate is along the row of ones, because
LayerNorm removes that direction; the others are any orthonormal ones.

A matrix W of independent normal entries has the same distribution after any rotation. The rows of X
span at most n of d dimensions, so ``XW`` needs W only in those: in coordinates L with ``LLᵀ = XXᵀ``
it is ``LZ`` with Z normal, at any width. The output of the heads, ``AW`` for A of n rows, is ``CZ``
with ``CCᵀ = AAᵀ`` and Z of n rows and d columns. The first columns are the coordinates of X; for
the others only their inner products matter, a Wishart matrix with a known triangular factor
(Bartlett 1933). So every draw is exact, at any width.
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
"""Each metric by network."""
Course = dict[str, Float[Tensor, "layer network"]]
"""Each metric, by layer and network."""
Matrix = Float[Tensor, "batch _ _"]


def coordinates(x: Coordinates) -> Coordinates:
    """The given tokens, reflected so that the row of ones is the first coordinate."""
    width = x.shape[-1]
    normal = x.new_full((width,), 1 / math.sqrt(width))
    normal[0] -= 1.0
    square = normal.square().sum()
    if square == 0:  # one feature: it is along the row of ones
        return x
    return x - 2 * (x @ normal / square).unsqueeze(-1) * normal


def from_kernel(kernel: Float[Tensor, "batch token token"], width: int) -> Coordinates:
    """Tokens with the Gram matrix ``XXᵀ/width``, if possible orthogonal to the row of ones."""
    size = kernel.abs().amax((-2, -1), keepdim=True)
    values, vectors = torch.linalg.eigh(kernel / torch.where(size > 0, size, 1.0))
    roots = values.clamp(min=0.0).sqrt() * size.squeeze(-1).sqrt() * math.sqrt(width)
    tokens: Tensor = (vectors * roots.unsqueeze(-2))[..., -width:]
    if tokens.shape[-1] == width:  # the direction of least weight becomes the row of ones
        return tokens
    return torch.cat((torch.zeros_like(tokens[..., :1]), tokens), -1)


def compress(x: Coordinates) -> Coordinates:
    """The same tokens in at most as many coordinates as tokens, plus the first."""
    return torch.cat((x[..., :1], triangular(x[..., 1:])), -1)


def compress_split(state: SplitState, *, first: int = 1) -> SplitState:
    """``compress`` for a state, whose common row counts as a token; the ``first`` columns stay."""
    common, deviation = state.common, state.deviation
    rows = torch.cat((common.mantissa.unsqueeze(1), deviation.mantissa), 1)
    rows = torch.cat((rows[..., :first], triangular(rows[..., first:])), -1)
    return SplitState(
        ScaledTensor.of(rows[:, 0], common.log, lost=common.lost),
        ScaledTensor.of(rows[:, 1:], deviation.log, lost=deviation.lost),
        state.token_mask,
    )


def triangular(rows: Float[Tensor, "batch row column"]) -> Float[Tensor, "batch row short"]:
    """C with ``CCᵀ = RRᵀ`` and at most as many columns as rows."""
    if rows.shape[-1] <= rows.shape[-2]:
        return rows
    if rows.is_cuda and rows.dtype == torch.float32:
        return _from_squares(rows)
    factor: Tensor = torch.linalg.qr(rows.mT, mode="r").R.mT
    return factor


def _from_squares(rows: Float[Tensor, "batch row column"]) -> Float[Tensor, "batch row short"]:
    """The same from cosines of rows in float64, since a QR decomposition is slow on a GPU.

    What is added to the diagonal changes each row by about 10^−7 of its length, the precision of
    float32.
    """
    wide = rows.double()
    lengths = wide.norm(dim=-1, keepdim=True)
    units = wide / torch.where(lengths > 0, lengths, 1.0)
    cosines = units @ units.mT
    added = max(1e-14, 2 * rows.shape[-2] * torch.finfo(wide.dtype).eps)
    cosines.diagonal(dim1=-2, dim2=-1).add_(added)
    factor, failed = torch.linalg.cholesky_ex(cosines)
    if bool((failed > 0).any()):  # each by itself: the others do not change
        factor = factor.clone()
        some = failed > 0
        factor[some] = torch.linalg.qr(units[some].mT, mode="r").R.mT
    short: Tensor = factor * lengths
    return short.to(rows.dtype)


@dataclass(frozen=True)
class Streams:
    """One generator per network, so that no network depends on the number of others."""

    generators: Sequence[torch.Generator]

    @classmethod
    def of(
        cls,
        seed: int,
        networks: Sequence[tuple[int, int]],
        use: str = "tokens",
        *,
        device: torch.device | str = "cpu",
    ) -> "Streams":
        """A generator for each ``(draw, sample)``; two samples of one draw are independent."""
        return cls(
            [
                stream(seed, "prediction", use, draw, sample, device=device)
                for draw, sample in networks
            ]
        )

    @property
    def device(self) -> torch.device:
        """Where numbers are drawn."""
        return self.generators[0].device

    def __len__(self) -> int:
        return len(self.generators)

    def select(self, chosen: Sequence[int]) -> "Streams":
        """The streams of some of the networks, without resetting them."""
        return Streams([self.generators[index] for index in chosen])

    def normal(self, *shape: int) -> Float[Tensor, "batch *shape"]:
        """Standard normal numbers, one tensor of this shape per network."""
        out = torch.empty(len(self), *shape, dtype=torch.float32, device=self.device)
        for part, generator in zip(out, self.generators, strict=True):
            part.normal_(generator=generator)
        return out

    def chi(self, freedom: Int[Tensor, "row"]) -> Float[Tensor, "batch row"]:
        """Norms of standard normal vectors of ``freedom`` entries."""
        half = freedom.double() / 2
        drawn = [torch._standard_gamma(half, generator=generator) for generator in self.generators]
        return (2 * torch.stack(drawn)).sqrt()


@dataclass(frozen=True)
class DrawnWeights:
    """The weights of one network per stream; ``limit`` selects infinite width."""

    spec: Spec
    streams: Streams
    dtype: torch.dtype
    limit: bool = False

    def select(self, chosen: list[int], dtype: torch.dtype) -> "DrawnWeights":
        """The weights of some of the networks, in another dtype."""
        return DrawnWeights(self.spec, self.streams.select(chosen), dtype, self.limit)

    def from_stream(self, matrix: MatrixName, known: int, outputs: int) -> Matrix:
        """A matrix from the stream, in the ``known`` coordinates of its ``width``."""
        width, init = self.spec.width, self.spec.init
        drawn = self.normal(known, outputs)
        if not init.is_orthogonal(matrix) or self.limit:
            return drawn * init.deviation(matrix, width, outputs)
        beyond = self._factor(known, max(0, width - outputs))
        return self._gain(matrix) * _orthonormal(drawn, beyond)

    def into_stream(self, matrix: MatrixName, rows: int, inputs: int, known: int) -> Matrix:
        """A matrix into the stream, on ``rows`` of the ``inputs`` directions of its input.

        Its columns are the ``known`` coordinates of the stream, followed by new ones.
        """
        width, init = self.spec.width, self.spec.init
        deviation = init.deviation(matrix, inputs, width)
        if self.limit:
            beside = self.normal(rows, known) * 0.0
            eye = torch.eye(rows, dtype=self.dtype, device=self.streams.device)
            new = eye.expand(len(self.streams), -1, -1)
            return torch.cat((beside, new * math.sqrt(width) * deviation), -1)
        inside, new = self.normal(rows, known), self._factor(rows, width - known)
        drawn = torch.cat((inside, new), -1)
        if not init.is_orthogonal(matrix):
            return drawn * deviation
        beyond = self._factor(rows, max(0, inputs - width))
        return self._gain(matrix) * _orthonormal(drawn, beyond)

    def _gain(self, matrix: MatrixName) -> float:
        """The factor by which an orthogonal matrix changes the norm of rows."""
        return self.spec.init.scale * self.spec.init.scales.get(matrix, 1.0)

    def normal(self, *shape: int) -> Matrix:
        """Standard normal numbers for each network, drawn in float32."""
        return self.streams.normal(*shape).to(self.dtype)

    def _factor(self, rows: int, columns: int) -> Matrix:
        """A matrix whose rows have the inner products of a normal matrix of this shape.

        If it is wider than high, its triangular factor: chi-distributed diagonal, normal entries
        below.
        """
        if columns <= rows:
            return self.normal(rows, columns)
        freedom = columns - torch.arange(rows, device=self.streams.device)
        lengths = self.streams.chi(freedom).to(self.dtype)
        return self.normal(rows, rows).tril(-1) + torch.diag_embed(lengths)


def _orthonormal(drawn: Matrix, beyond: Matrix) -> Matrix:
    """Some columns of random orthonormal rows; ``beyond`` is the number of columns left out."""
    rows = torch.cat((drawn, beyond), -1).double()
    lower = torch.linalg.cholesky(rows @ rows.mT)
    out: Tensor = torch.linalg.solve_triangular(lower, drawn.double(), upper=False)
    return out.to(drawn.dtype)
