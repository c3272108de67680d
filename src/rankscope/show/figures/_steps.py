"""What each part of each block adds or takes away: signed changes, as bars by layer."""

import math
from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.metric_catalogue import Metric
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import Vertical, linear_axis
from rankscope.show.figures._heatmap import whole_numbers
from rankscope.show.figures._layout import lay_out, view_name
from rankscope.show.figures._look import Look
from rankscope.show.figures._panel import NEEDED, STATISTICS, Row, tell_values
from rankscope.show.figures._validation import (
    exact_text,
    finite_or_none,
    labels_in,
    refuse_duplicates,
    require_single,
    require_values,
    select_metrics,
)

_ALONE: Final = "_alone"  # ends the name of what a step would do without its skip
_REACH: Final = 2.0  # times the largest step: marks beyond it stand at the edge
_MOST_LABELS: Final = 20


@checked
def steps(summary: pl.DataFrame, *, metric: str, title: str | None = None) -> alt.ConcatChart:
    """Signed changes by layer: a bar for each part of a block, its spread, and zero.

    >>> from rankscope import tables
    >>> changes = {"layer": [1, 1], "variant": ["attention", "MLP"], "value": [-0.2, 0.1]}
    >>> table = tables.frame({**changes, "metric": ["step"] * 2})
    >>> chart = steps(tables.summary(table), metric="step")

    ``summary`` is what ``tables.summary`` returns, with the parts in the column ``variant``. Bars
    are medians, whiskers go from the 10th to the 90th percentile. Rows of the metric with
    ``_alone`` after its name say what a step would do without its skip, and are hollow marks beside
    the bars; those far beyond all bars stand at the edge, as triangles.
    """
    source = "summaries by layer and part"
    present = labels_in(summary, "metric")
    names = [metric, *(name for name in present if name == metric + _ALONE)]
    needed = ("layer", "variant", *NEEDED)
    rows = select_metrics(summary, names, needed, drawer="steps", source=source)
    require_values(rows, ["layer", "variant"])
    require_single(rows, ("part", "run", "model"), drawer="steps")
    refuse_duplicates(rows, ("metric", "layer", "variant"), drawer="steps")
    look = Look.of(labels_in(rows, "variant"))
    panel = _panel(rows, metric_catalogue.metric(metric), look)
    return lay_out([panel], title=title, names=look.names)


def _panel(rows: pl.DataFrame, entry: Metric, look: Look) -> alt.LayerChart:
    bars = rows.filter(pl.col("metric") == entry.name).to_dicts()
    alone = rows.filter(pl.col("metric") != entry.name).to_dicts()
    axis = _axis(entry, bars, alone)
    places = _places(rows, look)
    base = alt.Chart(alt.InlineData(values=[_row(row, axis) for row in bars])).encode(**places)
    shown = base.mark_bar().encode(
        y=axis.encode("drawn:Q"),
        y2=alt.datum(0),
        color=look.colour(),
        opacity=look.opacity(0.9),
        tooltip=_tooltip(),
    )
    spread = base.mark_rule(color=theme.INK["text"], strokeWidth=1.2).encode(
        y=axis.encode("low:Q"), y2="high:Q", opacity=look.opacity(0.75)
    )
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(
        color=theme.INK["muted"], strokeWidth=1.2
    )
    hollow = alt.Chart(alt.InlineData(values=[_row(row, axis) for row in alone])).mark_point(
        filled=False, fill=theme.INK["paper"], strokeWidth=1.6, size=theme.POINT_SIZE
    )
    marks = [shown.properties(name=view_name(0)), spread, zero.encode(y=axis.encode("zero:Q"))]
    if alone:
        marks.append(
            hollow.encode(
                **places,
                y=axis.encode("drawn:Q"),
                color=look.colour(),
                shape=alt.Shape("shape:N", scale=None),
                opacity=look.opacity(1.0),
                tooltip=_tooltip(),
            )
        )
    said = [entry.meaning, "hollow: the same step without its skip" if alone else ""]
    return alt.LayerChart(
        layer=marks,
        title=alt.Title(entry.title, subtitle="; ".join(filter(None, said)) or " "),
        width=theme.WIDE[0],
        height=theme.WIDE[1],
    )


def _places(rows: pl.DataFrame, look: Look) -> dict[str, Any]:
    """Layers side by side, and in each the parts side by side."""
    layers = sorted(set(rows["layer"].to_list()))
    named = whole_numbers(layers, most=_MOST_LABELS)
    axis = alt.Axis(title="layer", values=named, labelAngle=0, grid=False)
    scale = alt.Scale(type="band", domain=layers, paddingInner=0.3, paddingOuter=0.15)
    inside = alt.Scale(domain=look.names, paddingInner=0.15)
    return {
        "x": alt.X("layer:O", axis=axis, scale=scale),
        "xOffset": alt.XOffset("variant:N", scale=inside),
    }


def _axis(entry: Metric, bars: Sequence[Row], alone: Sequence[Row]) -> Vertical:
    """An even axis with zero on it, which marks far beyond the bars do not stretch."""
    ends = [finite_or_none(row[name]) for row in bars for name in ("low", "median", "high")]
    steps = [each for each in ends if each is not None]
    reach = _REACH * max(map(abs, steps), default=1.0)
    marks = [min(max(row["median"], -reach), reach) for row in alone if row["median"] is not None]
    known = [each for each in marks if not math.isnan(each)]
    return linear_axis(entry.symbol, [*steps, *known], includes=[0.0])


def _row(row: Row, axis: Vertical) -> dict[str, Any]:
    """A row as a chart needs it; a median beyond the axis stands at its edge, as a triangle."""
    low, high = axis.domain
    median = row["median"]
    known = median is not None and not math.isnan(median)
    drawn = min(max(median, low), high) if known else None
    shape = "circle" if drawn == median else "triangle-down" if drawn == low else "triangle-up"
    return {
        **{name: row[name] for name in ("layer", "variant", "count")},
        **{name: finite_or_none(row[name]) for name in ("low", "high")},
        **{f"exact_{name}": exact_text(row[name]) for name in STATISTICS},
        "drawn": drawn,
        "shape": shape,
    }


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("variant:N", title="part"),
        alt.Tooltip("layer:Q", format="d"),
        *tell_values(),
    ]
