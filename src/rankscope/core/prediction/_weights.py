"""Random matrices, drawn only where they are looked at.

A matrix W of independent normal entries is the same in law after any rotation. The rows of X span
at most n of d dimensions, so ``XW`` needs W in those alone: in coordinates L with ``LLᵀ = XXᵀ`` it
is ``LZ`` with Z normal, whatever the width. What leaves the heads, ``AW`` for A of n rows, is
``CZ`` with ``CCᵀ = AAᵀ`` and Z of n rows and d columns, of which the first are the coordinates X
has already, and of all the others only their inner products matter: those are a Wishart matrix,
whose triangular factor is known (Bartlett 1933). So each is drawn exactly, at any width.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.network import Spec
from rankscope.core.prediction._streams import Streams

Matrix = Float[Tensor, "batch _ _"]


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

    def deviation(self, inputs: int, outputs: int, *, value: bool = False) -> float:
        """The standard deviation of the entries of a matrix, orthogonal ones included."""
        init = self.spec.init
        if init.is_orthogonal(value=value):
            return init.scale / math.sqrt(max(inputs, outputs))
        return init.deviation(inputs, outputs)

    def from_stream(self, known: int, outputs: int, *, value: bool = False) -> Matrix:
        """A matrix from the stream, in the ``known`` coordinates that X has of its ``width``."""
        width, init = self.spec.width, self.spec.init
        drawn = self.normal(known, outputs)
        if not init.is_orthogonal(value=value) or self.limit:
            return drawn * self.deviation(width, outputs, value=value)
        beyond = self._factor(known, max(0, width - outputs))
        return init.scale * _orthonormal(drawn, beyond)

    def into_stream(self, rows: int, inputs: int, known: int, *, value: bool = False) -> Matrix:
        """A matrix into the stream, on ``rows`` of the ``inputs`` directions it acts on.

        Its columns are the ``known`` coordinates of the stream, and new ones beside them.
        """
        width, init = self.spec.width, self.spec.init
        deviation = self.deviation(inputs, width, value=value)
        if self.limit:
            beside = self.normal(rows, known) * 0.0
            new = torch.eye(rows, dtype=self.dtype).expand(len(self.streams), -1, -1)
            return torch.cat((beside, new * math.sqrt(width) * deviation), -1)
        inside, new = self.normal(rows, known), self._factor(rows, width - known)
        drawn = torch.cat((inside, new), -1)
        if not init.is_orthogonal(value=value):
            return drawn * deviation
        return init.scale * _orthonormal(drawn, self._factor(rows, max(0, inputs - width)))

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
