"""``save``: a chart as a file."""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import altair as alt

from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.figures._offline import chart_page
from rankscope.figures._theme import Figure
from rankscope.files import whole_file

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LINE = 96  # characters of a line below a title
FORMATS: dict[str, Literal["html", "svg", "png"]] = {
    ".html": "html",
    ".svg": "svg",
    ".png": "png",
}


@checked
def printable(value: Any) -> Any:
    r"""A chart's specification without control characters, of which renderers die.

    >>> printable({"title": "a\x1b[31mb"})
    {'title': 'a�[31mb'}
    """
    if isinstance(value, str):
        return _CONTROL.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {printable(key): printable(inner) for key, inner in value.items()}
    return [printable(inner) for inner in value] if isinstance(value, list) else value


@checked
def labelled(chart: Figure, title: str, about: str) -> Figure:
    """The chart under a title, with what it is about small below: for where it stands alone.

    >>> import altair
    >>> chart = altair.Chart(altair.InlineData(values=[{}])).mark_point()
    >>> labelled(chart, "Rank by layer", "BERT, 32 passages").title.subtitle
    ['BERT, 32 passages']

    A title of its own is kept.
    """
    own = getattr(chart, "title", alt.Undefined)
    named = chart.copy(deep=False)
    named.title = alt.Title(
        own.text if isinstance(own, alt.Title) else own if isinstance(own, str) else title,
        subtitle=wrap(about, _LINE) or alt.Undefined,
        fontSize=16,
        subtitleFontSize=12,
        subtitlePadding=6,
        offset=20,
        frame="bounds",
        anchor="start",
    )
    return named


@checked
def save(chart: Figure, path: str | Path) -> Path:
    """Write a chart as a page that works offline, as SVG or as PNG, by the path's suffix.

    >>> import altair, tempfile
    >>> chart = altair.Chart(altair.InlineData(values=[{}])).mark_point()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(chart, f"{folder}/chart.svg").name
    'chart.svg'
    """
    path = Path(path)
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"cannot write {path.name!r}; end it in {', '.join(FORMATS)}.")
    spec = printable(chart.to_dict())
    with whole_file(path) as unfinished:
        if kind == "html":
            unfinished.write_text(chart_page(spec), encoding="utf-8")
        else:
            scale = 2 if kind == "png" else 1
            drawn = type(chart).from_dict(spec)
            alt.TopLevelMixin.save(drawn, unfinished, format=kind, scale_factor=scale)
    return path
