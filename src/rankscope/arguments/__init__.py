"""Check the types of arguments of public functions against their annotations.

The decorator ``@checked`` applies to a function, a dataclass or a class with public methods.
Conditions beyond the type (finite, a maximum) are ``Annotated`` with a ``Range``, or checked by the
functions with ``rankscope.core.checks``.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Annotated, Any, NamedTuple, TypeVar, cast

from rankscope.arguments._kinds import (
    Check,
    Exact,
    Items,
    Range,
    check_of,
    number_depth,
    python_number,
    resolve,
    short,
    with_python_numbers,
)

__all__ = [
    "Count", "Exact", "Finite", "Positive", "Range", "Seed", "Share",
    "check_field", "check_fields", "checked", "python_number", "series_as_list", "short",
]  # fmt: skip

Count = Annotated[int, Range(1, 1_000_000)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Finite = Annotated[float, Range()]
Positive = Annotated[float, Range(5e-324)]
Share = Annotated[float, Range(0, 1)]
FROM_PANDAS: list[Callable[[Any], Any]] = []
"""Converts a pandas frame to a polars one; set when ``rankscope.tables`` is imported."""
Thing = TypeVar("Thing", bound=Callable[..., Any])


def checked(thing: Thing) -> Thing:
    """The same function or class; arguments of a wrong type raise a ``KindError``.

    >>> @checked
    ... def repeat(text: str, times: int = 2) -> str:
    ...     return text * times
    >>> repeat("ab", times=None)
    Traceback (most recent call last):
    rankscope.errors.KindError: repeat: times=None is a NoneType, expected a whole number. ...

    Of a class, the constructor and every public method are checked. Where numbers are expected,
    NumPy's arrive as Python's; a column of a pandas or polars frame arrives as a list. A call with
    too many arguments, too few or unknown ones raises Python's own ``TypeError``.
    """
    if not isinstance(thing, type):
        return cast(Thing, _guarded(thing, None))
    for name, member in list(vars(thing).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(thing, name, type(member)(_guarded(member.__func__, thing)))
        elif inspect.isfunction(member) and len(inspect.signature(member).parameters) > 1:
            setattr(thing, name, _guarded(member, thing))
    return cast(Thing, thing)


def check_fields(record: object) -> None:
    """Check the fields of a dataclass instance against their annotations.

    NumPy numbers are converted to Python numbers.
    """
    kind: type[Any] = type(record)
    for name, check in _field_checks(kind).items():  # type: ignore[arg-type]
        object.__setattr__(record, name, check.take(kind.__name__, name, getattr(record, name)))


def check_field(kind: type[Any], name: str, value: object) -> None:
    """Check a value for a field of a dataclass against the annotation of the field."""
    _field_checks(kind).get(name, _ANYTHING).take("", name, value)  # type: ignore[arg-type]


@functools.cache
def _field_checks(kind: type[Any]) -> dict[str, "_Argument"]:
    checks = {}
    for field in fields(kind):
        # The field may have been written in a parent's module, where other names are known.
        lines = ((home, inspect.get_annotations(home)) for home in kind.__mro__)
        home = next(home for home, written in lines if field.name in written)
        names = vars(sys.modules[home.__module__])
        checks[field.name] = _Argument.of(resolve(field.type, names), kind)
    return checks


def _guarded(function: Callable[..., Any], owner: type | None) -> Callable[..., Any]:
    """The function with a check of its arguments, which is built at the first call."""
    if hasattr(function, "__checked__"):
        return function
    guard: _Guard | None = None

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        nonlocal guard
        if guard is None:
            guard = _Guard(function, owner)
        if "pandas" in sys.modules:
            args = tuple(map(_without_pandas, args))
            named = {name: _without_pandas(value) for name, value in named.items()}
        args = tuple(map(series_as_list, args))
        named = {name: series_as_list(value) for name, value in named.items()}
        return function(*guard.take_places(args), **guard.take_names(named))

    call.__checked__ = True  # type: ignore[attr-defined]
    return call


class _Argument(NamedTuple):
    """The check of one argument, and how deeply numbers are nested in it."""

    check: Check | None = None
    depth: int = -1

    @classmethod
    def of(cls, annotation: Any, owner: type | None) -> "_Argument":
        return cls(check_of(annotation, owner), number_depth(annotation))

    def take(self, label: str, name: str, value: Any) -> Any:
        """The value with Python numbers; raises if its type is wrong.

        Items of an iterator are checked as they are consumed.
        """
        if self.depth >= 0:
            value = with_python_numbers(value, self.depth)
        check = self.check
        _require(check, label, name, value)
        if not isinstance(check, Items) or not isinstance(value, Iterator):
            return value
        item = _Argument(check.item, self.depth - 1)
        return (item.take(label, f"{name}[{index}]", entry) for index, entry in enumerate(value))


_ANYTHING = _Argument()


def _without_pandas(value: Any) -> Any:
    """A pandas frame as a polars one, also in a list or as a mapping's value; else the value."""
    kind = type(value)
    if kind in (list, tuple) and any(map(_is_pandas, value)):
        return kind(map(_without_pandas, value))
    if kind is dict and any(map(_is_pandas, value.values())):
        return {name: _without_pandas(entry) for name, entry in value.items()}
    return FROM_PANDAS[0](value) if FROM_PANDAS and _is_pandas(value) else value


def series_as_list(value: Any) -> Any:
    """A column of a pandas or polars frame, such as one of texts, as a list; else the value."""
    kind = type(value)
    is_series = kind.__name__ == "Series"
    if is_series and kind.__module__.partition(".")[0] in ("pandas", "polars"):
        return value.to_list()
    return value


def _is_pandas(value: object) -> bool:
    kind = type(value)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


class _Guard:
    """The checks of a function's arguments, by name."""

    def __init__(self, function: Callable[..., Any], owner: type | None) -> None:
        self._label = function.__qualname__.removesuffix(".__init__").replace("<locals>.", "")
        self._arguments: dict[str, _Argument] = {}
        self._places: list[str] = []
        self._more_places: list[str] = []  # the name of *arguments, if there are any
        self._more_names = _ANYTHING
        names = inspect.unwrap(function).__globals__
        for name, parameter in inspect.signature(function).parameters.items():
            argument = _ANYTHING
            if parameter.annotation is not parameter.empty:
                argument = _Argument.of(resolve(parameter.annotation, names), owner)
            if parameter.kind is parameter.VAR_KEYWORD:
                self._more_names = argument
                continue
            self._arguments[name] = argument
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._more_places = [name]
            elif parameter.kind is not parameter.KEYWORD_ONLY:
                self._places.append(name)

    def take_places(self, args: tuple[Any, ...]) -> list[Any]:
        """Check positional arguments; Python itself rejects surplus ones."""
        names = self._places
        if len(args) > len(names):
            names = names + self._more_places * (len(args) - len(names))
        taken = [
            self._arguments[name].take(self._label, name, value)
            for name, value in zip(names, args, strict=False)
        ]
        return [*taken, *args[len(names) :]]

    def take_names(self, named: dict[str, Any]) -> dict[str, Any]:
        """Check keyword arguments; Python itself rejects unknown ones."""
        return {
            name: self._arguments.get(name, self._more_names).take(self._label, name, value)
            for name, value in named.items()
        }


def _require(check: Check | None, label: str, name: str, value: object) -> None:
    wrong = None if check is None else check(value)
    if wrong is None:
        return
    culprit = wrong.culprit if wrong.at else value
    what = wrong.what or f"is a {type(culprit).__name__}"
    hint = ""
    if "a sequence" in wrong.expected and isinstance(value, str):
        hint = f"; put it in a list: [{name}]"
    elif "torch.Tensor" in wrong.expected and type(value).__name__ in ("list", "tuple", "ndarray"):
        hint = f"; wrap it: torch.as_tensor({name})"
    elif "a Network" in wrong.expected and hasattr(value, "network"):
        hint = "; pass its .network"
    elif "a Network" in wrong.expected and type(value).__name__ == "Spec":
        hint = "; build it: Network.random(spec)"
    where = f"{label}: {name}" if label else name
    raise wrong.error(f"{where}{wrong.at}{short(culprit)} {what}, expected {wrong.expected}{hint}.")
