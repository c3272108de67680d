"""What paths of each length carry: at the last layer, and from layer to layer."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope.errors import InputError
from rankscope.figures import theme
from rankscope.figures.drawable import exact, measured, no_gaps, one_only, rows_of
from rankscope.figures.framing import WORDS_AS_TITLE, framed
from rankscope.figures.metric_words import metric_words
from rankscope.figures.panel import exact_values
from rankscope.figures.scales import Vertical, logarithmic
from rankscope.figures.shading import band, cells, log_shades, whole_numbers

Row = Mapping[str, Any]

BIAS: Final = "bias"
_METRIC: Final = "residual_share"
_GAP: Final = " "  # between the lengths and the bias stream, which has none
_NEEDED: Final = ("layer", "length", "count", "mean", "low", "median", "high")
_STATISTICS: Final = ("mean", "low", "median", "high")
_BIAS_COLOUR: Final = theme.INK["muted"]
# The biases are what the sum over the paths leaves of a state, so nothing leaves about this much.
_ROUNDING: Final = 1e-12


def by_length(summary: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """The share of the residual that paths of each length carry; after the last layer, after each.

    >>> by_length(tables.summary(path_lengths(net, x).table))

    ``summary`` is what ``tables.summary`` makes of a table by path length; rows without a length
    are the bias stream.
    """
    rows = rows_of(summary, _METRIC, _NEEDED, drawer="by_length", source="summaries by path length")
    no_gaps(rows, ["layer"])
    one_only(rows, ("run", "model", "variant"), drawer="by_length")
    _no_twins(rows)
    ordered = rows.sort("layer", "length", nulls_last=True, maintain_order=True)
    told = [_told(row) for row in ordered.iter_rows(named=True)]
    names = _names(rows)
    last = max(row["layer"] for row in told)
    ended = [row for row in told if row["layer"] == last]
    return framed([_last_layer(ended, names), _course(told, names)], title=title)


def _no_twins(rows: pl.DataFrame) -> None:
    twins = rows.filter(rows.select("layer", "length").is_duplicated())
    if twins.height:
        row = twins.row(0, named=True)
        raise InputError(
            f"several rows for length {row['length']} at layer {row['layer']}; by_length draws "
            "one table: keep one."
        )


def _names(rows: pl.DataFrame) -> list[str]:
    """The lengths in order, from 0 or the first there is; the bias stream apart from them."""
    lengths = rows["length"].drop_nulls().to_list()
    names = [str(k) for k in range(min(lengths), max(lengths) + 1)] if lengths else []
    if not rows["length"].null_count():
        return names
    gaps = [_GAP * (k + 1) for k in range(1 + len(names) // 20)] if names else []
    return [*names, *gaps, BIAS]


def _labels(names: Sequence[str], *, most: int) -> list[str]:
    """The lengths an axis has room to name, and the bias stream."""
    lengths = [int(name) for name in names if name.isdecimal()]
    shown = [str(k) for k in whole_numbers(lengths, most=most)] if lengths else []
    return [*shown, *(name for name in names if name == BIAS)]


def _told(row: Row) -> dict[str, Any]:
    """A row as both panels need it: its values, how they are told, and the name of its length."""
    bias = row["length"] is None
    told: dict[str, Any] = {"layer": row["layer"], "count": row["count"]}
    told["length"] = BIAS if bias else str(row["length"])
    for name in _STATISTICS:
        value = measured(row[name])
        rounding = bias and value is not None and abs(value) < _ROUNDING
        told[name] = 0.0 if rounding else value
        told[f"exact_{name}"] = exact(row[name])
    return told


def _last_layer(rows: Sequence[Row], names: Sequence[str]) -> alt.LayerChart:
    """The mean share of each length, in its band of 10 to 90 per cent."""
    words = metric_words(_METRIC)
    subtitle = f"After layer {rows[0]['layer']}, the last; 1 = as large as the whole"
    values = [row[name] for row in rows for name in _STATISTICS if row[name] is not None]
    vertical = logarithmic(words.symbol, values, includes=words.includes)
    return alt.LayerChart(
        data=alt.InlineData(values=[_drawn(row, vertical) for row in rows]),
        layer=[*vertical.names(), *_stems(vertical, names)],
        title=alt.Title(f"{words.title} by path length", subtitle=subtitle),
        width=theme.PANEL_WIDTH,
        height=theme.PANEL_HEIGHT,
    )


def _drawn(row: Row, vertical: Vertical) -> dict[str, Any]:
    drawn = dict(row)
    for name in _STATISTICS:
        drawn[f"drawn_{name}"] = vertical.shown(row[name])
    drawn["off_scale"] = drawn["drawn_mean"] != row["mean"]
    return drawn


def _stems(vertical: Vertical, names: Sequence[str]) -> list[alt.Chart]:
    """Stem, band and point of each length; hollow points where the axis has no place for zero."""
    room = theme.PANEL_WIDTH / max(1, len(names))
    size = min(2 * theme.POINT_SIZE, (0.7 * room) ** 2)
    base = alt.Chart().encode(
        x=_length_axis(names),
        y=vertical.of("drawn_mean:Q"),
        color=alt.ColorValue(
            theme.SINGLE_COLOUR,
            condition={"test": f"datum.length === '{BIAS}'", "value": _BIAS_COLOUR},
        ),
    )
    stem = base.mark_rule(strokeWidth=min(1.5, room / 3), opacity=0.35).encode(
        y2=alt.value(theme.PANEL_HEIGHT)
    )
    band = base.mark_rule(strokeWidth=min(8.0, 0.6 * room), opacity=0.3).encode(
        y=vertical.of("drawn_low:Q"), y2="drawn_high:Q"
    )
    point = base.mark_point(filled=True, size=size, opacity=1)
    hollow = base.mark_point(filled=False, fill=theme.INK["paper"], strokeWidth=1.5, size=size)
    target = base.mark_rule(strokeWidth=max(3.0, room), opacity=0).encode(
        y=alt.value(0), y2=alt.value(theme.PANEL_HEIGHT), tooltip=_tooltip()
    )
    there = "datum.drawn_mean !== null"
    marks = [stem.transform_filter(there), band, point.transform_filter(there)]
    if vertical.floor is not None:
        marks.append(hollow.encode(opacity=alt.value(1)).transform_filter("datum.off_scale"))
    return [*marks, target]


def _length_axis(names: Sequence[str]) -> alt.X:
    return alt.X(
        "length:N",
        scale=alt.Scale(type="point", domain=list(names), padding=0.6),
        axis=alt.Axis(
            title="path length", values=_labels(names, most=14), labelAngle=0, grid=False
        ),
    )


def _course(rows: Sequence[Row], names: Sequence[str]) -> alt.LayerChart:
    """The mean share of each length after each layer, as shades."""
    shades = log_shades([row["mean"] for row in rows if row["mean"] is not None])
    data = [dict(row, shade=shades.axis.shown(row["mean"])) for row in rows]
    layers = [row["layer"] for row in rows]
    columns = list(range(min(layers), max(layers) + 1))
    room = min(theme.PANEL_WIDTH / len(columns), theme.PANEL_HEIGHT / len(names))
    x = alt.X(
        "layer:O",
        scale=band(columns, size=theme.PANEL_WIDTH / len(columns)),
        axis=alt.Axis(
            title="layer", values=whole_numbers(columns, most=14), labelAngle=0, grid=False
        ),
    )
    y = alt.Y(
        "length:N",
        scale=band(names[::-1], size=theme.PANEL_HEIGHT / len(names)),
        axis=alt.Axis(
            title="path length",
            values=_labels(names, most=12),
            labelOverlap=False,
            labelBaseline=_baseline(theme.PANEL_HEIGHT / len(names)),
            grid=False,
            **WORDS_AS_TITLE,
        ),
    )
    drawn = [mark.encode(x=x, y=y, tooltip=_tooltip()) for mark in cells(shades, size=room)]
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=[*drawn, *shades.bar("mean share", height=theme.PANEL_HEIGHT)],
        title=alt.Title(
            f"{metric_words(_METRIC).title}, layer by layer",
            subtitle="Brighter = paths of this length carry more",
        ),
        width=theme.PANEL_WIDTH,
        height=theme.PANEL_HEIGHT,
    )


def _baseline(row: float) -> Any:
    """Labels beside their rows; the topmost not above a low row, where it would move the title."""
    if row >= theme.LABEL_SIZE:
        return "middle"
    return {"condition": {"test": f"datum.value === '{BIAS}'", "value": "top"}, "value": "middle"}


def _tooltip() -> list[alt.Tooltip]:
    return [alt.Tooltip("length:N", title="path length"), *exact_values()]
