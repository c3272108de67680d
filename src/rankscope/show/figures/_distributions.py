"""How many of a model's paths have each length."""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import Horizontal, linear_axis
from rankscope.show.figures._curves import line_marks
from rankscope.show.figures._layout import WORDS_AS_TITLE, lay_out, view_name
from rankscope.show.figures._look import Look
from rankscope.show.figures._panel import Row
from rankscope.show.figures._validation import (
    exact_text,
    finite_or_none,
    labels_in,
    refuse_duplicates,
    require_values,
    select_metrics,
)

_METRIC: Final = "proportion"
_NEEDED: Final = ("model", "length", "value")
_POINTS: Final = 10  # on a curve, about: more would hide it
_FLAT: Final = 0.02  # of its peak: below, a curve lies on the axis, where points would pile up


@checked
def length_distributions(table: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """Each model's paths by their length, in per cent of them all (Dong et al. 2021, figure 5).

    >>> from rankscope import tables
    >>> parts = {"model": ["ours"] * 2, "length": [0, 1], "value": [0.25, 0.75]}
    >>> chart = length_distributions(tables.frame({**parts, "metric": ["proportion"] * 2}))

    ``table`` has the columns model, length, metric and value, with the metric ``proportion``.
    Pointing at a line, or clicking on a name in the legend, brings that model to the front.
    """
    source = "proportions of paths"
    drawer = "length_distributions"
    rows = select_metrics(table, [_METRIC], _NEEDED, drawer=drawer, source=source)
    require_values(rows, ["model", "length"])
    refuse_duplicates(rows, ("model", "length"), drawer=drawer)
    look = Look.of(labels_in(rows, "model"))
    return lay_out([_panel(rows, look)], title=title, names=look.names)


def _panel(rows: pl.DataFrame, look: Look) -> alt.LayerChart:
    own = (rows.filter(pl.col("model") == model).sort("length") for model in look.names)
    data = [row for part in own for row in _curve(part.to_dicts())]
    entry = metric_catalogue.metric(_METRIC)
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=_marks(data, look),
        title=alt.Title(f"{entry.title} by length", subtitle=entry.meaning),
        width=theme.WIDE[0],
        height=theme.WIDE[1],
    )


def _curve(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A model's rows as the chart needs them: in per cent, and which of them have a point."""
    values = {row["length"]: v for row in rows if (v := finite_or_none(row["value"])) is not None}
    peak = max(values, key=lambda length: values[length], default=0)
    high = [length for length, value in values.items() if value >= _FLAT * values[peak]]
    every = 1 + len(high) // _POINTS
    marked = {length for length in high if (length - peak) % every == 0}
    return [
        {
            "variant": row["model"],
            "length": row["length"],
            "percent": 100 * values[row["length"]] if row["length"] in values else None,
            "exact": "none" if row["value"] is None else f"{exact_text(100 * row['value'])} %",
            "marked": row["length"] in marked,
        }
        for row in rows
    ]


def _marks(data: Sequence[Row], look: Look) -> list[alt.Chart]:
    """Line, points, and on top of them the invisible targets that carry the tooltip."""
    values = [row["percent"] for row in data if row["percent"] is not None]
    vertical = linear_axis("% of all paths", values, includes=(0.0,))
    axis = {"title": "path length", "format": "d", "tickMinStep": 1, "tickCount": 12}
    longest = max(1, *(row["length"] for row in data))
    base = alt.Chart().encode(
        x=Horizontal("length", "linear", (0, longest), axis).encode(),
        y=vertical.encode("percent:Q").axis(title=vertical.title, tickCount=5, **WORDS_AS_TITLE),
        color=look.colour(),
    )
    tooltip = [
        alt.Tooltip("variant:N", title="model"),
        alt.Tooltip("length:Q", title="path length", format="d"),
        alt.Tooltip("exact:N", title="of all paths"),
    ]
    line, point, target = line_marks(base, look, tooltip, size=1.3 * theme.POINT_SIZE)
    # A legend takes its symbols from the first of its layers (a line would break their edges), and
    # listens to a selection only if that layer holds it.
    return [point.properties(name=view_name(0)), line, target]
