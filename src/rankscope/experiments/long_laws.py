"""Residuals of networks whose layers differ: laws and fates told from many layers, not the last."""

import math
from statistics import median
from typing import Literal

from rankscope.experiments.laws import Law, LawKind, law

Fate = Literal["stops", "collapses"]

_LEVEL = 0.1
"""Decades by which the last quarter of the layers may lie below the one before and count as level;
a collapse by a hundredth a layer, the slowest seen under a window, loses a quarter of a decade."""
_CUBIC = 0.5
"""How far from 3 the growth of the last steps may be."""
_FARTHER = 3.0
"""A straight line ends twice as far down as its middle; a doubly exponential fall much farther."""
_FEWEST = 4
"""Values: one for each quarter."""


def fate(log10: list[float]) -> Fate:
    """Whether a residual has stopped shrinking: its last quarter is level with the one before.

    >>> fate([0.0, -1.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0])
    'stops'

    Medians of whole quarters, because fresh layers make the residual of tokens that stay apart go
    up and down.
    """
    quarter = max(1, len(log10) // 4)
    before, after = median(log10[-2 * quarter : -quarter]), median(log10[-quarter:])
    return "stops" if after > before - _LEVEL else "collapses"


def long_law(log10: list[float]) -> Law:
    """The law of a residual that fresh layers make go up and down, by its whole second half.

    >>> long_law([0.0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.52, -0.6]).kind
    'exponential'

    ``law`` tells double exponents from the last few steps, where scatter may look like growth; here
    the whole second half has to bear it out.
    """
    found = law(log10)
    if found.kind == "equal":
        return found
    if len(log10) < _FEWEST or any(map(math.isnan, log10)):
        return Law("undecided", found.growth, found.rate, found.last)
    middle = len(log10) // 2
    if fate(log10) == "stops":
        kind: LawKind = "none"
    elif abs(found.growth - 3) < _CUBIC and found.last < _FARTHER * log10[middle]:
        return Law("doubly exponential", found.growth, found.rate, found.last)
    else:
        kind = "exponential"
    rate = (log10[-1] - log10[middle]) / max(1, len(log10) - 1 - middle)
    return Law(kind, found.growth, rate, found.last)
