"""Fields of a spec that are checked when they are set, the check of each, and ``Init``."""

import math
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast, get_args, overload

import torch
from torch import Tensor, nn

from rankscope.arguments import Count, checked, short
from rankscope.core.checks import number, whole
from rankscope.core.masks import Mask, as_mask
from rankscope.core.network._scores import ScoreKind
from rankscope.errors import KindError, SpecError

InitKind = Literal["normal", "xavier", "lecun", "orthogonal"]
_EXPECTED = "'bert', 'xavier', 'lecun', 'orthogonal', a standard deviation, or Init(kind, scale)"


@dataclass(frozen=True)
class Init:
    """A rule and a scale.

    ``normal``: standard deviation ``scale`` (BERT: 0.02). ``xavier``: Glorot's uniform.
    ``lecun``: normal of variance 1/fan_in. ``orthogonal``: orthogonal value and output matrices,
    as in Wu et al. 2024, everything else as ``lecun``. For the last three ``scale`` multiplies the
    weights. Biases start at zero, gains at one, as everywhere in practice.
    """

    kind: InitKind
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in get_args(InitKind):
            raise SpecError(f"init{short(self.kind)} is unknown; expected {_EXPECTED}.")
        scale = number("init scale", self.scale, least=0, error=SpecError)
        object.__setattr__(self, "scale", scale)  # 1 and 1.0 are one spec

    @checked
    def fill(self, weight: Tensor, *, value: bool, generator: torch.Generator) -> None:
        """Draw one weight matrix in place; ``value`` marks value and output projections."""
        outputs, inputs = weight.shape
        if self.kind == "xavier":
            nn.init.xavier_uniform_(weight, gain=self.scale, generator=generator)
        elif self.is_orthogonal(value=value):
            nn.init.orthogonal_(weight, gain=self.scale, generator=generator)
        else:
            deviation = self.deviation(inputs, outputs)
            nn.init.normal_(weight, 0.0, deviation, generator=generator)

    @checked
    def deviation(self, inputs: Count, outputs: Count) -> float:
        """The standard deviation of a matrix's entries, unless it is orthogonal.

        >>> from rankscope.core.network import Init
        >>> Init("lecun").deviation(100, 50)
        0.1
        """
        if self.kind == "normal":
            return self.scale
        if self.kind == "xavier":
            return self.scale * math.sqrt(2 / (inputs + outputs))
        return self.scale / math.sqrt(inputs)

    @checked
    def is_orthogonal(self, *, value: bool) -> bool:
        """Whether value and output projections (``value``), or all others, are orthogonal."""
        return self.kind == "orthogonal" and value


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


def one_of(choices: Collection[str]) -> Callable[[str, Given], Given]:
    """One of some names, which may become more after this."""

    def check(name: str, value: Given) -> Given:
        if not isinstance(value, str) or value not in choices:
            known = ", ".join(choices)
            raise SpecError(f"{name}{short(value)} is unknown; choose one of {known}.")
        return value

    return check


def pairs(name: str, value: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Pairs of whole numbers, each once and in order."""
    try:
        heads = {(operator.index(layer), operator.index(head)) for layer, head in value}
    except (TypeError, ValueError):
        raise KindError(
            f"{name}{short(value)} are no (layer, head) pairs; write [(0, 3), (1, 7)]."
        ) from None
    return tuple(sorted(heads))


def one_mask(name: str, value: str | Mask | Tensor) -> Mask:
    """A mask, by name, as a value or as a boolean matrix."""
    del name
    return as_mask(value)


def mask_of_each_layer(name: str, value: Sequence[str | Mask | Tensor]) -> tuple[Mask, ...]:
    """A sequence of masks."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise KindError(f"{name} is a {type(value).__name__}, expected a mask for each layer.")
    try:
        return tuple(as_mask(mask) for mask in value)
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
    """An ``Init`` from its name, from a standard deviation, or itself."""
    if isinstance(value, Init):
        return value
    if isinstance(value, str):
        if value == "bert":
            return Init("normal", 0.02)
        if value not in get_args(InitKind) or value == "normal":
            raise SpecError(f"{name}={value!r} is unknown; expected {_EXPECTED}.")
        return Init(value)  # type: ignore[arg-type]  # checked on the line above
    return Init("normal", value)
