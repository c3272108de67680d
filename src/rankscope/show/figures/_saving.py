"""``save``: a chart as a file."""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.process.files import whole_file
from rankscope.show.figures._offline import chart_page, png, svg
from rankscope.show.figures._theme import Figure

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
    return _without_control(value)


@checked
def labelled(spec: Mapping[str, Any], title: str, about: str) -> dict[str, Any]:
    """A chart's specification under a title, with what it is about small below: to stand alone.

    >>> labelled({"mark": "point"}, "Rank by layer", "BERT, 32 passages")["title"]["subtitle"]
    ['BERT, 32 passages']

    A title of its own is kept.
    """
    own = spec.get("title") or title
    text = own.get("text", title) if isinstance(own, Mapping) else own
    named = {
        "text": text,
        "subtitle": wrap(about, _LINE),
        "fontSize": 16,
        "subtitleFontSize": 12,
        "subtitlePadding": 6,
        "offset": 20,
        "frame": "bounds",
        "anchor": "start",
    }
    return {**spec, "title": _without_control(named)}


@checked
def save(chart: Figure | Mapping[str, Any], path: str | Path) -> Path:
    """Write a chart as a page that works offline, as SVG or as PNG, by the path's suffix.

    >>> import altair, tempfile
    >>> chart = altair.Chart(altair.InlineData(values=[{}])).mark_point()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(chart, f"{folder}/chart.svg").name
    'chart.svg'

    A chart may also be given by its specification.
    """
    path = Path(path)
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"cannot write {path.name!r}; end it in {', '.join(FORMATS)}.")
    spec = _without_control(dict(chart) if isinstance(chart, Mapping) else chart.to_dict())
    with whole_file(path) as unfinished:
        if kind == "html":
            unfinished.write_text(chart_page(spec), encoding="utf-8")
        elif kind == "svg":
            unfinished.write_text(svg(spec), encoding="utf-8")
        else:
            unfinished.write_bytes(png(spec))
    return path


def _without_control(value: Any) -> Any:
    if isinstance(value, str):
        return _CONTROL.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_without_control(key): _without_control(inner) for key, inner in value.items()}
    return [_without_control(inner) for inner in value] if isinstance(value, list) else value
