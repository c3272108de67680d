"""A metric along any axis of a sweep: a curve for each colour, a panel for each facet."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from rankscope import tables
from rankscope.arguments import Finite, checked
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axis_values import PLACE, AxisValues
from rankscope.show.figures._axis_words import alternative, entry_of, split
from rankscope.show.figures._curves import draw_panel
from rankscope.show.figures._layers import layer_axis
from rankscope.show.figures._layout import lay_out
from rankscope.show.figures._look import Look
from rankscope.show.figures._panel import Panel, build_axis


@checked
def by_axis(
    table: pl.DataFrame | pl.LazyFrame,
    *,
    metric: str,
    x: str,
    color: str | None = None,
    facet: str | None = None,
    layer: tables.Layer | None = None,
    below: Finite | None = None,
    pool: Sequence[str] = tables.POOLED,
    title: str | None = None,
) -> alt.ConcatChart:
    """A metric of a sweep along one axis: medians, with the 10th to the 90th percentile.

    >>> swept = pl.DataFrame({"run": ["a", "b"], "heads": [1, 2], "value": [4.0, 2.0]})
    >>> chart = by_axis(swept.with_columns(metric=pl.lit("rank")), metric="rank", x="heads")

    ``x``, ``color`` and ``facet`` are columns of the table: axes of the sweep, or ``layer``. What
    the medians are taken of, ``layer``, ``below`` and ``pool`` are as in ``tables.pooled``. Numbers
    are laid out by size, logarithmically if they span a factor of 8; words in the grid's order.
    All panels have the same axes.
    """
    columns = table.collect_schema().names()
    x, *split_by = [tables.axis_name(each, columns) for each in (x, color, facet) if each]
    by = list(dict.fromkeys([x, *split_by]))
    medians = tables.pooled(table, metric=metric, by=by, layer=layer, below=below, pool=pool)
    entry = entry_of(metric, below)
    along = AxisValues.of(medians, x)
    curves = AxisValues.of(medians, tables.axis_name(color, columns)) if color else None
    look = Look.of([curves.label(value) for value in curves.values] if curves else [])
    parts = split(medians, tables.axis_name(facet, columns) if facet else None)
    size = theme.WIDE if len(parts) == 1 else theme.PANEL
    horizontal = layer_axis(list(along.values)) if x == "layer" else along.across(size[0])
    vertical = build_axis(entry, medians.to_dicts())
    panel = Panel(entry, horizontal, vertical, look, size=size, settings=x != "layer")
    panels = [
        draw_panel(panel, _rows(part, along, curves), number=number, heading=name or entry.title)
        for number, (name, part) in enumerate(parts.items())
    ]
    figure = lay_out(panels, title=title, names=look.names)
    return figure.properties(description=alternative(medians, entry, by[:1], by[1:]))


def _rows(part: pl.DataFrame, along: AxisValues, curves: AxisValues | None) -> list[dict[str, Any]]:
    """Rows as a panel needs them: axes have fields of our own, since theirs may have any name."""
    found = []
    for row in part.to_dicts():
        at = row[along.name]
        drawn = {name: row[name] for name in ("count", "mean", "low", "median", "high")}
        drawn |= {"layer": at} if along.name == "layer" else {PLACE: along.place(at)}
        drawn["place_name"] = along.texts[along.index[at]]
        if curves is not None:
            drawn["variant"] = curves.label(row[curves.name])
        found.append(drawn)
    return found
