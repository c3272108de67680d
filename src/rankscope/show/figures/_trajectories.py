"""Points on their way through the plane: a panel for each model and variant."""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope.arguments import checked
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._chart import OfflineChart
from rankscope.show.figures._layout import WORDS_AS_TITLE
from rankscope.show.figures._look import Look
from rankscope.show.figures._panel import Row
from rankscope.show.figures._validation import (
    exact_text,
    labels_in,
    refuse_duplicates,
    require_single,
    select_metrics,
)

_X, _Y = "x_coordinate", "y_coordinate"
_SIDE: Final = 210  # pixels of a panel, which is square as the plane is
_ROOM: Final = 1.8  # how far the axes reach beyond what is in the background
_FAR: Final = 4.0  # times that: a line that leaves the panel still leaves it in its direction
_COLUMNS = ("model", "variant", "parameter", "layer")


@checked
def trajectories(table: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """Where points go step by step: a row of panels for each variant, a column for each model.

    >>> from rankscope import tables
    >>> rows = [(None, "arc", 0, "a", m, 0.3) for m in ("x_coordinate", "y_coordinate")]
    >>> rows += [("m", "v", 0, "a", m, 0.1) for m in ("x_coordinate", "y_coordinate")]
    >>> names = ("model", "variant", "layer", "parameter", "metric", "value")
    >>> chart = trajectories(tables.from_rows(names, rows))

    ``layer`` counts the steps and ``parameter`` names the point. Rows without a model are drawn
    light behind every panel, and say how far the axes reach; points that leave them are followed
    to the edge.
    """
    source = "points in the plane"
    rows = select_metrics(table, [_X, _Y], _COLUMNS, drawer="trajectories", source=source)
    require_single(rows, ("part", "run"), drawer="trajectories")
    refuse_duplicates(rows, (*_COLUMNS, "metric"), drawer="trajectories")
    places = rows.pivot("metric", index=list(_COLUMNS), values="value").sort("layer")
    behind = places.filter(pl.col("model").is_null())
    moving = places.filter(pl.col("model").is_not_null())
    reach = _ROOM * max(
        abs(value)
        for part in ([behind] if behind.height else [moving])
        for name in (_X, _Y)
        for value in part[name].to_list()
    )
    look = Look.of(labels_in(rows, "parameter"), kinds=1)
    named = rows.drop_nulls("model")
    variants, models = labels_in(named, "variant"), labels_in(named, "model")
    panels = [
        _panel(
            moving.filter(pl.col("model") == model, pl.col("variant") == variant).to_dicts(),
            behind.to_dicts(),
            heading=(variant, model),
            reach=reach,
            look=look,
        )
        for variant in variants
        for model in models
    ]
    return _grid(panels, len(models), look, title)


def _grid(
    panels: Sequence[alt.LayerChart], columns: int, look: Look, title: str | None
) -> alt.ConcatChart:
    figure = OfflineChart(
        concat=list(panels), columns=columns, spacing={"row": 26, "column": 26}
    ).resolve_scale(color="shared", shape="shared")
    if title is not None:
        figure = figure.properties(title=alt.Title(title, fontSize=16, offset=20, frame="bounds"))
    figure = theme.apply_style(figure, names=look.names)
    # Square panels in rows and columns that mean something: a page must leave them as they are.
    figure.usermeta = {"embedOptions": {"renderer": "svg"}}
    return figure


def _panel(
    rows: Sequence[Row],
    behind: Sequence[Row],
    *,
    heading: tuple[str, str],
    reach: float,
    look: Look,
) -> alt.LayerChart:
    """The ways of all points, on the light ones, with a ring where each starts."""
    scale = alt.Scale(domain=[-reach, reach], nice=False, zero=False)
    x = alt.X("x:Q", scale=scale, axis=_axis())
    y = alt.Y("y:Q", scale=scale, axis=_axis())
    base = alt.Chart(alt.InlineData(values=_cut(rows, _FAR * reach))).encode(
        x=x, y=y, color=look.colour(), order="layer:Q"
    )
    light = alt.Chart(alt.InlineData(values=_cut(behind, _FAR * reach))).encode(
        x=x, y=y, detail="variant:N", order="layer:Q"
    )
    starts = base.transform_filter("datum.layer === 0")
    tooltip = [
        alt.Tooltip("variant:N", title="point"),
        alt.Tooltip("layer:Q", title="step", format="d"),
        alt.Tooltip("exact_x:N", title="x"),
        alt.Tooltip("exact_y:N", title="y"),
    ]
    return alt.LayerChart(
        layer=[
            light.mark_line(color=theme.INK["axis"], strokeWidth=7, opacity=0.4, clip=True),
            base.mark_line(strokeWidth=1.6, clip=True),
            base.mark_point(filled=True, size=16, opacity=1, clip=True).encode(
                shape=look.shape(), tooltip=tooltip
            ),
            starts.mark_point(
                filled=False, fill=theme.INK["paper"], size=95, strokeWidth=2.2, opacity=1
            ).encode(tooltip=tooltip),
        ],
        title=alt.Title(heading[0], subtitle=heading[1], offset=8),
        width=_SIDE,
        height=_SIDE,
    )


def _cut(rows: Sequence[Row], far: float) -> list[dict[str, Any]]:
    """Each point's way, as far as it stays near; the first step beyond is brought back to there."""
    kept: list[dict[str, Any]] = []
    gone: set[str] = set()
    for row in rows:
        name, x, y = row["parameter"], row[_X], row[_Y]
        if name in gone:
            continue
        size = max(abs(x), abs(y))
        if not size <= far:
            gone.add(name)
            if not size < float("inf"):
                continue
        shrink = far / size if size > far else 1.0
        kept.append(
            {
                "variant": name,
                "layer": row["layer"],
                "x": x * shrink,
                "y": y * shrink,
                "exact_x": exact_text(x),
                "exact_y": exact_text(y),
            }
        )
    return kept


def _axis() -> alt.Axis:
    return alt.Axis(title=None, tickCount=5, format="~g", **WORDS_AS_TITLE)
