"""What the page is set to: one frozen value, which a permalink's query writes and reads."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from rankscope.core.names import NORM_PLACES, NORMS, SCORES
from rankscope.errors import InputError
from rankscope.show.lab._parameters import Choice, MaskText, Parameter, Real, Whole, shown

MOST_TOKENS = 48
LONGEST_QUERY = 4096
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
"""Masks by the names ``rankscope.core.masks.as_mask`` reads, and how each is written."""
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
            values[name] = PARAMETERS[name].read(name, text)
        state = cls(**values)
        state._refuse_contradictions()
        return state

    def query(self) -> str:
        """The query string of a permalink: what differs from the defaults."""
        written = {name: each.write(getattr(self, name)) for name, each in PARAMETERS.items()}
        changed = {
            name: text
            for name, text in written.items()
            if getattr(self, name) != PARAMETERS[name].default
        }
        return urlencode(changed)

    def _refuse_contradictions(self) -> None:
        """What can be said without building anything; the rest the network's spec refuses."""
        if self.width % self.heads:
            raise InputError(
                f"width={self.width} does not divide into {self.heads} heads; choose a multiple."
            )
        digits = math.ceil(self.tokens**2 / 4)
        kind, _, rest = self.mask.partition(":")
        if kind == "bits" and len(rest) != digits:
            raise InputError(
                f"mask has {len(rest)} hex digits, but {self.tokens} tokens need {digits}."
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


PARAMETERS: dict[str, Parameter[Any]] = {
    each.name: each.metadata["parameter"] for each in fields(State)
}
