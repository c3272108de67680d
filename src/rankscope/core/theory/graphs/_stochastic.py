"""Attention matrices as they come, made stochastic to the last place."""

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.checks import stochastic
from rankscope.errors import ShapeError


def normalize_rows(
    attention: Tensor, token_mask: Tensor | None, *, name: str
) -> Float[Tensor, "*batch query key"]:
    """A checked matrix in float64 whose rows sum to one, and to zero at padding."""
    if not isinstance(attention, Tensor) or attention.ndim < 2:
        got = tuple(attention.shape) if isinstance(attention, Tensor) else type(attention).__name__
        raise ShapeError(f"{name} is {got}, expected a tensor (..., query, key).")
    p, _ = stochastic(attention.unsqueeze(-3), token_mask)
    p = p.squeeze(-3).double()
    return p / torch.where(p.sum(-1, keepdim=True) > 0, p.sum(-1, keepdim=True), 1.0)
