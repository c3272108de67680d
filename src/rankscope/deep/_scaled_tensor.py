"""Numbers with an exponent of their own: ``e^log · mantissa``, far beyond what a float can hold.

One logarithm per sample, kept in float64 like everything here, so that sizes from ``e^(−10^308)``
to ``e^(10^308)`` have a name. A logarithm of minus infinity is the number zero.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from rankscope.arguments import checked
from rankscope.checks import real
from rankscope.errors import ShapeError
from rankscope.numerals import power_of_ten
from rankscope.shapes import PerSample

Mantissa = Float[Tensor, "batch *rest"]

FARTHEST = 690.0
"""``e^690`` is as far as plain numbers are let go, where functions are saturated anyway."""
_NEGLIGIBLE = -340.0
_LEAST = torch.finfo(torch.float64).min


@checked
@dataclass(frozen=True, repr=False)
class ScaledTensor:
    """``e^log · mantissa`` with the largest entry of each sample's mantissa at ±1, or all zero.

    ``lost`` is how much smaller than its terms a sum on the way here has been at most, as a
    logarithm: of sixteen digits, so many may be rounding. It is an estimate to be followed up
    (``_doubts.py``), with errors taken as independent.
    """

    mantissa: Mantissa
    log: PerSample
    lost: PerSample | float = 0.0

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
        >>> from rankscope.deep import ScaledTensor
        >>> ScaledTensor.of(torch.tensor([[0.0, -20.0]])).mantissa
        tensor([[ 0., -1.]])

        ``terms`` is the logarithm of the size of the terms the values are sums of.
        """
        values = real(values, name="values", axes="(batch, ...)", least=max(1, values.ndim))
        _per_sample("log", log, values)
        size: Tensor = torch.linalg.vector_norm(values, math.inf, dim=tuple(range(1, values.ndim)))
        whole = size.log() + log
        if terms is not None:
            lost = worst(lost, cancelled(terms, whole))
        return cls(values / expand_like(size + (size == 0), values), whole, lost)

    def __repr__(self) -> str:
        return f"ScaledTensor {tuple(self.mantissa.shape)}, {self.sizes()}"

    def sizes(self) -> str:
        """The largest entries of the samples, in words."""
        logs = (self.log / math.log(10)).tolist()
        least, most = (power_of_ten(end) for end in (min(logs), max(logs)))
        return f"largest entries {least}" if least == most else f"largest entries {least} to {most}"

    def times_exp(self, log: PerSample | float) -> "ScaledTensor":
        """The same, times ``e^log``."""
        return ScaledTensor(self.mantissa, self.log + log, self.lost)

    def select(self, chosen: Shaped[Tensor, "chosen"]) -> "ScaledTensor":
        """Some of the samples, by a mask or by their numbers."""
        lost = self.lost[chosen] if isinstance(self.lost, Tensor) else self.lost
        return ScaledTensor(self.mantissa[chosen], self.log[chosen], lost)

    def at(self, unit: PerSample | float) -> Mantissa:
        """The plain numbers in units of ``e^unit``, as far as floats hold them."""
        _per_sample("unit", unit, self.mantissa)
        return self.mantissa * expand_like(bounded_exp(self.log - unit), self.mantissa)


def _per_sample(name: str, value: PerSample | float, values: Mantissa) -> None:
    """Raise unless there is one number, or one for each sample."""
    if isinstance(value, Tensor) and value.ndim and value.shape != values.shape[:1]:
        raise ShapeError(
            f"{name} has shape {tuple(value.shape)}, expected one number for each of "
            f"{len(values)} samples."
        )


def scaled_sum(*terms: ScaledTensor) -> ScaledTensor:
    """The sum of numbers of the same shape, whatever their exponents."""
    unit = terms[0].log
    for term in terms[1:]:
        unit = torch.maximum(unit, term.log)
    unit = unit.clamp(min=_LEAST)  # where all are zero, any unit will do
    summed = terms[0].at(unit)
    for term in terms[1:]:
        summed = summed + term.at(unit)
    out = ScaledTensor.of(summed, unit, terms=unit)
    # A term's lost digits count as far as it counts itself.
    # Of a term that came out as zero nobody knows how far it should have counted.
    shares = (torch.where(t.log.isneginf(), 0.0, (t.log - out.log).clamp(max=0.0)) for t in terms)
    each = (t.lost + share.nan_to_num(0.0) for t, share in zip(terms, shares, strict=True))
    return replace(out, lost=worst(out.lost, *each))


def cancelled(terms: PerSample, result: PerSample) -> PerSample:
    """The logarithm of how much smaller than its terms a sum is; infinite if nothing is left."""
    return torch.where(terms.isneginf(), 0.0, terms - result).clamp(min=0.0)


def worst(*lost: PerSample | float) -> PerSample | float:
    """The largest of some losses, sample by sample."""
    out = lost[0]
    for other in lost[1:]:
        if isinstance(out, Tensor):
            out = torch.maximum(out, torch.as_tensor(other, dtype=out.dtype, device=out.device))
        elif isinstance(other, Tensor):
            out = other.clamp(min=out)
        else:
            out = max(out, other)
    return out


def log_of_largest(values: Mantissa) -> PerSample:
    """The logarithm of each sample's largest entry."""
    size: Tensor = torch.linalg.vector_norm(values, math.inf, dim=tuple(range(1, values.ndim)))
    return size.log()


def log_of_longest(rows: Mantissa) -> PerSample:
    """The logarithm of each sample's largest root of a sum of squares along the last axis.

    As large as a sum of independent errors is when weighted with such a row.
    """
    lengths: Tensor = torch.linalg.vector_norm(rows, 2, dim=-1)
    return lengths.flatten(1).amax(1).log()


def bounded_exp(log: PerSample) -> PerSample:
    """``e^log``, never too large for a float, and zero where even its square would be too small.

    So small a number never counts beside what it is added to, and processors take a hundred times
    as long for numbers at the end of their range.
    """
    return torch.where(log < _NEGLIGIBLE, 0.0, log.clamp(max=FARTHEST).exp())


def expand_like(
    per_sample: Shaped[Tensor, "batch"], like: Mantissa
) -> Shaped[Tensor, "batch *ones"]:
    """One number per sample, shaped to multiply a tensor with further axes."""
    return per_sample.view(-1, *(1,) * (like.ndim - 1))
