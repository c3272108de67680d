"""Fields of a spec with the check of each, and ``Init``."""

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast, get_args, overload

import torch
from torch import Tensor, nn

from rankscope import numerals
from rankscope.arguments import Count, checked, python_number, short
from rankscope.core.checks import number, whole
from rankscope.core.masks import Mask, as_mask
from rankscope.core.network._scores import ScoreKind
from rankscope.errors import KindError, SpecError

InitKind = Literal["normal", "xavier", "lecun", "orthogonal"]
MatrixName = Literal["query", "key", "value", "output", "up", "gate", "down"]
_LIBRARIES = ("bert", "gpt2", "t5")
_EXPECTED = (
    "'bert', 'gpt2', 't5', 'xavier', 'lecun', 'orthogonal', a standard deviation, or "
    "Init(kind, scale)"
)


class Factors(Mapping[MatrixName, float]):
    """Factors of some matrices; unlike a dict it cannot be changed, so that an ``Init`` cannot."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[MatrixName, float]] = ()) -> None:
        self._pairs = tuple(pairs)

    def __getitem__(self, name: object) -> float:
        return dict[object, float](self._pairs)[name]

    def __iter__(self) -> Iterator[MatrixName]:
        return (name for name, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(self._pairs)


@dataclass(frozen=True)
class Init:
    """A rule and a scale for all matrices except those that ``scales`` names.

    >>> from rankscope.core.network import Init
    >>> Init("normal", 0.02, {"output": 0.5, "down": 0.5}).deviation("down", 64, 16)
    0.01

    ``normal``: standard deviation ``scale`` (BERT: 0.02). ``xavier``: Glorot's uniform. ``lecun``:
    normal of variance 1/fan_in. ``orthogonal``: orthogonal value and output matrices, as in Wu et
    al. 2024, all others as ``lecun``. For the last three ``scale`` multiplies the weights.
    ``scales`` are factors for single matrices of a block: GPT-2 divides those that write to the
    residual stream by the square root of their number. Biases start at zero, gains at one.
    """

    kind: InitKind
    scale: float = 1.0
    scales: Mapping[MatrixName, float] = Factors()

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in get_args(InitKind):
            raise SpecError(f"init{short(self.kind)} is unknown; expected {_EXPECTED}.")
        scale = number("init scale", self.scale, least=0, error=SpecError)
        object.__setattr__(self, "scale", scale)  # 1 and 1.0 give equal specs
        if not isinstance(self.scales, Mapping):
            raise KindError(
                f"init scales{short(self.scales)} is not a mapping of matrix names to factors."
            )
        unknown = [name for name in self.scales if name not in get_args(MatrixName)]
        if unknown:
            known = ", ".join(get_args(MatrixName))
            raise SpecError(f"init scales: {unknown[0]!r} is no matrix of a block; choose {known}.")
        factors: list[tuple[MatrixName, float]] = [
            (name, number(f"init scales[{name!r}]", self.scales[name], least=0, error=SpecError))
            for name in get_args(MatrixName)
            if name in self.scales
        ]
        kept = Factors((name, factor) for name, factor in factors if factor != 1.0)
        object.__setattr__(self, "scales", kept)

    def __repr__(self) -> str:
        scales = f", scales={dict(self.scales)!r}" if self.scales else ""
        return f"Init(kind={self.kind!r}, scale={self.scale!r}{scales})"

    def __str__(self) -> str:
        """In words: a standard deviation, or the rule and its factor; then exceptions."""
        words = f"{self.kind} weights"
        if self.kind == "normal":
            words = f"weights of standard deviation {numerals.short(self.scale)}"
        elif self.scale != 1.0:
            words = f"{words} × {numerals.short(self.scale)}"
        by_factor: dict[float, list[str]] = {}
        for name, factor in self.scales.items():
            by_factor.setdefault(factor, []).append(name)
        others = [
            f"{' and '.join(some)} × {numerals.short(factor)}" for factor, some in by_factor.items()
        ]
        return ", ".join([words, *others])

    @checked
    def times(self, factor: float) -> "Init":
        """The same with every matrix multiplied by a factor."""
        return Init(self.kind, self.scale * factor, self.scales)

    @checked
    def fill(self, weight: Tensor, *, matrix: MatrixName, generator: torch.Generator) -> None:
        """Draw one weight matrix of a block in place."""
        outputs, inputs = weight.shape
        gain = self.scale * self.scales.get(matrix, 1.0)
        if self.kind == "xavier":
            nn.init.xavier_uniform_(weight, gain=gain, generator=generator)
        elif self.is_orthogonal(matrix):
            nn.init.orthogonal_(weight, gain=gain, generator=generator)
        else:
            nn.init.normal_(
                weight, 0.0, self.deviation(matrix, inputs, outputs), generator=generator
            )

    @checked
    def deviation(self, matrix: MatrixName, inputs: Count, outputs: Count) -> float:
        """The standard deviation of the entries of a matrix, also of an orthogonal one.

        >>> from rankscope.core.network import Init
        >>> Init("lecun").deviation("query", 100, 50)
        0.1
        """
        scale = self.scale * self.scales.get(matrix, 1.0)
        if self.kind == "normal":
            return scale
        if self.kind == "xavier":
            return scale * math.sqrt(2 / (inputs + outputs))
        if self.is_orthogonal(matrix):
            return scale / math.sqrt(max(inputs, outputs))
        return scale / math.sqrt(inputs)

    @checked
    def is_orthogonal(self, matrix: MatrixName) -> bool:
        """Whether a matrix is orthogonal: values and outputs of that kind."""
        return self.kind == "orthogonal" and matrix in ("value", "output")


Given = TypeVar("Given")
Kept = TypeVar("Kept")


class Field(Generic[Given, Kept]):
    """A dataclass field that accepts a ``Given`` and stores the ``Kept`` its check returns.

    ``check(name, value)`` returns the value to store, or raises an error that names the field.
    Without a default the field is required.
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
        if not self._default:  # this tells a dataclass that a field has no default
            raise AttributeError(f"{self._name} has no default.")
        return self._default[0]

    def __set__(self, instance: object, value: Given) -> None:
        instance.__dict__[self._name] = self._check(self._name, value)


def optional(check: Callable[[str, Any], Kept]) -> Callable[[str, Any], Kept | None]:
    """The same check, or None."""
    return lambda name, value: None if value is None else check(name, value)


def derived(check: Callable[[str, Any], Kept]) -> Callable[[str, Any], Kept]:
    """The same check; None means that the spec derives the value from its other fields."""
    return cast(Callable[[str, Any], Kept], optional(check))


def count(name: str, value: int) -> int:
    """A count of at least one."""
    return whole(name, value, least=1, most=2**31 - 1, error=SpecError)


def scale(name: str, value: float) -> float:
    """A factor that is not negative; True and False are 1 and 0."""
    factor = python_number(value)
    factor = float(factor) if isinstance(factor, bool) else factor
    return number(name, factor, least=0, error=SpecError)


def positive(name: str, value: float) -> float:
    """A positive factor."""
    if scale(name, value) == 0:
        raise SpecError(f"{name}=0 is out of range; expected a number above 0.")
    return float(value)


def one_of(choices: Collection[str]) -> Callable[[str, Given], Given]:
    """One of some names; the collection may grow later."""

    def check(name: str, value: Given) -> Given:
        if not isinstance(value, str) or value not in choices:
            known = ", ".join(choices)
            raise SpecError(f"{name}{short(value)} is unknown; choose one of {known}.")
        return value

    return check


def pairs(name: str, value: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Pairs of whole numbers, sorted and without duplicates."""
    try:
        heads = {(operator.index(layer), operator.index(head)) for layer, head in value}
    except (TypeError, ValueError):
        raise KindError(
            f"{name}{short(value)} are not (layer, head) pairs; expected e.g. [(0, 3), (1, 7)]."
        ) from None
    return tuple(sorted(heads))


def phrases(name: str, value: Iterable[str]) -> tuple[str, ...]:
    """Some phrases, without duplicates."""
    fits = isinstance(value, Iterable) and not isinstance(value, str)
    given: tuple[Any, ...] = tuple(value) if fits else (None,)
    if not all(isinstance(phrase, str) for phrase in given):
        raise KindError(f"{name}{short(value)} is not a sequence of texts.")
    return tuple(dict.fromkeys(given))


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
        raise SpecError(
            f"{name}{short(value)} is unknown; expected 'dot' or an object with .build()."
        )
    return value


def initialisation(name: str, value: str | float | Init) -> Init:
    """An ``Init`` from a standard deviation, a name or an ``Init``.

    The name of a library is kept until the other fields of the spec are known (``library_init``).
    """
    if isinstance(value, Init):
        return value
    if isinstance(value, str):
        if value in _LIBRARIES:
            return cast(Init, value)
        if value not in get_args(InitKind) or value == "normal":
            raise SpecError(f"{name}={value!r} is unknown; expected {_EXPECTED}.")
        return Init(value)  # type: ignore[arg-type]  # checked on the line above
    return Init("normal", value)


def library_init(name: str, *, sums: int, head_width: int) -> Init:
    """The initialisation of a library, for a design that adds to its stream ``sums`` times.

    T5 does not scale its logits and has smaller query weights instead.
    """
    if name == "gpt2":
        into_stream = 1 / math.sqrt(sums)
        return Init("normal", 0.02, {"output": into_stream, "down": into_stream})
    if name == "t5":
        return Init("lecun", 1.0, {"query": 1 / math.sqrt(head_width)})
    return Init("normal", 0.02)
