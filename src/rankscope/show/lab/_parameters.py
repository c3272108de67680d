"""The kinds of parameters a page may set: each reads a text, writes it back, and has limits."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rankscope.errors import InputError

Value = TypeVar("Value")
_WHOLE = re.compile(r"[0-9]{1,9}")
_REAL = re.compile(r"[0-9]{1,9}(\.[0-9]{0,20})?(e[-+]?[0-9]{1,3})?")
_LONGEST_SHOWN = 40


@dataclass(frozen=True)
class Parameter(ABC, Generic[Value]):
    """A parameter's words, the group of controls it stands in, and its default."""

    title: str
    group: str
    default: Value

    def field(self) -> Any:
        """This parameter as a field of a dataclass."""
        return field(default=self.default, metadata={"parameter": self})

    @abstractmethod
    def read(self, name: str, text: str) -> Value:
        """The value a text stands for, or an error of one sentence."""

    def write(self, value: Value) -> str:
        """The text that reads as this value."""
        return str(value)

    def describe(self) -> dict[str, Any]:
        """What a page needs to know to make a control of it."""
        return {"title": self.title, "group": self.group, "default": self.write(self.default)}


@dataclass(frozen=True)
class Whole(Parameter[int]):
    """A whole number within limits."""

    least: int
    most: int

    def read(self, name: str, text: str) -> int:
        if not _WHOLE.fullmatch(text) or not self.least <= int(text) <= self.most:
            raise InputError(
                f"{name}={shown(text)} is not a whole number from {self.least} to {self.most}."
            )
        return int(text)

    def describe(self) -> dict[str, Any]:
        limits = {"least": self.least, "most": self.most, "step": 1}
        return {**super().describe(), "kind": "whole", **limits}


@dataclass(frozen=True)
class Real(Parameter[float]):
    """A number within limits; a slider moves it in steps, or in steps of its logarithm.

    ``words`` name values that mean something of their own: a skip of 0 is none.
    """

    least: float
    most: float
    step: float = 0.05
    logarithmic: bool = False
    words: Mapping[str, str] = field(default_factory=dict)

    def read(self, name: str, text: str) -> float:
        value = float(text) if _REAL.fullmatch(text) else math.nan
        if not self.least <= value <= self.most:
            raise InputError(
                f"{name}={shown(text)} is not a number from {self.least:g} to {self.most:g}."
            )
        return value

    def write(self, value: float) -> str:
        return repr(value).removesuffix(".0")

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "kind": "real",
            "least": self.least,
            "most": self.most,
            "step": self.step,
            "logarithmic": self.logarithmic,
            "words": dict(self.words),
        }


@dataclass(frozen=True)
class Choice(Parameter[str]):
    """One of a few names, each with its words."""

    options: Mapping[str, str]

    def read(self, name: str, text: str) -> str:
        if text not in self.options:
            raise InputError(
                f"{name}={shown(text)} is unknown; choose one of {', '.join(self.options)}."
            )
        return text

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "kind": "choice", "options": dict(self.options)}


@dataclass(frozen=True)
class MaskText(Parameter[str]):
    """A mask by its name, with a number after a colon; or its matrix, ``bits:`` and hex digits.

    The digits hold the rows of the matrix one after the other, the first entry in the highest bit.
    """

    options: Mapping[str, str]
    most: int

    def read(self, name: str, text: str) -> str:
        kind, colon, rest = text.partition(":")
        if kind == "bits":
            self._refuse_unless(re.fullmatch(r"[0-9a-f]+", rest), name, text)
            self._refuse_unless(len(rest) <= math.ceil(self.most**2 / 4), name, text)
            return text
        self._refuse_unless(kind in self.options, name, text)
        needs_number = ":" in self.options[kind]
        is_number = bool(_WHOLE.fullmatch(rest)) and 0 <= int(rest) <= self.most
        self._refuse_unless(bool(colon) == needs_number and (not colon or is_number), name, text)
        return text if not colon else f"{kind}:{int(rest)}"

    def _refuse_unless(self, good: object, name: str, text: str) -> None:
        if not good:
            known = ", ".join(words.split(" ")[0] for words in self.options.values())
            raise InputError(
                f"{name}={shown(text)} is no mask of the lab; write {known} (numbers up to "
                f"{self.most}), or bits: and a matrix in hex digits."
            )

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "kind": "mask", "options": dict(self.options)}


def shown(text: str) -> str:
    """A text as an error shows it: quoted, escaped and cut."""
    cut = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
    return ascii(cut)
