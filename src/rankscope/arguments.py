"""Arguments of the wrong kind, answered in one place: from a public function's annotations.

``@checked`` above a function, a dataclass or a class with public methods is all that is written.
What the annotations cannot say (finite, at most so many) is in ``Annotated`` with a ``Range``, or
stays with the functions, in ``rankscope.core.checks``.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, TypeVar, cast

from rankscope._collection_kinds import Items
from rankscope._kinds import check_of, resolve
from rankscope._plain_kinds import Check, Wrong
from rankscope._plain_kinds import Count as Count
from rankscope._plain_kinds import Exact as Exact
from rankscope._plain_kinds import Finite as Finite
from rankscope._plain_kinds import Positive as Positive
from rankscope._plain_kinds import Range as Range
from rankscope._plain_kinds import Seed as Seed
from rankscope._plain_kinds import Share as Share
from rankscope._plain_kinds import short as short

Thing = TypeVar("Thing", bound=Callable[..., Any])
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def checked(thing: Thing) -> Thing:
    """The same function or class; calls with the wrong kind of argument raise a ``KindError``.

    >>> @checked
    ... def repeat(text: str, times: int = 2) -> str:
    ...     return text * times
    >>> repeat("ab", times=None)
    Traceback (most recent call last):
    rankscope.errors.KindError: repeat: times=None is a NoneType, expected a whole number.

    Of a class, the constructor and every public method are checked. A call with too many arguments,
    too few or unknown ones stays Python's own ``TypeError``.
    """
    if isinstance(thing, type):
        _check_methods(thing)
        return cast(Thing, thing)
    return cast(Thing, _guarded(thing, None))


def check_fields(record: object) -> None:
    """Check a dataclass's fields against their annotations, once it has been made."""
    kind: type[Any] = type(record)
    for name, check in _field_checks(kind).items():  # type: ignore[arg-type]
        wrong = check(getattr(record, name))
        if wrong is not None:
            raise _error(f"{kind.__name__}: ", name, getattr(record, name), wrong)


def check_field(kind: type[Any], name: str, value: object) -> None:
    """Check a value that is to become a field of a dataclass against the field's annotation."""
    check = _field_checks(kind).get(name)  # type: ignore[arg-type]
    wrong = None if check is None else check(value)
    if wrong is not None:
        raise _error("", name, value, wrong)


@functools.cache
def _field_checks(kind: type[Any]) -> dict[str, Check]:
    found = {
        each.name: check_of(resolve(each.type, _module_names(kind, each.name)), kind)
        for each in fields(kind)
    }
    return {name: check for name, check in found.items() if check is not None}


def _module_names(kind: type, field: str) -> dict[str, Any]:
    """What is known where a field was written, which may be in a parent's module."""
    home = next(each for each in kind.__mro__ if field in vars(each).get("__annotations__", {}))
    return vars(sys.modules[home.__module__])


def _check_methods(owner: type) -> None:
    for name, member in list(vars(owner).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod | staticmethod):
            inner = _guarded(member.__func__, owner)
            setattr(owner, name, type(member)(inner))
        elif inspect.isfunction(member) and len(inspect.signature(member).parameters) > 1:
            setattr(owner, name, _guarded(member, owner))


def _guarded(function: Callable[..., Any], owner: type | None) -> Callable[..., Any]:
    """The function behind a check of its arguments, which is put together at the first call."""
    if hasattr(function, "__checked__"):
        return function
    guard: _Guard | None = None

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        nonlocal guard
        if guard is None:
            guard = _Guard(function, owner)
        guard.inspect(given, named)
        if guard.iterates:
            given, named = guard.watch(given, named)
        return function(*given, **named)

    call.__checked__ = True  # type: ignore[attr-defined]
    return call


class _Guard:
    """The checks of one function's arguments, by place and by name."""

    def __init__(self, function: Callable[..., Any], owner: type | None) -> None:
        self._label = function.__qualname__.removesuffix(".__init__").replace("<locals>.", "")
        self._by_place: list[tuple[str, Check | None]] = []
        self._by_name: dict[str, Check | None] = {}
        self._more_by_place: tuple[str, Check | None] = ("", None)
        self._more_by_name: Check | None = None
        names = inspect.unwrap(function).__globals__
        for name, parameter in inspect.signature(function).parameters.items():
            check = None
            if parameter.annotation is not parameter.empty:
                check = check_of(resolve(parameter.annotation, names), owner)
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._more_by_place = (name, check)
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._more_by_name = check
            else:
                self._by_name[name] = _or_default(check, parameter.default)
                if parameter.kind in _POSITIONAL:
                    self._by_place.append((name, self._by_name[name]))
        self.iterates = any(isinstance(check, Items) for check in self._by_name.values())
        """Whether some argument may be an iterator, whose items no one has seen."""

    def inspect(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Raise for the first argument that is not of its kind."""
        for (name, check), value in zip(self._places(len(given)), given, strict=False):
            if check is not None and (wrong := check(value)) is not None:
                raise _error(f"{self._label}: ", name, value, wrong)
        for name, value in named.items():
            check = self._by_name.get(name, self._more_by_name)
            if check is not None and (wrong := check(value)) is not None:
                raise _error(f"{self._label}: ", name, value, wrong)

    def watch(
        self, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same arguments, with iterators that check what they give."""
        by_place = [
            self._watched(name, value)
            for (name, _), value in zip(self._places(len(given)), given, strict=False)
        ]
        by_name = {name: self._watched(name, value) for name, value in named.items()}
        return (*by_place, *given[len(by_place) :]), by_name

    def _watched(self, name: str, value: Any) -> Any:
        check = self._by_name.get(name)
        if not isinstance(check, Items) or not isinstance(value, Iterator) or check.item is None:
            return value
        return self._each(name, value, check.item)

    def _each(self, name: str, values: Iterator[Any], check: Check) -> Iterator[Any]:
        for index, value in enumerate(values):
            if (wrong := check(value)) is not None:
                raise _error(f"{self._label}: ", f"{name}[{index}]", value, wrong)
            yield value

    def _places(self, count: int) -> Iterable[tuple[str, Check | None]]:
        if count <= len(self._by_place) or self._more_by_place[1] is None:
            return self._by_place
        return self._by_place + [self._more_by_place] * (count - len(self._by_place))


def _or_default(check: Check | None, default: object) -> Check | None:
    """A default may always be given, also one (such as a factory's mark) of no known kind."""
    if check is None or default is inspect.Parameter.empty or check(default) is None:
        return check
    return lambda value: None if value is default else check(value)


def _error(label: str, name: str, value: object, wrong: Wrong) -> Exception:
    found = wrong.found if wrong.at else value
    what = wrong.what or f"is a {type(found).__name__}"
    said = f"{label}{name}{wrong.at}{short(found)} {what}, expected {wrong.expected}"
    return wrong.error(f"{said}{_hint(name, value, wrong)}.")


def _hint(name: str, value: object, wrong: Wrong) -> str:
    if "a sequence" in wrong.expected and isinstance(value, str):
        return f"; put it in a list: [{name}]"
    if "torch.Tensor" in wrong.expected and type(value).__name__ in ("list", "tuple", "ndarray"):
        return f"; wrap it: torch.as_tensor({name})"
    if "a Network" in wrong.expected and hasattr(value, "network"):
        return "; pass its .network"
    if "a Network" in wrong.expected and type(value).__name__ == "Spec":
        return "; build it: Network.random(spec)"
    return ""
