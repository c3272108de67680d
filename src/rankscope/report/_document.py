"""What a page consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from rankscope.arguments import Exact, checked
from rankscope.errors import InputError
from rankscope.figures import Figure
from rankscope.report._grids import Grid
from rankscope.results import Judgement

TONES: Final = ("collapse", "slow", "holds", "unknown", "neutral")
"""What a verdict can be: tokens become alike, slowly, or stay different; or none of these."""


@checked
@dataclass(frozen=True)
class Section:
    """A heading with its text, and a chart or a table or both.

    In texts an empty line begins a paragraph, ``**stars**`` make bold and backticks make code;
    lines that begin with ``- `` make a list. ``html`` is set as it is: whoever gives it escapes.
    """

    title: str
    text: str = ""
    chart: Figure | None = None
    table: pl.DataFrame | Grid | None = None
    html: str = ""


@checked
@dataclass(frozen=True)
class Report:
    """A title, what it is about in a paragraph, verdicts, sections and where it all came from.

    A verdict is ``(label, sentence, tone)``, the tone one of ``TONES``. ``answers`` are
    what the whole comes to, each under words for what it is about. ``overline`` stands small above
    the title, and ``key_figures`` are shown large.
    """

    title: str
    lead: str
    verdicts: Sequence[tuple[str, str, str]] = ()
    sections: Sequence[Section] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    overline: str = ""
    answers: Mapping[str, Judgement] = field(default_factory=dict)
    key_figures: Mapping[str, Exact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for label, _, tone in self.verdicts:
            if tone not in TONES:
                raise InputError(
                    f"the verdict on {label!r} has the tone {tone!r}; choose one of "
                    f"{', '.join(TONES)}."
                )
