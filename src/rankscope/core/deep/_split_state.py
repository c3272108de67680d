"""Hidden states as ``1xᵀ + eˢR``: a row common to all tokens, and the deviation of each token.

Derived (docs/theory.md, section 5). Plain floats hold a hidden state to sixteen digits, so tokens
that agree to more digits look equal. Here the common part and the deviations are separate, each
with its own exponent, and every part of a block acts on both without adding them up.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn.functional import threshold

from rankscope.arguments import checked
from rankscope.core.checks import measurable, whole
from rankscope.core.deep._scaled_tensor import (
    ScaledTensor,
    check_samples,
    expand_like,
    in_units,
    rescale,
    scaled_sum,
    unchecked,
)
from rankscope.core.metrics import Center, Norm, matrix_norm, mean_center, residual
from rankscope.core.shapes import PerSample
from rankscope.errors import ShapeError

_SIXTEEN_DIGITS = 52 * math.log(2)


@checked
@dataclass(frozen=True, repr=False)
class SplitState:
    """The tokens of a batch: a ``common`` row plus the ``deviation`` of each token.

    >>> import math
    >>> import torch
    >>> from rankscope.core.deep import SplitState
    >>> state = SplitState.of(torch.tensor([[[1.0, 0.0], [1.0, 2e-300]]], dtype=torch.float64))
    >>> round(float(state.log_scale) / math.log(10), 9)
    -300.0

    ``common`` is ``(batch, feature)``, ``deviation`` ``(batch, token, feature)`` with the mean of
    its tokens at zero and zeros at padding. The theory's names: ``x``, ``R`` with ``max|R| = 1``,
    and ``s``, which is minus infinity when all tokens are equal.
    """

    common: ScaledTensor
    deviation: ScaledTensor
    token_mask: Bool[Tensor, "batch token"] | None = None

    def __post_init__(self) -> None:
        shape = self.deviation.mantissa.shape
        fits = len(shape) == 3 and self.common.mantissa.shape == shape[::2]
        if not fits or not (self.token_mask is None or self.token_mask.shape == shape[:2]):
            raise ShapeError(
                f"common has shape {tuple(self.common.mantissa.shape)} and deviation "
                f"{tuple(shape)}, expected (batch, feature) and (batch, token, feature), and a "
                "mask (batch, token)."
            )

    @classmethod
    def of(cls, x: Tensor, token_mask: Tensor | None = None) -> "SplitState":
        """A plain hidden state ``(batch, token, feature)``; its values are treated as exact."""
        x, token_mask = measurable(x, token_mask)
        if x.ndim != 3:
            raise ShapeError(f"x has shape {tuple(x.shape)}, expected (batch, token, feature).")
        x = x.double()
        # Differences of tokens that agree to some digits are exact, and so are powers of two; the
        # mean is taken of such differences, so that no digit of the input is lost.
        size = torch.frexp(x.abs().flatten(1).amax(1)).exponent
        x = torch.ldexp(x, -expand_like(size, x))
        anchor = _first(x, token_mask)
        log = size.double() * math.log(2)
        state = cls(
            ScaledTensor.of(anchor, log), ScaledTensor.of(x - anchor.unsqueeze(1), log), token_mask
        )
        return state.recenter()

    def __repr__(self) -> str:
        batch, tokens, features = self.mantissa.shape
        return (
            f"SplitState of {batch} samples, {tokens} tokens, {features} features: common part, "
            f"{self.common.sizes()}; deviations, {self.deviation.sizes()}"
        )

    @property
    def x(self) -> Float[Tensor, "batch feature"]:
        """The common row as plain numbers; infinite on overflow."""
        return self.common.mantissa * expand_like(self.common.log.exp(), self.common.mantissa)

    @property
    def mantissa(self) -> Float[Tensor, "batch token feature"]:
        """R."""
        return self.deviation.mantissa

    @property
    def log_scale(self) -> PerSample:
        """s."""
        return self.deviation.log

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.deviation.mantissa.device

    def tensor(self) -> Float[Tensor, "batch token feature"]:
        """The hidden state as plain numbers, to the precision of floats."""
        rest = self.mantissa * expand_like(self.log_scale.exp(), self.mantissa)
        return self.x.unsqueeze(1) + rest

    def log_residual(self, *, norm: Norm = "composite", center: Center = "mean") -> PerSample:
        """``log ‖res(X)‖``; translating all tokens does not change it."""
        if center == "mean":  # finite numbers of at most 1, so no check is needed
            rest = self.mantissa - mean_center(self.mantissa, self.token_mask).unsqueeze(1)
            size = matrix_norm(self._without_padding(rest), norm)
        else:
            size = residual(self.mantissa, norm=norm, center=center, token_mask=self.token_mask)
        return size.log() + torch.where(size > 0, self.log_scale, 0.0)

    def log_norm(self, *, norm: Norm = "composite") -> PerSample:
        """``log ‖X‖``."""
        unit = self.unit()
        state = in_units(self.common, unit).unsqueeze(1) + in_units(self.deviation, unit)
        size = matrix_norm(self._without_padding(state), norm)
        return size.log() + torch.where(size > 0, unit, 0.0)

    def unit(self) -> PerSample:
        """A logarithm in units of which neither part overflows, and the larger one is about 1."""
        return threshold(torch.maximum(self.common.log, self.deviation.log), -math.inf, 0.0)

    def recenter(self) -> "SplitState":
        """The same state with the mean of the tokens in the common part and zeros at padding."""
        rest = self.deviation.mantissa
        mean = mean_center(rest, self.token_mask)
        rest = self._without_padding(rest - mean.unsqueeze(1))
        lost = self.deviation.lost
        common = scaled_sum(self.common, rescale(mean, self.deviation.log, lost=lost))
        deviation = rescale(rest, self.deviation.log, terms=self.deviation.log, lost=lost)
        return SplitState(common, deviation, self.token_mask)

    def _without_padding(
        self, rows: Float[Tensor, "batch token feature"]
    ) -> Float[Tensor, "batch token feature"]:
        if self.token_mask is None:
            return rows
        return torch.where(self.token_mask.unsqueeze(-1), rows, 0.0)

    def first(self, count: int) -> "SplitState":
        """The first samples."""
        whole("count", count, least=1, most=len(self.mantissa))
        return self.select(torch.arange(count, device=self.device))

    def join(self, other: "SplitState") -> "SplitState":
        """Concatenate the samples of both; both or neither have a token mask."""
        mask = self.token_mask
        if (mask is None) != (other.token_mask is None):
            raise ShapeError("one state has a token_mask and the other has none; give both one.")
        if mask is not None and other.token_mask is not None:
            mask = torch.cat([mask, other.token_mask])
        common, deviation = self.common.join(other.common), self.deviation.join(other.deviation)
        return SplitState(common, deviation, mask)

    def select(self, chosen: Shaped[Tensor, "chosen"]) -> "SplitState":
        """Some of the samples, by a mask or by their numbers."""
        check_samples(chosen, len(self.mantissa))
        mask = None if self.token_mask is None else self.token_mask[chosen]
        return SplitState(self.common.select(chosen), self.deviation.select(chosen), mask)

    def times(self, factor: float) -> "SplitState":
        """The state times a number, which may be zero."""
        if factor == 1.0:
            return self
        common, deviation = (
            rescale(part.mantissa * factor, part.log, lost=part.lost)
            for part in (self.common, self.deviation)
        )
        return SplitState(common, deviation, self.token_mask)


def _first(
    x: Float[Tensor, "batch token feature"], token_mask: Bool[Tensor, "batch token"] | None
) -> Float[Tensor, "batch feature"]:
    """The first token of each sample that is not padding."""
    if token_mask is None:
        return x[:, 0]
    return x[torch.arange(len(x), device=x.device), token_mask.to(torch.uint8).argmax(-1)]


@checked
def add_states(*states: SplitState) -> SplitState:
    """The sum of states of one batch, each with its own s.

    >>> import torch
    >>> from rankscope.core.deep import SplitState, add_states
    >>> x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    >>> add_states(SplitState.of(x), SplitState.of(x)).tensor()
    tensor([[[2., 0.],
             [0., 2.]]], dtype=torch.float64)
    """
    if len({state.mantissa.shape for state in states}) != 1:
        shapes = ", ".join(str(tuple(state.mantissa.shape)) for state in states)
        raise ShapeError(f"states of one shape are added, got {shapes or 'none'}.")
    return SplitState(
        scaled_sum(*(state.common for state in states)),
        scaled_sum(*(state.deviation for state in states)),
        states[0].token_mask,
    ).recenter()


@checked
def apply_linear(
    state: SplitState,
    weight: Float[Tensor, "*#batch outputs inputs"],
    bias: Float[Tensor, "outputs"] | None = None,
) -> SplitState:
    """``X ↦ X Wᵀ + 1bᵀ``: the bias is common to all tokens.

    >>> import torch
    >>> from rankscope.core.deep import SplitState, apply_linear
    >>> x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    >>> apply_linear(SplitState.of(x), 2 * torch.eye(2, dtype=torch.float64)).tensor()
    tensor([[[2., 0.],
             [0., 2.]]], dtype=torch.float64)

    The matrix is the same for all samples, or ``(batch, outputs, inputs)``, one for each.
    """
    batch, _, features = state.mantissa.shape
    known = weight.ndim == 2 or (weight.ndim == 3 and len(weight) == batch)
    fits = known and weight.shape[-1] == features and weight.dtype == torch.float64
    if not fits or not (bias is None or bias.shape == weight.shape[-2:-1]):
        raise ShapeError(
            f"weight is {weight.dtype} of shape {tuple(weight.shape)}, expected float64 (outputs, "
            f"{features}), or that for each of {batch} samples, and a bias one number for each "
            "output."
        )
    size = log_typical_output(weight)
    common = apply_linear_to_common(state.common, weight, bias, size)
    return SplitState(common, map_rows(state.deviation, weight, size), state.token_mask)


def log_typical_output(weight: Float[Tensor, "*#batch outputs inputs"]) -> Float[Tensor, "*#batch"]:
    """The logarithm of the typical size of an output of a matrix for inputs of size 1.

    The Frobenius norm over the square root of the number of outputs.
    """
    size: Tensor = torch.linalg.matrix_norm(weight) / math.sqrt(weight.shape[-2])
    return size.log()


def map_rows(
    rows: ScaledTensor,
    weight: Float[Tensor, "*#batch outputs inputs"],
    size: Float[Tensor, "*#batch"],
) -> ScaledTensor:
    """``X ↦ X Wᵀ``; ``size`` is ``log_typical_output`` of W."""
    terms = rows.log + size
    if weight.ndim == rows.mantissa.ndim + 1:  # one row and one matrix per sample
        out = (rows.mantissa.unsqueeze(1) @ weight.mT).squeeze(1)
    else:
        out = rows.mantissa @ weight.mT
    return rescale(out, rows.log, terms=terms, lost=rows.lost)


def apply_linear_to_common(
    common: ScaledTensor,
    weight: Float[Tensor, "*#batch outputs inputs"],
    bias: Float[Tensor, "outputs"] | None,
    size: Float[Tensor, "*#batch"],
) -> ScaledTensor:
    """Apply a linear map to a row common to all tokens."""
    out = map_rows(common, weight, size)
    if bias is None:
        return out
    added = same_for_all(bias, out)
    summed = scaled_sum(out, added)
    # A bias far smaller than the row is lost: results that depend on it cannot be trusted.
    absorbed = threshold(added.log, -math.inf, math.inf) < summed.log - _SIXTEEN_DIGITS
    assert isinstance(summed.lost, Tensor)
    lost = summed.lost.masked_fill(absorbed, math.inf)
    return unchecked(summed.mantissa, summed.log, lost)


def same_for_all(row: Float[Tensor, "feature"], like: ScaledTensor) -> ScaledTensor:
    """Repeat one row for every sample."""
    scaled = rescale(row.unsqueeze(0))
    return unchecked(scaled.mantissa.expand_as(like.mantissa), scaled.log.expand_as(like.log), 0.0)
