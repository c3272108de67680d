"""HTML for notebooks, from a template that escapes its input."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup


@cache
def template(name: str) -> Template:
    """A template of this package, with autoescape."""
    loader = PackageLoader("rankscope.show")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True)
    return environment.get_template(name)


def _macros() -> dict[str, Any]:
    return vars(template("display.html").module)


def card(title: str, *parts: Markup) -> str:
    """A title above HTML elements.

    >>> print(card("a < b"))
    <div style="font-family:system-ui,sans-serif;font-size:13px"><b>a &lt; b</b></div>
    """
    return str(_macros()["card"](title, parts))


def paragraph(text: str) -> Markup:
    """A paragraph of text."""
    return Markup(_macros()["paragraph"](text))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table with a header row.

    >>> print(table(["mask"], [["a<b"]]))
    <table><tr><th>mask</th></tr><tr><td>a&lt;b</td></tr></table>
    """
    return Markup(_macros()["table"](header, [[str(cell) for cell in row] for row in rows]))


def grid(rows: Sequence[Sequence[bool]], label: str) -> Markup:
    """An SVG of small squares, filled where True, with an accessible ``label``."""
    height, width = len(rows), len(rows[0])
    runs = []
    for y, row in enumerate(rows):
        start = 0
        for filled, same in groupby(row):
            length = len(list(same))
            if filled:
                runs.append(f"M{start} {y}h{length}v.9h-{length}z")
            start += length
    size = max(4, min(12, 192 // max(width, height)))
    return Markup(_macros()["squares"](width, height, size, label, "".join(runs)))
