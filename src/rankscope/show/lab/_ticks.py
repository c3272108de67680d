"""The ticks of an axis of logarithms: where they may stand, and the numbers written there."""

import math
from collections.abc import Iterable
from typing import Final

LINEAR: Final = 20.0
"""Logarithms up to about this size are nearly evenly spaced; beyond, their own logarithms are."""
_FINE: Final = (0.3, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.5)
"""Numbers for which there is room only where little happens."""
_GAP: Final = 17.0
_HEIGHT: Final = 240.0

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
    near = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, *_FINE]
    found = {round(math.log10(number), 6): f"{number:g}" for number in near}
    steps = [3, 4, 5, 6, 8, *(m * 10**e for e in range(1, 6) for m in (1, 2, 5))]
    steps += [10**e for e in range(6, 17)]
    for step in steps:
        found |= {float(-step): _power(-step), float(step): _power(step)}
    return dict(sorted(found.items()))


POWERS: Final = _powers()
"""Logarithms to base ten, and their numbers in words that fit a tick."""


def choose_ticks(values: Iterable[float | None]) -> list[float]:
    """Ticks for these logarithms, so far apart that their labels do not touch; 1 comes first.

    >>> [POWERS[tick] for tick in choose_ticks([0.0, -2.2])]
    ['0.01', '0.02', '0.05', '0.1', '0.2', '0.3', '0.5', '1']
    """
    known = [0.0, *(value for value in values if value is not None and math.isfinite(value))]
    low, high = min(known), max(known)
    scale = _HEIGHT / max(_place(high) - _place(low), 1e-9)
    chosen: list[float] = []
    fine = {round(math.log10(number), 6) for number in _FINE}
    for tick in sorted(POWERS, key=lambda tick: (tick in fine, abs(tick))):
        far = all(abs(_place(tick) - _place(each)) * scale >= _GAP for each in chosen)
        if low <= tick <= high and far:
            chosen.append(tick)
    return sorted(chosen)


def _place(log: float) -> float:
    """Where a logarithm stands on the axis, in arbitrary units."""
    return math.copysign(math.log1p(abs(log) / LINEAR), log)
