"""A study as a page: its question, what was found, its charts and their figures."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import polars as pl

from rankscope import figures
from rankscope.errors import InputError
from rankscope.figures import metric_words
from rankscope.report.diagnosis import plain
from rankscope.report.page import Report, Section
from rankscope.report.terminal import Grid, grids

_FEW: Final = 5  # places a table has columns for

_MEDIANS = "Lines are medians over the samples, {} their 10th to 90th percentile."
_MEANS = "Lines are means over the samples, bands their 10th to 90th percentile."
_READING: Final[Mapping[str, str]] = {
    "by_depth": _MEDIANS.format("bands"),
    "by_setting": _MEDIANS.format("bars"),
    "by_layer": _MEANS,
    "by_model": _MEANS,
    "length_distributions": "Which part of all paths has which length, exactly counted.",
}
_AGAINST: Final[Mapping[str, str]] = {
    "by_depth": "against depth",
    "by_setting": "against what was varied",
    "by_layer": "layer by layer",
    "by_model": "layer by layer",
    "length_distributions": "by length",
}


class Sketched(Protocol):
    """What a drawing must have to be drawn."""

    @property
    def figure(self) -> str: ...
    @property
    def caption(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def only(self) -> Mapping[str, tuple[str, ...]]: ...


class Answered(Protocol):
    """What a study must have to be shown."""

    @property
    def title(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def sentences(self) -> Sequence[str]: ...
    @property
    def table(self) -> pl.DataFrame: ...
    @property
    def summary(self) -> pl.DataFrame: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...
    @property
    def drawings(self) -> Sequence[Sketched]: ...
    @property
    def shown(self) -> Sequence[str]: ...


def study_page(study: Answered) -> Report:
    """The page for a study, drawn from its summary; nothing is computed here."""
    drawn = [
        Section(heading, f"{drawing.caption}\n\n{_READING[drawing.figure]}", chart)
        for heading, drawing, chart in zip(
            _headings(study.drawings), study.drawings, study_charts(study), strict=True
        )
    ]
    return Report(
        title=study.title,
        lead=study.question,
        sections=[
            Section("What was found", "\n\n".join(study.sentences)),
            *drawn,
            *_tables(study),
        ],
        provenance={key: plain(value) for key, value in study.provenance.items()},
    )


def study_charts(study: Answered) -> list[figures.Figure]:
    """The charts a study asks for, in its order."""
    return [_chart(study, drawing) for drawing in study.drawings]


def shown_metrics(study: Answered) -> list[str]:
    """The metrics a study wants to be told in figures: its own choice, or all there are."""
    return list(study.shown or study.summary["metric"].unique(maintain_order=True).to_list())


def _chart(study: Answered, drawing: Sketched) -> figures.Figure:
    metric, options = drawing.metric, drawing.options
    rows = _kept(study.summary, drawing)
    own = rows.filter(pl.col("metric") == metric)  # the others need not have layers
    match drawing.figure:
        case "by_depth":
            return figures.by_depth(rows, metric=metric, **options)
        case "by_setting":
            return figures.by_setting(rows, metric=metric, **options)
        case "by_layer":
            return figures.by_layer(own, metrics=[metric], **options)
        case "by_model":
            return figures.by_model(own, metric=metric, **options)
        case "length_distributions":
            return figures.length_distributions(_kept(study.table, drawing), **options)
    raise InputError(
        f"a drawing asks for the figure {drawing.figure!r}; choose one of {', '.join(_READING)}."
    )


def _kept(rows: pl.DataFrame, drawing: Sketched) -> pl.DataFrame:
    """The rows a drawing is about."""
    for column, wanted in drawing.only.items():
        if column not in rows.columns:
            raise InputError(
                f"a drawing of {drawing.metric} keeps some of {column!r}; the table has "
                f"{', '.join(rows.columns)}."
            )
        rows = rows.filter(pl.col(column).cast(pl.String).is_in(wanted))
    return rows


def _headings(drawings: Sequence[Sketched]) -> list[str]:
    """A heading for each drawing; those of one metric are told apart by the rows they keep."""
    plainly = [f"{metric_words(d.metric).title} {_AGAINST[d.figure]}" for d in drawings]
    return [
        f"{heading}: {', '.join(label for kept in drawing.only.values() for label in kept)}"
        if plainly.count(heading) > 1 and drawing.only
        else heading
        for heading, drawing in zip(plainly, drawings, strict=True)
    ]


def _tables(study: Answered) -> list[Section]:
    """Each metric in short: a row for each curve, a column for each of a few places."""
    sections = []
    for metric in shown_metrics(study):
        for grid in grids(study.summary, metric, apart=("parameter",), most=_FEW):
            heading = f"{metric_words(metric).title} by {grid.place}, in figures"
            sections.append(Section(heading, "Medians over the samples.", None, _across(grid)))
    return sections


def _across(grid: Grid) -> pl.DataFrame:
    """A grid with its curves below each other."""
    columns: dict[str, list[str]] = {"curve": list(grid.curves)}
    for place in grid.places:
        name = "value" if place is None else f"{grid.place} {place:g}"
        columns[name] = [grid.cells.get((place, curve), "–") for curve in grid.curves]
    return pl.DataFrame(columns)
