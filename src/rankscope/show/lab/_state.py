"""What the page is set to: one frozen value, which a permalink's query writes and reads.

Each kind of parameter reads a text, writes it back, and has limits.
"""

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
    """A parameter's words, the group of controls it stands in, and its default."""

    title: str
    group: str
    default: Any

    def field(self) -> Any:
        """This parameter as a field of a dataclass."""
        return field(default=self.default, metadata={"parameter": self})

    def read(self, text: str) -> Any:
        """The value a text stands for, or an error that says what it is not."""
        raise NotImplementedError

    def write(self, value: Any) -> str:
        """The text that reads as this value."""
        return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)

    def describe(self) -> dict[str, Any]:
        """What a page needs to know to make a control of it: its kind, and all that limits it."""
        kind = type(self).__name__.removesuffix("Text").lower()
        return {**asdict(self), "default": self.write(self.default), "kind": kind}


@dataclass(frozen=True)
class Whole(Parameter):
    """A whole number within limits."""

    least: int
    most: int
    step: int = 1

    def read(self, text: str) -> int:
        if not _WHOLE.fullmatch(text) or not self.least <= int(text) <= self.most:
            raise InputError(f"is not a whole number from {self.least} to {self.most}.")
        return int(text)


@dataclass(frozen=True)
class Real(Parameter):
    """A number within limits; a slider moves it in steps, or in steps of its logarithm.

    ``words`` name values that mean something of their own: a skip of 0 is none.
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
    """One of a few names, each with its words."""

    options: Mapping[str, str]

    def read(self, text: str) -> str:
        if text not in self.options:
            raise InputError(f"is unknown; choose one of {', '.join(self.options)}.")
        return text


@dataclass(frozen=True)
class MaskText(Parameter):
    """A mask by its name, with a number after a colon; or its matrix, ``bits:`` and hex digits.

    The digits hold the rows of the matrix one after the other, the first entry in the highest bit.
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
                f"is no mask of the lab; write {known} (numbers up to {self.most}), or bits: and a "
                "matrix in hex digits."
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
    "float64": "float64 alone",
}
INITIALISATIONS = {
    "lecun": "LeCun × scale",
    "xavier": "Xavier × scale",
    "orthogonal": "orthogonal values × scale",
    "normal": "normal, deviation = scale",
}
YES_NO = {"no": "no", "yes": "yes"}


@dataclass(frozen=True)
class State:
    """Every parameter of the lab, its limits and its default; checked when a query is read.

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
        "Tokens start", "Input", "normal", {"normal": "at random", "arc": "on a half circle"}
    ).field()
    seed: int = Whole("Seed", "Input", 0, 0, 999).field()
    skip: float = Real("Skip", "Block", 0.0, 0.0, 2.0, words={"0": "off", "1": "on"}).field()
    mlp: float = Real(
        "MLP width ÷ width", "Block", 0.0, 0.0, 4.0, 0.5, words={"0": "no MLP"}
    ).field()
    norm: str = Choice("Normalisation", "Block", "none", {"none": "none", **NORMS}).field()
    place: str = Choice("Its place", "Block", "pre", NORM_PLACES).field()
    shared: str = Choice("One layer repeated", "Block", "no", YES_NO).field()
    init: str = Choice("Initialisation", "Weights", "lecun", INITIALISATIONS).field()
    scale: float = Real("Scale", "Weights", 1.0, 0.01, 4.0, logarithmic=True).field()
    scores: str = Choice("Scores", "Attention", "dot", SCORES).field()
    sharpness: float = Real("Sharpness", "Attention", 1.0, 0.01, 100.0, logarithmic=True).field()
    mask: str = MaskText("Mask", "Attention", "full", MASKS, MOST_TOKENS).field()
    format: str = Choice("Number format", "Arithmetic", "float32", FORMATS).field()

    @classmethod
    def read(cls, query: str) -> Self:
        """The state a query string stands for; what is not named has its default."""
        return cls.of(read_query(query))

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Self:
        """The state of names and texts, or an error of one sentence."""
        values: dict[str, Any] = {}
        for name, text in pairs:
            if name not in PARAMETERS:
                raise InputError(
                    f"there is no parameter {shown(name)}; there are {', '.join(PARAMETERS)}."
                )
            if name in values:
                raise InputError(f"{name} is given twice; give it once.")
            try:
                values[name] = PARAMETERS[name].read(text)
            except InputError as error:
                raise InputError(f"{name}={shown(text)} {error}") from None
        state = cls(**values)
        # What can be said without building anything; the rest the network's spec refuses.
        if state.width % state.heads:
            raise InputError(
                f"width={state.width} does not divide into {state.heads} heads; choose a multiple."
            )
        digits = math.ceil(state.tokens**2 / 4)
        kind, _, rest = state.mask.partition(":")
        if kind == "bits" and len(rest) != digits:
            raise InputError(
                f"mask has {len(rest)} hex digits, but {state.tokens} tokens need {digits}."
            )
        return state

    def query(self) -> str:
        """The query string of a permalink: what differs from the defaults."""
        values = ((name, each, getattr(self, name)) for name, each in PARAMETERS.items())
        return urlencode(
            {n: each.write(value) for n, each, value in values if value != each.default}
        )


def read_query(query: str) -> list[tuple[str, str]]:
    """Names and texts of a query string of bounded length."""
    if len(query) > LONGEST_QUERY:
        raise InputError(
            f"the query has {len(query)} characters, more than {LONGEST_QUERY} that are read."
        )
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=64, errors="replace")
    except ValueError:
        raise InputError("the query has more than 64 fields; there are fewer parameters.") from None


PARAMETERS: dict[str, Parameter] = {each.name: each.metadata["parameter"] for each in fields(State)}
