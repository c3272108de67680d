"""A chart as part of a page: its specification for scripts, a picture for readers without."""

import base64
import json
from html import escape

from rankscope.errors import InputError
from rankscope.figures import ScriptSafe, adaptive, labelled, printable, svg
from rankscope.report._document import Chart


def drawing(chart: Chart, *, name: str, about: str) -> str:
    """A figure: where the chart is drawn, its specification, and a static picture of it.

    The picture says by itself what it shows and what of, because it may be saved and sent on.
    """
    title, said = escape(chart.title), escape(chart.description or chart.title)
    drawn = _svg(labelled(chart.figure, chart.title, about).to_dict(), chart.title)
    picture = "data:image/svg+xml;base64," + base64.b64encode(drawn.encode()).decode()
    spec = {**adaptive(printable(chart.figure.to_dict())), "description": said}
    data = json.dumps(spec, cls=ScriptSafe, ensure_ascii=False, separators=(",", ":"))
    return (
        f'<figure id="{name}" data-title="{title}">\n'
        f'<div class="chart" role="img" aria-label="{said}"></div>\n'
        f'<noscript><img src="{picture}" alt="{said}"></noscript>\n'
        f'<script type="application/json">{data}</script>\n'
        "</figure>"
    )


def _svg(spec: dict[str, object], title: str) -> str:
    try:
        return svg(printable(spec))
    except ValueError as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"the chart {title!r} cannot be drawn from what it holds (a report loads nothing from "
            f"elsewhere): {reason}"
        ) from error
