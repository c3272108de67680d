"""``notebook``: a result as a piece of HTML for a notebook; it loads nothing and has no scripts.

Colours of words are the notebook's own, so that they can be read on light and on dark; a chart is
a picture on white.
"""

from html import escape
from typing import Final

from rankscope.arguments import checked
from rankscope.results import Finding, Result
from rankscope.show.report._charts import picture
from rankscope.show.report._compose import first_chart, titles
from rankscope.show.report._findings import FATES, where
from rankscope.show.report._prose import inline, sentences

_COLOURS: Final = {
    "collapse": "#d1483f",
    "slow": "#c07a1c",
    "noted": "#c07a1c",
    "holds": "#1b9a80",
    "unknown": "#7b8794",
    "neutral": "inherit",
}
"""In the middle between light and dark: they are read on both."""
_BOX: Final = "border-left:4px solid #c07a1c;padding:4px 12px;margin:8px 0"
_CELL: Final = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


@checked
def notebook(result: Result) -> str:
    """The answer, what was looked for and the first chart, as notebooks show them.

    >>> from rankscope.experiments import run
    >>> "<script" in notebook(run("D8"))
    False
    """
    title, lead = titles(result)
    verdict = f"<p><b>{inline(result.verdict_in_words)}</b></p>" if result.verdict else ""
    parts = [
        *(f'<div style="{_BOX}">{inline(each)}</div>' for each in result.warnings),
        f"<h4>{escape(title)}</h4>",
        f'<p style="opacity:0.75">{inline(lead)}</p>' if lead else "",
        verdict,
        _said(result),
        _table(result.findings),
        _chart(result),
    ]
    return f'<div style="max-width:60rem">{"".join(parts)}</div>'


def _said(result: Result) -> str:
    """The answer in prose under its headline, or the sentences one by one."""
    if result.headline is None:
        points = "".join(f"<li>{inline(each)}</li>" for each in sentences(result))
        return f"<ul>{points}</ul>" if points else ""
    look = f"font-size:1.4em;font-weight:600;color:{_COLOURS[result.headline.tone]}"
    return (
        f'<p style="{look}">{inline(result.headline.text)}</p>'
        f"<p>{inline(' '.join(result.sentences))}</p>"
    )


def _table(findings: tuple[Finding, ...]) -> str:
    if not findings:
        return ""
    heads = "".join(
        f'<th style="{_CELL}">{name}</th>' for name in ("looked for", "found?", "in words", "where")
    )
    return f"<table><tr>{heads}</tr>{''.join(map(_row, findings))}</table>"


def _row(finding: Finding) -> str:
    found = f'<b style="color:{_COLOURS[finding.fate]}">{FATES[finding.fate]}</b>'
    cells = (inline(finding.kind), found, inline(finding.sentence), inline(where(finding)))
    shown = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
    return f"<tr>{shown}</tr>"


def _chart(result: Result) -> str:
    chart = first_chart(result)
    if chart is None:
        return ""
    look = "max-width:100%;background:#ffffff;border-radius:6px;margin-top:8px"
    return (
        f'<img style="{look}" src="{picture(chart, about=result.title)}" '
        f'alt="{escape(chart.description)}">'
    )
