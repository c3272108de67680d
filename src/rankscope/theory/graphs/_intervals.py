"""Graphs in which each token attends to one stretch of tokens that holds itself.

**Derived.** After t layers token i has heard from a set ``R_t(i)``, ``R_1(i)`` its stretch. If
``R_s(i)`` is a stretch, then so is ``R_{s+t}(i) = ∪_{j ∈ R_s(i)} R_t(j)``, because each ``R_t(j)``
holds j and the j are neighbours; its ends are the least first and the greatest last among them.
So a whole layer is two arrays, layers compose by range minima, and the number of layers after which
something holds is found by doubling, in ``O(n log² n)`` for all tokens at once, without edges.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Stretches:
    """What each token has heard from: all tokens from ``first[i]`` to ``last[i]``."""

    first: Positions
    last: Positions

    @property
    def tokens(self) -> int:
        return len(self.first)

    def then(self, earlier: "Stretches") -> "Stretches":
        """These layers after ``earlier`` ones."""
        return Stretches(
            _least(earlier.first, self.first, self.last),
            -_least(-earlier.last, self.first, self.last),
        )


def stretch_classes(stretches: Stretches) -> list[range]:
    """The closed classes: stretches whose members, in the end, all hear from exactly them."""
    final = _powers(stretches)[-1]
    least_last = _least(final.last, final.first, final.last)
    most_first = -_least(-final.first, final.first, final.last)
    closed = (most_first == final.first) & (least_last == final.last)
    firsts, places = np.unique(final.first[closed], return_index=True)
    lasts = final.last[closed][places]
    return [
        range(one, other + 1) for one, other in zip(firsts.tolist(), lasts.tolist(), strict=True)
    ]


def stretch_radius(stretches: Stretches) -> int:
    """Layers until some token is heard by all; there must be a center.

    Token c is heard by all when it lies in every stretch: right of the last first, left of the
    first last.
    """
    return _layers_until(stretches, lambda heard: bool(heard.first.max() <= heard.last.min()))


def stretch_diameter(stretches: Stretches) -> int:
    """Layers until all tokens are heard by all; every token must be a center."""
    end = stretches.tokens - 1
    return _layers_until(
        stretches, lambda heard: bool(heard.first.max() == 0 and heard.last.min() == end)
    )


def _layers_until(stretches: Stretches, holds: Callable[[Stretches], bool]) -> int:
    """The fewest layers after which something holds that, once it does, holds for good."""
    position = np.arange(stretches.tokens)
    heard = Stretches(position, position)
    if holds(heard):
        return 0
    powers = _powers(stretches)
    assert holds(powers[-1])
    layers = 0
    for exponent in reversed(range(len(powers))):
        further = heard.then(powers[exponent])
        if not holds(further):
            heard, layers = further, layers + 2**exponent
    return layers + 1


def _powers(stretches: Stretches) -> list[Stretches]:
    """1, 2, 4, … layers, until more layers change nothing."""
    powers = [stretches]
    while True:
        twice = powers[-1].then(powers[-1])
        if (twice.first == powers[-1].first).all() and (twice.last == powers[-1].last).all():
            return powers
        powers.append(twice)


def _least(values: Positions, first: Positions, last: Positions) -> Positions:
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
