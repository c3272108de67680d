"""Graphs in which each token attends to one interval of tokens that contains itself.

**Derived.** After t layers token i has received information from a set ``R_t(i)``, where ``R_1(i)``
is the interval it attends to. If ``R_s(i)`` is an interval, then so is
``R_{s+t}(i) = ∪_{j ∈ R_s(i)} R_t(j)``, because each ``R_t(j)`` contains j and the j are neighbours;
its ends are the smallest first and the largest last position among them. So a whole layer is two
arrays, layers compose by range minima, and the number of layers after which a property is true is
found by doubling, in ``O(n log² n)`` for all tokens at once, without listing edges.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """Where each token's information comes from: all tokens from ``first[i]`` to ``last[i]``."""

    first: Positions
    last: Positions

    @property
    def tokens(self) -> int:
        return len(self.first)

    def compose(self, earlier: "Intervals") -> "Intervals":
        """These layers applied after ``earlier`` ones."""
        return Intervals(
            _range_minima(earlier.first, self.first, self.last),
            -_range_minima(-earlier.last, self.first, self.last),
        )


def interval_classes(intervals: Intervals) -> list[range]:
    """The closed classes: intervals whose members all end up depending on exactly them."""
    final = _powers(intervals)[-1]
    least_last = _range_minima(final.last, final.first, final.last)
    most_first = -_range_minima(-final.first, final.first, final.last)
    closed = (most_first == final.first) & (least_last == final.last)
    firsts, places = np.unique(final.first[closed], return_index=True)
    lasts = final.last[closed][places]
    return [
        range(one, other + 1) for one, other in zip(firsts.tolist(), lasts.tolist(), strict=True)
    ]


def interval_radius(intervals: Intervals) -> int:
    """Layers until some token has reached all tokens; there must be a center.

    Token c has reached all tokens when it lies in every interval: not left of the largest first
    position, not right of the smallest last one.
    """
    return _layers_until(intervals, lambda seen: bool(seen.first.max() <= seen.last.min()))


def interval_diameter(intervals: Intervals) -> int:
    """Layers until all tokens have reached all tokens; every token must be a center."""
    end = intervals.tokens - 1
    return _layers_until(
        intervals, lambda seen: bool(seen.first.max() == 0 and seen.last.min() == end)
    )


def _layers_until(intervals: Intervals, is_true: Callable[[Intervals], bool]) -> int:
    """The fewest layers after which a property is true that, once true, stays true."""
    position = np.arange(intervals.tokens)
    seen = Intervals(position, position)
    if is_true(seen):
        return 0
    powers = _powers(intervals)
    assert is_true(powers[-1])
    layers = 0
    for exponent in reversed(range(len(powers))):
        further = seen.compose(powers[exponent])
        if not is_true(further):
            seen, layers = further, layers + 2**exponent
    return layers + 1


def _powers(intervals: Intervals) -> list[Intervals]:
    """1, 2, 4, … layers, until more layers change nothing."""
    powers = [intervals]
    while True:
        twice = powers[-1].compose(powers[-1])
        if (twice.first == powers[-1].first).all() and (twice.last == powers[-1].last).all():
            return powers
        powers.append(twice)


def _range_minima(values: Positions, first: Positions, last: Positions) -> Positions:
    """``min(values[first[i] … last[i]])`` for every i, from minima over powers of two."""
    widths = last - first + 1
    exponents = np.frexp(widths.astype(float))[1] - 1  # ⌊log₂ width⌋, exactly
    found = np.empty_like(values)
    minima, exponent = values, 0
    while True:
        here = exponents == exponent
        found[here] = np.minimum(minima[first[here]], minima[last[here] - 2**exponent + 1])
        if exponent == exponents.max():
            return found
        minima = np.minimum(minima[: -(2**exponent)], minima[2**exponent :])
        exponent += 1
