"""Tokens that all have the same overlap, and the exponent of a curve."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.errors import InputError
from rankscope.streams import stream


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
