"""What paths of each length carry: at the last layer, and from layer to layer."""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import Vertical, log_axis
from rankscope.show.figures._heatmap import band, cells, log_shades, whole_numbers
from rankscope.show.figures._layout import WORDS_AS_TITLE, lay_out
from rankscope.show.figures._panel import NEEDED, STATISTICS, Row, tell_values
from rankscope.show.figures._validation import (
    exact_text,
    finite_or_none,
    refuse_duplicates,
    require_single,
    require_values,
    select_metrics,
)

BIAS: Final = "bias"
_METRIC: Final = "residual_share"
_GAP: Final = " "  # between the lengths and the bias stream, which has none
_WIDTH, _HEIGHT = theme.PANEL
_BIAS_COLOUR: Final = theme.INK["muted"]
# The biases are what the sum over the paths leaves of a state, so nothing leaves about this much.
_ROUNDING: Final = 1e-12


@checked
def by_length(summary: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """The share of the residual that paths of each length carry; after the last layer, after each.

    >>> from rankscope import tables
    >>> shares = {"layer": [1, 1, 1], "length": [0, 1, None], "value": [0.9, 0.3, 0.01]}
    >>> table = tables.frame({**shares, "metric": ["residual_share"] * 3})
    >>> chart = by_length(tables.summary(table))

    ``summary`` is what ``tables.summary`` makes of a table by path length; rows without a length
    are the bias stream. Rows that sum up heads are about something else and left out.
    """
    if "heads" in summary.columns:
        summary = summary.filter(pl.col("heads") == 0)
    source = "summaries by path length"
    needed = ("layer", "length", *NEEDED)
    rows = select_metrics(summary, [_METRIC], needed, drawer="by_length", source=source)
    require_values(rows, ["layer"])
    require_single(rows, ("part", "run", "model", "variant"), drawer="by_length")
    refuse_duplicates(rows, ("layer", "length"), drawer="by_length")
    ordered = rows.sort("layer", "length", nulls_last=True, maintain_order=True)
    data = [_chart_row(row) for row in ordered.iter_rows(named=True)]
    names = _name_lengths(rows)
    last = max(row["layer"] for row in data)
    at_the_end = [row for row in data if row["layer"] == last]
    return lay_out([_last_layer(at_the_end, names), _layer_by_layer(data, names)], title=title)


def _name_lengths(rows: pl.DataFrame) -> list[str]:
    """The lengths in order, from 0 or the first there is; the bias stream apart from them."""
    lengths = rows["length"].drop_nulls().to_list()
    names = [str(k) for k in range(min(lengths), max(lengths) + 1)] if lengths else []
    if not rows["length"].null_count():
        return names
    gaps = [_GAP * (k + 1) for k in range(1 + len(names) // 20)] if names else []
    return [*names, *gaps, BIAS]


def _choose_labels(names: Sequence[str], *, most: int) -> list[str]:
    """The lengths an axis has room to name, and the bias stream."""
    lengths = [int(name) for name in names if name.isdecimal()]
    shown = [str(k) for k in whole_numbers(lengths, most=most)] if lengths else []
    return [*shown, *(name for name in names if name == BIAS)]


def _chart_row(row: Row) -> dict[str, Any]:
    """A row as both panels need it: its values, their texts, and the name of its length."""
    bias = row["length"] is None
    data: dict[str, Any] = {"layer": row["layer"], "count": row["count"]}
    data["length"] = BIAS if bias else str(row["length"])
    for name in STATISTICS:
        value = finite_or_none(row[name])
        rounding = bias and value is not None and abs(value) < _ROUNDING
        data[name] = 0.0 if rounding else value
        data[f"exact_{name}"] = exact_text(row[name])
    return data


def _last_layer(rows: Sequence[Row], names: Sequence[str]) -> alt.LayerChart:
    """The median share of each length, and its spread of 10 to 90 per cent."""
    entry = metric_catalogue.metric(_METRIC)
    subtitle = f"After layer {rows[0]['layer']}, the last; 1 = as large as the whole"
    values = [row[name] for row in rows for name in STATISTICS if row[name] is not None]
    vertical = log_axis(entry.symbol, values, includes=entry.includes)
    return alt.LayerChart(
        data=alt.InlineData(values=[_place_values(row, vertical) for row in rows]),
        layer=[*vertical.tick_labels(), *_points(vertical, names)],
        title=alt.Title(f"{entry.title} by path length", subtitle=subtitle),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _place_values(row: Row, vertical: Vertical) -> dict[str, Any]:
    drawn = dict(row)
    for name in STATISTICS:
        drawn[f"drawn_{name}"] = vertical.place(row[name])
    drawn["off_scale"] = drawn["drawn_median"] != row["median"]
    return drawn


def _points(vertical: Vertical, names: Sequence[str]) -> list[alt.Chart]:
    """Spread and point of each length; hollow points where the axis has no place for zero."""
    room = _WIDTH / max(1, len(names))
    size = min(2 * theme.POINT_SIZE, (0.7 * room) ** 2)
    base = alt.Chart().encode(
        x=_length_axis(names),
        y=vertical.encode("drawn_median:Q"),
        color=alt.ColorValue(
            theme.SINGLE_COLOUR,
            condition={"test": f"datum.length === '{BIAS}'", "value": _BIAS_COLOUR},
        ),
    )
    band = base.mark_rule(strokeWidth=min(8.0, 0.6 * room), opacity=0.3).encode(
        y=vertical.encode("drawn_low:Q"), y2="drawn_high:Q"
    )
    point = base.mark_point(filled=True, size=size, opacity=1)
    hollow = base.mark_point(filled=False, fill=theme.INK["paper"], strokeWidth=1.5, size=size)
    target = base.mark_rule(strokeWidth=max(3.0, room), opacity=0).encode(
        y=alt.value(0), y2=alt.value(_HEIGHT), tooltip=_tooltip()
    )
    there = "datum.drawn_median !== null"
    marks = [band, point.transform_filter(there)]
    if vertical.floor is not None:
        marks.append(hollow.encode(opacity=alt.value(1)).transform_filter("datum.off_scale"))
    return [*marks, target]


def _length_axis(names: Sequence[str]) -> alt.X:
    return alt.X(
        "length:N",
        scale=alt.Scale(type="point", domain=list(names), padding=0.6),
        axis=alt.Axis(
            title="path length", values=_choose_labels(names, most=14), labelAngle=0, grid=False
        ),
    )


def _layer_by_layer(rows: Sequence[Row], names: Sequence[str]) -> alt.LayerChart:
    """The median share of each length after each layer, as shades."""
    shades = log_shades([row["median"] for row in rows if row["median"] is not None])
    data = [dict(row, shade=shades.axis.place(row["median"])) for row in rows]
    layers = [row["layer"] for row in rows]
    columns = list(range(min(layers), max(layers) + 1))
    room = min(_WIDTH / len(columns), _HEIGHT / len(names))
    x = alt.X(
        "layer:O",
        scale=band(columns, size=_WIDTH / len(columns)),
        axis=alt.Axis(
            title="layer", values=whole_numbers(columns, most=14), labelAngle=0, grid=False
        ),
    )
    y = alt.Y(
        "length:N",
        scale=band(names[::-1], size=_HEIGHT / len(names)),
        axis=alt.Axis(
            title="path length",
            values=_choose_labels(names, most=12),
            labelOverlap=False,
            labelBaseline=_baseline(_HEIGHT / len(names)),
            grid=False,
            **WORDS_AS_TITLE,
        ),
    )
    drawn = [mark.encode(x=x, y=y, tooltip=_tooltip()) for mark in cells(shades, size=room)]
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=[*drawn, *shades.bar("median share", height=_HEIGHT)],
        title=alt.Title(
            f"{metric_catalogue.metric(_METRIC).title}, layer by layer",
            subtitle="Brighter = paths of this length carry more",
        ),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _baseline(row: float) -> Any:
    """Labels beside their rows; the topmost not above a low row, where it would move the title."""
    if row >= theme.LABEL_SIZE:
        return "middle"
    return {"condition": {"test": f"datum.value === '{BIAS}'", "value": "top"}, "value": "middle"}


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("length:N", title="path length"),
        alt.Tooltip("layer:Q", format="d"),
        *tell_values(),
    ]
