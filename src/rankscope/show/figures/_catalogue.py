"""The catalogue of figures, and how a ``Drawing`` of a result becomes a chart with texts.

To add a figure, write a function below ``@figure`` that draws with ``lines`` or ``heatmap``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final, Literal, TypeVar

import polars as pl
from altair.utils.schemapi import debug_mode

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.numerals import power_of_ten, sentence_case, short
from rankscope.results import Drawing, Result
from rankscope.show.figures._theme import Figure

Drawer = TypeVar("Drawer", bound=Callable[..., Figure])

_MOST_NAMED: Final = 4  # metrics in a heading
_MOST_TOLD: Final = 8  # curves that a description tells one by one
_LABELS: Final = ("model", "parameter", "variant")
_WORDS: Final = {"length": "path length", "index": "singular value", "other_token": "token"}


@checked
@dataclass(frozen=True)
class FigureKind:
    """One figure: its function, the part of a result it draws, and its texts.

    >>> from rankscope import figures
    >>> figures.FIGURES["by_layer"].against, figures.FIGURES["by_layer"].draws
    ('layer by layer', 'summary')

    ``reading`` is a sentence on how to read it, ``against`` ends a heading: "against depth".
    ``metric`` is its default metric, if any. ``places`` are the columns of its axes: one for
    curves, several for maps, none if its options define them; then the chart has its own
    description.
    """

    function: Callable[..., Figure]
    draws: Literal["summary", "table"]
    reading: str
    against: str
    metric: str = ""
    places: tuple[str, ...] = ("layer",)

    @property
    def name(self) -> str:
        """The name of the figure in drawings: that of its function."""
        return self.function.__name__

    @property
    def options(self) -> tuple[str, ...]:
        """The keyword arguments of its function."""
        return tuple(signature(self.function).parameters)[1:]


FIGURES: Final[dict[str, FigureKind]] = {}  # every one by its name


def figure(
    draws: Literal["summary", "table"], reading: str, against: str, **more: Any
) -> Callable[[Drawer], Drawer]:
    """Register a drawing function in ``FIGURES``, with the fields of its ``FigureKind``."""

    def register(function: Drawer) -> Drawer:
        kind = FigureKind(function, draws, reading, against, **more)
        FIGURES[kind.name] = kind
        return function

    return register


@checked
def draw(drawing: Drawing, result: Result) -> Figure:
    """The chart of a drawing of a result.

    >>> from rankscope import tables
    >>> table = tables.frame({"layer": [0, 1], "metric": ["rank"] * 2, "value": [4.0, 2.0]})
    >>> result = Result("r", "Rank", "Does it fall?", (), table, {})
    >>> chart = draw(Drawing("by_depth", metric="rank"), result)
    """
    kind = _kind_of(drawing)
    rows = _keep(result.table if kind.draws == "table" else result.summary, drawing)
    options = dict(drawing.options)
    if drawing.metric and drawing.metric != kind.metric:
        if "metrics" in kind.options:
            options["metrics"] = [drawing.metric]
        elif "metric" in kind.options:
            options["metric"] = drawing.metric
        else:
            raise InputError(f"{kind.name} draws only {kind.metric}, not {drawing.metric}.")
    if drawing.roles:
        options["roles"] = drawing.roles
    unknown = [name for name in options if name not in kind.options]
    if unknown:
        raise InputError(f"{kind.name} takes no {unknown[0]}; it takes {', '.join(kind.options)}.")
    # Altair would check every value against its schema, in each object that holds it.
    with metric_catalogue.knowing(result.metrics), debug_mode(False):
        return kind.function(rows, **options)


@checked
def metrics_of(drawing: Drawing, result: Result) -> list[str]:
    """The metrics a drawing of a result shows.

    >>> from rankscope import tables
    >>> table = tables.frame({"layer": [0, 1], "metric": ["rank"] * 2, "value": [4.0, 2.0]})
    >>> metrics_of(Drawing("by_layer"), Result("r", "Rank", "Does it fall?", (), table, {}))
    ['rank']
    """
    shown = _asked(drawing)
    return shown or _keep(result.summary, drawing)["metric"].unique(maintain_order=True).to_list()


@checked
def description(drawing: Drawing, result: Result, chart: Figure | None = None) -> str:
    """The alternative text of a chart: the ends and extremes of each curve.

    >>> from rankscope import tables
    >>> table = tables.frame({"layer": [0, 1], "metric": ["rank"] * 2, "value": [4.0, 2.0]})
    >>> result = Result("r", "Rank", "Does it fall?", (), table, {})
    >>> description(Drawing("by_depth", metric="rank"), result)
    'Rank against depth. Rank: 4 at layer 0, 2 at layer 1.'

    ``chart`` is what ``draw`` returned; some figures are drawn for their text if it is not given.
    """
    kind = _kind_of(drawing)
    if not kind.places:
        return str((draw(drawing, result) if chart is None else chart).description)
    rows = _keep(result.table, drawing)
    with metric_catalogue.knowing(result.metrics):
        said = describe(rows, metrics_of(drawing, result), kind.places)
        return " ".join([f"{heading(drawing)}.", *said])


@checked
def heading(drawing: Drawing) -> str:
    """The heading of a chart.

    >>> heading(Drawing("by_depth", metric="log10_slack"))
    'Slack against depth'
    """
    kind = _kind_of(drawing)
    if drawing.title:
        return drawing.title
    titles = [metric_catalogue.metric(name).title for name in _asked(drawing)]
    if not titles or len(titles) > _MOST_NAMED:
        return sentence_case(kind.against)
    first, *others = titles
    lower = [f"{title[:1].lower()}{title[1:]}" for title in others]
    listed = " and ".join(filter(None, [", ".join([first, *lower[:-1]]), *lower[-1:]]))
    return f"{listed} {kind.against}"


@checked
def headings(drawings: Sequence[Drawing]) -> list[str]:
    """A heading for each drawing; equal headings also name the rows shown."""
    plain = [heading(drawing) for drawing in drawings]
    named = []
    for text, drawing in zip(plain, drawings, strict=True):
        alike = [same for other, same in zip(plain, drawings, strict=True) if other == text]
        labels_kept = [
            ", ".join(labels)
            for column, labels in drawing.only.items()
            if len({same.only.get(column) for same in alike}) > 1
        ]
        named.append(f"{text}: {', '.join(labels_kept)}" if labels_kept else text)
    return named


@checked
def reading(drawing: Drawing) -> str:
    """How to read a chart, in a sentence."""
    return _kind_of(drawing).reading


def _kind_of(drawing: Drawing) -> FigureKind:
    if drawing.figure not in FIGURES:
        raise InputError(
            f"figure {drawing.figure!r} is unknown; choose one of {', '.join(FIGURES)}."
        )
    return FIGURES[drawing.figure]


def _asked(drawing: Drawing) -> list[str]:
    """The metrics named by a drawing or by its figure; none if it draws all."""
    asked = drawing.options.get("metrics") or drawing.metric or _kind_of(drawing).metric
    return [asked] if isinstance(asked, str) and asked else list(asked)


def _keep(rows: pl.DataFrame, drawing: Drawing) -> pl.DataFrame:
    """The rows that a drawing shows."""
    for column, wanted in drawing.only.items():
        if column not in rows.columns:
            raise InputError(
                f"a drawing of {drawing.metric} keeps some of {column!r}; the table has "
                f"{', '.join(rows.columns)}."
            )
        labels = rows[column].cast(pl.String)
        if not labels.is_in(wanted).any():
            present = ", ".join(labels.unique(maintain_order=True).drop_nulls().to_list())
            raise InputError(
                f"a drawing of {drawing.metric} keeps the {column} {', '.join(wanted)}; the table "
                f"has {present}."
            )
        rows = rows.filter(labels.is_in(wanted))
    return rows


def describe(
    rows: pl.DataFrame,
    metrics: Sequence[str],
    places: Sequence[str],
    *,
    labels: Sequence[str] = _LABELS,
    entry: Metric | None = None,
) -> list[str]:
    """A sentence for each curve or map: its ends, its minimum and its maximum.

    ``labels`` are the columns that distinguish curves; ``entry`` replaces texts of the catalogue.
    """
    values = {name: rows[name].drop_nulls() for name in (*labels, *places) if name in rows.columns}
    labels = [name for name in labels if name in values and values[name].n_unique() > 1]
    sentences = []
    for name in metrics:
        words = entry or metric_catalogue.metric(name)
        data = rows.filter(pl.col("metric") == name)
        # Of the places beyond the first, a map has those that its metric has.
        present = [p for p in places[:1] if p in values]
        present += [p for p in places[1:] if p in values and data[p].null_count() < data.height]
        data = data.drop_nulls([*present, "value"])
        if places == ("length",) and "layer" in data.columns and data["layer"].drop_nulls().len():
            data = data.filter(pl.col("layer") == pl.col("layer").max())
        by = data.group_by([*labels, *present], maintain_order=True)
        medians = by.agg(pl.col("value").median())
        split = medians.partition_by(labels, maintain_order=True) if labels else [medians]
        sentences += [_sentence(words, part, labels, present) for part in split if part.height]
    left = len(sentences) - _MOST_TOLD
    more = [f"{left} more curves are in the table's file."] if left > 0 else []
    return [*sentences[:_MOST_TOLD], *more]


def _sentence(
    entry: Metric, part: pl.DataFrame, labels: Sequence[str], places: Sequence[str]
) -> str:
    """A curve from its first to its last position, or the minimum and maximum of a map."""
    first = part.row(0, named=True)
    whose = ", ".join([entry.title, *(str(first[name]) for name in labels if first[name])])
    known = part.filter(pl.col("value").is_not_nan()).sort("value")
    if not known.height:
        return f"{whose}: not known."

    def at(row: dict[str, Any]) -> str:
        value = row["value"]
        number = power_of_ten(value, digits=3) if entry.scale == "exponent" else short(value)
        where = [
            f"{_WORDS.get(column, column)} "
            f"{short(row[column]) if isinstance(row[column], int | float) else row[column]}"
            for column in places
        ]
        return f"{number} at {', '.join(where)}" if where else number

    least, most = known.row(0, named=True), known.row(-1, named=True)
    if len(places) > 1:
        return f"{whose}: from {at(least)} to {at(most)}."
    ordered = part.sort(places).to_dicts()
    ends = [ordered[0], *ordered[1:][-1:]]
    values = {end["value"] for end in ends}
    texts = [at(end) for end in ends]
    texts += [f"lowest {at(least)}"] * (least["value"] not in values)
    texts += [f"highest {at(most)}"] * (most["value"] not in values)
    return f"{whose}: {', '.join(texts)}."
