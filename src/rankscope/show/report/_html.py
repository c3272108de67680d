"""``write_html``: a report as one file that needs nothing else."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from rankscope.arguments import checked
from rankscope.metric_catalogue import knowing
from rankscope.process.files import whole_file
from rankscope.show.figures import bundle, content_policy, dark_variables
from rankscope.show.report._charts import drawing
from rankscope.show.report._document import Block, Chart, Report, Section, Table
from rankscope.show.report._glossary import defined, glossary, known_terms, papers
from rankscope.show.report._papers import linked
from rankscope.show.report._prose import inline, paragraphs
from rankscope.show.report._tables import table
from rankscope.show.report._top import headline, judgements, key_figures, warning_box

_FROM_HERE_ON_A_LIST = 4  # sections, before a list of contents helps
_LONG = 45  # characters, from which a title is a sentence and set smaller
_COMMAND = "command"  # the entry of the provenance that says what to type
_WIDE = 60  # characters, from which an entry of the provenance has a row of its own


@checked
def write_html(report: Report, path: str | Path) -> Path:
    """Write the report as one HTML file, which asks nothing of any network.

    >>> write_html(Report("Collapse", "SAN loses its tokens in 4 layers."), "report.html").name
    'report.html'

    Charts are interactive; without JavaScript, pictures of them are shown. Equal reports make
    equal files.
    """
    with knowing(report.words):
        page = _page(report)
    with whole_file(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return Path(path)


def _page(report: Report) -> str:
    scripts = [bundle(), _asset("page.js")] if report.charts else []
    terms = known_terms(report.metrics)
    sections = "\n".join(
        _section(section, number, report.about or report.title, terms)
        for number, section in enumerate(report.sections, start=1)
    )
    definitions = glossary(terms)
    return Template(_asset("page.html")).substitute(
        title=escape(report.title),
        policy=content_policy(scripts),
        style=Template(_asset("style.css")).substitute(chart_colours=dark_variables()),
        warnings=warning_box(report.warnings),
        overline=_overline(report.overline),
        length=' class="long"' if len(report.title) > _LONG else "",
        headline=headline(report.headline, report.answer),
        judgements=judgements(report.judgements),
        lead=f'<p class="lead">{inline(report.lead)}</p>' if report.lead else "",
        key_figures=key_figures(report.key_figures),
        contents=_contents(report.sections),
        sections=sections,
        glossary=definitions,
        papers=papers(
            " ".join([report.overline, report.title, report.lead, sections, definitions])
        ),
        provenance=_provenance(report.provenance),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _section(section: Section, number: int, about: str, terms: Sequence[str]) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>", linked(paragraphs(section.text))]
    several = len(section.charts) > 1
    for place, block in enumerate(section.blocks, start=1):
        name = f"figure-{number}-{place}"
        parts.append(_block(block, name, about, terms, several=several))
    body = "\n".join(part for part in parts if part)
    return f'<section id="section-{number}">\n{body}\n</section>'


def _block(block: Block, name: str, about: str, terms: Sequence[str], *, several: bool) -> str:
    """A chart or a table; charts that are not alone have headings of their own."""
    if isinstance(block, Table):
        return table(block.rows, block.caption, block.note, terms)
    if not isinstance(block, Chart):
        return block.html
    heading = f"<h3>{escape(block.title)}</h3>" if several else ""
    drawn = drawing(block, name=name, about=about)
    words = [heading, linked(paragraphs(block.text)), defined(block.metrics, terms)]
    return "\n".join(filter(None, [*words, drawn]))


def _contents(sections: Sequence[Section]) -> str:
    if len(sections) < _FROM_HERE_ON_A_LIST:
        return ""
    entries = "\n".join(
        f'<li><a href="#section-{number}">{escape(section.title)}</a></li>'
        for number, section in enumerate(sections, start=1)
    )
    return f'<nav aria-label="Contents"><ol>\n{entries}\n</ol></nav>'


def _overline(text: str) -> str:
    return f'<p class="overline">{linked(inline(text))}</p>' if text else ""


def _provenance(provenance: Mapping[str, str]) -> str:
    if not provenance:
        return ""
    others = {name: value for name, value in provenance.items() if name != _COMMAND}
    entries = "\n".join(_entry(name, value) for name, value in others.items())
    listed = f"<dl>\n{entries}\n</dl>" if others else ""
    command = provenance.get(_COMMAND, "")
    repeat = f"<p>To repeat it: <code>{escape(command)}</code></p>" if command else ""
    return "\n".join(filter(None, ["<h2>Where this comes from</h2>", repeat, listed]))


def _entry(name: str, value: str) -> str:
    wide = ' class="wide"' if len(value) > _WIDE else ""
    return f"<div{wide}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"


def _asset(name: str) -> str:
    return files("rankscope.show.report").joinpath(name).read_text(encoding="utf-8")
