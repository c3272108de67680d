"""Figures over the axes of a sweep: curves over one, phase diagrams over two."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue, tables
from rankscope.arguments import Finite, checked
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.numerals import short
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import layer_axis, setting_axis, word_axis
from rankscope.show.figures._catalogue import describe, figure
from rankscope.show.figures._heatmap import Cells, MapSide, heatmap, shades_of
from rankscope.show.figures._lines import lines
from rankscope.show.figures._theme import Look

_WORDS: Final[Mapping[str, str]] = {"layers": "depth in layers"}
_SPEAK_FOR_THEMSELVES: Final = ("variant", "model")  # and a variant has its own colour
_OVER: Final = "medians over seeds and samples"


@figure(
    "table",
    f"Lines are {_OVER}, bars (or bands) their 10th to 90th percentile.",
    "along an axis of a sweep",
    places=(),
)
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
    axes = _columns(table, x=x, color=color, facet=facet)
    by = list(dict.fromkeys(axes.values()))
    medians = tables.pooled(table, metric=metric, by=by, layer=layer, below=below, pool=pool)
    entry = _entry_of(metric, below)
    along, curves, panels = (
        AxisValues.of(medians, axes[name]) if name in axes else None
        for name in ("x", "color", "facet")
    )
    assert along is not None
    by_layer = along.name == "layer"
    width = theme.WIDE[0] if panels is None or len(panels.values) == 1 else theme.PANEL[0]
    # Numbers by size, words side by side.
    places = [float(value if along.numeric else at) for at, value in enumerate(along.values)]
    if by_layer:
        axis = layer_axis(list(along.values))
    elif along.numeric:
        axis = setting_axis(along.title, places, field="place")
    else:
        axis = word_axis(along.title, along.texts, width)
    # Axes have fields of our own, since theirs may have any name.
    rows = medians.select("metric", "count", "mean", "low", "median", "high").with_columns(
        medians["layer"] if by_layer else along.column(medians, places, "place"),
        along.column(medians, along.texts, "place_name"),
        *([curves.column(medians, curves.labels, "variant")] if curves else []),
        *([panels.column(medians, panels.labels, "panel")] if panels else []),
    )
    if panels:  # in the order of the axis
        rows = rows.sort(panels.column(medians, range(len(panels.values)), "order"))
    chart = lines(
        rows,
        x=axis,
        facet=("panel",) if panels else (),
        heading=(lambda row, _: str(row["panel"])) if panels else None,
        entry=entry,
        look=Look.of(curves.labels if curves else []),
        spread="band" if by_layer else "bar",
        one_scale=True,
        title=title,
    )
    return chart.properties(description=_alternative(medians, entry, by[:1], by[1:]))


@figure(
    "table",
    f"Shades are {_OVER}, on one scale for all panels.",
    "over two axes of a sweep",
    places=(),
)
@checked
def axis_map(
    table: pl.DataFrame | pl.LazyFrame,
    *,
    metric: str,
    x: str,
    y: str,
    facet: str | None = None,
    layer: tables.Layer | None = None,
    below: Finite | None = None,
    boundary: Finite | None = None,
    pool: Sequence[str] = tables.POOLED,
    title: str | None = None,
) -> alt.ConcatChart:
    """A heatmap of a metric over two axes of a sweep, with the contour at ``boundary``.

    >>> swept = pl.DataFrame({"run": ["a", "b"], "heads": [1, 2], "skip": [0.0, 1.0]})
    >>> swept = swept.with_columns(metric=pl.lit("rank"), value=pl.Series([1.0, 4.0]))
    >>> chart = axis_map(swept, metric="rank", x="heads", y="skip")

    ``x``, ``y`` and ``facet`` are columns of the table: axes of the sweep, or ``layer``; cells are
    evenly spaced and all panels have one scale. What the medians are taken of, ``layer``, ``below``
    and ``pool`` are as in ``tables.pooled``: with ``below`` shades say at which layer the metric
    falls below it, and a cell is grey where it does not.
    """
    axes = _columns(table, x=x, y=y, facet=facet)
    if axes["x"] == axes["y"]:
        raise InputError(f"a map has two different axes; got {axes['x']} twice.")
    by = list(axes.values())
    medians = tables.pooled(table, metric=metric, by=by, layer=layer, below=below, pool=pool)
    entry = _entry_of(metric, below)
    subtitle = entry.meaning or " " if below is None else "Grey = not within these layers"
    across, upwards = (AxisValues.of(medians, axes[name]) for name in ("x", "y"))
    panels = AxisValues.of(medians, axes["facet"]) if facet else None
    parts = {entry.title: medians}
    if panels is not None:
        parts = {
            label: medians.filter(pl.col(panels.name).eq_missing(pl.lit(value)))
            for label, value in zip(panels.labels, panels.values, strict=True)
        }
    chart = heatmap(
        [
            Cells(
                part.select(x=across.name, y=upwards.name, value="median"),
                across.side(),
                upwards.side(**theme.WORDS_AS_TITLE),
                alt.Title(heading, subtitle=subtitle),
            )
            for heading, part in parts.items()
        ],
        shades_of(entry.scale, medians["median"].to_list()),
        entry,
        size=theme.PANEL,
        value_title=f"median of {entry.title[:1].lower()}{entry.title[1:]}",
        bar=entry.title if facet else "median",
        gaps=False,
        boundary=boundary,
        title=title,
    )
    return chart.properties(description=_alternative(medians, entry, by[:2], by[2:]))


@dataclass(frozen=True)
class AxisValues:
    """The values of one axis that are drawn: numbers in order, words in the order of the grid.

    ``labels`` are their texts with the name of the axis, for legends and headings. If all are
    ``numeric``, the axis is to scale.
    """

    name: str
    title: str
    values: Sequence[Any]
    texts: Sequence[str]
    labels: Sequence[str]
    numeric: bool

    @classmethod
    def of(cls, rows: pl.DataFrame, name: str) -> "AxisValues":
        """The values in a column, in the order of an Enum or of appearance."""
        column, words = rows[name], name.replace("_", " ")
        distinct = column.unique(maintain_order=True)
        if column.dtype.is_numeric() or isinstance(column.dtype, pl.Enum):
            distinct = distinct.sort(nulls_last=True)
        values = distinct.to_list()
        numbers = [type(value) in (int, float) for value in values]
        written = {None: "none", True: "true", False: "false"}
        texts, labels = [], []
        for value, is_number in zip(values, numbers, strict=True):
            text = short(value) if is_number else written.get(value) or str(value)
            alone = name in _SPEAK_FOR_THEMSELVES and value is not None
            texts.append(text)
            labels.append(text if alone else f"{words} = {text}")
        numeric = all(numbers) and all(map(math.isfinite, values))
        return cls(name, _WORDS.get(name, words), values, texts, labels, numeric)

    def column(self, rows: pl.DataFrame, words: Sequence[Any], name: str) -> pl.Series:
        """A new column with the text of ``words`` for each value."""
        said = dict(zip(self.values, words, strict=True))
        return pl.Series(name, [said[value] for value in rows[self.name].to_list()])

    def side(self, **look: Any) -> MapSide:
        """Their side of a map."""
        return MapSide.of_words(self.title, self.values, self.texts, most=12, look=look)


def _columns(table: pl.DataFrame | pl.LazyFrame, **axes: str | None) -> dict[str, str]:
    """The columns of the given axes."""
    columns = table.collect_schema().names()
    return {key: tables.axis_name(name, columns) for key, name in axes.items() if name}


def _entry_of(metric: str, below: float | None) -> Metric:
    """The catalogue entry of a metric, or of the layer at which it falls below a threshold."""
    entry = metric_catalogue.metric(metric)
    if below is None:
        return entry
    power = "10^" if entry.scale == "exponent" else ""
    title = f"First layer with {entry.title[:1].lower()}{entry.title[1:]} below {power}{below:g}"
    return replace(metric_catalogue.metric(tables.COLLAPSE_LAYER), title=title)


def _alternative(
    medians: pl.DataFrame, entry: Metric, places: Sequence[str], labels: Sequence[str]
) -> str:
    """The alternative text of the chart."""
    columns = []
    for name in (*places, *labels):
        axis = AxisValues.of(medians, name)
        if axis.numeric and name in places:
            continue
        texts = axis.texts if name in places else axis.labels
        kind = pl.Enum(list(dict.fromkeys(texts)))
        columns.append(axis.column(medians, texts, name).cast(kind))
    rows = medians.rename({"median": "value"}).with_columns(*columns, metric=pl.lit(entry.name))
    against = " and ".join(name.replace("_", " ") for name in places)
    said = describe(rows, [entry.name], places, labels=labels, entry=entry)
    return " ".join([f"{entry.title} by {against}.", *said])
