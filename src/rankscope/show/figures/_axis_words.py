"""What figures over a sweep's axes are called, how they are divided, and what they say in words."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from rankscope import metric_catalogue, tables
from rankscope.metric_catalogue import Metric
from rankscope.show.figures._axis_values import AxisValues
from rankscope.show.figures._descriptions import describe


def entry_of(metric: str, below: float | None) -> Metric:
    """The words of a metric, or of the layer at which it falls below a threshold."""
    entry = metric_catalogue.metric(metric)
    if below is None:
        return entry
    named = f"{entry.title[:1].lower()}{entry.title[1:]}"
    power = "10^" if entry.scale == "exponent" else ""
    title = f"First layer with {named} below {power}{below:g}"
    return replace(metric_catalogue.metric(tables.COLLAPSE_LAYER), title=title)


def split(medians: pl.DataFrame, facet: str | None) -> dict[str, pl.DataFrame]:
    """The rows of each panel, by its heading; one without a heading if there are no facets."""
    if facet is None:
        return {"": medians}
    values = AxisValues.of(medians, facet)
    return {
        values.label(value): medians.filter(pl.col(facet).eq_missing(pl.lit(value)))
        for value in values.values
    }


def alternative(
    medians: pl.DataFrame, entry: Metric, places: Sequence[str], labels: Sequence[str]
) -> str:
    """What the chart shows, for who cannot see it."""
    against = " and ".join(name.replace("_", " ") for name in places)
    rows = medians.rename({"median": "value"}).with_columns(
        *[_in_words(medians, name, named=False) for name in places],
        *[_in_words(medians, name, named=True) for name in labels],
        metric=pl.lit(entry.name),
    )
    said = describe(rows, [entry.name], places, labels=labels, entry=entry)
    return " ".join([f"{entry.title} by {against}.", *said])


def _in_words(medians: pl.DataFrame, name: str, *, named: bool) -> pl.Series:
    """A column as it is told: numbers as they are, words in their order, ``named`` by the axis."""
    axis = AxisValues.of(medians, name)
    if axis.numeric and not named:
        return medians[name]
    texts = [axis.label(value) for value in axis.values] if named else axis.texts
    told = [texts[axis.index[value]] for value in medians[name].to_list()]
    return pl.Series(name, told, dtype=pl.Enum(list(dict.fromkeys(texts))))
