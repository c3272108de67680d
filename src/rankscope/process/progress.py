"""Progress callbacks."""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TypeVar

OnStep = Callable[[float], None]
"""Called with the fraction of the work that is done, from 0 to 1."""

Item = TypeVar("Item")


def silent(share: float) -> None:
    """A callback that does nothing."""


def tracked(items: Iterable[Item], on_step: OnStep) -> Iterator[tuple[Item, OnStep]]:
    """Yield items, each with the callback for its part of the work.

    >>> seen = []
    >>> for item, on_part in tracked("ab", seen.append):
    ...     for _ in tracked([1, 2], on_part): pass
    >>> seen
    [0.25, 0.5, 0.5, 0.75, 1.0, 1.0]
    """
    listed = list(items)
    for item, on_part in zip(listed, parts(on_step, *[1.0] * len(listed)), strict=True):
        yield item, on_part
        on_part(1.0)


def parts(on_step: OnStep, *weights: float) -> tuple[OnStep, ...]:
    """A callback for each part of the work; the weights are proportional to the time of a part.

    >>> seen = []
    >>> on_first, on_second = parts(seen.append, 1, 3)
    >>> on_first(0.5); on_first(1.0); on_second(0.5)
    >>> seen
    [0.125, 0.25, 0.625]
    """
    ends = list(accumulate(weights, initial=0.0))

    def part(start: float, weight: float) -> OnStep:
        return lambda share: on_step((start + share * weight) / ends[-1])

    return tuple(part(start, weight) for start, weight in zip(ends, weights, strict=False))
