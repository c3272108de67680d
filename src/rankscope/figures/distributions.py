"""How many of a model's paths have each length."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope.errors import InputError
from rankscope.figures import theme
from rankscope.figures.drawable import exact, measured, no_gaps, rows_of
from rankscope.figures.framing import WORDS_AS_TITLE, framed
from rankscope.figures.metric_words import metric_words
from rankscope.figures.panel import Look, view_name
from rankscope.figures.scales import linear

Row = Mapping[str, Any]

_METRIC: Final = "proportion"
_NEEDED: Final = ("model", "length", "value")
_WIDTH: Final = 620
_HEIGHT: Final = 280
_POINTS: Final = 10  # on a curve, about: more would hide it
_FLAT: Final = 0.02  # of its peak: below, a curve lies on the axis, where points would pile up
# Four kinds of line in turn: of two curves that coincide both are seen.
DASHES: Final = ([1, 0], [6, 3], [2, 4], [8, 3, 2, 3])
# Neighbours far apart in hue; grey and the violets late. All have a partner on dark paper.
MODEL_COLOURS: Final = (
    theme.VARIANT_COLOURS["transformer"],
    theme.VARIANT_COLOURS["SAN+MLP"],
    theme.VARIANT_COLOURS["SAN+skip"],
    theme.VARIANT_COLOURS["SAN"],
    *theme.FOLLOWING_COLOURS,
)


def length_distributions(table: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """Each model's paths by their length, in per cent of them all: the 2021 paper's figure 5.

    >>> length_distributions(table)

    ``table`` has the columns model, length, metric and value, with the metric ``proportion``.
    Pointing at a line, or clicking on a name in the legend, brings that model to the front.
    """
    rows = rows_of(
        table, _METRIC, _NEEDED, drawer="length_distributions", source="proportions of paths"
    )
    no_gaps(rows, ["model", "length"])
    twice = rows.filter(rows.select("model", "length").is_duplicated())
    if twice.height:
        row = twice.row(0, named=True)
        raise InputError(
            f"several rows for {row['model']} at length {row['length']}; length_distributions "
            "draws one line for each model: give each its own name."
        )
    models = tuple(rows["model"].unique(maintain_order=True).to_list())
    return framed([_panel(rows, models)], title=title, names=models)


def colours(models: Sequence[str]) -> dict[str, str]:
    """One colour per model, in order of appearance."""
    return dict(zip(models, cycle(MODEL_COLOURS), strict=False))


def _panel(rows: pl.DataFrame, models: tuple[str, ...]) -> alt.LayerChart:
    last = max(1, *rows["length"].to_list())
    data = [
        row
        for number, model in enumerate(models)
        for row in _curve(
            number % len(DASHES), rows.filter(pl.col("model") == model).sort("length").to_dicts()
        )
    ]
    words = metric_words(_METRIC)
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=_marks(data, Look(models, (0, last))),
        title=alt.Title(f"{words.title} by length", subtitle=words.meaning),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _curve(dash: int, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A model's rows as the chart needs them: in per cent, and which of them have a point."""
    held = {row["length"]: v for row in rows if (v := measured(row["value"])) is not None}
    peak = max(held, key=lambda length: held[length], default=0)
    high = [length for length, value in held.items() if value >= _FLAT * held[peak]]
    every = 1 + len(high) // _POINTS
    marked = {length for length in high if (length - peak) % every == 0}
    return [
        {
            "variant": row["model"],
            "length": row["length"],
            "percent": 100 * held[row["length"]] if row["length"] in held else None,
            "exact": "none" if row["value"] is None else f"{exact(100 * row['value'])} %",
            "dash": dash,
            "marked": row["length"] in marked,
        }
        for row in rows
    ]


def _marks(data: Sequence[Row], look: Look) -> list[alt.Chart]:
    """Line, points, and on top of them the invisible targets that carry the tooltip."""
    held = [row["percent"] for row in data if row["percent"] is not None]
    vertical = linear("% of all paths", held, includes=(0.0,))
    y = vertical.of("percent:Q").axis(title=vertical.title, tickCount=5, **WORDS_AS_TITLE)
    base = alt.Chart().encode(
        x=_length(look.layers[1]),
        y=y,
        color=alt.Color("variant:N", scale=_fixed(colours(look.variants))),
    )
    full = look.opacity(1.0)
    # A field of its own keeps the dashes off the legend, where they would break the symbols' edges.
    dash = alt.StrokeDash("dash:N", scale=_fixed(dict(enumerate(DASHES))), legend=None)
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


def _fixed(chosen: Mapping[Any, Any]) -> alt.Scale:
    return alt.Scale(domain=list(chosen), range=list(chosen.values()))


def _length(last: int) -> alt.X:
    return alt.X(
        "length:Q",
        axis=alt.Axis(title="path length", format="d", tickMinStep=1, tickCount=12, grid=False),
        scale=alt.Scale(domain=[0, last], nice=False, padding=10),
    )
