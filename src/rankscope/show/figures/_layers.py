"""Metrics against the layer: a panel for each metric or model, however deep the network is."""

from collections.abc import Sequence
from typing import Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import Finite, checked
from rankscope.errors import InputError
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import Horizontal
from rankscope.show.figures._curves import draw_panel
from rankscope.show.figures._layout import lay_out
from rankscope.show.figures._look import Look, Roles
from rankscope.show.figures._panel import NEEDED, Panel, build_axis
from rankscope.show.figures._validation import (
    labels_in,
    refuse_duplicates,
    require_values,
    select_metrics,
)

_MOST_DOUBLINGS: Final = 12  # on an axis: beyond, only powers of ten are named


@checked
def by_layer(
    summary: pl.DataFrame, *, metrics: str | Sequence[str] | None = None, title: str | None = None
) -> alt.ConcatChart:
    """Each metric against the layer, in a panel of its own: median, and band of 10 to 90 per cent.

    >>> from rankscope import tables
    >>> cosines = {"layer": [0, 1], "metric": ["mean_cosine"] * 2, "value": [0.1, 0.8]}
    >>> chart = by_layer(tables.summary(tables.frame(cosines)), metrics=["mean_cosine"])

    ``summary`` is what ``tables.summary`` returns; with a ``variant`` column each variant has its
    line, in the colour it has in every figure. ``metrics`` chooses the panels and their order.
    Pointing at a line, or clicking on a name in the legend, brings that variant to the front.
    """
    asked = labels_in(summary, "metric") if metrics is None else metrics
    names = list(dict.fromkeys([asked] if isinstance(asked, str) else asked))
    rows = _select(summary, names, drawer="by_layer", keys=("metric", "variant", "layer"))
    parts = {name: rows.filter(pl.col("metric") == name) for name in names}
    return _draw(parts, rows, title)


@checked
def by_model(
    summary: pl.DataFrame, *, metric: str = "relative_residual", title: str | None = None
) -> alt.ConcatChart:
    """One metric against the layer, in a panel for each model (Dong et al. 2021, figure 2).

    >>> from rankscope import tables
    >>> cosines = {"model": ["a", "b"], "layer": [0, 0], "value": [0.1, 0.8]}
    >>> table = tables.frame({**cosines, "metric": ["mean_cosine"] * 2})
    >>> chart = by_model(tables.summary(table), metric="mean_cosine")

    ``summary`` has the columns of ``by_layer`` and a ``model`` column.
    """
    if "model" not in summary.columns:
        raise InputError("the table lacks the column model; by_model draws a panel for each.")
    rows = _select(summary, [metric], drawer="by_model", keys=("model", "variant", "layer"))
    require_values(rows, ["model"])
    parts = {name: rows.filter(pl.col("model") == name) for name in labels_in(rows, "model")}
    return _draw(parts, rows, title)


@checked
def by_depth(
    summary: pl.DataFrame,
    *,
    metric: str = "log10_relative_residual",
    log_depth: bool = False,
    lowest: Finite | None = None,
    highest: Finite | None = None,
    roles: Roles | None = None,
    title: str | None = None,
) -> alt.ConcatChart:
    """A metric against depth: the median, and a band from the 10th to the 90th percentile.

    >>> from rankscope import tables
    >>> log10 = {"layer": [0, 1], "metric": ["log10_residual"] * 2, "value": [0.0, -400.0]}
    >>> chart = by_depth(tables.summary(tables.frame(log10)), metric="log10_residual")

    A panel for each ``model``, if the summary has that column, and a curve for each ``variant``.
    Metrics named ``log10_…`` are logarithms already: their axis is even in the exponent and names
    powers of ten. Medians, because one sample with all tokens exactly equal (minus infinity) has
    no mean; where it is the median, the curve ends in a hollow marker at the bottom.
    ``log_depth`` lays the layers out logarithmically, without layer 0. ``lowest`` and ``highest``
    cut the axis, in the metric's own numbers (for ``log10_…`` exponents); curves leave the panel
    there. With ``lowest`` all panels have one axis, otherwise each has its own. ``roles`` says
    which curves are not measured but a ``bound`` or the ``floor`` of a number format: they have
    colours of their own and broken lines.
    """
    rows = _select(summary, [metric], drawer="by_depth", keys=("model", "variant", "layer"))
    if log_depth:
        rows = rows.filter(pl.col("layer") > 0)
        if not rows.height:
            raise InputError("there is no layer above 0, and log_depth has no place for layer 0.")
    entry = metric_catalogue.metric(metric)
    look = Look.of(labels_in(rows, "variant"), roles)
    x = _doubling_axis(rows) if log_depth else layer_axis(rows["layer"].to_list())
    models = labels_in(rows, "model")
    several = len(models) > 1
    panels = []
    for number, model in enumerate(models if several else (entry.title,)):
        own = (rows.filter(pl.col("model") == model) if several else rows).to_dicts()
        scaled = own if lowest is None else rows.to_dicts()
        y = build_axis(entry, scaled, lowest=lowest, highest=highest)
        panel = Panel(entry, x, y, look, size=theme.PANEL if several else theme.WIDE)
        panels.append(draw_panel(panel, own, number=number, heading=model))
    return lay_out(panels, title=title, names=look.names)


def _select(
    summary: pl.DataFrame, metrics: Sequence[str], *, drawer: str, keys: Sequence[str]
) -> pl.DataFrame:
    """The rows of the metrics, after a check that they can be drawn."""
    source = "what tables.summary returns"
    rows = select_metrics(summary, metrics, ("layer", *NEEDED), drawer=drawer, source=source)
    require_values(rows, ["layer"])
    refuse_duplicates(rows, keys, drawer=drawer)
    return rows


def _draw(parts: dict[str, pl.DataFrame], rows: pl.DataFrame, title: str | None) -> alt.ConcatChart:
    """A panel for each part, under its name or that of its metric."""
    x, look = layer_axis(rows["layer"].to_list()), Look.of(labels_in(rows, "variant"), kinds=2)
    panels = []
    for number, (name, part) in enumerate(parts.items()):
        own = part.to_dicts()
        entry = metric_catalogue.metric(own[0]["metric"])
        panel = Panel(
            entry,
            x,
            build_axis(
                entry,
                own,
            ),
            look,
        )
        heading = entry.title if name == entry.name else name
        panels.append(draw_panel(panel, own, number=number, heading=heading))
    return lay_out(panels, title=title, names=look.names)


def layer_axis(layers: Sequence[int]) -> Horizontal:
    """The layer, in whole numbers, with the same ends in every panel."""
    first, last = min(layers), max(layers)
    axis = {"title": "layer", "format": "d", "tickMinStep": 1, "tickCount": 8}
    return Horizontal("layer", "linear", (first, max(last, first + 1)), axis)


def _doubling_axis(rows: pl.DataFrame) -> Horizontal:
    """The layer on a logarithmic axis, at powers of two, or of ten if those are too many."""
    layers = rows["layer"].to_list()
    first, last = min(layers), max(layers)
    named = [
        [base**k for k in range(64) if first <= base**k <= last] or [first] for base in (2, 10)
    ]
    axis = {
        "title": "layer, on a logarithmic axis (layer 0 is left out)",
        "format": ",d",
        "values": named[0] if len(named[0]) <= _MOST_DOUBLINGS else named[1],
    }
    return Horizontal("layer", "log", (first, max(last, 2 * first)), axis)
