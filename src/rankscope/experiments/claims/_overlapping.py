"""Tokens that all have the same overlap, and how close networks come to what was predicted."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.errors import InputError
from rankscope.streams import stream

_ROUNDING = 1e-6


def overlap_kernel(tokens: int, overlap: float) -> Float[Tensor, "token token"]:
    """XXᵀ/width of tokens of length √width whose cosines are all the overlap.

    >>> overlap_kernel(2, 0.25).tolist()
    [[1.0, 0.25], [0.25, 1.0]]
    """
    if not 0 <= overlap < 1:
        raise InputError(f"overlap={overlap} is the cosine of two tokens, expected 0 to below 1.")
    eye = torch.eye(tokens, dtype=torch.float64)
    return (1 - overlap) * eye + overlap


def overlapping_tokens(
    tokens: int, width: int, overlap: float, seed: int
) -> Float[Tensor, "token feature"]:
    """Such tokens, turned at random; the width needs room for them and what they have in common."""
    if width <= tokens:
        raise InputError(f"{tokens} tokens of one overlap need more than {width} features.")
    drawn = torch.randn(
        width, tokens + 1, generator=stream(seed, "overlap", tokens), dtype=torch.float64
    )
    basis = torch.linalg.qr(drawn).Q.T
    own, common = basis[:-1], basis[-1]
    overlap_kernel(1, overlap)  # refuses what is no overlap
    x: Tensor = math.sqrt(1 - overlap) * own + math.sqrt(overlap) * common
    return math.sqrt(width) * x


class Mean(NamedTuple):
    """A mean over draws, its standard error, and their number; one draw alone has no error."""

    value: float
    error: float
    draws: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """Of independent draws.

        >>> Mean.of([1.0, 3.0])
        Mean(value=2.0, error=1.0, draws=2)
        """
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return cls(fmean(values), error, len(values))

    def errors_from(self, other: "Mean") -> float:
        """How far two means of one law are apart, in standard errors of their difference.

        The deviation is estimated from the draws of both, since a few of them tell little about it.
        What float32 cannot tell apart, in which predictions are made, counts as equal.
        """
        off = abs(self.value - other.value)
        if off <= _ROUNDING * max(abs(self.value), abs(other.value)):
            return 0.0
        free = self.draws + other.draws - 2
        squares = [(each.draws - 1) * each.draws * each.error**2 for each in (self, other)]
        variance = sum(squares) / free if free else 0.0
        error = math.sqrt(variance * (1 / self.draws + 1 / other.draws))
        return off / error if error else math.inf


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The exponent k of y ∝ xᵏ, by least squares in logarithms.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    a = torch.tensor(xs, dtype=torch.float64).log()
    b = torch.tensor(ys, dtype=torch.float64).log()
    a = a - a.mean()
    return float((a * b).sum() / (a * a).sum())
