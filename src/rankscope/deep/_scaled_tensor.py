"""Numbers with an exponent of their own: ``e^log · mantissa``, far beyond what a float can hold.

One logarithm per sample, kept in float64 like everything here, so that sizes from ``e^(−10^308)``
to ``e^(10^308)`` have a name. A logarithm of minus infinity is the number zero.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from rankscope.numerals import power_of_ten
from rankscope.shapes import PerSample

Mantissa = Float[Tensor, "batch *rest"]

FARTHEST = 690.0
"""``e^690`` is as far as plain numbers are let go, where functions are saturated anyway."""
_NEGLIGIBLE = -340.0
_LEAST = torch.finfo(torch.float64).min


@dataclass(frozen=True, repr=False)
class ScaledTensor:
    """``e^log · mantissa`` with the largest entry of each sample's mantissa at ±1, or all zero."""

    mantissa: Mantissa
    log: PerSample

    @classmethod
    def of(cls, values: Mantissa, log: PerSample | float = 0.0) -> "ScaledTensor":
        """``e^log · values``, with the size of the values moved into the logarithm.

        >>> import torch
        >>> from rankscope.deep import ScaledTensor
        >>> ScaledTensor.of(torch.tensor([[0.0, -20.0]])).mantissa
        tensor([[ 0., -1.]])
        """
        size: Tensor = torch.linalg.vector_norm(values, math.inf, dim=tuple(range(1, values.ndim)))
        return cls(values / expand_like(size + (size == 0), values), size.log() + log)

    def __repr__(self) -> str:
        return f"ScaledTensor {tuple(self.mantissa.shape)}, {self.sizes()}"

    def sizes(self) -> str:
        """The largest entries of the samples, in words."""
        logs = (self.log / math.log(10)).tolist()
        least, most = (power_of_ten(end) for end in (min(logs), max(logs)))
        return f"largest entries {least}" if least == most else f"largest entries {least} to {most}"

    def times_exp(self, log: PerSample | float) -> "ScaledTensor":
        """The same, times ``e^log``."""
        return ScaledTensor(self.mantissa, self.log + log)

    def select(self, chosen: Bool[Tensor, "batch"]) -> "ScaledTensor":
        """Some of the samples."""
        return ScaledTensor(self.mantissa[chosen], self.log[chosen])

    def at(self, unit: PerSample | float) -> Mantissa:
        """The plain numbers in units of ``e^unit``, as far as floats hold them."""
        return self.mantissa * expand_like(bounded_exp(self.log - unit), self.mantissa)


def scaled_sum(*terms: ScaledTensor) -> ScaledTensor:
    """The sum of numbers of the same shape, whatever their exponents."""
    unit = terms[0].log
    for term in terms[1:]:
        unit = torch.maximum(unit, term.log)
    unit = unit.clamp(min=_LEAST)  # where all are zero, any unit will do
    summed = terms[0].at(unit)
    for term in terms[1:]:
        summed = summed + term.at(unit)
    return ScaledTensor.of(summed, unit)


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
