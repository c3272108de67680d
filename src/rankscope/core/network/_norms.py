"""Normalisations of single tokens: LayerNorm, RMSNorm and the unit sphere, one entry each.

A new norm is a module, the ``NormRule`` it follows, its entry in ``NORMS``, and its words in
``rankscope.core.names``. Packages that look inside a norm (paths, deep, theory, prediction) work
from the rule alone, found by the exact class: a subclass may compute anything else, so it is
refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm

from rankscope.arguments import checked, short
from rankscope.core.checks import check_real
from rankscope.core.shapes import Hidden
from rankscope.errors import ShapeError, SpecError, UnsupportedModelError

NormKind = str
"""A name from ``NORMS``."""


class Sphere(nn.Module):
    """``x / ‖x‖₂`` for each token, the simplified LayerNorm of Wu et al. 2024; zero stays zero.

    >>> import torch
    >>> from rankscope.core.network import Sphere
    >>> Sphere()(torch.tensor([[[3.0, 4.0]]]))
    tensor([[[0.6000, 0.8000]]])
    """

    def forward(self, x: Hidden) -> Hidden:
        # Large and small tokens are first scaled to about 1, or their squares would overflow.
        size = x.detach().abs().amax(-1, keepdim=True)
        x = x / torch.where(size > 0, size, 1.0)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / torch.where(length > 0, length, 1.0)


class OffsetNorm(nn.Module):
    """LayerNorm or RMSNorm with gain ``1 + w``, of which w is stored (Gemma, Nemotron)."""

    def __init__(
        self, *, centers: bool, eps: float, offset: nn.Parameter, bias: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        self.centers, self.eps = centers, eps
        self.offset, self.bias = offset, bias

    @property
    def weight(self) -> Tensor:
        """The gain."""
        return 1 + self.offset

    def forward(self, x: Float[Tensor, "*row feature"]) -> Float[Tensor, "*row feature"]:
        if self.centers:
            return layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
        out = rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return out if self.bias is None else out + self.bias


@checked
@dataclass(frozen=True)
class NormRule:
    """What a norm does to a token: ``gain ∘ z/√(q + eps) + bias``.

    >>> import torch
    >>> from rankscope.core.network import NormRule
    >>> rms = NormRule(centers=False, square="mean", eps=0.0)
    >>> rms.factor(torch.tensor([[2.0, 2.0]]))
    tensor([[0.5000]])

    ``z`` is the token, less the mean of its features if the norm ``centers``; ``q`` is the mean of
    the squares of z, or their sum. ``keeps_zero`` says that a token with ``q + eps = 0`` stays zero
    instead of becoming 0/0.
    """

    centers: bool
    square: Literal["mean", "sum"]
    eps: float
    gain: Tensor | None = None
    bias: Tensor | None = None
    keeps_zero: bool = False

    def factor(self, x: Tensor) -> Tensor:
        """``gain/√(q + eps)`` of each token: all that depends on the input but the mean."""
        check_real(x, name="x", axes="(..., feature)", least=1)
        if self.gain is not None and self.gain.shape not in ((), (1,), x.shape[-1:]):
            raise ShapeError(
                f"x has {x.shape[-1]} features, the gain has shape {tuple(self.gain.shape)}."
            )
        if not x.numel():  # a variance of nothing is NaN, with a warning
            square = x.sum(-1, keepdim=True)
        elif self.centers:
            square = x.var(-1, unbiased=False, keepdim=True)
        else:
            square = x.square().mean(-1, keepdim=True)
        if self.square == "sum":
            square = square * x.shape[-1]
        scale = torch.rsqrt(square + self.eps)
        if self.keeps_zero:
            scale = torch.where(square + self.eps > 0, scale, 1.0)
        return scale if self.gain is None else scale * self.gain


@dataclass(frozen=True)
class NormEntry:
    """One kind of norm: its class, how to build it, and the rule of its modules."""

    module: type[nn.Module]
    build: Callable[[int, float, bool], nn.Module]
    """Arguments: the width, eps, and whether there is a bias."""
    rule: Callable[[Any, torch.dtype], NormRule | None]
    """None for the identity."""


def build_norm(
    kind: NormKind, width: int, *, eps: float, bias: bool, like: nn.Module | None = None
) -> nn.Module:
    """A norm with gain 1 and bias 0, or those of ``like``, shared; ``none`` is the identity."""
    if kind not in NORMS:
        raise SpecError(f"norm{short(kind)} is unknown; choose one of {', '.join(NORMS)}.")
    return share_gain(NORMS[kind].build(width, eps, bias), like)


def norm_rule(norm: nn.Module, dtype: torch.dtype) -> NormRule | None:
    """The rule a norm follows on tokens of this dtype; None for the identity.

    >>> from torch import nn
    >>> import torch
    >>> from rankscope.core.network import norm_rule
    >>> norm_rule(nn.LayerNorm(4, eps=0.1), torch.float64).centers
    True
    """
    if type(norm) is OffsetNorm:
        return NormRule(norm.centers, "mean", norm.eps, norm.weight, norm.bias)
    for entry in NORMS.values():
        if type(norm) is entry.module:
            return entry.rule(norm, dtype)
    known = ", ".join(e.module.__name__ for e in NORMS.values() if e.module is not nn.Identity)
    raise UnsupportedModelError(
        f"the norm {type(norm).__name__} is not supported here (supported: {known}); "
        "rankscope.trace works with any norm."
    )


def share_gain(norm: nn.Module, other: nn.Module | None) -> nn.Module:
    """``norm`` with the gain of ``other``, and its bias if both have one, shared."""
    if isinstance(other, OffsetNorm) and isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        centers, bias = isinstance(norm, nn.LayerNorm), getattr(norm, "bias", None)
        eps = cast(float, norm.eps)
        if bias is not None and other.bias is not None:
            bias = other.bias
        return OffsetNorm(centers=centers, eps=eps, offset=other.offset, bias=bias)
    for name in ("weight", "bias"):
        mine, theirs = getattr(norm, name, None), getattr(other, name, None)
        if mine is not None and theirs is not None:
            setattr(norm, name, cast(nn.Parameter, theirs))
    return norm


def _layer_rule(norm: nn.LayerNorm, dtype: torch.dtype) -> NormRule:
    del dtype
    _refuse_several_axes(norm)
    return NormRule(True, "mean", norm.eps, norm.weight, norm.bias)


def _rms_rule(norm: nn.RMSNorm, dtype: torch.dtype) -> NormRule:
    _refuse_several_axes(norm)
    eps = torch.finfo(dtype).eps if norm.eps is None else norm.eps
    return NormRule(False, "mean", eps, norm.weight)


def _refuse_several_axes(norm: nn.LayerNorm | nn.RMSNorm) -> None:
    if len(norm.normalized_shape) != 1:
        raise UnsupportedModelError(
            f"a {type(norm).__name__} over {len(norm.normalized_shape)} axes normalises over "
            "several tokens; expected one over the features only."
        )


NORMS: dict[str, NormEntry] = {
    "layer": NormEntry(
        nn.LayerNorm, lambda width, eps, bias: nn.LayerNorm(width, eps=eps, bias=bias), _layer_rule
    ),
    "rms": NormEntry(nn.RMSNorm, lambda width, eps, _bias: nn.RMSNorm(width, eps=eps), _rms_rule),
    "sphere": NormEntry(
        Sphere,
        lambda _width, _eps, _bias: Sphere(),
        lambda _norm, _dtype: NormRule(False, "sum", 0.0, keeps_zero=True),
    ),
    "none": NormEntry(
        nn.Identity, lambda _width, _eps, _bias: nn.Identity(), lambda _norm, _dtype: None
    ),
}
