"""Tensors with one exponent per sample: ``e^log · mantissa``, far beyond the range of floats.

The logarithm of each sample is a float64, so sizes from ``e^(−10^308)`` to ``e^(10^308)`` can be
represented. A logarithm of minus infinity means zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import threshold

from rankscope.arguments import checked
from rankscope.core.checks import real
from rankscope.core.shapes import PerSample
from rankscope.errors import ShapeError
from rankscope.numerals import power_of_ten

Mantissa = Float[Tensor, "batch *rest"]

FARTHEST = 690.0
"""Plain numbers are limited to ``e^690``, where functions are saturated."""
_NEGLIGIBLE = math.nextafter(-340.0, -math.inf)
_LEAST = torch.finfo(torch.float64).min
_TINIEST = math.nextafter(0.0, 1.0)


@checked
@dataclass(frozen=True, repr=False)
class ScaledTensor:
    """``e^log · mantissa`` with the largest entry of each sample's mantissa at ±1, or all zero.

    >>> import torch
    >>> from rankscope.core.deep import ScaledTensor
    >>> tiny = ScaledTensor(torch.tensor([[1.0, -0.5]]), torch.tensor([-2000.0]))  # times e^−2000
    >>> tiny.log, tiny.mantissa
    (tensor([-2000.]), tensor([[ 1.0000, -0.5000]]))

    ``lost`` is the logarithm of the largest ratio of the terms of a sum to the sum so far: that
    many of the sixteen digits may be rounding errors. It is an estimate that assumes independent
    errors (see ``_doubts.py``).
    """

    mantissa: Mantissa
    log: PerSample
    lost: PerSample | float = 0.0

    def __post_init__(self) -> None:
        if self.mantissa.ndim == 0 or self.log.ndim == 0:
            raise ShapeError("mantissa and log have a batch axis; add it: mantissa.unsqueeze(0).")
        for name in ("log", "lost"):
            _per_sample(name, getattr(self, name), self.mantissa)

    @classmethod
    def of(
        cls,
        values: Mantissa,
        log: PerSample | float = 0.0,
        *,
        terms: PerSample | None = None,
        lost: PerSample | float = 0.0,
    ) -> "ScaledTensor":
        """``e^log · values``, with the size of the values moved into the logarithm.

        >>> import torch
        >>> from rankscope.core.deep import ScaledTensor
        >>> ScaledTensor.of(torch.tensor([[0.0, -20.0]])).mantissa
        tensor([[ 0., -1.]])

        ``terms`` is the logarithm of the size of the terms the values are sums of.
        """
        values = real(values, name="values", axes="(batch, ...)", least=max(1, values.ndim))
        for name, value in (("log", log), ("terms", terms), ("lost", lost)):
            _per_sample(name, value, values)
        return rescale(values, log, terms=terms, lost=lost)

    def __repr__(self) -> str:
        return f"ScaledTensor {tuple(self.mantissa.shape)}, {self.sizes()}"

    def sizes(self) -> str:
        """The largest entries of the samples, as text."""
        logs = (self.log / math.log(10)).tolist()
        least, most = (power_of_ten(end) for end in (min(logs), max(logs)))
        return f"largest entries {least}" if least == most else f"largest entries {least} to {most}"

    def times_exp(self, log: PerSample | float) -> "ScaledTensor":
        """The tensor times ``e^log``."""
        _per_sample("log", log, self.mantissa)
        return ScaledTensor(self.mantissa, self.log + log, self.lost)

    def select(self, chosen: Shaped[Tensor, "chosen"]) -> "ScaledTensor":
        """Some of the samples, by a mask or by index."""
        check_samples(chosen, len(self.mantissa))
        lost = self.lost[chosen] if isinstance(self.lost, Tensor) else self.lost
        return ScaledTensor(self.mantissa[chosen], self.log[chosen], lost)

    def join(self, other: "ScaledTensor") -> "ScaledTensor":
        """Concatenate the samples of both."""
        if self.mantissa.shape[1:] != other.mantissa.shape[1:]:
            raise ShapeError(
                f"samples of shapes {tuple(self.mantissa.shape[1:])} and "
                f"{tuple(other.mantissa.shape[1:])} do not go together."
            )
        lost = [
            torch.as_tensor(part.lost, dtype=part.log.dtype, device=part.log.device)
            for part in (self, other)
        ]
        return ScaledTensor(
            torch.cat([self.mantissa, other.mantissa]),
            torch.cat([self.log, other.log]),
            torch.cat([lost[0].expand_as(self.log), lost[1].expand_as(other.log)]),
        )

    def at(self, unit: PerSample | float) -> Mantissa:
        """The plain numbers in units of ``e^unit``, limited to the range of floats."""
        _per_sample("unit", unit, self.mantissa)
        return in_units(self, unit)


def _per_sample(name: str, value: PerSample | float | None, values: Mantissa) -> None:
    """Raise unless there is one number, or one for each sample."""
    if isinstance(value, Tensor) and value.ndim and value.shape != values.shape[:1]:
        raise ShapeError(
            f"{name} has shape {tuple(value.shape)}, expected one number for each of "
            f"{len(values)} samples."
        )


def check_samples(chosen: Shaped[Tensor, "chosen"], samples: int) -> None:
    """Raise unless this is a mask of the samples or a list of their numbers."""
    if chosen.dtype == torch.bool:
        fits = chosen.shape == (samples,)
    else:
        fits = chosen.ndim == 1 and not chosen.is_floating_point() and not chosen.is_complex()
        fits = fits and bool(((chosen >= -samples) & (chosen < samples)).all())
    if not fits:
        raise ShapeError(
            f"chosen is {chosen.dtype} of shape {tuple(chosen.shape)}, expected one bool for each "
            f"of {samples} samples, or the numbers of some, 0 to {samples - 1}."
        )


# The functions below are called a hundred times per layer on a few numbers per sample. On a GPU
# launching an operation costs more than running it, so nothing is checked and each step is one call
# if possible.


def rescale(
    values: Mantissa,
    log: PerSample | float = 0.0,
    *,
    terms: PerSample | None = None,
    lost: PerSample | float = 0.0,
) -> ScaledTensor:
    """``ScaledTensor.of`` without checks."""
    size = largest_entry(values)
    total = size.log() + log if isinstance(log, Tensor) or log else size.log()
    if terms is not None:
        lost = _more_lost(lost, terms, total)
    return unchecked(values / expand_like(size.clamp(min=_TINIEST), values), total, lost)


def largest_entry(values: Mantissa) -> PerSample:
    """Each sample's largest entry in absolute value."""
    axes = tuple(range(1, values.ndim))
    if values.is_cuda:
        size: Tensor = torch.linalg.vector_norm(values, math.inf, dim=axes)
        return size
    # On a CPU that norm is not vectorised and takes eight times as long as both ends.
    return torch.maximum(values.amax(axes), -values.amin(axes))


def unchecked(mantissa: Mantissa, log: PerSample, lost: PerSample | float) -> ScaledTensor:
    """A ``ScaledTensor`` of parts known to fit, without checks; private to this package."""
    scaled = object.__new__(ScaledTensor)
    scaled.__dict__.update(mantissa=mantissa, log=log, lost=lost)
    return scaled


def _more_lost(lost: PerSample | float, terms: PerSample, result: PerSample) -> PerSample | float:
    """``worst(lost, cancelled(terms, result))``; ``fmax`` ignores NaN."""
    if isinstance(lost, Tensor):
        return torch.fmax(lost, terms - result)
    return worst(lost, cancelled(terms, result))


def in_units(scaled: ScaledTensor, unit: PerSample | float) -> Mantissa:
    """``ScaledTensor.at`` without checks."""
    return scaled.mantissa * expand_like(bounded_exp(scaled.log - unit), scaled.mantissa)


def scaled_sum(*terms: ScaledTensor) -> ScaledTensor:
    """The sum of tensors of the same shape with any exponents."""
    logs = torch.stack([term.log for term in terms])
    unit = logs.amax(0).clamp(min=_LEAST)  # if all are zero, any unit works
    sizes = threshold(logs - unit, _NEGLIGIBLE, -math.inf).exp()  # none is above zero
    summed = terms[0].mantissa * expand_like(sizes[0], terms[0].mantissa)
    for term, size in zip(terms[1:], sizes[1:], strict=True):
        summed = summed + term.mantissa * expand_like(size, summed)
    out = rescale(summed, unit)
    lost = unit - out.log
    before = _lost_before(terms, logs, out.log)
    if before is not None:
        lost = torch.fmax(lost, before)
    return unchecked(out.mantissa, out.log, lost.clamp(min=0.0))


def _lost_before(
    terms: Sequence[ScaledTensor], logs: Float[Tensor, "term batch"], log: PerSample
) -> PerSample | None:
    """The digits lost in the terms of a sum; None if no term lost any.

    A term's lost digits count in proportion to its size. For a term that is zero after cancellation
    the true size is unknown.
    """
    some = [n for n, term in enumerate(terms) if isinstance(term.lost, Tensor) or term.lost]
    if not some:
        return None
    if len(some) == 1:
        logs = logs[some[0]]
    elif len(some) < len(terms):
        logs = torch.stack([terms[n].log for n in some])
    shares = (threshold(logs, -math.inf, math.inf) - log).clamp(max=0.0)
    if len(some) == 1:
        return shares + terms[some[0]].lost
    before = [torch.as_tensor(terms[n].lost, device=log.device).expand_as(log) for n in some]
    return (torch.stack(before) + shares).amax(0)


def cancelled(terms: PerSample, result: PerSample) -> PerSample:
    """The logarithm of how much smaller a sum is than its terms; infinite if the sum is zero.

    If there are no terms (their logarithm is minus infinity), nothing is lost.
    """
    return (terms - result).nan_to_num(0.0, posinf=math.inf).clamp(min=0.0)


def worst(*lost: PerSample | float) -> PerSample | float:
    """The largest of several losses, by sample."""
    out = lost[0]
    for other in lost[1:]:
        if isinstance(out, Tensor):
            out = torch.maximum(out, other) if isinstance(other, Tensor) else _at_least(out, other)
        elif isinstance(other, Tensor):
            out = _at_least(other, out)
        else:
            out = max(out, other)
    return out


def _at_least(lost: PerSample, least: float) -> PerSample:
    return lost.clamp(min=least) if least > 0 else lost  # none is below zero


def log_of_largest(values: Mantissa) -> PerSample:
    """The logarithm of each sample's largest entry."""
    return largest_entry(values).log()


def log_of_longest(rows: Mantissa) -> PerSample:
    """The logarithm of the largest Euclidean norm along the last axis, by sample.

    This is the size of a sum of independent errors weighted with such a row.
    """
    lengths: Tensor = torch.linalg.vector_norm(rows, 2, dim=-1)
    return lengths.flatten(1).amax(1).log()


def bounded_exp(log: PerSample) -> PerSample:
    """``e^log``, limited to the range of floats, and zero if its square would underflow.

    So small a number never matters in a sum, and processors are a hundred times slower on subnormal
    numbers.
    """
    return threshold(log.clamp(max=FARTHEST), _NEGLIGIBLE, -math.inf).exp()


def expand_like(
    per_sample: Shaped[Tensor, "batch"], like: Mantissa
) -> Shaped[Tensor, "batch *ones"]:
    """One number per sample, reshaped to multiply a tensor with further axes."""
    return per_sample.view(-1, *(1,) * (like.ndim - 1))
