"""Which figures there are, and how a drawing of a result becomes one of them.

To add a figure, write its function in a file of its own and one entry in ``FIGURES``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final, Literal

import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.numerals import sentence_case
from rankscope.results import Drawing, Result
from rankscope.show.figures._axis_lines import by_axis
from rankscope.show.figures._axis_map import axis_map
from rankscope.show.figures._descriptions import describe
from rankscope.show.figures._distributions import length_distributions
from rankscope.show.figures._heads import head_map
from rankscope.show.figures._layer_map import layer_map
from rankscope.show.figures._layers import by_depth, by_layer, by_model
from rankscope.show.figures._lengths import by_length
from rankscope.show.figures._phases import phase_map
from rankscope.show.figures._steps import steps
from rankscope.show.figures._sweeps import by_setting
from rankscope.show.figures._theme import Figure
from rankscope.show.figures._token_map import token_map
from rankscope.show.figures._trajectories import trajectories

_MOST_NAMED: Final = 4  # metrics in a heading
_MEDIANS: Final = "Lines are medians over the samples, {} their 10th to 90th percentile."


@checked
@dataclass(frozen=True)
class FigureKind:
    """One figure: its function, what of a result it draws, and its words.

    ``reading`` says in a sentence how to read it, ``against`` ends a heading: "against depth".
    ``metric`` is what it draws unless it is told otherwise, if it does. ``places`` are the columns
    along which it lays values out: one for curves, several for maps, none if its options say, and
    then the chart tells itself what it shows.
    """

    function: Callable[..., Figure]
    draws: Literal["summary", "table"]
    reading: str
    against: str
    metric: str = ""
    places: tuple[str, ...] = ("layer",)

    @property
    def name(self) -> str:
        """Under which drawings ask for it: the name of its function."""
        return self.function.__name__

    @property
    def options(self) -> tuple[str, ...]:
        """The keywords its function takes."""
        return tuple(signature(self.function).parameters)[1:]


FIGURES: Final[dict[str, FigureKind]] = {
    kind.name: kind
    for kind in (
        FigureKind(by_depth, "summary", _MEDIANS.format("bands"), "against depth"),
        FigureKind(
            by_setting,
            "summary",
            _MEDIANS.format("bars"),
            "against what was varied",
            places=("setting",),
        ),
        FigureKind(by_layer, "summary", _MEDIANS.format("bands"), "layer by layer"),
        FigureKind(by_model, "summary", _MEDIANS.format("bands"), "layer by layer"),
        FigureKind(
            by_length,
            "summary",
            "Points are medians over the samples, bars their 10th to 90th percentile; paths of one "
            "length are added up before they are measured.",
            "by path length",
            "residual_share",
            ("length",),
        ),
        FigureKind(
            head_map,
            "table",
            "Each cell is the median over the samples.",
            "by head",
            "residual_share",
            ("layer", "head"),
        ),
        FigureKind(
            steps,
            "summary",
            "Bars are medians over the samples, whiskers their 10th to 90th percentile; below zero "
            "tokens become more alike, and the bars of all layers add up to the whole way.",
            "by layer and part",
        ),
        FigureKind(
            layer_map,
            "summary",
            "Each cell is the median over the samples.",
            "by layer",
            places=("layer", "index", "token", "length"),
        ),
        FigureKind(
            token_map,
            "table",
            "Tokens of one sample against each other, in a panel for each of some layers.",
            "in some layers",
            places=("layer", "token", "other_token"),
        ),
        FigureKind(
            phase_map,
            "summary",
            "Shades are medians over the samples, on one scale for all panels.",
            "by depth and what was varied",
            places=("layer", "setting"),
        ),
        FigureKind(
            length_distributions,
            "table",
            "Which part of all paths has which length, exactly counted.",
            "by length",
            "proportion",
            ("length",),
        ),
        FigureKind(
            trajectories,
            "table",
            "Each point is one step further than the one before; rings are where they start, and "
            "the light line behind is where they should go.",
            "steps in the plane",
        ),
        FigureKind(
            by_axis,
            "table",
            "Lines are medians over seeds and samples, bars (or bands) their 10th to 90th "
            "percentile.",
            "along an axis of a sweep",
            places=(),
        ),
        FigureKind(
            axis_map,
            "table",
            "Shades are medians over seeds and samples, on one scale for all panels.",
            "over two axes of a sweep",
            places=(),
        ),
    )
}


@checked
def draw(drawing: Drawing, result: Result) -> Figure:
    """The chart a drawing of a result asks for.

    >>> from rankscope import tables
    >>> table = tables.frame({"layer": [0, 1], "metric": ["rank"] * 2, "value": [4.0, 2.0]})
    >>> result = Result("r", "Rank", "Does it fall?", (), table, {})
    >>> chart = draw(Drawing("by_depth", metric="rank"), result)
    """
    kind = _kind_of(drawing)
    rows = _keep(result.table if kind.draws == "table" else result.summary, drawing)
    with metric_catalogue.knowing(result.metrics):
        return kind.function(rows, **_keywords(drawing, kind))


@checked
def metrics_of(drawing: Drawing, result: Result) -> list[str]:
    """The metrics a drawing of a result shows.

    >>> from rankscope import tables
    >>> table = tables.frame({"layer": [0, 1], "metric": ["rank"] * 2, "value": [4.0, 2.0]})
    >>> metrics_of(Drawing("by_layer"), Result("r", "Rank", "Does it fall?", (), table, {}))
    ['rank']
    """
    kind = _kind_of(drawing)
    asked = drawing.options.get("metrics") or drawing.metric or kind.metric
    if asked:
        return [asked] if isinstance(asked, str) else list(asked)
    return _keep(result.summary, drawing)["metric"].unique(maintain_order=True).to_list()


@checked
def description(drawing: Drawing, result: Result) -> str:
    """What a chart shows, for who cannot see it: of each curve its ends and its extremes.

    >>> from rankscope import tables
    >>> table = tables.frame({"layer": [0, 1], "metric": ["rank"] * 2, "value": [4.0, 2.0]})
    >>> result = Result("r", "Rank", "Does it fall?", (), table, {})
    >>> description(Drawing("by_depth", metric="rank"), result)
    'Rank against depth. Rank: 4 at layer 0, 2 at layer 1.'
    """
    kind = _kind_of(drawing)
    if not kind.places:
        return str(draw(drawing, result).description)
    rows = _keep(result.table, drawing)
    with metric_catalogue.knowing(result.metrics):
        said = describe(rows, metrics_of(drawing, result), kind.places)
        return " ".join([f"{heading(drawing)}.", *said])


@checked
def heading(drawing: Drawing) -> str:
    """What a chart is about.

    >>> heading(Drawing("by_depth", metric="log10_slack"))
    'Slack against depth'
    """
    kind = _kind_of(drawing)
    if drawing.title:
        return drawing.title
    asked = drawing.options.get("metrics") or drawing.metric or kind.metric
    names = [asked] if isinstance(asked, str) else list(asked)
    titles = [metric_catalogue.metric(name).title for name in names if name]
    if not titles or len(titles) > _MOST_NAMED:
        return sentence_case(kind.against)
    first, *others = titles
    lower = [f"{title[:1].lower()}{title[1:]}" for title in others]
    listed = " and ".join(filter(None, [", ".join([first, *lower[:-1]]), *lower[-1:]]))
    return f"{listed} {kind.against}"


@checked
def headings(drawings: Sequence[Drawing]) -> list[str]:
    """A heading for each drawing; those that would be alike say which rows they keep."""
    plain = [heading(drawing) for drawing in drawings]
    named = []
    for text, drawing in zip(plain, drawings, strict=True):
        alike = [each for other, each in zip(plain, drawings, strict=True) if other == text]
        kept = [
            ", ".join(labels)
            for column, labels in drawing.only.items()
            if len({each.only.get(column) for each in alike}) > 1
        ]
        named.append(f"{text}: {', '.join(kept)}" if kept else text)
    return named


@checked
def reading(drawing: Drawing) -> str:
    """How to read a chart, in a sentence."""
    return _kind_of(drawing).reading


def _kind_of(drawing: Drawing) -> FigureKind:
    if drawing.figure not in FIGURES:
        raise InputError(
            f"a drawing asks for the figure {drawing.figure!r}; choose one of {', '.join(FIGURES)}."
        )
    return FIGURES[drawing.figure]


def _keep(rows: pl.DataFrame, drawing: Drawing) -> pl.DataFrame:
    """The rows a drawing is about."""
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


def _keywords(drawing: Drawing, kind: FigureKind) -> Mapping[str, Any]:
    """What a figure's function is given; what it could not use is refused."""
    given = dict(drawing.options)
    if drawing.metric and drawing.metric != kind.metric:
        if "metrics" in kind.options:
            given["metrics"] = [drawing.metric]
        elif "metric" in kind.options:
            given["metric"] = drawing.metric
        else:
            raise InputError(
                f"{kind.name} draws {kind.metric} alone; a drawing asks it for {drawing.metric}."
            )
    if drawing.roles:
        given["roles"] = drawing.roles
    unknown = [name for name in given if name not in kind.options]
    if unknown:
        raise InputError(f"{kind.name} takes no {unknown[0]}; it takes {', '.join(kind.options)}.")
    return given
