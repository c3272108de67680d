"""How many of a model's paths have each length."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.errors import InputError
from rankscope.figures import _theme as theme
from rankscope.figures._axes import linear_axis
from rankscope.figures._layout import WORDS_AS_TITLE, lay_out
from rankscope.figures._panel import Look, view_name
from rankscope.figures._validation import exact_text, finite_or_none, require_values, select_metric

Row = Mapping[str, Any]

_METRIC: Final = "proportion"
_NEEDED: Final = ("model", "length", "value")
_WIDTH: Final = 620
_HEIGHT: Final = 280
_POINTS: Final = 10  # on a curve, about: more would hide it
_FLAT: Final = 0.02  # of its peak: below, a curve lies on the axis, where points would pile up


def length_distributions(table: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """Each model's paths by their length, in per cent of them all (Dong et al. 2021, figure 5).

    >>> from rankscope import tables
    >>> parts = {"model": ["ours"] * 2, "length": [0, 1], "value": [0.25, 0.75]}
    >>> chart = length_distributions(tables.frame({**parts, "metric": ["proportion"] * 2}))

    ``table`` has the columns model, length, metric and value, with the metric ``proportion``.
    Pointing at a line, or clicking on a name in the legend, brings that model to the front.
    """
    rows = select_metric(
        table, _METRIC, _NEEDED, drawer="length_distributions", source="proportions of paths"
    )
    require_values(rows, ["model", "length"])
    twice = rows.filter(rows.select("model", "length").is_duplicated())
    if twice.height:
        row = twice.row(0, named=True)
        raise InputError(
            f"several rows for {row['model']} at length {row['length']}; length_distributions "
            "draws one line for each model: give each its own name."
        )
    models = tuple(rows["model"].unique(maintain_order=True).to_list())
    return lay_out([_panel(rows, models)], title=title, names=models)


def _panel(rows: pl.DataFrame, models: tuple[str, ...]) -> alt.LayerChart:
    last = max(1, *rows["length"].to_list())
    data = [
        row
        for number, model in enumerate(models)
        for row in _curve(
            number % len(theme.DASHES),
            rows.filter(pl.col("model") == model).sort("length").to_dicts(),
        )
    ]
    entry = metric_catalogue.metric(_METRIC)
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=_marks(data, Look(models, (0, last))),
        title=alt.Title(f"{entry.title} by length", subtitle=entry.meaning),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _curve(dash: int, rows: Sequence[Row]) -> list[dict[str, Any]]:
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
            "dash": dash,
            "marked": row["length"] in marked,
        }
        for row in rows
    ]


def _marks(data: Sequence[Row], look: Look) -> list[alt.Chart]:
    """Line, points, and on top of them the invisible targets that carry the tooltip."""
    values = [row["percent"] for row in data if row["percent"] is not None]
    vertical = linear_axis("% of all paths", values, includes=(0.0,))
    y = vertical.encode("percent:Q").axis(title=vertical.title, tickCount=5, **WORDS_AS_TITLE)
    base = alt.Chart().encode(
        x=_length(look.layers[1]),
        y=y,
        color=alt.Color("variant:N", scale=theme.fixed_scale(theme.palette(look.variants))),
    )
    full = look.opacity(1.0)
    # A field of its own keeps the dashes off the legend, where they would break the symbols' edges.
    dash = alt.StrokeDash(
        "dash:N", scale=theme.fixed_scale(dict(enumerate(theme.DASHES))), legend=None
    )
    line = base.mark_line().encode(opacity=full, strokeDash=dash)
    point = base.mark_point(filled=True, size=1.3 * theme.POINT_SIZE).encode(
        shape=look.shape(), opacity=full
    )
    target = base.mark_point(filled=True, size=theme.TARGET_SIZE, opacity=0).encode(
        tooltip=[
            alt.Tooltip("variant:N", title="model"),
            alt.Tooltip("length:Q", title="path length", format="d"),
            alt.Tooltip("exact:N", title="of all paths"),
        ]
    )
    # A legend listens to a selection only if the first of its layers holds it.
    return [line.properties(name=view_name(0)), point.transform_filter("datum.marked"), target]


def _length(last: int) -> alt.X:
    return alt.X(
        "length:Q",
        axis=alt.Axis(title="path length", format="d", tickMinStep=1, tickCount=12, grid=False),
        scale=alt.Scale(domain=[0, last], nice=False, padding=10),
    )
