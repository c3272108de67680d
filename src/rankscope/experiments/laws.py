"""Which law a residual follows with depth: told from its logarithms, not from its size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median, stdev
from typing import Literal

import polars as pl

LawKind = Literal["doubly exponential", "exponential", "equal", "none", "undecided"]

_TAIL = 4
"""Steps at the end that are looked at, or half of all: a law is what holds in the long run."""
_DOUBLES = 2.0
_CUBIC = 0.1
_DECADE = 1.0
_SHRINKS = -1e-6
"""Decades per layer: slower than one in a million layers is no collapse."""
_SURE = 2.0
"""Standard errors a rate must be away from zero, for steps vary from layer to layer."""
_LEVEL = -1e-2
"""Decades per layer: a fall that dies away is over when it is slower than this."""
_FEWEST = 3
_LASTING = 0.5
"""What later steps must be of earlier ones: a fall that dies away ends somewhere."""


@dataclass(frozen=True)
class Law:
    """How a residual ends: the law, its constants, and where it arrived.

    ``growth`` is the ratio of successive steps of ``log r``: 3 for ``r' = Cr³``, 1 for ``r' = cr``.
    ``rate`` is the last steps' mean change of ``log10 r`` per layer, ``last`` the final value.
    """

    kind: LawKind
    growth: float
    rate: float
    last: float

    @property
    def cubic(self) -> bool:
        """Whether the last steps grow threefold, to within 0.1, as ``r' = Cr³`` makes them."""
        return abs(self.growth - 3) < _CUBIC

    def __str__(self) -> str:
        if self.kind == "doubly exponential":
            return f"doubly exponential: each step is {self.growth:.2f} times the one before"
        if self.kind == "exponential":
            return f"exponential: each layer multiplies the residual by {_factor(self.rate)}"
        if self.kind == "equal":
            return "all tokens are equal, or agree further than logarithms can tell"
        if self.kind == "undecided":
            return (
                f"too few layers, or too uneven, to tell a law; "
                f"the last ones multiply the residual by {_factor(self.rate)}"
            )
        return f"no collapse: each layer multiplies the residual by {_factor(self.rate)}"


def law(log10: Sequence[float]) -> Law:
    """The law of residuals given by their base-10 logarithms, layer by layer.

    >>> law([0.0, -1.0, -4.0, -13.0]).kind
    'doubly exponential'
    """
    held = [value for value in log10 if math.isfinite(value)]
    steps = [after - before for before, after in pairwise(held)]
    last = log10[-1] if len(log10) else math.nan
    if last == -math.inf:
        return Law("equal", math.nan, -math.inf, last)
    if len(steps) < _FEWEST or any(math.isnan(value) for value in log10):
        return Law("undecided", math.nan, steps[-1] if steps else 0.0, last)
    tail = steps[-max(_TAIL, len(steps) // 2) :]
    rate = mean(tail)
    ratios = [b / a for a, b in pairwise(steps[-_TAIL:]) if a < 0]
    growth = median(ratios) if ratios else math.nan
    # Scatter has ratios, too: growth must be there in every step, and lead somewhere.
    if len(ratios) > 1 and min(ratios) > _DOUBLES and sum(steps[-_TAIL:]) < -_DECADE:
        return Law("doubly exponential", growth, rate, last)
    return Law(_steady(tail), growth, rate, last)


def _steady(steps: Sequence[float]) -> LawKind:
    """Whether steps point downwards beyond their scatter, and later ones as much as earlier."""
    rate, half = mean(steps), len(steps) // 2
    error = stdev(steps) / math.sqrt(len(steps))
    late = mean(steps[half:])
    if rate > _SHRINKS or rate > -error:
        return "none"
    if rate > -_SURE * error:
        return "undecided"
    if late <= _LASTING * mean(steps[:half]):
        return "exponential"
    return "none" if late > _LEVEL else "undecided"


def medians(summary: pl.DataFrame, metric: str, **labels: str) -> list[float]:
    """The medians of a metric layer by layer, for the rows with these labels."""
    rows = summary.filter(pl.col("metric") == metric)
    for column, label in labels.items():
        rows = rows.filter(pl.col(column) == label)
    return rows.sort("layer")["median"].to_list()


def _factor(rate: float) -> str:
    return f"{10**rate:.3g}" if abs(rate) < 5 else power_of_ten(rate)


def power_of_ten(log10: float) -> str:
    """A number of any size in words: ``0.12``, ``3e-05``, ``10^-47003``."""
    if math.isinf(log10):
        return "0" if log10 < 0 else "infinity"
    if abs(log10) < 5:
        return f"{10**log10:.2g}"
    if abs(log10) < 1000:
        return f"10^{log10:,.1f}"
    return f"10^{log10:,.0f}" if abs(log10) < 1e12 else f"10^({log10:.3g})"
