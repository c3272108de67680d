"""A chart as part of a page: its specification for scripts, a picture for readers without."""

import base64
import json
from html import escape

from rankscope.errors import InputError
from rankscope.figures import Figure, ScriptSafe, adaptive, printable, svg


def drawing(chart: Figure, *, name: str, title: str) -> str:
    """A figure: where the chart is drawn, its specification, and a static picture of it."""
    spec = printable(chart.to_dict())
    words = escape(title)
    picture = "data:image/svg+xml;base64," + base64.b64encode(_svg(spec, title).encode()).decode()
    data = json.dumps(adaptive(spec), cls=ScriptSafe, ensure_ascii=False, separators=(",", ":"))
    return (
        f'<figure id="{name}" data-title="{words}">\n'
        '<div class="chart"></div>\n'
        f'<noscript><img src="{picture}" alt="{words}"></noscript>\n'
        f'<script type="application/json">{data}</script>\n'
        "</figure>"
    )


def _svg(spec: dict[str, object], title: str) -> str:
    try:
        return svg(spec)
    except ValueError as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"the chart of section {title!r} cannot be drawn from what it holds (a report loads "
            f"nothing from elsewhere): {reason}"
        ) from error
