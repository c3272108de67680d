"""What is asked of collections: of their kind, their size, and of every item in them."""

import collections.abc as abc
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from rankscope._plain_kinds import Check, Wrong
from rankscope.errors import InputError

_MANY = 10_000_000


def items(kind: Any, noun: str, item: Check | None) -> Check:
    """Some kind of collection, and every item in it; text is no sequence of texts."""

    def check(value: Any) -> Wrong | None:
        if isinstance(value, str | bytes | bytearray) or not isinstance(value, kind):
            return Wrong(noun)
        if len(value) > _MANY:  # a range says so without holding them
            return Wrong(f"{noun} of at most {_MANY:,} items", f"has {len(value):,}", InputError)
        return None if item is None else _first_wrong(value, repeat(item))

    return check


def fixed(inner: list[Check | None]) -> Check:
    """A tuple of so many values, or any sequence in its place, each with a check of its own."""
    noun = f"{len(inner)} values in a tuple"

    def check(value: object) -> Wrong | None:
        if isinstance(value, str | bytes) or not isinstance(value, abc.Sequence):
            return Wrong(noun)
        if len(value) != len(inner):
            return Wrong(noun, f"has {len(value)} items", InputError)
        return _first_wrong(value, inner)

    return check


class Items:
    """The check of something to iterate over; what looking would use up is checked on the way."""

    def __init__(self, item: Check | None) -> None:
        self.item = item

    def __call__(self, value: object) -> Wrong | None:
        item = self.item
        if isinstance(value, str | bytes | bytearray) or not isinstance(value, abc.Iterable):
            return Wrong("something to iterate over")
        if isinstance(value, range) and len(value) > _MANY:
            return Wrong(f"at most {_MANY:,} items", f"has {len(value):,}", InputError)
        if item is None or isinstance(value, abc.Iterator):
            return None
        try:
            return _first_wrong(value, repeat(item))
        except TypeError:  # a tensor without axes
            return Wrong("something to iterate over")


def mapping(key: Check | None, held: Check | None) -> Check:
    """A mapping, every key and every value of it."""

    def check(value: object) -> Wrong | None:
        if not isinstance(value, abc.Mapping):
            return Wrong("a mapping")
        return _first_wrong(value, repeat(key)) or _first_wrong(value.values(), repeat(held))

    return check


def _first_wrong(values: Any, checks: Iterable[Check | None]) -> Wrong | None:
    for index, (each, check) in enumerate(zip(values, checks, strict=False)):
        if check is not None and (wrong := check(each)) is not None:
            found = wrong.found if wrong.at else each
            return wrong._replace(at=f"[{index}]{wrong.at}", found=found)
    return None
