"""Tokens that all have the same overlap, and attention over them."""

import math
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.network import Block, Network, Visibility
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
    separate, common = basis[:-1], basis[-1]
    overlap_kernel(1, overlap)  # refuses what is no overlap
    x: Tensor = math.sqrt(1 - overlap) * separate + math.sqrt(overlap) * common
    return math.sqrt(width) * x


@torch.no_grad()
def first_pattern(
    network: Network, x: Float[Tensor, "token feature"]
) -> Float[Tensor, "head query key"]:
    """The attention weights of the first layer over one sequence."""
    seen = Visibility.of(network.spec.mask, len(x), None, x.device)
    pattern: Tensor = cast(Block, network.blocks[0]).attention.pattern(x.unsqueeze(0), seen)
    return pattern[0]
