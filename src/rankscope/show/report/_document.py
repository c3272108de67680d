"""What a page consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from rankscope.arguments import Exact, checked
from rankscope.metric_catalogue import Metric
from rankscope.results import Headline, Judgement, Listing
from rankscope.show.figures import Figure, printable
from rankscope.show.report._grids import Grid


@checked
@dataclass(frozen=True)
class Chart:
    """A chart in a section, under a heading of its own if the section has several.

    ``description`` is what somebody who cannot see it is told, ``text`` stands above it. The page
    defines its ``metrics``.
    """

    figure: Figure
    title: str
    text: str = ""
    description: str = ""
    metrics: Sequence[str] = ()

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Its specification, which takes long to make."""
        whole: dict[str, Any] = printable(self.figure.to_dict())
        return whole


@checked
@dataclass(frozen=True)
class Table:
    """A table with its caption, and below it a note on how to read it."""

    rows: pl.DataFrame | Grid | Listing
    caption: str
    note: str = ""


@checked
@dataclass(frozen=True)
class Markup:
    """HTML that is set as it is: whoever gives it escapes."""

    html: str


Block = Chart | Table | Markup


@checked
@dataclass(frozen=True)
class Section:
    """A heading with its text, and below it charts and tables.

    In texts an empty line begins a paragraph, ``**stars**`` make bold and backticks make code;
    lines that begin with ``- `` make a list.
    """

    title: str
    text: str = ""
    blocks: Sequence[Block] = ()

    @property
    def charts(self) -> list[Chart]:
        """Its charts, in their order."""
        return [block for block in self.blocks if isinstance(block, Chart)]


@checked
@dataclass(frozen=True)
class Report:
    """A title, what it is about, what was found, sections, and where it all came from.

    ``warnings`` stand above everything, ``headline`` is the answer in a few words and ``answer``
    the same in prose. ``judgements`` are what a claim comes to, each under words for what it is
    about. ``overline`` stands small above the title, and ``key_figures`` are shown large. Pictures
    of the charts say what they are ``about``: the title unless given.
    """

    title: str
    lead: str
    sections: Sequence[Section] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    overline: str = ""
    warnings: Sequence[str] = ()
    headline: Headline | None = None
    answer: str = ""
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    key_figures: Mapping[str, Exact] = field(default_factory=dict)
    about: str = ""
    words: tuple[Metric, ...] = ()
    """Of metrics that are not in the catalogue (see ``Result.metrics``)."""

    @property
    def charts(self) -> list[Chart]:
        """All its charts, in their order."""
        return [chart for section in self.sections for chart in section.charts]

    @property
    def metrics(self) -> list[str]:
        """What its charts and tables show."""
        found: list[str] = []
        for block in (block for section in self.sections for block in section.blocks):
            if isinstance(block, Chart):
                found += block.metrics
            elif isinstance(block, Table) and isinstance(block.rows, Grid):
                found += block.rows.metrics
        return list(dict.fromkeys(found))
