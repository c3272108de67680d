"""The settings of the page as one frozen value, read from and written to a query string."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from rankscope.core.names import NORM_PLACES, NORMS, SCORES
from rankscope.errors import InputError

_WHOLE = re.compile(r"[0-9]{1,9}")
_REAL = re.compile(r"[0-9]{1,9}(\.[0-9]{0,20})?(e[-+]?[0-9]{1,3})?")
_LONGEST_SHOWN = 40


@dataclass(frozen=True)
class Parameter:
    """Title, group of controls and default of a parameter."""

    title: str
    group: str
    default: Any

    def field(self) -> Any:
        """This parameter as a field of a dataclass."""
        return field(default=self.default, metadata={"parameter": self})

    def read(self, text: str) -> Any:
        """Parse a value; raises if it is invalid."""
        raise NotImplementedError

    def write(self, value: Any) -> str:
        """Format a value, so that ``read`` parses it."""
        return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)

    def describe(self) -> dict[str, Any]:
        """The kind, limits and default of the control, for the page."""
        kind = type(self).__name__.removesuffix("Text").lower()
        return {**asdict(self), "default": self.write(self.default), "kind": kind}


@dataclass(frozen=True)
class Whole(Parameter):
    """An integer within limits."""

    least: int
    most: int
    step: int = 1

    def read(self, text: str) -> int:
        if not _WHOLE.fullmatch(text) or not self.least <= int(text) <= self.most:
            raise InputError(f"is not an integer from {self.least} to {self.most}.")
        return int(text)


@dataclass(frozen=True)
class Real(Parameter):
    """A number within limits, with linear or logarithmic steps.

    ``words`` are names of special values: a skip of 0 is off.
    """

    least: float
    most: float
    step: float = 0.05
    logarithmic: bool = False
    words: Mapping[str, str] = field(default_factory=dict)

    def read(self, text: str) -> float:
        value = float(text) if _REAL.fullmatch(text) else math.nan
        if not self.least <= value <= self.most:
            raise InputError(f"is not a number from {self.least:g} to {self.most:g}.")
        return value


@dataclass(frozen=True)
class Choice(Parameter):
    """One of several options, with their titles."""

    options: Mapping[str, str]

    def read(self, text: str) -> str:
        if text not in self.options:
            raise InputError(f"is unknown; choose one of {', '.join(self.options)}.")
        return text


@dataclass(frozen=True)
class MaskText(Parameter):
    """A mask as a name with a number after a colon, or as ``bits:`` and hex digits.

    The digits encode the matrix row by row, with the first entry in the highest bit.
    """

    options: Mapping[str, str]
    most: int

    def read(self, text: str) -> str:
        kind, colon, rest = text.partition(":")
        if kind == "bits":
            good = re.fullmatch(r"[0-9a-f]+", rest) and len(rest) <= math.ceil(self.most**2 / 4)
        else:
            number = _WHOLE.fullmatch(rest) and int(rest) <= self.most
            numbered = ":" in self.options.get(kind, "")
            good = kind in self.options and bool(colon) == numbered and (not colon or number)
        if not good:
            known = ", ".join(words.split(" ")[0] for words in self.options.values())
            raise InputError(
                f"is not a mask of the lab; write {known} (numbers up to {self.most}), or bits: "
                "and a matrix in hex digits."
            )
        return f"{kind}:{int(rest)}" if colon and kind != "bits" else text


def shown(text: str) -> str:
    """A text as an error shows it: quoted, escaped and cut."""
    cut = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
    return ascii(cut)


MOST_TOKENS = 48
LONGEST_QUERY = 4096
# By the names that ``rankscope.core.masks.as_mask`` reads, and how each is written.
MASKS = {
    "full": "full",
    "causal": "causal",
    "window": "window:2 (both ways)",
    "causal-window": "causal-window:2",
    "strided": "strided:4",
    "block": "block:4",
    "star": "star:1",
    "prefix": "prefix:3",
}
FORMATS = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float64": "float64 only",
}
INITIALISATIONS = {
    "lecun": "LeCun × scale",
    "xavier": "Xavier × scale",
    "orthogonal": "orthogonal values × scale",
    "normal": "normal, standard deviation = scale",
}
YES_NO = {"no": "no", "yes": "yes"}


@dataclass(frozen=True)
class State:
    """All parameters of the lab with their limits and defaults.

    >>> State.read("layers=3&mask=window:2").layers
    3
    >>> State.read("layers=3&mask=window:2").query()
    'layers=3&mask=window%3A2'
    """

    layers: int = Whole("Layers", "Network", 6, 1, 64).field()
    heads: int = Whole("Heads", "Network", 2, 1, 8).field()
    width: int = Whole("Width", "Network", 16, 2, 128).field()
    tokens: int = Whole("Tokens", "Input", 12, 2, MOST_TOKENS).field()
    input: str = Choice(
        "Initial tokens", "Input", "normal", {"normal": "random", "arc": "half circle"}
    ).field()
    seed: int = Whole("Seed", "Input", 0, 0, 999).field()
    skip: float = Real("Skip", "Block", 0.0, 0.0, 2.0, words={"0": "off", "1": "on"}).field()
    mlp: float = Real("MLP ratio", "Block", 0.0, 0.0, 4.0, 0.5, words={"0": "no MLP"}).field()
    norm: str = Choice("Normalisation", "Block", "none", {"none": "none", **NORMS}).field()
    norm_place: str = Choice("Norm placement", "Block", "pre", NORM_PLACES).field()
    shared: str = Choice("Shared weights", "Block", "no", YES_NO).field()
    init: str = Choice("Initialisation", "Weights", "lecun", INITIALISATIONS).field()
    scale: float = Real("Scale", "Weights", 1.0, 0.01, 4.0, logarithmic=True).field()
    scores: str = Choice("Scores", "Attention", "dot", SCORES).field()
    sharpness: float = Real("Score scale", "Attention", 1.0, 0.01, 100.0, logarithmic=True).field()
    mask: str = MaskText("Mask", "Attention", "full", MASKS, MOST_TOKENS).field()
    format: str = Choice("Number format", "Arithmetic", "float32", FORMATS).field()

    @classmethod
    def read(cls, query: str) -> Self:
        """Parse a query string; missing parameters have their defaults."""
        return cls.of(read_query(query))

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Self:
        """Parse names and texts; raises if any is invalid."""
        values: dict[str, Any] = {}
        for name, text in pairs:
            if name not in PARAMETERS:
                raise InputError(
                    f"unknown parameter {shown(name)}; choose one of {', '.join(PARAMETERS)}."
                )
            if name in values:
                raise InputError(f"{name} is given twice; give it once.")
            try:
                values[name] = PARAMETERS[name].read(text)
            except InputError as error:
                raise InputError(f"{name}={shown(text)} {error}") from None
        state = cls(**values)
        # Checks that need no network; the spec makes the others.
        if state.width % state.heads:
            raise InputError(
                f"width={state.width} is not divisible by heads={state.heads}; choose a multiple."
            )
        digits = math.ceil(state.tokens**2 / 4)
        kind, _, rest = state.mask.partition(":")
        if kind == "bits" and len(rest) != digits:
            raise InputError(
                f"mask has {len(rest)} hex digits, but {state.tokens} tokens need {digits}."
            )
        return state

    def query(self) -> str:
        """The query string of the parameters that differ from their defaults."""
        values = {name: getattr(self, name) for name in PARAMETERS}
        return urlencode(
            {
                name: PARAMETERS[name].write(value)
                for name, value in values.items()
                if value != PARAMETERS[name].default
            }
        )


def read_query(query: str) -> list[tuple[str, str]]:
    """Parse a query string of bounded length into names and texts."""
    if len(query) > LONGEST_QUERY:
        raise InputError(
            f"the query has {len(query)} characters, expected at most {LONGEST_QUERY}."
        )
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=64, errors="replace")
    except ValueError:
        raise InputError("the query has more than 64 fields.") from None


PARAMETERS: dict[str, Parameter] = {slot.name: slot.metadata["parameter"] for slot in fields(State)}
