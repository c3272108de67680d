"""Normalisations of single tokens: LayerNorm, RMSNorm, and projection on the unit sphere (W)."""

from typing import Literal, cast

import torch
from torch import nn

from rankscope.shapes import Hidden

NormKind = Literal["layer", "rms", "sphere", "none"]


class Sphere(nn.Module):
    """``x / ‖x‖₂`` for each token, W's simplified LayerNorm; a zero token stays zero."""

    def forward(self, x: Hidden) -> Hidden:
        # Large and small tokens are brought to about 1 first, or their squares would not fit.
        size = x.detach().abs().amax(-1, keepdim=True)
        x = x / torch.where(size > 0, size, 1.0)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / torch.where(length > 0, length, 1.0)


def build_norm(kind: NormKind, width: int, *, eps: float, bias: bool) -> nn.Module:
    """A norm with unit gain and zero bias; ``none`` is the identity."""
    match kind:
        case "layer":
            return nn.LayerNorm(width, eps=eps, bias=bias)
        case "rms":
            return nn.RMSNorm(width, eps=eps)
        case "sphere":
            return Sphere()
        case "none":
            return nn.Identity()


def share_gain(norm: nn.Module, other: nn.Module | None) -> nn.Module:
    """``norm`` with the gain, and the bias if both have one, of ``other``, shared."""
    for name in ("weight", "bias"):
        mine, theirs = getattr(norm, name, None), getattr(other, name, None)
        if mine is not None and theirs is not None:
            setattr(norm, name, cast(nn.Parameter, theirs))
    return norm
