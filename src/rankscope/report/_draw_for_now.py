"""What the room of figures is about to offer, from what it has; goes when that has come."""

from collections.abc import Sequence

import polars as pl

from rankscope import figures
from rankscope.errors import InputError
from rankscope.figures import metric_words
from rankscope.results import Drawing, Result

metric = metric_words
power_of_ten = figures.power_text
save = figures.save

_MEDIANS = "Lines are medians over the samples, {} their 10th to 90th percentile."
_MEANS = "Lines are means over the samples, bands their 10th to 90th percentile."
_READING = {
    "by_depth": _MEDIANS.format("bands"),
    "by_setting": _MEDIANS.format("bars"),
    "by_layer": _MEANS,
    "by_model": _MEANS,
    "by_length": "Means over the samples.",
    "head_map": "Means over the samples.",
    "length_distributions": "Which part of all paths has which length, exactly counted.",
}
_AGAINST = {
    "by_depth": "against depth",
    "by_setting": "against what was varied",
    "by_layer": "layer by layer",
    "by_model": "layer by layer",
    "by_length": "by length",
    "head_map": "by head",
    "length_distributions": "by length",
}


def short(value: float) -> str:
    """Two or three significant digits, in powers of ten where that is easier to read."""
    if value == 0 or 5e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    return f"{value:.1e}"


def draw(drawing: Drawing, result: Result) -> figures.Figure:
    """The chart a drawing asks for."""
    metric, options = drawing.metric, drawing.options
    rows = _kept(result.summary, drawing)
    own = rows.filter(pl.col("metric") == metric)
    match drawing.figure:
        case "by_depth":
            return figures.by_depth(rows, metric=metric, **options)
        case "by_setting":
            return figures.by_setting(rows, metric=metric, **options)
        case "by_layer":
            if metric:
                return figures.by_layer(own, metrics=[metric], **options)
            return figures.by_layer(rows, **options)
        case "by_model":
            return figures.by_model(own, metric=metric, **options)
        case "by_length":
            return figures.by_length(rows, **options)
        case "head_map":
            return figures.head_map(_kept(result.table, drawing), **options)
        case "length_distributions":
            return figures.length_distributions(_kept(result.table, drawing), **options)
    raise InputError(f"a drawing asks for the figure {drawing.figure!r}.")


def headings(drawings: Sequence[Drawing]) -> list[str]:
    """A heading for each drawing."""
    plainly = [
        f"{metric(d.metric).title if d.metric else 'Everything'} {_AGAINST[d.figure]}"
        for d in drawings
    ]
    return [
        f"{heading}: {', '.join(label for kept in drawing.only.values() for label in kept)}"
        if plainly.count(heading) > 1 and drawing.only
        else heading
        for heading, drawing in zip(plainly, drawings, strict=True)
    ]


def reading(drawing: Drawing) -> str:
    """How to read a drawing."""
    return _READING[drawing.figure]


def _kept(rows: pl.DataFrame, drawing: Drawing) -> pl.DataFrame:
    for column, wanted in drawing.only.items():
        rows = rows.filter(pl.col(column).cast(pl.String).is_in(wanted))
    return rows
