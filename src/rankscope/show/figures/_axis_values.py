"""The values of a sweep's axis: their order, their names, and how they are laid out."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl

from rankscope.numerals import short
from rankscope.show.figures._axes import Horizontal
from rankscope.show.figures._sweeps import setting_axis

PLACE: Final = "place"
_WORDS: Final[Mapping[str, str]] = {"layers": "depth in layers"}
_SPEAK_FOR_THEMSELVES: Final = ("variant", "model")  # and a variant has its own colour
_LETTER: Final = 6.0  # pixels a letter below an axis takes, about
_MOST_NAMED: Final = 24


@dataclass(frozen=True)
class AxisValues:
    """The values of one axis that are drawn: numbers in order, words in the order of the grid."""

    name: str
    values: tuple[Any, ...]

    @classmethod
    def of(cls, rows: pl.DataFrame, name: str) -> "AxisValues":
        """The values in a column; an Enum says their order itself, other words as they come."""
        column = rows[name]
        found = column.unique(maintain_order=True)
        if column.dtype.is_numeric() or isinstance(column.dtype, pl.Enum):
            found = found.sort(nulls_last=True)
        return cls(name, tuple(found.to_list()))

    @cached_property
    def index(self) -> dict[Any, int]:
        """Which of them a value is."""
        return {value: number for number, value in enumerate(self.values)}

    @property
    def title(self) -> str:
        """What the axis is called."""
        return _WORDS.get(self.name, self.name.replace("_", " "))

    @property
    def numeric(self) -> bool:
        """Whether all are numbers, so that distances between them mean something."""
        return all(type(value) in (int, float) and math.isfinite(value) for value in self.values)

    @property
    def texts(self) -> list[str]:
        """Every value as it is written."""
        return [text_of(value) for value in self.values]

    def label(self, value: Any) -> str:
        """A value with the name of its axis, for legends and headings."""
        if self.name in _SPEAK_FOR_THEMSELVES and value is not None:
            return text_of(value)
        return f"{self.name.replace('_', ' ')} = {text_of(value)}"

    def across(self, width: int) -> Horizontal:
        """The x axis they are laid out on: by size if they are numbers, otherwise side by side."""
        if self.numeric:
            return setting_axis(self.title, [float(value) for value in self.values], field=PLACE)
        last = len(self.values) - 1
        tight = _LETTER * sum(len(text) + 2 for text in self.texts) > width
        return Horizontal(
            PLACE,
            "linear",
            (-0.5, last + 0.5),
            {
                "title": self.title,
                "values": list(range(0, last + 1, math.ceil((last + 1) / _MOST_NAMED))),
                "labelExpr": named_ticks(self.texts),
                "labelAngle": -30 if tight else 0,
            },
            padding=0,
            named=True,
        )

    def place(self, value: Any) -> float:
        """Where a value is on that axis."""
        return float(value) if self.numeric else float(self.index[value])


def text_of(value: Any) -> str:
    """A value as it is written: as a grid has it, numbers as everywhere."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return short(value) if isinstance(value, int | float) else str(value)


def named_ticks(texts: Sequence[str]) -> str:
    """The expression by which an axis names its whole numbers."""
    return f"{json.dumps(list(texts), ensure_ascii=False)}[datum.value]"
