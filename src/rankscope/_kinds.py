"""What an annotation asks of a value, as a function that finds nothing wrong or says what is.

No torch, no polars: names that a module knows only while types are checked are compared by the name
of the value's class.
"""

import builtins
import collections.abc as abc
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import isclass
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from rankscope.errors import InputError, KindError, RankscopeError

_LARGE = 2**63
_LARGEST = 10**308
"""Whole numbers below this are numbers like others where reals are asked for."""
_MANY = 10_000_000
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
            return "finite" if self.least == -math.inf else f"{self.least:g} or more"
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


class _Named(type):
    """A class known by name alone; ``pl.DataFrame`` is an attribute of the unknown ``pl``."""

    def __getattr__(cls, name: str) -> type:
        return _Named(name, (), {})

    def __instancecheck__(cls, value: object) -> bool:
        return any(each.__name__ == cls.__name__ for each in type(value).__mro__)


def resolve(annotation: Any, names: dict[str, Any]) -> Any:
    """An annotation that was written as text; names that are not known stand for their classes."""
    if not isinstance(annotation, str):
        return annotation

    class Unknown(dict[str, Any]):
        def __missing__(self, name: str) -> type:
            if name in names or hasattr(builtins, name):
                raise KeyError(name)
            return _Named(name, (), {})

    return eval(annotation, names, Unknown())


def check_of(annotation: Any, owner: type | None = None) -> Check | None:
    """The check of an annotation; None where anything goes. ``owner`` is what ``Self`` means."""
    if annotation is Any:
        return None
    if annotation is typing.Self:
        return None if owner is None else _instance(owner)
    if isinstance(annotation, str | typing.ForwardRef):  # inside another annotation
        text = annotation if isinstance(annotation, str) else annotation.__forward_arg__
        return _instance(_Named(text.rpartition(".")[2], (), {}))
    if annotation is None or annotation is types.NoneType:
        return lambda value: None if value is None else Wrong("None")
    special = _SPECIAL.get(annotation) if isinstance(annotation, abc.Hashable) else None
    if special is not None:
        return special
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _ranged(check_of(arguments[0], owner), arguments[1])
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, types.UnionType):
        if str in arguments and Path in arguments:  # a name that may be one of a file
            arguments = tuple(each for each in arguments if each is not Path)
            return _union([_path if each is str else check_of(each, owner) for each in arguments])
        return _union([check_of(each, owner) for each in arguments])
    if origin is not None:
        return _generic(origin, [check_of(each, owner) for each in arguments], arguments)
    if isclass(annotation) and "array_type" in dir(annotation):
        return _array(annotation)
    if isclass(annotation) and annotation is not object:
        return _generic(annotation, [], ()) if annotation in _CONTAINERS else _instance(annotation)
    return None


def _instance(kind: type) -> Check:
    if kind.__name__ == "Tensor":
        return _tensor(kind)
    wrong = Wrong("a torch.nn.Module" if kind.__name__ == "Module" else f"a {kind.__name__}")
    try:
        isinstance(None, kind)
    except TypeError:  # a protocol that is there for type checkers alone
        return lambda _value: None
    if getattr(kind, "_is_protocol", False):  # a class has the methods, but is not yet the thing
        return lambda value: wrong if isclass(value) or not isinstance(value, kind) else None
    return lambda value: None if isinstance(value, kind) else wrong


def _tensor(kind: type) -> Check:
    """A tensor whose entries lie in memory one by one, so that every operation knows it."""
    strided = sys.modules["torch"].strided
    other = Wrong(
        "a plain tensor that holds its values (.to_dense(), .dequantize())",
        "is a nested, sparse, quantised or meta tensor",
    )

    def check(value: Any) -> Wrong | None:
        if not isinstance(value, kind):
            return Wrong("a torch.Tensor")
        x: Any = value
        if x.layout is not strided or x.is_meta or x.is_quantized or x.is_nested:
            return other
        return None

    return check


def _array(annotation: Any) -> Check:
    """A jaxtyping alias: the array's type and the kind of its numbers; shapes are not looked at."""
    plain, known = _instance(annotation.array_type), annotation.dtypes
    every = not isinstance(known, list | tuple)
    right: dict[object, bool] = {}

    def check(value: Any) -> Wrong | None:
        wrong = plain(value)
        if wrong is not None or every:
            return wrong
        if value.dtype not in right:
            right[value.dtype] = str(value.dtype).rpartition(".")[2] in known
        if right[value.dtype]:
            return None
        return Wrong(f"{annotation.dtype.__name__.lower()} numbers", f"has dtype {value.dtype}")

    return check


def _int(value: object) -> Wrong | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return Wrong("a whole number")
    if -_LARGE <= value < _LARGE:
        return None
    return Wrong("a whole number of 64 bits", "is out of range", InputError)


def _float(value: object) -> Wrong | None:
    if type(value) is float:
        return None
    if isinstance(value, float):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return None
    wrong = _int(value)
    return wrong._replace(expected="a number") if wrong and not wrong.what else wrong


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


def _path(value: object) -> Wrong | None:
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
    return Wrong("a Path") if isinstance(value, str) else _path(value)


def _callable(value: object) -> Wrong | None:
    return None if callable(value) else Wrong("a function")


_SPECIAL: dict[Any, Check] = {
    int: _int,
    float: _float,
    bool: _bool,
    str: _str,
    Path: _path_object,
    abc.Callable: _callable,
    str | Path: _path,
}
_CONTAINERS = (list, tuple, dict, set, frozenset, abc.Sequence, abc.Mapping, abc.Iterable)


def _literal(choices: tuple[Any, ...]) -> Check:
    written = f"one of {', '.join(str(choice) for choice in choices)}"
    kind, unknown = Wrong(written), Wrong(written, "is unknown", InputError)

    def check(value: object) -> Wrong | None:
        if not isinstance(value, str):
            return None if any(value is choice for choice in choices) else kind
        return None if value in choices else unknown

    return check


def _union(checks: list[Check | None]) -> Check | None:
    if any(check is None for check in checks):
        return None
    known = typing.cast(list[Check], checks)

    def check(value: object) -> Wrong | None:
        found = []
        for each in known:
            wrong = each(value)
            if wrong is None:
                return None
            found.append(wrong)
        closest = next((wrong for wrong in found if wrong.at or wrong.what), found[0])
        if closest.at:
            return closest
        expected = " or ".join(dict.fromkeys(wrong.expected for wrong in found))
        return closest._replace(expected=expected)

    return check


def _ranged(check: Check | None, limits: object) -> Check | None:
    if not isinstance(limits, Range) or check is None:
        return check

    def ranged(value: object) -> Wrong | None:
        wrong = check(value)
        if wrong is None and value not in limits:
            return Wrong(
                f"{typing.cast(Any, check)(None).expected}, {limits}", "is out of range", InputError
            )
        return wrong

    return ranged


def _generic(origin: Any, inner: list[Check | None], arguments: tuple[Any, ...]) -> Check | None:
    if origin is abc.Callable:
        return _callable
    if origin is type:
        return lambda value: None if isclass(value) else Wrong("a class")
    if issubclass(origin, abc.Mapping):
        return _mapping(*inner) if len(inner) == 2 else _mapping(None, None)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return _fixed(inner)
    if issubclass(origin, abc.Sequence) and not issubclass(origin, str | bytes):
        return _sequence(inner[0] if inner else None)
    if issubclass(origin, abc.Set):
        return _items(abc.Set, "a set", inner[0] if inner else None)
    if issubclass(origin, abc.Iterable) and origin in (abc.Iterable, abc.Iterator):
        return Items(inner[0] if inner else None)
    return _instance(origin)


def _sequence(item: Check | None) -> Check:
    return _items(abc.Sequence, "a sequence", item)


def _items(kind: Any, noun: str, item: Check | None) -> Check:
    """Some kind of collection, and every item in it; text is no sequence of texts."""

    def check(value: Any) -> Wrong | None:
        if isinstance(value, str | bytes | bytearray) or not isinstance(value, kind):
            return Wrong(noun)
        if len(value) > _MANY:  # a range says so without holding them
            return Wrong(f"{noun} of at most {_MANY:,} items", f"has {len(value):,}", InputError)
        return None if item is None else _first_wrong(value, repeat(item))

    return check


def _first_wrong(values: Any, checks: Iterable[Check | None]) -> Wrong | None:
    for index, (each, check) in enumerate(zip(values, checks, strict=False)):
        if check is not None and (wrong := check(each)) is not None:
            found = wrong.found if wrong.at else each
            return wrong._replace(at=f"[{index}]{wrong.at}", found=found)
    return None


def _fixed(inner: list[Check | None]) -> Check:
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


def _mapping(key: Check | None, held: Check | None) -> Check:
    def check(value: object) -> Wrong | None:
        if not isinstance(value, abc.Mapping):
            return Wrong("a mapping")
        return _first_wrong(value, repeat(key)) or _first_wrong(value.values(), repeat(held))

    return check
