"""The phase diagram of a sweep: a metric shaded over two of its axes."""

import math
from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import tables
from rankscope.arguments import Finite, checked
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import Vertical
from rankscope.show.figures._axis_values import AxisValues, named_ticks
from rankscope.show.figures._axis_words import alternative, entry_of, split
from rankscope.show.figures._cells import Along, Cells, find_edges, shade_row, shade_scale
from rankscope.show.figures._layout import WORDS_AS_TITLE, lay_out

_MOST_LABELS: Final = 12
_SEAM: Final = 0.002  # of the map, by which cells overlap


@checked
def axis_map(
    table: pl.DataFrame | pl.LazyFrame,
    *,
    metric: str,
    x: str,
    y: str,
    facet: str | None = None,
    layer: tables.Layer | None = None,
    below: Finite | None = None,
    boundary: Finite | None = None,
    pool: Sequence[str] = tables.POOLED,
    title: str | None = None,
) -> alt.ConcatChart:
    """A metric of a sweep over two axes, shaded, with the line along which it crosses ``boundary``.

    >>> swept = pl.DataFrame({"run": ["a", "b"], "heads": [1, 2], "skip": [0.0, 1.0]})
    >>> swept = swept.with_columns(metric=pl.lit("rank"), value=pl.Series([1.0, 4.0]))
    >>> chart = axis_map(swept, metric="rank", x="heads", y="skip")

    ``x``, ``y`` and ``facet`` are columns of the table: axes of the sweep, or ``layer``; cells are
    evenly spaced and all panels have one scale. What the medians are taken of, ``layer``, ``below``
    and ``pool`` are as in ``tables.pooled``: with ``below`` shades say at which layer the metric
    falls below it, and a cell is grey where it does not.
    """
    columns = table.collect_schema().names()
    x, y = (tables.axis_name(name, columns) for name in (x, y))
    if x == y:
        raise InputError(f"a map has two different axes; got {x} twice.")
    panel = tables.axis_name(facet, columns) if facet else None
    by = [x, y, *([panel] if panel else [])]
    medians = tables.pooled(table, metric=metric, by=by, layer=layer, below=below, pool=pool)
    entry = entry_of(metric, below)
    scale = shade_scale(entry, medians["median"].to_list())
    axes = AxisValues.of(medians, x), AxisValues.of(medians, y)
    panels = [
        _panel(part, entry, scale, axes, boundary, heading)
        for heading, part in split(medians, panel).items()
    ]
    figure = lay_out(panels, title=title)
    figure.resolve = alt.Resolve(scale={"color": "shared"})  # one bar of shades for all panels
    return figure.properties(description=alternative(medians, entry, by[:2], by[2:]))


def _panel(
    part: pl.DataFrame,
    entry: Metric,
    scale: Vertical,
    axes: tuple[AxisValues, AxisValues],
    boundary: float | None,
    heading: str,
) -> alt.LayerChart:
    across, upwards = axes
    values = {
        (across.index[row[across.name]], upwards.index[row[upwards.name]]): row["median"]
        for row in part.to_dicts()
    }
    rows: list[dict[str, Any]] = [
        {"across": i, "at": j, "x": across.texts[i], "y": upwards.texts[j]}
        | shade_row(value, scale)
        for (i, j), value in values.items()
    ]
    tooltip = [
        alt.Tooltip("x:N", title=across.title),
        alt.Tooltip("y:N", title=upwards.title),
        alt.Tooltip("exact:N", title=f"median of {entry.title[:1].lower()}{entry.title[1:]}"),
    ]
    x, y = _along(across, alt.X, labelFlush=False), _along(upwards, alt.Y, **WORDS_AS_TITLE)
    over = _SEAM * max(len(across.values), len(upwards.values))
    cells = Cells(entry, scale, x, y, tooltip, across="across", over=over)
    edges = [] if boundary is None else find_edges(values, boundary)
    return alt.LayerChart(
        layer=[*cells.shaded(rows), *cells.line(edges)],
        title=alt.Title(heading or entry.title, subtitle=_subtitle(entry)),
        width=theme.PANEL[0],
        height=theme.PANEL[1],
    )


def _subtitle(entry: Metric) -> str:
    return (
        "Grey = not within these layers"
        if entry.name == tables.COLLAPSE_LAYER
        else entry.meaning or " "
    )


def _along(values: AxisValues, channel: Any, **look: Any) -> Along:
    """The encoding of a field along an axis, on which values are evenly spaced."""
    count = len(values.values)
    axis = alt.Axis(
        title=values.title,
        values=list(range(0, count, math.ceil(count / _MOST_LABELS))),
        labelExpr=named_ticks(values.texts),
        grid=False,
        **look,
    )
    scale = alt.Scale(domain=[-0.5, count - 0.5], nice=False, zero=False)
    return lambda field: channel(f"{field}:Q", scale=scale, axis=axis)
