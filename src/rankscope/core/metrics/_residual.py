"""How far the tokens are from being all alike: the residual (docs/theory.md, section 2)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args, overload

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import measurable
from rankscope.core.metrics._centers import mean_center, median_center, optimal_center
from rankscope.core.metrics._norms import Norm, matrix_norm
from rankscope.core.shapes import PerSample, TokenMask, Tokens
from rankscope.errors import InputError
from rankscope.numerals import short

Center = Literal["mean", "median", "optimal"]


class Certified(NamedTuple):
    """A residual and a lower bound no choice of the center can beat."""

    value: PerSample
    lower_bound: PerSample


@overload
def residual(
    x: Tensor,
    *,
    norm: Norm = ...,
    center: Center = ...,
    relative: bool = ...,
    token_mask: Tensor | None = ...,
    certified: Literal[False] = ...,
    tolerance: float = ...,
) -> PerSample: ...


@overload
def residual(
    x: Tensor,
    *,
    norm: Norm = ...,
    center: Center = ...,
    relative: bool = ...,
    token_mask: Tensor | None = ...,
    certified: Literal[True],
    tolerance: float = ...,
) -> Certified: ...


@checked
def residual(
    x: Tensor,
    *,
    norm: Norm = "composite",
    center: Center = "mean",
    relative: bool = False,
    token_mask: Tensor | None = None,
    certified: bool = False,
    tolerance: float = 1e-4,
) -> PerSample | Certified:
    """The distance of the tokens from a rank-one matrix ``1cᵀ`` (Dong et al. 2021, section 2).

    >>> import torch
    >>> from rankscope import residual
    >>> residual(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor(1.)

    ``x`` is ``(..., token, feature)``; the result has the leading axes. ``center`` says which ``c``
    is subtracted: the ``mean`` of the tokens (both papers' experiments), their ``median``, or the
    ``optimal`` one for the norm, found to a relative ``tolerance``. ``relative`` divides by the
    norm of ``x``; zero divided by zero is zero. With ``certified`` the answer is a pair: the value
    and a lower bound on what any center could reach (for the mean and the median too).
    Gradients flow through ``x``, except for the optimal center in the ``inf`` and ``composite``
    norms: there several rows tie for the largest sum, and the value comes without a gradient.
    """
    _known("norm", norm, get_args(Norm))
    _known("center", center, get_args(Center))
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance={tolerance} is out of range; expected 0 < tolerance < 1.")
    x, token_mask = measurable(x, token_mask)
    if center == "optimal" and norm in ("inf", "composite"):
        x = x.detach()
    c, bound = _center(x, norm, center, token_mask, certified=certified, tolerance=tolerance)
    value = _fitting(matrix_norm(subtract(x, c, token_mask), norm), x)
    if center == "optimal" or relative:
        whole = _fitting(matrix_norm(x, norm), x)
        if center == "optimal":
            value = torch.minimum(value, whole)  # zero is a center too; rounding may hide it
        if relative:
            value = ratio(value, whole)
            bound = None if bound is None else ratio(bound, whole)
    return value if bound is None else Certified(value, torch.minimum(bound, value).detach())


@checked
def dispersion(x: Tensor, *, token_mask: Tensor | None = None) -> PerSample:
    """``μ(X) = ‖X − 1x̄ᵀ‖_F`` (Wu et al. 2024, section 3): the Frobenius residual at the mean.

    >>> import torch
    >>> from rankscope.core.metrics import dispersion
    >>> dispersion(torch.tensor([[3.0], [1.0]]))
    tensor(1.4142)
    """
    return residual(x, norm="fro", center="mean", token_mask=token_mask)


@checked
@dataclass(frozen=True, repr=False)
class Deviations:
    """Tokens and what is left of them at their mean, for several figures at the price of one."""

    tokens: Tokens
    rest: Tokens

    def __repr__(self) -> str:
        return (
            f"Deviations of tokens {tuple(self.tokens.shape)}, {self.tokens.dtype}, from their mean"
        )

    @cached_property
    def _composite(self) -> PerSample:
        return _fitting(matrix_norm(self.rest, "composite"), self.tokens)

    def residual(self) -> PerSample:
        """As ``residual(x)``."""
        return self._composite

    def relative_residual(self) -> PerSample:
        """As ``residual(x, relative=True)``."""
        whole = _fitting(matrix_norm(self.tokens, "composite"), self.tokens)
        return ratio(self._composite, whole)

    def dispersion(self) -> PerSample:
        """As ``dispersion(x)``."""
        return _fitting(matrix_norm(self.rest, "fro"), self.tokens)

    def relative_dispersion(self) -> PerSample:
        """As ``residual(x, norm="fro", relative=True)``."""
        whole = _fitting(matrix_norm(self.tokens, "fro"), self.tokens)
        return ratio(self.dispersion(), whole)


@checked
def deviations(x: Tensor, *, token_mask: Tensor | None = None) -> Deviations:
    """Center the tokens at their mean once; the residuals are methods of the result.

    >>> import torch
    >>> from rankscope.core.metrics import deviations
    >>> deviations(torch.eye(2)).residual()
    tensor(1.)
    """
    x, token_mask = measurable(x, token_mask)
    return Deviations(x, subtract(x, mean_center(x, token_mask), token_mask))


def _center(
    x: Tokens,
    norm: Norm,
    center: Center,
    token_mask: TokenMask | None,
    *,
    certified: bool,
    tolerance: float,
) -> tuple[Float[Tensor, "*batch feature"], PerSample | None]:
    """The center asked for and, if certified, a lower bound over all centers."""
    if center == "optimal" or certified:
        optimum = optimal_center(x, norm, token_mask, tolerance=tolerance)
        bound = optimum.lower_bound if certified else None
        if center == "optimal":
            # Where the optimum is known in closed form, its gradient is exact.
            if norm in ("fro", "spectral"):
                return mean_center(x, token_mask), bound
            if norm == "one":
                return median_center(x, token_mask), bound
            return optimum.center, bound
    else:
        bound = None
    return (mean_center if center == "mean" else median_center)(x, token_mask), bound


def subtract(
    x: Tokens,
    center: Float[Tensor, "*batch feature"],
    token_mask: TokenMask | None,
    *,
    work: Tensor | None = None,
) -> Tokens:
    """What is left of the tokens beside a center; ``work`` is room for it."""
    r = torch.sub(x, center.unsqueeze(-2), out=work)
    return r if token_mask is None else torch.where(token_mask.unsqueeze(-1), r, r.new_zeros(()))


def _fitting(size: PerSample, x: Tokens) -> PerSample:
    """A norm that fits into its dtype; sums over many large entries may not."""
    if not bool(torch.isfinite(size.detach()).all()):
        largest = short(float(x.detach().abs().max()), digits=2)
        raise InputError(
            f"the norm of x does not fit into {x.dtype}: entries go up to {largest}; scale x "
            "down, or compute in a wider dtype."
        )
    return size


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    return part / torch.where(whole > 0, whole, torch.ones_like(whole))


def _known(what: str, got: str, expected: tuple[str, ...]) -> None:
    if got not in expected:
        raise InputError(f"{what}={got!r} is unknown; choose one of {', '.join(expected)}.")
