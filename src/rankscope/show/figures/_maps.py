"""Figures that are maps of shades: of heads, of what every layer has many of, of two tokens, of
settings."""

import math
from collections.abc import Sequence
from typing import Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue, tables
from rankscope.arguments import Finite, checked
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric, Scale
from rankscope.numerals import sentence_case, short
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import Tick, Vertical
from rankscope.show.figures._catalogue import figure
from rankscope.show.figures._curves import parameter_of
from rankscope.show.figures._heatmap import Cells, MapSide, Shades, heatmap, shades_of
from rankscope.show.figures._rows import VALUE, labels_in, select

_ONE: Final = ("part", "run", "model", "variant")
_CELLS: Final = "Each cell is the median over the samples."
_LARGEST_CELL: Final = 26.0  # how high a layer of a map of heads is
_HIGHEST: Final = 520.0


@figure("table", _CELLS, "by head", metric="residual_share", places=("layer", "head"))
@checked
def head_map(
    table: pl.DataFrame, *, metric: str = "residual_share", title: str | None = None
) -> alt.ConcatChart:
    """A figure of each head, layers against heads: which share of the residual flows through it.

    >>> from rankscope import tables
    >>> shares = {"layer": [1, 1], "head": [0, 1], "value": [0.4, 0.9]}
    >>> chart = head_map(tables.frame({**shares, "metric": ["residual_share"] * 2}))

    Medians over the samples are drawn, of any ``metric``. Rows without a head, or of a single path
    length, are about something else and left out.
    """
    tables.check_kinds(table)
    about = pl.col("head").is_not_null() if "head" in table.columns else pl.lit(True)
    if "length" in table.columns:
        about &= pl.col("length").is_null()
    known = "metric" in table.columns and metric in table["metric"]
    if known and not table.filter(about, pl.col("metric") == metric).height:
        raise InputError(f"there is nothing to draw: rows of {metric!r} have no head.")
    needed = ("layer", "head")
    of_heads = table.filter(about)
    rows = select(of_heads, [metric], drawer="head_map", needed=needed, numbers=VALUE, single=_ONE)
    # Under another name, or heads would be pooled with the samples.
    medians = tables.summary(rows.rename({"head": "number"}))
    layers, heads = (
        range(min(values), max(values) + 1)
        for values in (medians["layer"].to_list(), medians["number"].to_list())
    )
    entry, width = metric_catalogue.metric(metric), theme.WIDE[0]
    height = min(_LARGEST_CELL * len(layers), _HIGHEST)
    cells = Cells(
        medians.select("count", x="number", y="layer", value="median"),
        MapSide.of_numbers("head", heads, most=round(width / 24)),
        MapSide.of_numbers(
            "layer", layers, most=max(1, round(height / 14)), down=True, look=theme.WORDS_AS_TITLE
        ),
        alt.Title(f"{entry.title} by head", subtitle=entry.meaning or " "),
    )
    # In proportion: what most heads hardly do is not what one looks for.
    scale: Scale = "exponent" if entry.scale == "exponent" else "linear"
    return heatmap(
        [cells],
        shades_of(scale, medians["median"].to_list()),
        entry,
        size=(width, height),
        tooltip=[
            alt.Tooltip("exact:N", title="median"),
            alt.Tooltip("count:Q", title="measurements", format=",d"),
        ],
        bar="median",
        title=title,
    )


# Columns and rows of cells that are drawn; of more, evenly spaced ones.
_MOST_LAYERS, _MOST_PLACES = 96, 64
_COUNTED: Final = {"index": "singular value", "length": "path length"}


@figure("summary", _CELLS, "by layer", places=("layer", "index", "token", "length"))
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
    rows = select(
        summary,
        [metric],
        drawer="layer_map",
        needed=("layer", along),
        single=(*_ONE, "setting"),
        keys=("layer", along),
    )
    layers, places = sorted(set(rows["layer"].to_list())), sorted(set(rows[along].to_list()))
    layers = layers[:: math.ceil(len(layers) / _MOST_LAYERS)]
    places = places[:: math.ceil(len(places) / _MOST_PLACES)]
    entry = metric_catalogue.metric(metric)
    drawn = rows.filter(pl.col("layer").is_in(layers), pl.col(along).is_in(places))
    cells = Cells(
        drawn.select(x="layer", y=along, value="median"),
        MapSide.of_numbers("layer", layers, most=16),
        MapSide.of_numbers(
            _COUNTED.get(along, along), places, most=16, down=True, look=theme.WORDS_AS_TITLE
        ),
        alt.Title(entry.title, subtitle=entry.meaning or " "),
    )
    shades = shades_of(entry.scale, drawn["median"].to_list())
    return heatmap([cells], shades, entry, size=theme.WIDE, bar="median", title=title)


_SIDE: Final = 224.0
_LABELS: Final = 66.0  # what the words beside a panel take
_MOST_CELLS: Final = 6200  # in all panels together; of more tokens, evenly spaced ones are drawn
_BELOW: Final = 96.0  # from a plot down to the bar, past words that stand upright
_MOST_TOKENS: Final = 100_000
_CLEARLY_NEGATIVE: Final = -0.1


@figure(
    "table",
    "Tokens of one sample against each other, in a panel for each of some layers.",
    "in some layers",
    places=("layer", "token", "other_token"),
)
@checked
def token_map(
    table: pl.DataFrame,
    *,
    metric: str,
    labels: Sequence[str] | None = None,
    title: str | None = None,
) -> alt.ConcatChart:
    """Pairwise similarity of the tokens of one sample: a panel per layer, colours up to 1.

    >>> from rankscope import tables
    >>> table = {"layer": [0] * 4, "token": [0, 0, 1, 1], "other_token": [0, 1, 0, 1]}
    >>> table = tables.frame({**table, "metric": ["cosine"] * 4, "value": [1.0, 0.2, 0.2, 1.0]})
    >>> chart = token_map(table, metric="cosine", labels=["the", "cat"])

    ``token`` and ``other_token`` are the positions of the two. ``labels`` are the tokens
    themselves, as many as there are; without them they are numbered.
    """
    places = ("layer", "token", "other_token")
    rows = select(
        table,
        [metric],
        drawer="token_map",
        needed=places,
        numbers=VALUE,
        single=(*_ONE, "sample"),
        keys=places,
    )
    layers = sorted(set(rows["layer"].to_list()))
    count = 1 + max(max(rows[name].to_list()) for name in places[1:])
    if count > _MOST_TOKENS:
        raise InputError(f"there are {count:,} tokens; a map has {_MOST_TOKENS:,} at most.")
    if labels is not None and len(labels) < count:
        raise InputError(f"there are {len(labels)} labels for {count} tokens; give one for each.")
    words = [str(at) for at in range(count)] if labels is None else list(labels[:count])
    every = 1
    while len(layers) * (count // every) ** 2 > _MOST_CELLS:
        every += 1
    positions = range(0, count, every)
    drawn = rows.filter(pl.col("token").is_in(positions), pl.col("other_token").is_in(positions))
    x, y = (
        MapSide.of_words(
            name,
            positions,
            [str(at) if labels is None else f"{at} {words[at]}" for at in positions],
            most=24,
            title=None,
            down=down,
            labels=[words[at] for at in positions],
            look={"labelLimit": 64, **look},
        )
        for name, down, look in (("and", False, {"labelAngle": -90}), ("token", True, {}))
    )
    drawn = drawn.select("layer", "value", x="other_token", y="token")
    panels = [
        Cells(drawn.filter(layer=layer).drop("layer"), x, y, alt.Title(f"Layer {layer}"))
        for layer in layers
    ]
    # From 0 to 1, or from −1 if some tokens point opposite ways.
    opposite = bool((rows["value"] < _CLEARLY_NEGATIVE).any())
    ticks = (-1.0, -0.5, 0.0, 0.5, 1.0) if opposite else (0.0, 0.25, 0.5, 0.75, 1.0)
    named = tuple(Tick(value, f"{value:g}".replace("-", "−")) for value in ticks)
    entry = metric_catalogue.metric(metric)
    thinned = "" if every == 1 else f", one token in {every}"
    return heatmap(
        panels,
        Shades(Vertical("linear", "", (ticks[0], ticks[-1]), named)),
        entry,
        size=(_SIDE, _SIDE),
        value_title="value",
        bar=f"{entry.title}{thinned}",
        below=_BELOW,
        title=title,
        fixed={"square": _SIDE + _LABELS},
    )


@figure(
    "summary",
    "Shades are medians over the samples, on one scale for all panels.",
    "by depth and what was varied",
    places=("layer", "setting"),
)
@checked
def phase_map(
    summary: pl.DataFrame,
    *,
    metric: str,
    boundary: Finite | None = None,
    lowest: Finite | None = None,
    highest: Finite | None = None,
    marks: str = "measured",
    title: str | None = None,
) -> alt.ConcatChart:
    """A heatmap of a metric by layer and setting, with the contour at ``boundary``.

    >>> from rankscope import tables
    >>> cells = {"layer": [1, 2, 1, 2], "setting": [1.0, 1.0, 2.0, 2.0], "value": [1, 0.5, 1, 0.1]}
    >>> table = tables.frame({**cells, "metric": ["relative_dispersion"] * 4})
    >>> chart = phase_map(tables.summary(table), metric="relative_dispersion", boundary=0.3)

    ``summary`` has the columns layer and setting; with ``parameter`` and ``model`` each has its
    panel. Medians are shaded, all panels on one scale, whose ends ``lowest`` and ``highest`` cut.
    Rows of the variant ``marks`` are drawn as rings on the cells, filled on the same scale.
    """
    rows = select(
        summary,
        [metric],
        drawer="phase_map",
        needed=("layer", "setting"),
        keys=("model", "parameter", "variant", "setting", "layer"),
    )
    entry = metric_catalogue.metric(metric)
    divided = [name for name in ("model", "parameter") if labels_in(rows, name)]
    parts = rows.partition_by(divided, maintain_order=True) if divided else [rows]
    named = f"{entry.title[:1].lower()}{entry.title[1:]}"
    return heatmap(
        [_phases(part, entry, marks) for part in parts],
        shades_of(entry.scale, rows["median"].to_list(), lowest=lowest, highest=highest),
        entry,
        size=theme.PANEL,
        value_title=f"median of {named}",
        rings_title=f"{marks} {named}",
        bar=entry.title,
        gaps=False,
        boundary=boundary,
        title=title,
    )


def _phases(part: pl.DataFrame, entry: Metric, marks: str) -> Cells:
    """The cells of one design and parameter, with rings at measurements."""
    first = part.row(0, named=True)
    layers, settings = part["layer"].to_list(), sorted(set(part["setting"].to_list()))
    parameter, model = parameter_of(first), first.get("model")
    heading = sentence_case(parameter) if first.get("parameter") else entry.title
    known = "variant" in part.columns
    ringed = pl.col("variant").eq_missing(pl.lit(marks)) if known else pl.lit(False)
    cells, rings = (
        part.filter(condition).select(x="layer", y="setting", value="median")
        for condition in (~ringed, ringed)
    )
    texts = [short(setting) for setting in settings]
    return Cells(
        cells,
        MapSide.of_numbers("layer", range(min(layers), max(layers) + 1), most=8),
        MapSide.of_words(parameter, settings, texts, most=10, look=theme.WORDS_AS_TITLE),
        alt.Title(f"{heading}, {model}" if model else heading),
        rings,
    )
