"""What a page consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from rankscope.errors import InputError
from rankscope.figures import Figure
from rankscope.report._grids import Grid

TONES: Final = ("collapse", "slow", "holds", "neutral")
"""What a verdict can be: tokens become alike, slowly, or stay different; or none of these."""
ANSWERS: Final = ("holds", "fails", "depends")
"""What a whole report can come to."""


@dataclass(frozen=True)
class Section:
    """A heading with its text, and a chart or a table or both.

    In texts an empty line begins a paragraph, ``**stars**`` make bold and backticks make code;
    lines that begin with ``- `` make a list.
    """

    title: str
    text: str = ""
    chart: Figure | None = None
    table: pl.DataFrame | Grid | None = None


@dataclass(frozen=True)
class Report:
    """A title, what it is about in a paragraph, verdicts, sections and where it all came from.

    A verdict is ``(label, sentence, tone)``, the tone one of ``TONES``. ``answer`` is what the
    whole comes to, in words, and one of ``ANSWERS``. ``overline`` stands small above the title, and
    ``key_figures`` are shown large.
    """

    title: str
    lead: str
    verdicts: Sequence[tuple[str, str, str]] = ()
    sections: Sequence[Section] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    overline: str = ""
    answer: tuple[str, str] | None = None
    key_figures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for label, _, tone in self.verdicts:
            if tone not in TONES:
                raise InputError(
                    f"the verdict on {label!r} has the tone {tone!r}; choose one of "
                    f"{', '.join(TONES)}."
                )
        if self.answer is not None and self.answer[1] not in ANSWERS:
            raise InputError(
                f"the answer is {self.answer[1]!r}; choose one of {', '.join(ANSWERS)}."
            )
