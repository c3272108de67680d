"""Which law a residual follows with depth, read off its logarithms and not its size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median, stdev
from typing import Literal

import polars as pl

from rankscope.numerals import power_of_ten

LawKind = Literal["doubly exponential", "exponential", "equal", "none", "undecided"]

_FEWEST = 3
"""Steps without which nothing is decided."""
_CUBIC = 0.1
_SLOWEST = 1e-6
"""Decades per layer: slower than one in a million layers is no collapse."""
_LASTING = 0.5
"""What later steps must be of earlier ones: a fall that dies away ends somewhere."""
_OVER = 1e-2
"""Decades per layer: a fall that dies away is over when it is slower than this."""


@dataclass(frozen=True)
class Evidence:
    """What a curve must show before a law is read off it; a test that is ``None`` is not made.

    A law is what holds in the long run, so the later part of the curve is asked: its second half,
    or its ``last_steps`` if that is shorter.
    """

    last_steps: int = 4
    """Steps at the end whose ratios show how much each grows over the one before."""
    least_growth: float | None = None
    """Doubly exponential only if each of these ratios is above this."""
    cubic_within: float | None = None
    """Doubly exponential only if their median is as close to 3 as this."""
    least_fall: float | None = None
    """Doubly exponential only if the last steps lose more decades than this."""
    least_bend: float | None = None
    """Doubly exponential only if the end lies this many times as low as the middle; a straight
    line that starts at 0 ends twice as low."""
    scatter: float | None = None
    """Exponential only if the mean step is this many standard errors below zero, and later steps
    do not die away."""
    level: float | None = None
    """No collapse if the last quarter of the layers is not this many decades below the one before.
    """


SMOOTH = Evidence(least_growth=2.0, least_fall=1.0, scatter=2.0)
"""For layers that are alike: the last steps show the law, and scatter must not pass for one."""
UNEVEN = Evidence(cubic_within=0.5, least_bend=3.0, level=0.1)
"""For curves that fresh layers make go up and down: the last steps may show anything, so the whole
second half has to bear them out. The slowest collapse seen under a window, by a hundredth of a
decade a layer, loses a quarter of a decade between quarters of a hundred layers."""


@dataclass(frozen=True)
class Law:
    """How a residual ends: the law, its constants, and where it arrived.

    ``growth`` is the ratio of successive steps of ``log r``: 3 for ``r' = Cr³``, 1 for ``r' = cr``.
    ``rate`` is the later steps' mean change of ``log10 r`` per layer, ``last`` the final value.
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
        factor = power_of_ten(self.rate, digits=3)
        if self.kind == "doubly exponential":
            return f"doubly exponential: each step is {self.growth:.2f} times the one before"
        if self.kind == "exponential":
            return f"exponential: each layer multiplies the residual by {factor}"
        if self.kind == "equal":
            return "all tokens are equal, or agree beyond what logarithms resolve"
        if self.kind == "undecided":
            return (
                f"too few layers, or too uneven, to see a law; "
                f"the last ones multiply the residual by {factor}"
            )
        return f"no collapse: each layer multiplies the residual by {factor}"


def law(log10: Sequence[float], evidence: Evidence = SMOOTH) -> Law:
    """The law of residuals given by their base-10 logarithms, layer by layer.

    >>> law([0.0, -1.0, -4.0, -13.0]).kind
    'doubly exponential'
    >>> law([0.0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.52, -0.6], UNEVEN).kind
    'exponential'
    """
    finite = [value for value in log10 if math.isfinite(value)]
    steps = [after - before for before, after in pairwise(finite)]
    last = log10[-1] if len(log10) else math.nan
    if last == -math.inf:
        return Law("equal", math.nan, -math.inf, last)
    if len(steps) < _FEWEST or any(math.isnan(value) for value in log10):
        return Law("undecided", math.nan, steps[-1] if steps else 0.0, last)
    end = steps[-evidence.last_steps :]
    later = steps[-max(evidence.last_steps, len(steps) // 2) :]
    ratios = [b / a for a, b in pairwise(end) if a < 0]
    if evidence.level is not None and levels_off(log10, within=evidence.level):
        kind: LawKind = "none"
    elif _accelerates(ratios, end, finite, evidence):
        kind = "doubly exponential"
    else:
        kind = "exponential" if evidence.scatter is None else _steady(later, evidence.scatter)
    return Law(kind, median(ratios) if ratios else math.nan, mean(later), last)


def levels_off(log10: Sequence[float], *, within: float = 0.1) -> bool:
    """Whether a residual has stopped shrinking: its last quarter is level with the one before.

    >>> levels_off([0.0, -1.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0])
    True

    Medians of whole quarters, because fresh layers make the residual of tokens that stay apart go
    up and down.
    """
    quarter = max(1, len(log10) // 4)
    before, after = median(log10[-2 * quarter : -quarter]), median(log10[-quarter:])
    return after > before - within


def _accelerates(
    ratios: Sequence[float], end: Sequence[float], curve: Sequence[float], evidence: Evidence
) -> bool:
    """Whether steps grow by a factor, in all tests that are made; scatter has ratios, too."""
    asked, middle = evidence, curve[len(curve) // 2]
    return (
        len(ratios) > 1
        and (asked.least_growth is None or min(ratios) > asked.least_growth)
        and (asked.cubic_within is None or abs(median(ratios) - 3) < asked.cubic_within)
        and (asked.least_fall is None or sum(end) < -asked.least_fall)
        and (asked.least_bend is None or curve[-1] < asked.least_bend * middle)
    )


def _steady(steps: Sequence[float], scatter: float) -> LawKind:
    """Whether steps point downwards beyond their scatter, and later ones as much as earlier."""
    rate, half = mean(steps), len(steps) // 2
    error = stdev(steps) / math.sqrt(len(steps))
    late = mean(steps[half:])
    if rate > -_SLOWEST or rate > -error:
        return "none"
    if rate > -scatter * error:
        return "undecided"
    if late <= _LASTING * mean(steps[:half]):
        return "exponential"
    return "none" if late > -_OVER else "undecided"


def medians(summary: pl.DataFrame, metric: str, **labels: str) -> list[float]:
    """The medians of a metric layer by layer, for the rows with these labels."""
    return summary.filter(metric=metric, **labels).sort("layer")["median"].to_list()
