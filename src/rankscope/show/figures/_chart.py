"""Charts: panels side by side in one theme, and charts as files.

Pages are self-contained and work offline.
"""

import base64
import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from textwrap import wrap
from threading import Lock, Thread
from typing import Any, Final

import altair as alt
import vl_convert

from rankscope.arguments import checked
from rankscope.errors import InputError, KindError
from rankscope.numerals import gigabytes
from rankscope.process import free_address_space, write_file
from rankscope.show.display import template
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._theme import Figure

# The version of Vega-Lite that Altair writes for, as vl-convert names it.
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
_DRAW = """\
vegaEmbed("#chart", JSON.parse(document.getElementById("specification").textContent),
  {renderer: "svg", actions: false});"""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_IN_TITLES: Final = str.maketrans({"\\": "∖", **dict.fromkeys("\n\r\t\u2028\u2029", " ")})
"""Vega-Lite inserts titles into expressions without escaping these, and rendering fails."""
_LINE = 96  # characters of a line below a title
_ADDRESS_SPACE: Final = 66 * 2**30  # bytes that the renderer, a browser's engine, reserves at first


class OfflineChart(alt.ConcatChart):
    """Panels side by side. ``save`` writes pages that work offline, notebooks show a picture."""

    def save(self, fp: Any, *arguments: Any, **options: Any) -> None:
        """Write the chart in the format of the suffix; other formats are left to Altair."""
        kind = Path(fp).suffix.lower() if isinstance(fp, str | Path) else ""
        if kind in WRITERS and not arguments and not options:
            save(self, fp)
            return
        named: Any = arguments[0] if arguments else options.pop("format", None) or kind[1:]
        if named == "html":
            options = {"inline": True, **options}
        written: Any = fp
        if isinstance(fp, str | Path):
            written = io.BytesIO() if named in ("png", "pdf") else io.StringIO()
        super().save(written, named or None, *arguments[1:], **options)
        if isinstance(fp, str | Path):
            content = written.getvalue()
            write_file(fp, content if isinstance(content, bytes) else content.encode())

    def to_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The specification, with rows in lists: they are tuples before (see ``over``)."""
        spec = super().to_dict(*arguments, **options)
        named = {name: list(rows) for name, rows in spec.get("datasets", {}).items()}
        return {**spec, "datasets": named} if named else spec

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, str]:
        """An image; Altair's default display loads Vega from the internet."""
        return {"image/svg+xml": svg(printable(self.to_dict())), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"OfflineChart of {len(self.concat)} panels; .save('chart.html') writes a page"


def lay_out(
    panels: Sequence[alt.LayerChart],
    *,
    title: str | None,
    names: Sequence[str] = (),
    columns: int = theme.COLUMNS,
    fixed: Mapping[str, Any] | None = None,
) -> alt.ConcatChart:
    """Arrange the panels side by side, in the theme.

    ``names`` are the entries of the legend, which is shared by all panels and interactive; the
    field ``variant`` of the data holds them. ``usermeta`` is read by pages that embed the chart: it
    requests vector graphics, and tells our pages whether they may change the width of panels and
    the number of columns, or what is ``fixed`` instead.
    """
    views = [view_name(number) for number in range(len(panels))]
    room = max(theme.WIDE[0], sum(panel.width for panel in panels[: theme.COLUMNS]))
    entry = 40 + 7 * max(map(len, names), default=0)
    config = theme.configuration()
    config["legend"]["columns"] = max(1, room // entry)
    meta = {"panels": True, "legendEntry": entry} if fixed is None else fixed
    scales = dict.fromkeys(("color", "shape"), "shared" if names else "independent")
    heading: dict[str, Any] = {"fontSize": 16, "offset": 20, "frame": "bounds"}
    return OfflineChart(
        concat=list(panels),
        columns=columns,
        spacing=dict(theme.SPACING),
        params=_selections(views) if names and fixed is None else alt.Undefined,
        resolve=alt.Resolve(scale=scales),
        background=theme.INK["paper"],
        config=config,
        usermeta={"embedOptions": {"renderer": "svg"}, **({"rankscope": meta} if meta else {})},
        title=alt.Undefined if title is None else alt.Title(title, **heading),
    )


def view_name(number: int) -> str:
    """The name by which the selections of a figure refer to a panel."""
    return f"metric_{number}"


def _selections(views: list[str]) -> list[alt.TopLevelSelectionParameter]:
    """The selections: the curve under the pointer, and the curves clicked in the legend."""
    on_a_curve = "event.item && event.item.datum && isDefined(event.item.datum.variant)"
    pointed = {
        "type": "point",
        "fields": ["variant"],
        "on": {"type": "pointerover", "filter": on_a_curve},
        "clear": "pointerout",
    }
    clicked = {"type": "point", "fields": ["variant"], "toggle": "true"}
    return [
        alt.TopLevelSelectionParameter(
            name=theme.HOVERED, select=pointed, bind={"legend": "pointerover"}, views=views
        ),
        alt.TopLevelSelectionParameter(
            name=theme.PINNED, select=clicked, bind="legend", views=views
        ),
    ]


@checked
def printable(value: Any) -> Any:
    r"""The specification of a chart without characters that crash renderers.

    >>> printable({"title": "a\x1b[31m\nb", "values": ["a\nb"]})
    {'title': 'a�[31m b', 'values': ['a\nb']}

    Control characters are replaced, and in titles also line breaks and backslashes.
    """
    try:
        return _printable(value)
    except RecursionError:
        raise KindError(
            "the chart holds itself or is nested too deeply; give a flat specification."
        ) from None


@checked
def labelled(spec: Mapping[str, Any], title: str, about: str) -> dict[str, Any]:
    """The specification of a chart with a title and a subtitle, for use outside a page.

    >>> labelled({"mark": "point"}, "Rank by layer", "BERT, 32 passages")["title"]["subtitle"]
    ['BERT, 32 passages']

    A title of its own is kept.
    """
    heading = spec.get("title") or title
    text = heading.get("text", title) if isinstance(heading, Mapping) else heading
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
    return {**spec, "title": printable(named)}


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
    write = WRITERS.get(path.suffix.lower())
    if write is None:
        raise InputError(f"cannot write {path.name!r}; end it in {', '.join(WRITERS)}.")
    spec = printable(dict(chart) if isinstance(chart, Mapping) else chart.to_dict())
    content = write(spec)
    return write_file(path, content if isinstance(content, bytes) else content.encode())


def _printable(value: Any, key: object = None) -> Any:
    if isinstance(value, str):
        return _CONTROL.sub("\ufffd", value.translate(_IN_TITLES) if key == "title" else value)
    if isinstance(value, Mapping):
        return {_printable(key): _printable(inner, key) for key, inner in value.items()}
    return [_printable(inner, key) for inner in value] if isinstance(value, list) else value


class ScriptSafe(json.JSONEncoder):
    """A JSON encoder for use inside ``<script>``: no text can end the element."""

    def encode(self, o: Any) -> str:
        """Write angle brackets and ampersands as escapes; the value read back is the same."""
        try:
            text = super().encode(o)
        except (TypeError, ValueError, RecursionError) as error:
            raise KindError(f"this cannot be written as JSON: {error}") from None
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text


def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that needs nothing else."""
    with _bundling:
        return _bundle()


_bundling: Final = Lock()
"""Held while the script is made, so that it is made once."""


@cache
def _bundle() -> str:
    check_address_space()
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)


def start_renderer() -> None:
    """Start the renderer and make the script of pages, in a thread of their own.

    This takes a second, during which a command imports torch and Transformers in another. Whether
    it fails shows where a page is written.
    """

    def start() -> None:
        with suppress(Exception):
            bundle()
            svg({"data": {"values": [{}]}, "mark": "point"})

    Thread(target=start).start()


def content_policy(scripts: Sequence[str]) -> str:
    """The content security policy of a page: run exactly these scripts, load nothing.

    Vega compiles its expressions, hence ``unsafe-eval``; its tooltip brings its own style.
    """
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(["'unsafe-eval'", *(f"'sha256-{digest}'" for digest in digests)])
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )


def chart_page(spec: Mapping[str, Any]) -> str:
    """A page with a single chart."""
    scripts = [bundle(), _DRAW]
    title = spec.get("title", "")
    text = title.get("text", "") if isinstance(title, Mapping) else title
    return template("chart.html").render(
        title=text if isinstance(text, str) and text else "Chart",
        policy=content_policy(scripts),
        data=json.dumps(spec, cls=ScriptSafe, ensure_ascii=False, separators=(",", ":")),
        scripts=scripts,
    )


def svg(spec: Mapping[str, Any]) -> str:
    """A chart as SVG; a chart that loads external data raises an error."""
    return str(_render(vl_convert.vegalite_to_svg, spec))


def png(spec: Mapping[str, Any], *, scale: float = 2.0) -> bytes:
    """A chart as PNG; a chart that loads external data raises an error."""
    return bytes(_render(vl_convert.vegalite_to_png, spec, scale=scale))


def _render(renderer: Callable[..., Any], spec: Mapping[str, Any], **options: Any) -> Any:
    check_address_space()
    try:
        return renderer(dict(spec), vl_version=VEGA_LITE, allowed_base_urls=[], **options)
    except (ValueError, TypeError, RecursionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"the chart cannot be drawn from what it holds (nothing is loaded from elsewhere): "
            f"{reason}"
        ) from error


@cache  # once the renderer has started, it needs no more
def check_address_space() -> None:
    """Raise if ``ulimit -v`` leaves too little memory for the renderer, which would abort."""
    limit = free_address_space()
    if limit is not None and limit < _ADDRESS_SPACE:
        raise InputError(
            f"charts and pages cannot be drawn: their renderer needs {gigabytes(_ADDRESS_SPACE)} "
            f"of address space, and the limit leaves {gigabytes(max(limit, 0))}; raise it "
            "(ulimit -v unlimited)."
        )


WRITERS: Final[Mapping[str, Callable[[Mapping[str, Any]], str | bytes]]] = {
    ".html": chart_page,
    ".svg": svg,
    ".png": png,
}
