"""Which tokens are alike, layer by layer: token against token, as maps of shades."""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.show.figures._axes import Tick, Vertical
from rankscope.show.figures._heatmap import Shades, band, cells
from rankscope.show.figures._layout import lay_out
from rankscope.show.figures._validation import (
    finite_or_none,
    refuse_duplicates,
    require_single,
    require_values,
    select_metrics,
)

_SIDE: Final = 224.0
_LABELS: Final = 66.0  # what the words beside a panel take
_MOST_CELLS: Final = 6200
"""In all panels together; of more tokens, evenly spaced ones are drawn."""
_MOST_LABELS: Final = 24
_BELOW: Final = 96.0  # from a plot down to the bar, past words that stand upright
_CLEARLY_NEGATIVE: Final = -0.1
_WORD: Final = "replace(datum.label, regexp('^[0-9]+ '), '')"  # without the number before it


@checked
def token_map(
    table: pl.DataFrame,
    *,
    metric: str,
    labels: Sequence[str] | None = None,
    title: str | None = None,
) -> alt.ConcatChart:
    """How alike every two tokens of one sample are: a panel for each layer, shades up to 1.

    >>> from rankscope import tables
    >>> table = {"layer": [0] * 4, "token": [0, 0, 1, 1], "other_token": [0, 1, 0, 1]}
    >>> table = tables.frame({**table, "metric": ["cosine"] * 4, "value": [1.0, 0.2, 0.2, 1.0]})
    >>> chart = token_map(table, metric="cosine", labels=["the", "cat"])

    ``token`` and ``other_token`` are the positions of the two. ``labels`` are the tokens
    themselves, as many as there are; without them they are numbered.
    """
    source = "cosines by layer and two tokens"
    needed = ("layer", "token", "other_token", "value")
    rows = select_metrics(table, [metric], needed, drawer="token_map", source=source)
    require_values(rows, ["layer", "token", "other_token"])
    require_single(rows, ("part", "run", "model", "variant", "sample"), drawer="token_map")
    refuse_duplicates(rows, ("layer", "token", "other_token"), drawer="token_map")
    layers = sorted(set(rows["layer"].to_list()))
    names = _names(rows, labels)
    every = _thinning(len(names), len(layers))
    kept = names[::every]
    shades = _shades(rows["value"].drop_nulls().drop_nans().min())
    entry = metric_catalogue.metric(metric)
    thinned = "" if every == 1 else f", one token in {every}"
    panels = [
        _panel(
            _cells(rows.filter(pl.col("layer") == layer), names, kept),
            kept,
            shades,
            f"Layer {layer}",
            bar=f"{entry.title}{thinned}" if layer == layers[-1] else "",
        )
        for layer in layers
    ]
    figure = lay_out(panels, title=title)
    figure.usermeta = {
        "embedOptions": {"renderer": "svg"},
        "rankscope": {"square": _SIDE + _LABELS},
    }
    return figure


def _names(rows: pl.DataFrame, labels: Sequence[str] | None) -> list[str]:
    """The tokens, numbered, so that equal ones are told apart."""
    count = int(max(rows["token"].max(), rows["other_token"].max())) + 1  # type: ignore[type-var, arg-type]
    if labels is not None and len(labels) < count:
        raise InputError(f"there are {len(labels)} labels for {count} tokens; give one for each.")
    return [f"{index} {'' if labels is None else labels[index]}".strip() for index in range(count)]


def _thinning(tokens: int, panels: int) -> int:
    every = 1
    while panels * (tokens // every) ** 2 > _MOST_CELLS:
        every += 1
    return every


def _shades(least: Any) -> Shades:
    """From 0 to 1, or from −1 if some tokens point opposite ways."""
    negative = least is not None and least < _CLEARLY_NEGATIVE
    ticks = (-1.0, -0.5, 0.0, 0.5, 1.0) if negative else (0.0, 0.25, 0.5, 0.75, 1.0)
    named = tuple(Tick(value, f"{value:g}".replace("-", "−")) for value in ticks)
    return Shades(Vertical("linear", "", (ticks[0], ticks[-1]), named))


def _cells(rows: pl.DataFrame, names: Sequence[str], kept: Sequence[str]) -> list[dict[str, Any]]:
    shown = set(kept)
    cells = []
    for first, second, value in rows.select("token", "other_token", "value").iter_rows():
        one, other = names[first], names[second]
        if one in shown and other in shown:
            finite = finite_or_none(value)
            shade = None if finite is None else round(finite, 3)
            cells.append({"a": one, "b": other, "shade": shade})
    return cells


def _panel(
    data: Sequence[dict[str, Any]],
    names: Sequence[str],
    shades: Shades,
    title: str,
    *,
    bar: str,
) -> alt.LayerChart:
    size = _SIDE / len(names)
    named = names[:: -(-len(names) // _MOST_LABELS)]
    look: dict[str, Any] = {"title": None, "values": named, "labelExpr": _WORD, "grid": False}
    scale = band(names, size=size)
    x = alt.X("b:O", scale=scale, axis=alt.Axis(labelAngle=-90, labelLimit=64, **look))
    y = alt.Y("a:O", scale=scale, axis=alt.Axis(labelLimit=64, **look))
    tooltip = [
        alt.Tooltip("a:N", title="token"),
        alt.Tooltip("b:N", title="and"),
        alt.Tooltip("shade:Q", title="value", format=".3f"),
    ]
    drawn = [mark.encode(x=x, y=y, tooltip=tooltip) for mark in cells(shades, size=size)]
    return alt.LayerChart(
        data=alt.InlineData(values=list(data)),
        layer=[*drawn, *(shades.bar(bar, height=_SIDE, below=_BELOW) if bar else [])],
        title=title,
        width=_SIDE,
        height=_SIDE,
    )
