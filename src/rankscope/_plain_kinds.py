"""What is asked of one number, text, path or function: nothing wrong, or what is.

No torch, no polars.
"""

import collections.abc as abc
import math
import os
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rankscope.errors import InputError, KindError, RankscopeError

_LARGE = 2**63
_LARGEST = 10**308
_LONG_NAME = 255
"""Bytes that a file system allows in one part of a path."""


class Wrong(NamedTuple):
    """What was expected of a value, and what is wrong with it if not its type.

    ``at`` is where inside the value, such as ``[2]``, and ``found`` what is there.
    """

    expected: str
    what: str = ""
    error: type[RankscopeError] = KindError
    at: str = ""
    found: object = None


Check = Callable[[object], Wrong | None]


@dataclass(frozen=True)
class Range:
    """Numbers that make sense, as the second part of ``Annotated[int, Range(1, 8)]``."""

    least: float = -math.inf
    most: float = math.inf

    def __str__(self) -> str:
        if self.most == math.inf:
            open_end = {-math.inf: "finite", 5e-324: "above 0"}
            return open_end.get(self.least, f"{self.least:g} or more")
        return f"{self.least:g} to {self.most:g}"

    def __contains__(self, value: Any) -> bool:
        try:
            return math.isfinite(value) and bool(self.least <= value <= self.most)
        except OverflowError:  # a whole number beyond any float
            return False


Count = Annotated[int, Range(1, 1_000_000)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Finite = Annotated[float, Range()]
Positive = Annotated[float, Range(5e-324)]
Share = Annotated[float, Range(0, 1)]
Exact = Annotated[float, "exact"]
"""A number, or a whole one of any size, such as a number of paths."""


def short(value: object) -> str:
    """``=value`` in a few characters if that says something, whatever its ``repr`` does."""
    if isinstance(value, str | bytes):
        return f"={value[:40]!a}{'…' if len(value) > 40 else ''}"
    if not isinstance(value, int | float | complex | types.NoneType):
        return ""
    try:
        written = repr(value)
    except ValueError:  # more digits than Python writes
        return ""
    return f"={written[:40]}{'…' if len(written) > 40 else ''}"


def _int(value: object) -> Wrong | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return Wrong("a whole number")
    if -_LARGE <= value < _LARGE:
        return None
    return Wrong("a whole number of 64 bits", "is out of range", InputError)


def _float(value: object) -> Wrong | None:
    if isinstance(value, float):
        return None
    wrong = _int(value)
    return wrong._replace(expected="a number") if wrong and not wrong.what else wrong


def _exact(value: object) -> Wrong | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Wrong("a number")
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return Wrong("a number", "is out of range", InputError)
    return None


def _bool(value: object) -> Wrong | None:
    return None if isinstance(value, bool) else Wrong("a bool")


def _str(value: object) -> Wrong | None:
    if not isinstance(value, str):
        return Wrong("a str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            what = "holds half of a surrogate pair"
            return Wrong("text that can be written as UTF-8", what, InputError)
    return None


def path(value: object) -> Wrong | None:
    """A path that some file could have; whether it is there, the function finds out."""
    if not isinstance(value, str | os.PathLike):
        return Wrong("a path")
    try:
        parts = os.fsencode(value).split(os.sep.encode())
    except (UnicodeEncodeError, TypeError):
        return Wrong("a path", "cannot be the name of a file", InputError)
    if any(len(part) > _LONG_NAME or b"\0" in part for part in parts) or len(parts) > _LONG_NAME:
        return Wrong("a path", "cannot be the name of a file", InputError)
    return None


def _path_object(value: object) -> Wrong | None:
    return Wrong("a Path") if isinstance(value, str) else path(value)


def function(value: object) -> Wrong | None:
    """Anything that can be called."""
    return None if callable(value) else Wrong("a function")


PLAIN: dict[Any, Check] = {
    int: _int,
    float: _float,
    Exact: _exact,
    bool: _bool,
    str: _str,
    Path: _path_object,
    str | Path: path,
    abc.Callable: function,
}
"""The check of each annotation that is known as a whole; others are taken apart."""
