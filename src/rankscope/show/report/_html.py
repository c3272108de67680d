"""HTML pages and notebook displays, from Jinja templates with autoescape."""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup

from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.numerals import plural
from rankscope.process import write_file
from rankscope.results import Judgement, Result
from rankscope.show.figures import (
    ScriptSafe,
    adaptive,
    bundle,
    content_policy,
    dark_variables,
    labelled,
    png,
    svg,
)
from rankscope.show.report._page import Chart, Report, Section, Table, first_chart, titles
from rankscope.show.report._prose import address, inline, linked, named_in, paragraphs, sentences
from rankscope.show.report._tables import (
    FATES,
    Rows,
    TableCell,
    TableView,
    badge,
    known_figures,
    number,
    table_view,
    term,
    where,
)
from rankscope.version import __version__

_LARGEST: Final = 300_000  # characters of an SVG; larger charts are saved as PNG
# Colours of text in notebooks, readable on light and dark backgrounds.
_COLOURS: Final = {
    "collapse": "#d1483f",
    "slow": "#c07a1c",
    "noted": "#c07a1c",
    "holds": "#1b9a80",
    "absent": "#1b9a80",
    "unknown": "#7b8794",
    "neutral": "inherit",
}


@checked
def write_html(report: Report, path: str | Path) -> Path:
    """Write the report as one self-contained HTML file that works offline.

    >>> write_html(Report("Collapse", "SAN loses its tokens in 4 layers."), "report.html").name
    'report.html'

    Charts are interactive; without JavaScript, static images are shown. Equal reports have equal
    files.
    """
    style, code = (
        files("rankscope.show.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("style.css", "page.js")
    )
    scripts = [bundle(), code] if report.charts else []
    content = _template("page.html").render(
        report=report,
        policy=content_policy(scripts),
        style=style.replace("$chart_colours", dark_variables()),
        figures=known_figures(report.key_figures),
        papers=named_in(" ".join(_texts(report))),
        scripts=scripts,
    )
    return write_file(path, content.encode())


@checked
def notebook(result: Result) -> str:
    """HTML for notebooks: the answer, the findings and the first chart.

    >>> from rankscope.experiments import run
    >>> "<script" in notebook(run("D8"))
    False

    It has no scripts and loads nothing. Text uses the notebook's colours, so that it is readable on
    light and dark backgrounds; the chart is an image on white.
    """
    title, lead = titles(result)
    chart = first_chart(result)
    return _template("notebook.html").render(
        result=result,
        title=title,
        lead=lead,
        sentences=sentences(result),
        colours=_COLOURS,
        fates=FATES,
        picture="" if chart is None else picture(chart, about=result.title),
        description="" if chart is None else chart.description,
    )


@runtime_checkable
class Claim(Protocol):
    """Interface of a claim: id, statement and source."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def source(self) -> str: ...


@runtime_checkable
class ClaimRunLike(Protocol):
    """Interface of a run of a claim: its files, outcome and run time."""

    @property
    def id(self) -> str: ...
    @property
    def stem(self) -> str: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def scale(self) -> str: ...
    @property
    def key_figure(self) -> tuple[str, float] | None: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def failure(self) -> str: ...


@runtime_checkable
class ClaimSeriesLike(Protocol):
    """Interface of runs that differ only in the seed: their joint verdict."""

    @property
    def runs(self) -> Sequence[ClaimRunLike]: ...
    @property
    def seeds(self) -> str: ...
    @property
    def judgement(self) -> Judgement | None: ...
    @property
    def beyond(self) -> Judgement | None: ...


_HOW: Final = (
    "**As stated** is the verdict on the domain for which a claim was stated; **Beyond it** is the "
    "verdict on cases outside that domain. Verdicts are computed from the figures measured here; "
    "each claim's page shows the figures and how they were computed."
)
_COUNTED: Final = {
    "holds": "supported",
    "depends": "supported in part",
    "fails": "not supported",
    "not tried": "not tested",
}


@checked
def write_overview(
    claims: Iterable[Claim], series: Sequence[ClaimSeriesLike], path: str | Path
) -> Path:
    """Write a page with the verdicts of all claims; claims that were not run are marked."""
    listed = list(claims)
    last = {runs.runs[0].id: runs for runs in series}
    ended = Counter[str](runs.judgement.verdict for runs in last.values() if runs.judgement)
    counts = [f"{ended[kind]} {words}" for kind, words in _COUNTED.items() if ended[kind]]
    failed = sum(bool(runs.runs[0].failure) for runs in last.values())
    counts += [f"{failed} failed to run"] if failed else []
    counted = f"{plural(len(last), 'claim')} of {len(listed)} run"
    heads = ("Claim", "Source", "As stated", "Beyond it", "Key figure", "Time")
    rows = [row for claim in listed for row in _overview_rows(claim, series)]
    caption = "Verdicts by claim"
    table = TableView([TableCell(name) for name in heads], rows, caption, style="table overview")
    report = Report(
        "Claims of the papers",
        f"{counted}: {', '.join(counts)}." if counts else f"{counted}.",
        sections=[Section("All claims", _HOW, [Table(table, caption)])],
        provenance={"rankscope": __version__},
    )
    return write_html(report, path)


def _overview_rows(claim: Claim, series: Sequence[ClaimSeriesLike]) -> list[list[TableCell]]:
    source = TableCell(linked(inline(claim.source)))
    name = Markup('<span class="id">{}</span>').format(claim.id)
    rows = []
    for same in (same for same in series if same.runs[0].id == claim.id):
        first = same.runs[0]
        if first.stem:
            name = Markup('<a class="id" href="{}.html">{}</a>').format(first.stem, claim.id)
        which = Markup("failed to run") if first.failure else _which(same)
        title = Markup("{} {}").format(name, inline(claim.title)) + _small(which)
        verdicts = [_judged(same.judgement), _judged(same.beyond)]
        if first.failure:
            verdicts[0] = Markup("{}").format(first.failure)
        figures = [run.key_figure for run in same.runs if run.key_figure is not None]
        figure = Markup("")
        if figures:
            ends = dict.fromkeys(pick(value for _, value in figures) for pick in (min, max))
            figure = Markup(" to ").join(map(number, ends)) + _small(
                inline(figures[0][0].replace("_", " "))
            )
        times = [run.seconds for run in same.runs if run.seconds is not None]
        took = sum(times)
        time = f"{took:.{int(took < 10)}f} s" if took < 100 else f"{took / 60:.1f} min"
        cells = [TableCell(cell) for cell in (*verdicts, figure, time if times else "")]
        rows.append([TableCell(title, heading=True), source, *cells])
    if rows:
        return rows
    unrun = Markup('<span class="unrun">{} {}</span>').format(name, inline(claim.title))
    title = unrun + _small(inline(f"rankscope reproduce {claim.id}"))
    return [[TableCell(title, heading=True), source, *[TableCell("")] * 4]]


def _which(same: ClaimSeriesLike) -> Markup:
    """The seeds and the scale, with a link to the page of each further seed."""
    links = [
        Markup('<a href="{}.html">{}</a>').format(run.stem, run.seed)
        for run in same.runs[1:]
        if run.stem
    ]
    pages = Markup(" (pages of {})").format(Markup(", ").join(links)) if links else ""
    return inline(f"{same.seeds}, {same.runs[0].scale} scale") + pages


def _judged(judgement: Judgement | None) -> Markup:
    if judgement is None:
        return Markup("")
    rest = Markup(" {}").format(inline(judgement.on)) if judgement.on else ""
    mark = badge(judgement.words, judgement.verdict.replace(" ", "-"))
    return mark + rest + _small(inline(judgement.domain))


def _small(words: Markup | str) -> Markup:
    return Markup('<span class="small">{}</span>').format(words)


def table_html(rows: Rows, caption: str = "", note: str = "") -> str:
    """A single table, as on a page."""
    return str(vars(_template("table.html").module)["table"](table_view(rows, caption, note)))


def picture(chart: Chart, *, about: str) -> str:
    """A chart as a data URL: SVG, or PNG if the SVG is very large.

    The image includes its title and subject, because it may be saved and shared.
    """
    spec = labelled(chart.spec, chart.title, about)
    try:
        drawn = svg(spec)
        if len(drawn) <= _LARGEST:
            return "data:image/svg+xml;base64," + base64.b64encode(drawn.encode()).decode()
        return "data:image/png;base64," + base64.b64encode(png(spec, scale=1.5)).decode()
    except InputError as error:
        raise InputError(f"{chart.title!r}: {error}") from error


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("rankscope.show.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "address": address,
        "define": _define,
        "inline": inline,
        "linked": linked,
        "number": number,
        "paragraphs": paragraphs,
        "picture": lambda chart, report: picture(chart, about=report.about or report.title),
        "specification": _specification,
        "table_view": lambda table, terms: table_view(table.rows, table.caption, table.note, terms),
        "term": term,
        "where": where,
    }
    return environment.get_template(name)


def _define(metric: Metric) -> str:
    meaning = f"{metric.meaning}." if metric.meaning else ""
    return " ".join(filter(None, [metric.definition, meaning]))


def _specification(chart: Chart) -> Markup:
    """The Vega specification, escaped for a script element."""
    spec = {**adaptive(chart.spec), "description": chart.description or chart.title}
    return Markup(json.dumps(spec, cls=ScriptSafe, ensure_ascii=False, separators=(",", ":")))


def _texts(report: Report) -> Iterable[str]:
    """All texts that may cite papers."""
    yield from (report.overline, report.title, report.lead)
    for section in report.sections:
        yield from (section.title, section.text)
        for block in section.blocks:
            if isinstance(block, Chart):
                yield from (block.title, block.text)
            else:
                view = table_view(block.rows, block.caption, block.note)
                yield from (view.caption, view.note)
                yield from (str(cell.content) for row in view.rows for cell in row)
    yield from map(_define, report.terms.values())
