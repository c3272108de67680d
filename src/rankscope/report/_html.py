"""``write_html``: a report as one file that needs nothing else."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from rankscope.figures import bundle, content_policy, dark_variables
from rankscope.files import whole_file
from rankscope.report._cards import answers, cards, key_figures
from rankscope.report._charts import drawing
from rankscope.report._document import Report, Section
from rankscope.report._prose import inline, paragraphs
from rankscope.report._tables import table

_FROM_HERE_ON_A_LIST = 4  # sections, before a list of contents helps
_LONG = 45  # characters, from which a title is a sentence and set smaller
_WIDE = 60  # characters, from which an entry of the provenance has a row of its own


def write_html(report: Report, path: str | Path) -> Path:
    """Write the report as one HTML file, which asks nothing of any network.

    >>> write_html(Report("Collapse", "SAN loses its tokens in 4 layers."), "report.html").name
    'report.html'

    Charts are interactive; without JavaScript, pictures of them are shown. Equal reports make
    equal files.
    """
    page = _page(report)
    with whole_file(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return Path(path)


def _page(report: Report) -> str:
    drawn = any(section.chart is not None for section in report.sections)
    scripts = [bundle(), _asset("page.js")] if drawn else []
    return Template(_asset("page.html")).substitute(
        title=escape(report.title),
        policy=content_policy(scripts),
        style=Template(_asset("style.css")).substitute(chart_colours=dark_variables()),
        overline=_overline(report.overline),
        length=' class="long"' if len(report.title) > _LONG else "",
        answers=answers(report.answers),
        lead=f'<p class="lead">{inline(report.lead)}</p>' if report.lead else "",
        verdicts=cards(report.verdicts),
        key_figures=key_figures(report.key_figures),
        contents=_contents(report.sections),
        sections="\n".join(
            _section(section, number) for number, section in enumerate(report.sections, start=1)
        ),
        provenance=_provenance(report.provenance),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _section(section: Section, number: int) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>", paragraphs(section.text)]
    if section.chart is not None:
        parts.append(drawing(section.chart, name=f"figure-{number}", title=section.title))
    if section.table is not None:
        parts.append(table(section.table))
    parts.append(section.html)
    body = "\n".join(part for part in parts if part)
    return f'<section id="section-{number}">\n{body}\n</section>'


def _contents(sections: Sequence[Section]) -> str:
    if len(sections) < _FROM_HERE_ON_A_LIST:
        return ""
    entries = "\n".join(
        f'<li><a href="#section-{number}">{escape(section.title)}</a></li>'
        for number, section in enumerate(sections, start=1)
    )
    return f'<nav aria-label="Contents"><ol>\n{entries}\n</ol></nav>'


def _overline(text: str) -> str:
    return f'<p class="overline">{inline(text)}</p>' if text else ""


def _provenance(provenance: Mapping[str, str]) -> str:
    if not provenance:
        return ""
    entries = "\n".join(_entry(name, value) for name, value in provenance.items())
    return f"<h2>Where this comes from</h2>\n<dl>\n{entries}\n</dl>"


def _entry(name: str, value: str) -> str:
    wide = ' class="wide"' if len(value) > _WIDE else ""
    return f"<div{wide}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"


def _asset(name: str) -> str:
    return files("rankscope.report").joinpath(name).read_text(encoding="utf-8")
