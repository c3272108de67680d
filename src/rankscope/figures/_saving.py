"""``save``: a chart as a file."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rankscope.arguments import checked
from rankscope.errors import InputError, KindError
from rankscope.figures._theme import Figure
from rankscope.files import whole_file

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_FORMATS: dict[str, Literal["html", "svg", "png"]] = {
    ".html": "html",
    ".svg": "svg",
    ".png": "png",
}


class ScriptSafe(json.JSONEncoder):
    """JSON that can stand inside a ``<script>``: no text in it can end the element."""

    def encode(self, o: Any) -> str:
        """Write angle brackets and ampersands as escapes; the value read back is the same."""
        try:
            text = super().encode(o)
        except (TypeError, ValueError, RecursionError) as error:
            raise KindError(f"this cannot be written as JSON: {error}") from None
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text


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
def save(chart: Figure, path: str | Path) -> Path:
    """Write a chart as a page that works offline, as SVG or as PNG, by the path's suffix.

    >>> import altair, tempfile
    >>> chart = altair.Chart(altair.InlineData(values=[{}])).mark_point()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(chart, f"{folder}/chart.svg").name
    'chart.svg'
    """
    path = Path(path)
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"cannot write {path.name!r}; end it in {', '.join(_FORMATS)}.")
    spec = chart.to_dict()
    if spec != printable(spec):
        chart = type(chart).from_dict(printable(spec))
    with whole_file(path) as unfinished:
        if kind == "html":
            chart.save(unfinished, format=kind, inline=True, json_kwds={"cls": ScriptSafe})
        else:
            chart.save(unfinished, format=kind, scale_factor=2 if kind == "png" else 1)
    return path
