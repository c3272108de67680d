"""Fields of a spec that are checked when they are set, and the check of each kind."""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar, cast, get_args, overload

from torch import Tensor

from rankscope.arguments import short
from rankscope.core.checks import number, whole
from rankscope.core.masks import Mask, as_mask
from rankscope.core.network._activations import activation
from rankscope.core.network._initialisation import Init, as_init
from rankscope.core.network._norms import NORMS
from rankscope.core.network._scores.base import ScoreKind
from rankscope.errors import KindError, SpecError

NormPlace = Literal["pre", "post", "both", "output"]
Given = TypeVar("Given")
Kept = TypeVar("Kept")


class Field(Generic[Given, Kept]):
    """A field of a dataclass that takes a ``Given`` and holds the ``Kept`` its check makes of it.

    ``check(name, value)`` returns the value to keep, or raises an error that names the field. A
    default is what could have been given; without one the field must be.
    """

    def __init__(self, check: Callable[[str, Given], Kept], *default: Given) -> None:
        self._check, self._default = check, default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Given: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Kept: ...
    def __get__(self, instance: object | None, owner: type) -> Given | Kept:
        if instance is not None:
            return cast(Kept, instance.__dict__[self._name])
        if not self._default:  # how a dataclass learns that a field has no default
            raise AttributeError(f"{self._name} has no default.")
        return self._default[0]

    def __set__(self, instance: object, value: Given) -> None:
        instance.__dict__[self._name] = self._check(self._name, value)


def optional(check: Callable[[str, Any], Kept]) -> Callable[[str, Any], Kept | None]:
    """The same check, or None."""
    return lambda name, value: None if value is None else check(name, value)


def derived(check: Callable[[str, Any], Kept]) -> Callable[[str, Any], Kept]:
    """The same check; None stands for a value that the spec derives from its other fields."""
    return cast(Callable[[str, Any], Kept], optional(check))


def count(name: str, value: int) -> int:
    """A number of things, at least one."""
    return whole(name, value, least=1, most=2**31 - 1, error=SpecError)


def scale(name: str, value: float) -> float:
    """A factor that is not negative; True and False are 1 and 0."""
    plain = float(value) if isinstance(value, bool) else value
    return number(name, plain, least=0, error=SpecError)


def known_activation(name: str, value: str) -> str:
    """A name from the table of activations."""
    del name
    activation(value)
    return value


def known_norm(name: str, value: str) -> str:
    """A name from the table of norms."""
    _refuse_unless(isinstance(value, str) and value in NORMS, name, value, tuple(NORMS))
    return value


def in_place(name: str, value: NormPlace) -> NormPlace:
    """Where norms stand."""
    places = get_args(NormPlace)
    _refuse_unless(isinstance(value, str) and value in places, name, value, places)
    return value


def _refuse_unless(known: bool, name: str, value: object, choices: tuple[str, ...]) -> None:
    if not known:
        raise SpecError(f"{name}{short(value)} is unknown; choose one of {', '.join(choices)}.")


def pairs(name: str, value: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Pairs of whole numbers, each once and in order."""
    try:
        found = {(operator.index(layer), operator.index(head)) for layer, head in value}
    except (TypeError, ValueError):
        raise KindError(
            f"{name}{short(value)} are no (layer, head) pairs; write [(0, 3), (1, 7)]."
        ) from None
    return tuple(sorted(found))


def one_mask(name: str, value: str | Mask | Tensor) -> Mask:
    """A mask, by name, as a value or as a boolean matrix."""
    del name
    return as_mask(value)


def mask_of_each_layer(name: str, value: Sequence[str | Mask | Tensor]) -> tuple[Mask, ...]:
    """A sequence of masks."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise KindError(f"{name} is a {type(value).__name__}, expected a mask for each layer.")
    try:
        return tuple(as_mask(each) for each in value)
    except (SpecError, KindError) as error:
        raise type(error)(f"{name}: {error}") from error


def score_kind(name: str, value: ScoreKind | Literal["dot"]) -> ScoreKind | Literal["dot"]:
    """``"dot"`` or the description of another score."""
    if isinstance(value, type):
        raise SpecError(f"{name}={value.__name__} is a class; write {value.__name__}().")
    if not isinstance(value, ScoreKind) and not (isinstance(value, str) and value == "dot"):
        raise SpecError(f"{name}{short(value)} is neither 'dot' nor a description with .build().")
    return value


def initialisation(name: str, value: str | float | Init) -> Init:
    """How weights are drawn."""
    del name
    return as_init(value)
