"""``page``: the content of a result's page; nothing is computed here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from rankscope.arguments import Exact, checked
from rankscope.metric_catalogue import Metric, knowing, metric
from rankscope.numerals import sentence_case
from rankscope.results import Drawing, Headline, Judgement, Listing, Result
from rankscope.show.figures import (
    Figure,
    description,
    draw,
    headings,
    metrics_of,
    printable,
    reading,
)
from rankscope.show.report._grids import METRIC, MetricGrid, grids
from rankscope.show.report._prose import sentences
from rankscope.show.report._tables import Rows

_MOST_COLUMNS: Final = 13
_MOST_IN_A_ROW: Final = 4  # more sentences make a list instead of a paragraph
# Limits of a provenance: entries of a list, entries shown of a longer one, characters.
_MOST_ENTRIES, _FIRST_ENTRIES, _LONGEST_ENTRY = 16, 3, 500


@checked
@dataclass(frozen=True)
class Chart:
    """A chart in a section, with its own heading if the section has several.

    >>> from rankscope import figures, tables
    >>> from rankscope.show.report import Chart
    >>> table = tables.frame({"layer": [0, 1], "metric": ["rank"] * 2, "value": [4.0, 2.0]})
    >>> Chart(figures.by_layer(tables.summary(table)), "Ranks by layer").title
    'Ranks by layer'

    ``description`` is its alternative text, ``text`` is shown above it. The page defines its
    ``metrics``.
    """

    figure: Figure
    title: str
    text: str = ""
    description: str = ""
    metrics: Sequence[Metric] = ()

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Its Vega-Lite specification, made once; a test checks figures against the schema."""
        spec: dict[str, Any] = printable(self.figure.to_dict(validate=False))
        return spec


@checked
@dataclass(frozen=True)
class Table:
    """A table with a caption above and a note below.

    >>> import polars as pl
    >>> from rankscope.show.report import Section, Table
    >>> ranks = Table(pl.DataFrame({"layer": [0, 1], "rank": [4.0, 2.0]}), "Ranks by layer")
    >>> len(Section("Details", blocks=[ranks]).blocks)
    1
    """

    rows: Rows
    caption: str
    note: str = ""


@checked
@dataclass(frozen=True)
class Section:
    """A heading, text, charts and tables.

    >>> from rankscope.show.report import Section
    >>> Section("Details", "Tokens are **alike** from layer 4 on.").charts
    []

    Markup of texts: an empty line separates paragraphs, ``**stars**`` are bold, backticks are code,
    and lines that begin with ``- `` are a list.
    """

    title: str
    text: str = ""
    blocks: Sequence[Chart | Table] = ()

    @property
    def charts(self) -> list[Chart]:
        """Its charts, in order."""
        return [block for block in self.blocks if isinstance(block, Chart)]


@checked
@dataclass(frozen=True)
class Report:
    """The content of a page: title, answer, sections and provenance.

    >>> from rankscope.show.report import Report, Section
    >>> details = Section("Details", "After 4 layers.")
    >>> report = Report("Collapse", "SAN loses its tokens.", sections=[details])
    >>> len(report.sections), report.charts
    (1, [])

    ``warnings`` are shown first, ``headline`` is the answer in a few words and ``answer`` the same
    in sentences. ``judgements`` are the verdicts of a claim by domain. ``overline`` is small text
    above the title, and ``key_figures`` are shown large. ``about``, by default the title, is the
    subtitle of saved charts.
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

    @property
    def charts(self) -> list[Chart]:
        """All charts, in order."""
        return [chart for section in self.sections for chart in section.charts]

    @cached_property
    def terms(self) -> dict[str, Metric]:
        """The metrics of its charts and tables that have a definition, by name."""
        shown: list[Metric] = []
        for block in (block for section in self.sections for block in section.blocks):
            if isinstance(block, Chart):
                shown += block.metrics
            elif isinstance(block.rows, MetricGrid):
                shown += block.rows.words.values()
        return {entry.name: entry for entry in shown if entry.definition or entry.meaning}


@checked
def page(result: Result) -> Report:
    """The page of a result: answer, findings, charts, measurements, provenance.

    >>> from rankscope.experiments import run
    >>> page(run("D8")).title
    'Most paths of well-known transformers are long: about L·H/(H+1) of L layers.'

    The title of a question is the question, with its subject below; that of a claim is the claim.
    """
    title, lead = titles(result)
    judged = {"Stated for": result.judgement, "Beyond it": result.beyond}
    with knowing(result.metrics):
        sections = _sections(result)
    return Report(
        title=title,
        lead=lead,
        sections=sections,
        provenance=in_words(result.provenance),
        overline=f"{result.id} · {result.source}" if result.source else "",
        warnings=result.warnings,
        headline=result.headline,
        answer=_answer(result) if result.headline else "",
        judgements={
            f"{where}: {judgement.domain}": judgement
            for where, judgement in judged.items()
            if judgement is not None
        },
        key_figures=result.key_figures,
        about=result.title,
    )


def _answer(result: Result) -> str:
    """The text below a headline: by label, as a list if long, else as a paragraph."""
    if result.labels:
        labelled = [f"**{sentence_case(label)}**: {text}" for label, text in result.answers.items()]
        pairs = zip(result.labels, result.sentences, strict=True)
        return _points([*labelled, *(sentence for label, sentence in pairs if not label)])
    many = len(result.sentences) > _MOST_IN_A_ROW
    return _points(result.sentences) if many else " ".join(result.sentences)


def titles(result: Result) -> tuple[str, str]:
    """The title of a result, and the line below it."""
    title, lead = result.title, result.question
    if not result.source and result.question:
        title, lead = lead, title
    return title, lead if lead != title else ""


def _sections(result: Result) -> list[Section]:
    charts, explained = [], set[str]()
    drawings = result.all_drawings
    for title, drawing in zip(headings(drawings), drawings, strict=True):
        how = reading(drawing)  # shown with the first chart of its kind
        text = drawing.caption if how in explained else f"{drawing.caption} {how}".strip()
        explained.add(how)
        charts.append(_chart(result, drawing, title, text))
    sections = []
    if result.findings:
        table = Table(result.findings, "Kinds of collapse, and whether they are present")
        sections.append(Section("Findings", blocks=[table]))
    # The sentences, unless they are the answer at the top, and the listings.
    texts = [] if result.headline else sentences(result)
    if texts or result.listings:
        sections.append(Section("Results", _points(texts), _listed(result.listings)))
    drawn = len(result.drawings)
    sections += [Section(chart.title, blocks=[chart]) for chart in charts[:drawn]]
    for part in result.parts:
        following = drawn + len(part.drawings)
        blocks = [*_listed(part.listings), *charts[drawn:following]]
        sections.append(Section(part.title, _points(part.sentences), blocks))
        drawn = following
    numbers = []
    for grid in grids(result):
        words = [f"{grid.statistic}s over the samples"] if grid.statistic else []
        note = sentence_case(", ".join([*words, *["after the last layer"] * grid.last_layer]))
        shown = grid.few(_MOST_COLUMNS)
        numbers.append(Table(shown, caption(grid), f"{note}." if note else ""))
    return [*sections, *([Section("Measurements", blocks=numbers)] if numbers else [])]


def _points(texts: Sequence[str]) -> str:
    """One sentence as a paragraph, several as a list."""
    return texts[0] if len(texts) == 1 else "\n".join(f"- {sentence}" for sentence in texts)


def _listed(listings: Sequence[Listing]) -> list[Chart | Table]:
    return [Table(listing, listing.title, listing.note) for listing in listings]


def first_chart(result: Result) -> Chart | None:
    """The first chart, if any."""
    drawings = result.all_drawings
    with knowing(result.metrics):
        return _chart(result, drawings[0], headings(drawings)[0], "") if drawings else None


def _chart(result: Result, drawing: Drawing, title: str, text: str) -> Chart:
    entries = [metric(name) for name in dict.fromkeys(metrics_of(drawing, result))]
    chart = draw(drawing, result)
    return Chart(chart, title, text, description(drawing, result, chart), entries)


def caption(grid: MetricGrid) -> str:
    """The caption of a table: its metric and what it varies with."""
    what = grid.words[grid.metrics[0]].title if len(grid.metrics) == 1 else ""
    if grid.axis == METRIC:
        return what or "Overall"
    return f"{what or 'All metrics'} by {grid.axis}"


def in_words(provenance: Mapping[str, Any]) -> dict[str, str]:
    """The provenance as text by entry, without unknown or repeated values.

    >>> in_words({"seed": 0, "spec": None, "config": {"seed": 0, "heads": [1, 2], "width": 8}})
    {'seed': '0', 'config': 'heads 1, 2; width 8'}
    """
    entries = {}
    for key, value in provenance.items():
        if isinstance(value, Mapping):
            value = {k: v for k, v in value.items() if k not in provenance or provenance[k] != v}
        if text := _words(value):
            # Truncate long text; the table's file and JSON have all of it.
            start = text[:_LONGEST_ENTRY].rsplit(" ", 1)[0]
            long = len(text) > _LONGEST_ENTRY
            name = key.replace("_", " ")
            entries[name] = f"{start} … (the table's file has the full text)" if long else text
    return entries


def _words(value: Any, *, inside: bool = False) -> str:
    """A value as text; a mapping ``inside`` another value is put in parentheses."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        if not value or not all(map(_is_named, value)):
            return _join([_words(item, inside=True) for item in value])
        value = dict(value)
    if not isinstance(value, Mapping):
        return str(value)
    inner = ((key, _words(item, inside=True)) for key, item in value.items())
    text = _join([f"{key.replace('_', ' ')} {words}" for key, words in inner if words])
    return f"({text})" if inside and text else text


def _is_named(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str)


def _join(texts: Iterable[str]) -> str:
    present = [text for text in texts if text]
    between = "; " if any(", " in text for text in present) else ", "
    if len(present) > _MOST_ENTRIES:
        present = [*present[:_FIRST_ENTRIES], f"… ({len(present)} in total)"]
    return between.join(present)
