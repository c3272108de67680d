"""The ticks of an axis of logarithms: where they may stand, and the numbers written there."""

import math
from typing import Final

_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(exponent: int) -> str:
    """``10⁻²⁰``; an exponent too long to be raised is written out."""
    if abs(exponent) < 10**6:
        return "10" + str(exponent).translate(_RAISED)
    return f"10^{'−' if exponent < 0 else ''}10" + str(round(math.log10(abs(exponent)))).translate(
        _RAISED
    )


def _powers() -> dict[float, str]:
    """Numbers from 0.01 to 100, and beyond them powers of ten, ever sparser."""
    near = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1]
    near += [1.1, 1.2, 1.5, 2, 5, 10, 20, 50, 100]
    found = {round(math.log10(number), 6): f"{number:g}" for number in near}
    steps = [3, 4, 5, 6, 8, *(m * 10**e for e in range(1, 6) for m in (1, 2, 5))]
    steps += [10**e for e in range(6, 17)]
    for step in steps:
        found |= {float(-step): _power(-step), float(step): _power(step)}
    return dict(sorted(found.items()))


POWERS: Final = _powers()
"""Logarithms to base ten, and their numbers in words that fit a tick."""
