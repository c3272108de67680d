"""Figures of paths by length: their contribution and their number."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import Horizontal, linear_axis, whole_numbers, word_axis
from rankscope.show.figures._catalogue import figure
from rankscope.show.figures._chart import lay_out
from rankscope.show.figures._heatmap import Cells, MapSide, heat_panel, shades_of
from rankscope.show.figures._lines import Panel, build_axis, line_panel, tell_values
from rankscope.show.figures._rows import (
    STATISTICS,
    VALUE,
    Row,
    exact_text,
    finite_or_none,
    labels_in,
    select,
)
from rankscope.show.figures._theme import Look

_SHARE: Final = "residual_share"
_BIAS: Final = "bias"
_MOST_NAMED: Final = 14
# The biases are what the sum over the paths leaves of a state, so nothing leaves about this much.
_ROUNDING: Final = 1e-12


@figure(
    "summary",
    "Points are medians over the samples, bars their 10th to 90th percentile; paths of one length "
    "are added up before they are measured.",
    "by path length",
    metric=_SHARE,
    places=("length",),
)
@checked
def by_length(summary: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """The share of the residual by path length, after the last layer or after each layer.

    >>> from rankscope import tables
    >>> shares = {"layer": [1, 1, 1], "length": [0, 1, None], "value": [0.9, 0.3, 0.01]}
    >>> table = tables.frame({**shares, "metric": ["residual_share"] * 3})
    >>> chart = by_length(tables.summary(table))

    ``summary`` is what ``tables.summary`` makes of a table by path length; rows without a length
    are the bias stream. Rows that sum up heads are about something else and left out.
    """
    if "heads" in summary.columns:
        summary = summary.filter(pl.col("heads") == 0)
    rows = select(
        summary,
        [_SHARE],
        drawer="by_length",
        needed=("layer", "length"),
        filled=("layer",),
        single=("part", "run", "model", "variant"),
        keys=("layer", "length"),
    )
    words, named = _name_lengths(rows)
    entry, name = metric_catalogue.metric(_SHARE), pl.col("length").cast(pl.String)
    bias, number = pl.col("length").is_null(), {word: at for at, word in enumerate(words)}
    texts = {
        f"exact_{n}": pl.Series([exact_text(v, entry) for v in rows[n]], dtype=pl.String)
        for n in STATISTICS
    }
    rows = rows.with_columns(
        *[
            pl.when(bias & (pl.col(n).abs() < _ROUNDING)).then(0.0).otherwise(n).alias(n)
            for n in STATISTICS
        ],
        **texts,
        place_name=name.fill_null(_BIAS),
        place=name.fill_null(_BIAS).replace_strict(number, return_dtype=pl.Int64),
        variant=pl.when(bias).then(pl.lit(_BIAS)).otherwise(pl.lit("paths")),
    )
    last = rows.filter(pl.col("layer") == pl.col("layer").max()).to_dicts()
    points = Panel(
        entry,
        word_axis("path length", words, theme.PANEL[0], named=named),
        build_axis(entry, last),
        Look({"paths": theme.SINGLE_COLOUR, _BIAS: theme.INK["muted"]}, {}, legend=False),
        spread="bar",
        joined=False,
    )
    layers = rows["layer"].to_list()
    cells = Cells(
        rows.select("count", "^exact_.*$", x="layer", y="place_name", value="median"),
        MapSide.of_numbers("layer", range(min(layers), max(layers) + 1), most=_MOST_NAMED),
        MapSide("path length", words, words, named, look=theme.WORDS_AS_TITLE),
        alt.Title(
            f"{entry.title}, layer by layer", subtitle="Brighter = paths of this length carry more"
        ),
    )
    panels = [
        line_panel(
            points,
            last,
            number=0,
            heading=f"{entry.title} by path length",
            subtitle=f"After layer {max(layers)}, the last; 1 = as large as the whole",
        ),
        heat_panel(
            cells,
            shades_of("log", rows["median"].to_list()),
            entry,
            size=theme.PANEL,
            tooltip=tell_values(),
            bar="median share",
        ),
    ]
    return lay_out(panels, title=title)


def _name_lengths(rows: pl.DataFrame) -> tuple[list[str], list[int]]:
    """The lengths from the first one on, with the bias stream apart, and their ticks."""
    lengths = rows["length"].drop_nulls().to_list()
    words = [str(k) for k in range(min(lengths), max(lengths) + 1)] if lengths else []
    shown = whole_numbers(lengths, most=_MOST_NAMED) if lengths else []
    named = [words.index(str(k)) for k in shown]
    if rows["length"].null_count():
        words += [" " * (k + 1) for k in range(1 + len(words) // 20)] if words else []
        named, words = [*named, len(words)], [*words, _BIAS]
    return words, named


_PROPORTION: Final = "proportion"
_POINTS: Final = 10  # on a curve, about: more would hide it
_FLAT: Final = 0.02  # of its peak: below, a curve lies on the axis, where points would pile up


@figure(
    "table",
    "Which part of all paths has which length, exactly counted.",
    "by length",
    metric=_PROPORTION,
    places=("length",),
)
@checked
def length_distributions(table: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """The distribution of path lengths of each model, in per cent (Dong et al. 2021, figure 5).

    >>> from rankscope import tables
    >>> parts = {"model": ["ours"] * 2, "length": [0, 1], "value": [0.25, 0.75]}
    >>> chart = length_distributions(tables.frame({**parts, "metric": ["proportion"] * 2}))

    ``table`` has the columns model, length, metric and value, with the metric ``proportion``.
    Pointing at a line, or clicking on a name in the legend, brings that model to the front.
    """
    rows = select(
        table,
        [_PROPORTION],
        drawer="length_distributions",
        needed=("model", "length"),
        numbers=VALUE,
        keys=("model", "length"),
    )
    entry = metric_catalogue.metric(_PROPORTION)
    look = Look.of(labels_in(rows, "model"))
    percent = rows.with_columns(median=100 * pl.col("value"))
    curves = [percent.filter(pl.col("model") == model).to_dicts() for model in look.names]
    data = [row for curve in curves for row in _mark_peak(curve)]
    axis = {"title": "path length", "format": "d", "tickMinStep": 1, "tickCount": 12}
    longest = max(1, *(row["length"] for row in data))
    values = [value for row in data if (value := finite_or_none(row["median"])) is not None]
    panel = Panel(
        entry,
        Horizontal("length", "linear", (0, longest), axis),
        replace(linear_axis("% of all paths", values, includes=(0.0,)), words=True),
        look,
        size=theme.WIDE,
        spread="none",
        curve="model",
        unit=" %",
    )
    heading = f"{entry.title} by length"
    return lay_out(
        [line_panel(panel, data, number=0, heading=heading)], title=title, names=look.names
    )


def _mark_peak(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of a model, with points at the peak and at some rows on both sides."""
    values = {row["length"]: v for row in rows if (v := finite_or_none(row["median"])) is not None}
    peak = max(values, key=lambda length: values[length], default=0)
    high = {length for length, value in values.items() if value >= _FLAT * values[peak]}
    every = 1 + len(high) // _POINTS
    return [
        {
            **row,
            "variant": row["model"],
            "marked": row["length"] in high and (row["length"] - peak) % every == 0,
        }
        for row in rows
    ]
