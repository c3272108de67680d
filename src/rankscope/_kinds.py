"""What an annotation asks of a value, as a function that finds nothing wrong or says what is.

No torch, no polars: names that a module knows only while types are checked are compared by the name
of the value's class.
"""

import builtins
import collections.abc as abc
import sys
import types
import typing
from inspect import isclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rankscope._collection_kinds import Items, fixed, items, mapping
from rankscope._plain_kinds import PLAIN, Check, Range, Wrong, function, path
from rankscope.errors import InputError

_CONTAINERS = (list, tuple, dict, set, frozenset, abc.Sequence, abc.Mapping, abc.Iterable)


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
    plain = PLAIN.get(annotation) if isinstance(annotation, abc.Hashable) else None
    if plain is not None:
        return plain
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _ranged(check_of(arguments[0], owner), arguments[1])
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, types.UnionType):
        if str in arguments and Path in arguments:  # a name that may be one of a file
            arguments = tuple(each for each in arguments if each is not Path)
            return _union([path if each is str else check_of(each, owner) for each in arguments])
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
        return function
    if origin is type:
        return lambda value: None if isclass(value) else Wrong("a class")
    if issubclass(origin, abc.Mapping):
        return mapping(*inner) if len(inner) == 2 else mapping(None, None)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return fixed(inner)
    if issubclass(origin, abc.Sequence) and not issubclass(origin, str | bytes):
        return items(abc.Sequence, "a sequence", inner[0] if inner else None)
    if issubclass(origin, abc.Set):
        return items(abc.Set, "a set", inner[0] if inner else None)
    if issubclass(origin, abc.Iterable) and origin in (abc.Iterable, abc.Iterator):
        return Items(inner[0] if inner else None)
    return _instance(origin)
