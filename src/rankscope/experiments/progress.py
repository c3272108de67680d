"""How far a run has come: one callback for every experiment, and nothing to be counted by hand."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

OnStep = Callable[[float], None]
"""Called with the share of the work that is done, from 0 to 1."""

Item = TypeVar("Item")


def silent(share: float) -> None:
    """For callers who do not ask."""


def tracked(items: Iterable[Item], on_step: OnStep) -> Iterator[tuple[Item, OnStep]]:
    """Items one by one, each with the callback for its own share of the work.

    >>> seen = []
    >>> for item, on_part in tracked("ab", seen.append):
    ...     for _ in tracked([1, 2], on_part): pass
    >>> seen
    [0.25, 0.5, 0.5, 0.75, 1.0, 1.0]
    """
    listed = list(items)

    def part(index: int) -> OnStep:
        return lambda share: on_step((index + share) / len(listed))

    for index, item in enumerate(listed):
        yield item, part(index)
        on_step((index + 1) / len(listed))
