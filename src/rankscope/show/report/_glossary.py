"""The words of a page: each metric it draws or tells, in a line, and the papers it names."""

from collections.abc import Iterable, Sequence
from html import escape

from rankscope.metric_catalogue import metric
from rankscope.show.report._papers import linked, named_in
from rankscope.show.report._prose import inline


def known_terms(names: Iterable[str]) -> list[str]:
    """Those of the metrics that have a line to say, each once."""
    entries = [metric(name) for name in dict.fromkeys(names)]
    return [entry.name for entry in entries if entry.definition or entry.meaning]


def term(name: str, terms: Sequence[str], words: str = "") -> str:
    """What a metric is called, or other words; a link to its line if the page has one."""
    title = escape(words or metric(name).title)
    return f'<a class="term" href="#{_anchor(name)}">{title}</a>' if name in terms else title


def defined(names: Sequence[str], terms: Sequence[str]) -> str:
    """Where to read what a chart shows."""
    links = [term(name, terms) for name in dict.fromkeys(names) if name in terms]
    return f'<p class="defined">Definition: {", ".join(links)}.</p>' if links else ""


def glossary(terms: Sequence[str]) -> str:
    """Every metric with its symbol and its definition."""
    if not terms:
        return ""
    lines = "\n".join(_line(name) for name in terms)
    return f'<h2>Definitions</h2>\n<dl class="glossary">\n{lines}\n</dl>'


def papers(text: str) -> str:
    """The papers that a page names, with their titles."""
    found = named_in(text)
    if not found:
        return ""
    lines = "\n".join(f"<li>{paper.link}: {escape(paper.title)}</li>" for paper in found)
    return f'<h2>Papers</h2>\n<ul class="papers">\n{lines}\n</ul>'


def _line(name: str) -> str:
    entry = metric(name)
    symbol = f' <span class="symbol">{escape(entry.symbol)}</span>' if entry.symbol else ""
    said = f"{entry.meaning}." if entry.meaning else ""
    words = " ".join(filter(None, [entry.definition, said]))
    return (
        f'<div id="{_anchor(name)}"><dt>{escape(entry.title)}{symbol}:</dt>'
        f" <dd>{linked(inline(words))}</dd></div>"
    )


def _anchor(name: str) -> str:
    return f"term-{escape(name)}"
