"""``page``: a result → what its page consists of; nothing is computed here."""

from collections.abc import Sequence
from typing import Final

from rankscope.arguments import checked
from rankscope.metric_catalogue import knowing, metric
from rankscope.numerals import sentence_case
from rankscope.results import Drawing, Judgement, Listing, Result
from rankscope.show.figures import description, draw, headings, metrics_of, reading
from rankscope.show.report._document import Block, Chart, Markup, Report, Section, Table
from rankscope.show.report._findings import findings_table
from rankscope.show.report._grids import METRIC, Grid, grids
from rankscope.show.report._prose import sentences
from rankscope.show.report._provenance import in_words

_MOST_COLUMNS: Final = 13


@checked
def page(result: Result) -> Report:
    """The page for a result: the answer, what was found, its charts, their figures, its origin.

    >>> from rankscope.experiments import run
    >>> page(run("D8")).title
    'Most paths of well-known transformers are long: about L·H/(H+1) of L layers.'

    Of a question the title is what was asked, and below it stands what it was asked about; a claim
    is its own title.
    """
    title, lead = titles(result)
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
        answer=" ".join(result.sentences) if result.headline else "",
        judgements=_judgements(result),
        key_figures=result.key_figures,
        about=result.title,
        words=result.metrics,
    )


def titles(result: Result) -> tuple[str, str]:
    """What stands large above a result, and what stands below that."""
    one, other = result.title, result.question
    if not result.source and result.question:
        one, other = other, one
    return one, other if other != one else ""


def _sections(result: Result) -> list[Section]:
    charts = _charts(result)
    own = len(result.drawings)
    sections = [*_looked_for(result), *_found(result)]
    sections += [Section(chart.title, blocks=[chart]) for chart in charts[:own]]
    for part in result.parts:
        following = own + len(part.drawings)
        blocks: list[Block] = [*_listed(part.listings), *charts[own:following]]
        sections.append(Section(part.title, _points(part.sentences), blocks))
        own = following
    return [*sections, *_figures(result)]


def _judgements(result: Result) -> dict[str, Judgement]:
    judged = {"Stated for": result.judgement, "Beyond it": result.beyond}
    return {f"{where}: {one.domain}": one for where, one in judged.items() if one is not None}


def _looked_for(result: Result) -> list[Section]:
    if not result.findings:
        return []
    return [Section("What was looked for", blocks=[Markup(findings_table(result.findings))])]


def _found(result: Result) -> list[Section]:
    """The sentences, unless they are the answer at the top, and the tables in words."""
    said = [] if result.headline else sentences(result)
    if not said and not result.listings:
        return []
    return [Section("What was found", _points(said), _listed(result.listings))]


def _points(said: Sequence[str]) -> str:
    """One sentence is a paragraph, several are a list."""
    return said[0] if len(said) == 1 else "\n".join(f"- {each}" for each in said)


def _listed(listings: Sequence[Listing]) -> list[Block]:
    return [Table(listing, listing.title, listing.note) for listing in listings]


def first_chart(result: Result) -> Chart | None:
    """The chart that comes first, if there is any."""
    drawings = result.all_drawings
    with knowing(result.metrics):
        return _chart(result, drawings[0], headings(drawings)[0], "") if drawings else None


def _charts(result: Result) -> list[Chart]:
    """Its charts; how to read one is said where it is first needed."""
    drawings = result.all_drawings
    charts, said = [], set[str]()
    for title, drawing in zip(headings(drawings), drawings, strict=True):
        how = reading(drawing)
        text = drawing.caption if how in said else f"{drawing.caption} {how}".strip()
        said.add(how)
        charts.append(_chart(result, drawing, title, text))
    return charts


def _chart(result: Result, drawing: Drawing, title: str, text: str) -> Chart:
    told, metrics = description(drawing, result), metrics_of(drawing, result)
    return Chart(draw(drawing, result), title, text, told, metrics)


def _figures(result: Result) -> list[Section]:
    """The metrics in figures, each table under its caption."""
    blocks = [
        Table(grid.few(_MOST_COLUMNS), caption(grid), _statistic(grid)) for grid in grids(result)
    ]
    return [Section("In figures", blocks=blocks)] if blocks else []


def caption(grid: Grid) -> str:
    """Which metric a table tells, and along what."""
    what = metric(grid.metrics[0]).title if len(grid.metrics) == 1 else ""
    if grid.place == METRIC:
        return what or "Overall"
    return f"{what or 'All metrics'} by {grid.place}"


def _statistic(grid: Grid) -> str:
    words = [f"{grid.statistic}s over the samples"] if grid.statistic else []
    words += ["after the last layer"] if grid.last_layer else []
    text = ", ".join(words)
    return f"{sentence_case(text)}." if text else ""
