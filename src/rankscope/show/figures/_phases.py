"""A metric as a map: layers to the right, what was varied upwards, and the line it crosses."""

import math
from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import Finite, checked
from rankscope.metric_catalogue import Metric
from rankscope.numerals import sentence_case, short
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import Vertical
from rankscope.show.figures._cells import (
    LIGHT,
    Along,
    Cells,
    Marks,
    find_edges,
    shade_row,
    shade_scale,
)
from rankscope.show.figures._heatmap import whole_numbers
from rankscope.show.figures._layout import WORDS_AS_TITLE, lay_out
from rankscope.show.figures._panel import NEEDED, Row
from rankscope.show.figures._validation import (
    labels_in,
    refuse_duplicates,
    require_values,
    select_metrics,
)

_PLACES: Final = ("model", "parameter", "variant", "setting", "layer")
_MOST_LABELS: Final = 10
_RING: Final = 62.0


@checked
def phase_map(
    summary: pl.DataFrame,
    *,
    metric: str,
    boundary: Finite | None = None,
    lowest: Finite | None = None,
    highest: Finite | None = None,
    marks: str = "measured",
    title: str | None = None,
) -> alt.ConcatChart:
    """A metric by layer and setting, shaded, with the line along which it crosses ``boundary``.

    >>> from rankscope import tables
    >>> cells = {"layer": [1, 2, 1, 2], "setting": [1.0, 1.0, 2.0, 2.0], "value": [1, 0.5, 1, 0.1]}
    >>> table = tables.frame({**cells, "metric": ["relative_dispersion"] * 4})
    >>> chart = phase_map(tables.summary(table), metric="relative_dispersion", boundary=0.3)

    ``summary`` has the columns layer and setting; with ``parameter`` and ``model`` each has its
    panel. Medians are shaded, all panels on one scale, whose ends ``lowest`` and ``highest`` cut.
    Rows of the variant ``marks`` are drawn as rings on the cells, filled on the same scale.
    """
    source = "summaries by layer and setting"
    needed = ("layer", "setting", *NEEDED)
    rows = select_metrics(summary, [metric], needed, drawer="phase_map", source=source)
    require_values(rows, ["layer", "setting"])
    refuse_duplicates(rows, _PLACES, drawer="phase_map")
    entry = metric_catalogue.metric(metric)
    scale = shade_scale(entry, rows["median"].to_list(), lowest, highest)
    divided = [name for name in ("model", "parameter") if labels_in(rows, name)]
    parts = rows.partition_by(divided, maintain_order=True) if divided else [rows]
    panels = [_panel(part, entry, scale, boundary, marks) for part in parts]
    figure = lay_out(panels, title=title)
    figure.resolve = alt.Resolve(scale={"color": "shared"})  # one bar of shades for all panels
    return figure


def _panel(
    part: pl.DataFrame,
    entry: Metric,
    scale: Vertical,
    boundary: float | None,
    marks: str,
) -> alt.LayerChart:
    own = part.to_dicts()
    settings = sorted({row["setting"] for row in own})
    at = {setting: index for index, setting in enumerate(settings)}
    rings = [_row(row, at[row["setting"]], scale) for row in own if row.get("variant") == marks]
    beneath = [row for row in own if row.get("variant") != marks]
    x, y = _axes(own[0], [row["layer"] for row in own], settings)
    cells = Cells(entry, scale, x, y, _tooltip(entry, "median of"))
    values = {(row["layer"], at[row["setting"]]): row["median"] for row in beneath}
    return alt.LayerChart(
        layer=[
            *cells.shaded([_row(row, at[row["setting"]], scale) for row in beneath]),
            *cells.line([] if boundary is None else find_edges(values, boundary)),
            *(_rings(rings, cells, marks) if rings else ()),
        ],
        title=alt.Title(_heading(own[0], entry)),
        width=theme.PANEL[0],
        height=theme.PANEL[1],
    )


def _rings(rings: Sequence[Row], cells: Cells, marks: str) -> Marks:
    point = alt.Chart(alt.InlineData(values=rings)).mark_point(
        filled=True, opacity=1, size=_RING, stroke=LIGHT, strokeWidth=1.8
    )
    shade = alt.Fill("shade:Q", scale=cells.shades(), legend=None)
    tooltip = _tooltip(cells.entry, marks)
    return [point.encode(x=cells.x("layer"), y=cells.y("at"), fill=shade, tooltip=tooltip)]


def _row(row: Row, index: int, scale: Vertical) -> dict[str, Any]:
    """A row as a chart needs it: its place, its shade, and its text."""
    place = {"layer": row["layer"], "setting": row["setting"], "at": index}
    return {**place, **shade_row(row["median"], scale)}


def _axes(first: Row, layers: Sequence[int], settings: Sequence[float]) -> tuple[Along, Along]:
    """Encodings of a field along the layers, and along the settings, which are evenly spaced."""
    start, end = min(layers), max(layers)
    every = math.ceil(len(settings) / _MOST_LABELS)
    named = list(range(0, len(settings), every))
    texts = [short(setting) for setting in settings]
    across = alt.Axis(title="layer", values=whole_numbers(layers, most=8), format="d", grid=False)
    upwards = alt.Axis(
        title=_parameter(first),
        values=named,
        labelExpr=f"{texts}[datum.value]",
        grid=False,
        **WORDS_AS_TITLE,
    )
    across_scale = alt.Scale(domain=[start - 0.5, end + 0.5], nice=False, zero=False)
    upwards_scale = alt.Scale(domain=[-0.5, len(settings) - 0.5], nice=False, zero=False)
    return (
        lambda field: alt.X(f"{field}:Q", scale=across_scale, axis=across),
        lambda field: alt.Y(f"{field}:Q", scale=upwards_scale, axis=upwards),
    )


def _tooltip(entry: Metric, what: str) -> list[alt.Tooltip]:
    title = f"{what} {entry.title[:1].lower()}{entry.title[1:]}"
    return [
        alt.Tooltip("layer:Q", format="d"),
        alt.Tooltip("setting:Q", format=",.4~g"),
        alt.Tooltip("exact:N", title=title),
    ]


def _parameter(row: Row) -> str:
    return (row.get("parameter") or "setting").replace("_", " ")


def _heading(row: Row, entry: Metric) -> str:
    """What a panel varies, and in which design."""
    parameter = sentence_case(_parameter(row)) if row.get("parameter") else entry.title
    return f"{parameter}, {row['model']}" if row.get("model") else parameter
