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
from itertools import chain
from typing import Annotated, Any, TypeVar, cast

from rankscope.arguments._kinds import Check, Exact, Items, Range, check_of, resolve, short

__all__ = [
    "Count", "Exact", "Finite", "Positive", "Range", "Seed", "Share",
    "check_field", "check_fields", "checked", "short",
]  # fmt: skip

Count = Annotated[int, Range(1, 1_000_000)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Finite = Annotated[float, Range()]
Positive = Annotated[float, Range(5e-324)]
Share = Annotated[float, Range(0, 1)]
FROM_PANDAS: list[Callable[[Any], Any]] = []
"""What makes one of our tables of a pandas frame, once ``rankscope.tables`` is imported."""
Thing = TypeVar("Thing", bound=Callable[..., Any])


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
    """Check a dataclass's fields against their annotations, once it has been made."""
    kind: type[Any] = type(record)
    for name, check in _field_checks(kind).items():  # type: ignore[arg-type]
        _require(check, kind.__name__, name, getattr(record, name))


def check_field(kind: type[Any], name: str, value: object) -> None:
    """Check a value that is to become a field of a dataclass against the field's annotation."""
    _require(_field_checks(kind).get(name), "", name, value)  # type: ignore[arg-type]


@functools.cache
def _field_checks(kind: type[Any]) -> dict[str, Check | None]:
    checks = {}
    for field in fields(kind):
        # The field may have been written in a parent's module, where other names are known.
        lines = ((home, vars(home).get("__annotations__", {})) for home in kind.__mro__)
        home = next(home for home, written in lines if field.name in written)
        names = vars(sys.modules[home.__module__])
        checks[field.name] = check_of(resolve(field.type, names), kind)
    return checks


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
        if "pandas" in sys.modules:
            given = tuple(map(_without_pandas, given))
            named = {name: _without_pandas(value) for name, value in named.items()}
        guard.inspect(given, named)
        if guard.iterates:
            given = (*map(guard.watched, guard.places, given), *given[len(guard.places) :])
            named = {name: guard.watched(name, value) for name, value in named.items()}
        return function(*given, **named)

    call.__checked__ = True  # type: ignore[attr-defined]
    return call


def _without_pandas(value: Any) -> Any:
    """A pandas frame as a polars one, also in a list or as a mapping's value; else the value."""
    kind = type(value)
    if kind in (list, tuple) and any(map(_is_pandas, value)):
        return kind(map(_without_pandas, value))
    if kind is dict and any(map(_is_pandas, value.values())):
        return {name: _without_pandas(entry) for name, entry in value.items()}
    return FROM_PANDAS[0](value) if FROM_PANDAS and _is_pandas(value) else value


def _is_pandas(value: object) -> bool:
    kind = type(value)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


class _Guard:
    """The checks of one function's arguments, by name; None where anything goes."""

    def __init__(self, function: Callable[..., Any], owner: type | None) -> None:
        self._label = function.__qualname__.removesuffix(".__init__").replace("<locals>.", "")
        self._checks: dict[str, Check | None] = {}
        self.places: list[str] = []
        self._more_places: list[str] = []  # the name of *arguments, if there are any
        self._more_names: Check | None = None
        names = inspect.unwrap(function).__globals__
        for name, parameter in inspect.signature(function).parameters.items():
            check = None
            if parameter.annotation is not parameter.empty:
                check = check_of(resolve(parameter.annotation, names), owner)
            if parameter.kind is parameter.VAR_KEYWORD:
                self._more_names = check
                continue
            self._checks[name] = check
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._more_places = [name]
            elif parameter.kind is not parameter.KEYWORD_ONLY:
                self.places.append(name)
        self.iterates = any(
            isinstance(check, Items) and check.kind is Iterable for check in self._checks.values()
        )

    def inspect(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Raise for the first argument that is not of its kind."""
        names = self.places
        if len(given) > len(names):
            names = names + self._more_places * (len(given) - len(names))
        for name, value in chain(zip(names, given, strict=False), named.items()):
            _require(self._checks.get(name, self._more_names), self._label, name, value)

    def watched(self, name: str, value: Any) -> Any:
        """The same value, or an iterator, whose items no one has seen, that checks them."""
        check = self._checks.get(name)
        if not isinstance(check, Items) or not isinstance(value, Iterator):
            return value

        def watched() -> Iterator[Any]:
            for index, item in enumerate(value):
                _require(check.item, self._label, f"{name}[{index}]", item)
                yield item

        return watched()


def _require(check: Check | None, label: str, name: str, value: object) -> None:
    wrong = None if check is None else check(value)
    if wrong is None:
        return
    culprit = wrong.found if wrong.at else value
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
