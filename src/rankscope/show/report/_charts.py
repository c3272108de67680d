"""A chart as part of a page: its specification for scripts, a picture for readers without."""

import base64
import json
from html import escape
from typing import Final

from rankscope.errors import InputError
from rankscope.show.figures import ScriptSafe, adaptive, labelled, png, svg
from rankscope.show.report._document import Chart

_LARGEST: Final = 300_000
"""Characters of a picture of lines; a map of many cells has more."""


def drawing(chart: Chart, *, name: str, about: str) -> str:
    """A figure: where the chart is drawn, its specification, and a static picture of it.

    The picture says by itself what it shows and what of, because it may be saved and sent on.
    """
    title, said = escape(chart.title), escape(chart.description or chart.title)
    spec = {**adaptive(chart.spec), "description": chart.description or chart.title}
    data = json.dumps(spec, cls=ScriptSafe, ensure_ascii=False, separators=(",", ":"))
    return (
        f'<figure id="{name}" data-title="{title}">\n'
        f'<div role="img" aria-label="{said}"><div class="chart"></div></div>\n'
        f'<noscript><img src="{picture(chart, about=about)}" alt="{said}"></noscript>\n'
        f'<script type="application/json">{data}</script>\n'
        "</figure>"
    )


def picture(chart: Chart, *, about: str) -> str:
    """A picture's address, which holds it: of lines, or of dots if there are very many lines."""
    spec = labelled(chart.spec, chart.title, about)
    try:
        drawn = svg(spec)
        if len(drawn) <= _LARGEST:
            return "data:image/svg+xml;base64," + base64.b64encode(drawn.encode()).decode()
        return "data:image/png;base64," + base64.b64encode(png(spec, scale=1.5)).decode()
    except ValueError as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"the chart {chart.title!r} cannot be drawn from what it holds (a report loads "
            f"nothing from elsewhere): {reason}"
        ) from error
