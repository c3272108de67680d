"""Convert annotations to checks: functions that return None or describe the problem.

Neither torch nor polars is imported: names that exist only for type checkers are compared with the
name of the value's class.
"""

import collections.abc as abc
import math
import os
import sys
import types
import typing
from dataclasses import dataclass
from inspect import isclass
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from rankscope.errors import InputError, KindError, RankscopeError

_MANY = 10_000_000
_LONG_NAME = 255  # bytes that a file system allows in one part of a path
_SEPARATOR, _OTHER_SEPARATOR = os.sep.encode(), (os.altsep or os.sep).encode()


class Wrong(NamedTuple):
    """What was expected of a value, and the problem if it is not its type.

    ``at`` is where inside the value, such as ``[2]``, and ``culprit`` what is there.
    """

    expected: str
    what: str = ""
    error: type[RankscopeError] = KindError
    at: str = ""
    culprit: object = None


Check = abc.Callable[[object], Wrong | None]


@dataclass(frozen=True)
class Range:
    """The valid range of a number, as in ``Annotated[int, Range(1, 8)]``."""

    least: float = -math.inf
    most: float = math.inf

    def __str__(self) -> str:
        if self.most == math.inf:
            open_end = {-math.inf: "finite", 5e-324: "above 0"}
            return open_end.get(self.least, f"{self.least:g} or more")
        return f"{self.least:g} to {self.most:g}"

    def __contains__(self, value: Any) -> bool:
        return math.isfinite(value) and bool(self.least <= value <= self.most)


Exact = Annotated[float, "exact"]  # or a whole number of any size, such as one of paths


def short(value: object) -> str:
    """``=value`` for error messages, shortened; safe if ``repr`` fails."""
    if isinstance(value, str | bytes):
        return f"={value[:40]!a}{'…' if len(value) > 40 else ''}"
    if not isinstance(value, int | float | complex | types.NoneType):
        return ""
    try:
        written = repr(value)
    except ValueError:  # more digits than Python writes
        return ""
    return f"={written[:40]}{'…' if len(written) > 40 else ''}"


def python_number(value: Any) -> Any:
    """Convert a NumPy number or bool to Python's, so that it prints and hashes alike."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    if isinstance(value, numpy.floating):
        return float(value)
    return value.item() if isinstance(value, numpy.integer | numpy.bool_) else value


def number_depth(annotation: Any) -> int:
    """The depth at which an annotation expects numbers: 0 for the value itself, -1 for none.

    >>> number_depth(int | None), number_depth(dict[str, list[float]]), number_depth(str)
    (0, 2, -1)
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return -1 if all(isinstance(choice, str) for choice in arguments) else 0
    if origin is None or origin in (abc.Callable, type):
        return 0 if any(annotation is kind for kind in (int, float, bool)) else -1
    depth = max(map(number_depth, arguments), default=-1)
    inside = origin not in (Annotated, Union, types.UnionType)
    return depth + 1 if inside and depth >= 0 else depth


def with_python_numbers(value: Any, depth: int) -> Any:
    """The value, or a copy with Python numbers if it contains NumPy numbers up to a depth."""
    if depth <= 0 or type(value) not in (list, tuple, set, frozenset, dict):
        return python_number(value) if depth >= 0 else value
    before = [*value, *value.values()] if type(value) is dict else list(value)
    after = [with_python_numbers(item, depth - 1) for item in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return value
    if type(value) is dict:
        return dict(zip(after[: len(value)], after[len(value) :], strict=True))
    return type(value)(after)


class _Named(type):
    """A class known by name alone; ``pl.DataFrame`` is an attribute of the unknown ``pl``."""

    def __getattr__(cls, name: str) -> type:
        return _Named(name, (), {})

    def __instancecheck__(cls, value: object) -> bool:
        return any(parent.__name__ == cls.__name__ for parent in type(value).__mro__)


def resolve(annotation: Any, names: dict[str, Any]) -> Any:
    """Evaluate an annotation given as text; unknown names become ``_Named``."""
    if not isinstance(annotation, str):
        return annotation
    known = dict(names)
    while True:
        try:
            return eval(annotation, known)
        except NameError as error:
            known[str(error.name)] = _Named(str(error.name), (), {})


def check_of(annotation: Any, owner: type | None = None) -> Check | None:
    """The check of an annotation; None if any value is valid. ``owner`` is ``Self``."""
    if annotation is typing.Self:
        return None if owner is None else _instance(owner)
    if isinstance(annotation, str | typing.ForwardRef):  # inside another annotation
        text = annotation if isinstance(annotation, str) else annotation.__forward_arg__
        return _instance(_Named(text.rpartition(".")[2], (), {}))
    if isinstance(annotation, abc.Hashable) and annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _ranged(*arguments[:2])
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, types.UnionType):
        if str in arguments and Path in arguments:  # a name that may be one of a file
            arguments = tuple(str | Path if p is str else p for p in arguments if p is not Path)
        return _union([check_of(part, owner) for part in arguments])
    if origin is not None:
        return _generic(origin, arguments, [check_of(part, owner) for part in arguments])
    if not isclass(annotation) or annotation is object:
        return None
    return _array(annotation) if "array_type" in dir(annotation) else _instance(annotation)


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
    """A dense tensor, which every operation supports."""
    strided = sys.modules["torch"].strided

    def check(value: Any) -> Wrong | None:
        if not isinstance(value, kind):
            return Wrong("a torch.Tensor")
        x: Any = value
        if x.layout is strided and not (x.is_meta or x.is_quantized or x.is_nested):
            return None
        return Wrong(
            "a plain tensor that holds its values (.to_dense(), .dequantize())",
            "is a nested, sparse, quantised or meta tensor",
        )

    return check


def _array(annotation: Any) -> Check:
    """A jaxtyping alias: checks the type and dtype of the array, but not its shape."""
    plain, known = _instance(annotation.array_type), annotation.dtypes
    if not isinstance(known, list | tuple):
        return plain

    def check(value: Any) -> Wrong | None:
        wrong = plain(value)
        if wrong is not None or str(value.dtype).rpartition(".")[2] in known:
            return wrong
        return Wrong(f"{annotation.dtype.__name__.lower()} numbers", f"has dtype {value.dtype}")

    return check


def _literal(choices: tuple[Any, ...]) -> Check:
    kind = Wrong(f"one of {', '.join(map(str, choices))}")
    unknown = kind._replace(what="is unknown", error=InputError)

    def check(value: object) -> Wrong | None:
        if isinstance(value, str):
            return None if value in choices else unknown
        return None if any(value is choice for choice in choices) else kind

    return check


def _union(checks: list[Check | None]) -> Check | None:
    if None in checks:
        return None
    known = cast(list[Check], checks)

    def check(value: object) -> Wrong | None:
        wrongs = []
        for option in known:
            if (wrong := option(value)) is None:
                return None
            wrongs.append(wrong)
        closest = next((wrong for wrong in wrongs if wrong.at or wrong.what), wrongs[0])
        if closest.at:
            return closest
        expected = " or ".join(dict.fromkeys(wrong.expected for wrong in wrongs))
        return closest._replace(expected=expected)

    return check


def _ranged(number: Any, limits: object) -> Check | None:
    check = check_of(number)
    if not isinstance(limits, Range) or check is None:
        return check
    noun = "a whole number" if number is int else "a number"
    outside = Wrong(f"{noun}, {limits}", "is out of range", InputError)
    return lambda value: check(value) or (None if value in limits else outside)


def _generic(origin: Any, arguments: tuple[Any, ...], inner: list[Check | None]) -> Check | None:
    if origin is abc.Callable:
        return _PLAIN[origin]
    if origin is type:
        return lambda value: None if isclass(value) else Wrong("a class")
    if issubclass(origin, abc.Mapping):
        return _mapping(*inner)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return Items(abc.Sequence, f"{len(inner)} values in a tuple", fixed=inner)
    if issubclass(origin, abc.Sequence):
        return Items(abc.Sequence, "a sequence", inner[0])
    if issubclass(origin, abc.Set):
        return Items(abc.Set, "a set", inner[0])
    if origin in (abc.Iterable, abc.Iterator):
        return Items(abc.Iterable, "something to iterate over", inner[0])
    return _instance(origin)


def _mapping(key: Check | None, entry: Check | None) -> Check:
    def check(value: object) -> Wrong | None:
        if not isinstance(value, abc.Mapping):
            return Wrong("a mapping")
        return _first_wrong(value, repeat(key)) or _first_wrong(value.values(), repeat(entry))

    return check


@dataclass(frozen=True)
class Items:
    """The check of a collection and its items; a string is not a sequence of strings.

    Iterators are checked while they are consumed.
    """

    kind: Any
    noun: str
    item: Check | None = None
    fixed: list[Check | None] | None = None

    def __call__(self, value: Any) -> Wrong | None:
        if isinstance(value, str | bytes | bytearray) or not isinstance(value, self.kind):
            return Wrong(self.noun)
        if self.fixed is not None and len(value) != len(self.fixed):
            return Wrong(self.noun, f"has {len(value)} items", InputError)
        sized = self.kind is not abc.Iterable or isinstance(value, range)
        if sized and len(value) > _MANY:  # a range says so without holding them
            noun = f"{self.noun} of at most {_MANY:,} items"
            return Wrong(noun, f"has {len(value):,}", InputError)
        if (self.fixed or self.item) is None or (not sized and isinstance(value, abc.Iterator)):
            return None
        try:
            return _first_wrong(value, self.fixed or repeat(self.item))
        except TypeError:  # a tensor without axes
            return Wrong(self.noun)


def _first_wrong(values: Any, checks: abc.Iterable[Check | None]) -> Wrong | None:
    for index, (value, check) in enumerate(zip(values, checks, strict=False)):
        if check is not None and (wrong := check(value)) is not None:
            culprit = wrong.culprit if wrong.at else value
            return wrong._replace(at=f"[{index}]{wrong.at}", culprit=culprit)
    return None


def _number(kinds: Any, noun: str, largest: int, size: str) -> Check:
    def check(value: Any) -> Wrong | None:
        if isinstance(value, bool) or not isinstance(value, kinds):
            return Wrong(noun)
        if isinstance(value, float) or -largest <= value < largest:
            return None
        return Wrong(f"{noun} of {size}", "is out of range", InputError)

    return check


def _str(value: object) -> Wrong | None:
    if not isinstance(value, str):
        return Wrong("a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        what = "holds half of a surrogate pair"
        return Wrong("text that can be written as UTF-8", what, InputError)
    return None


def _path(value: object) -> Wrong | None:
    """A valid path; the function checks whether the file exists."""
    if not isinstance(value, str | os.PathLike):
        return Wrong("a path")
    unusable = Wrong("a path", "cannot be the name of a file", InputError)
    try:
        parts = os.fsencode(value).replace(_OTHER_SEPARATOR, _SEPARATOR).split(_SEPARATOR)
    except (UnicodeEncodeError, TypeError):
        return unusable
    bad = any(len(part) > _LONG_NAME or b"\0" in part for part in parts)
    return unusable if bad or len(parts) > _LONG_NAME else None


_PLAIN: dict[Any, Check | None] = {
    Any: None,
    types.NoneType: lambda value: None if value is None else Wrong("None"),
    int: _number(int, "a whole number", 2**63, "64 bits"),
    float: _number((int, float), "a number", 2**63, "64 bits"),
    Exact: _number((int, float), "a number", 10**308, "308 digits"),
    bool: lambda value: None if isinstance(value, bool) else Wrong("a bool"),
    str: _str,
    Path: lambda value: Wrong("a Path") if isinstance(value, str) else _path(value),
    str | Path: _path,
    abc.Callable: lambda value: None if callable(value) else Wrong("a function"),
}
"""Checks of annotations that are looked up; others are composed of their parts."""
