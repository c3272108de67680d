"""Something that every layer has many of, singular values or tokens, as a map of shades."""

from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.metric_catalogue import Metric
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._heatmap import band, cells, shades_of, whole_numbers
from rankscope.show.figures._layout import WORDS_AS_TITLE, lay_out
from rankscope.show.figures._panel import NEEDED
from rankscope.show.figures._validation import (
    exact_text,
    finite_or_none,
    refuse_duplicates,
    require_single,
    require_values,
    select_metrics,
)

_MOST_LAYERS: Final = 96
_MOST_PLACES: Final = 64
"""Rows of cells that are drawn; of more, evenly spaced ones."""
_LABELS: Final = 16
_WORDS: Final = {"index": "singular value", "length": "path length"}


@checked
def layer_map(
    summary: pl.DataFrame, *, metric: str, along: str = "index", title: str | None = None
) -> alt.ConcatChart:
    """A metric by layer and by something counted, as shades: medians over the samples.

    >>> from rankscope import tables
    >>> table = {"layer": [0, 0, 1, 1], "index": [1, 2, 1, 2], "value": [0.6, 0.4, 0.9, 0.1]}
    >>> table = tables.frame({**table, "metric": ["share"] * 4})
    >>> chart = layer_map(tables.summary(table), metric="share")

    ``summary`` is what ``tables.summary`` returns; ``along`` is the column laid out upwards: the
    ``index`` of a singular value, the position of a ``token``, the ``length`` of a path.
    """
    source = f"summaries by layer and {along}"
    needed = ("layer", along, *NEEDED)
    rows = select_metrics(summary, [metric], needed, drawer="layer_map", source=source)
    require_values(rows, ["layer", along])
    require_single(rows, ("part", "run", "model", "variant", "setting"), drawer="layer_map")
    refuse_duplicates(rows, ("layer", along), drawer="layer_map")
    return lay_out([_map(rows, metric_catalogue.metric(metric), along)], title=title)


def _map(rows: pl.DataFrame, entry: Metric, along: str) -> alt.LayerChart:
    layers = _some(rows["layer"], _MOST_LAYERS)
    places = _some(rows[along], _MOST_PLACES)
    counted = _WORDS.get(along, along)
    kept = rows.filter(pl.col("layer").is_in(layers) & pl.col(along).is_in(places))
    data = [_row(row, along) for row in kept.iter_rows(named=True)]
    shades = shades_of(entry.scale, [row["shade"] for row in data if row["shade"] is not None])
    width, height = theme.WIDE
    size = min(width / len(layers), height / len(places))
    x = alt.X("layer:O", scale=band(layers, size=size), axis=_axis("layer", layers, labelAngle=0))
    y = alt.Y(
        "place:O", scale=band(places, size=size), axis=_axis(counted, places, **WORDS_AS_TITLE)
    )
    tooltip = [
        alt.Tooltip("layer:Q", format="d"),
        alt.Tooltip("place:Q", title=counted, format="d"),
        alt.Tooltip("exact:N", title="median"),
    ]
    drawn = [
        mark.encode(x=x, y=y, tooltip=tooltip) for mark in cells(shades, size=height / len(places))
    ]
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=[*drawn, *shades.bar("median", height=height)],
        title=alt.Title(entry.title, subtitle=entry.meaning or " "),
        width=width,
        height=height,
    )


def _row(row: dict[str, Any], along: str) -> dict[str, Any]:
    value = finite_or_none(row["median"])
    return {
        "layer": row["layer"],
        "place": row[along],
        "shade": None if value is None else float(f"{value:.4g}"),
        "exact": exact_text(row["median"]),
    }


def _some(numbers: pl.Series, most: int) -> list[int]:
    """The numbers there are, or evenly spaced ones from the first on if they are too many."""
    values = sorted(set(numbers.to_list()))
    return values[:: -(-len(values) // most)]


def _axis(title: str, values: list[int], **look: Any) -> alt.Axis:
    named = set(whole_numbers(values, most=_LABELS)) & set(values)
    return alt.Axis(title=title, values=sorted(named or values[:1]), grid=False, **look)
