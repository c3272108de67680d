"""Figures of curves by layer, setting and path length, and trajectories of points."""

import math
from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import Finite, checked
from rankscope.errors import InputError
from rankscope.metric_catalogue import Metric
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import (
    Vertical,
    layer_axis,
    linear_axis,
    over,
    setting_axis,
    whole_numbers,
)
from rankscope.show.figures._catalogue import figure
from rankscope.show.figures._chart import lay_out, view_name
from rankscope.show.figures._lines import lines, tell_values
from rankscope.show.figures._rows import (
    STATISTICS,
    VALUE,
    Row,
    exact_text,
    finite_or_none,
    labels_in,
    select,
)
from rankscope.show.figures._theme import Look, Roles

_MEDIANS: Final = "Lines are medians over the samples, {} their 10th to 90th percentile."


@figure("summary", _MEDIANS.format("bands"), "against depth")
@checked
def by_depth(
    summary: pl.DataFrame,
    *,
    metric: str = "log10_relative_residual",
    log_depth: bool = False,
    lowest: Finite | None = None,
    highest: Finite | None = None,
    roles: Roles | None = None,
    title: str | None = None,
) -> alt.ConcatChart:
    """A metric against depth: the median, and a band from the 10th to the 90th percentile.

    >>> from rankscope import tables
    >>> log10 = {"layer": [0, 1], "metric": ["log10_residual"] * 2, "value": [0.0, -400.0]}
    >>> chart = by_depth(tables.summary(tables.frame(log10)), metric="log10_residual")

    A panel for each ``model``, if the summary has that column, and a curve for each ``variant``.
    Metrics named ``log10_…`` are logarithms already: their axis is even in the exponent and names
    powers of ten. Medians, because one sample with all tokens exactly equal (minus infinity) has
    no mean; where it is the median, the curve ends in a hollow marker at the bottom.
    ``log_depth`` lays the layers out logarithmically, without layer 0. ``lowest`` and ``highest``
    cut the axis, in the metric's own numbers (for ``log10_…`` exponents); curves leave the panel
    there. With ``lowest`` all panels have one axis, otherwise each has its own. ``roles`` says
    which curves are not measured but a ``bound`` or the ``floor`` of a number format: they have
    colours of their own and broken lines.
    """
    keys = ("model", "variant", "layer")
    rows = select(summary, [metric], drawer="by_depth", needed=("layer",), keys=keys)
    if log_depth:
        rows = rows.filter(pl.col("layer") > 0)
        if not rows.height:
            raise InputError("there is no layer above 0, and log_depth has no place for layer 0.")
    several = len(labels_in(rows, "model")) > 1
    return lines(
        rows,
        x=layer_axis(rows["layer"].to_list(), log=log_depth),
        facet=("model",) if several else (),
        heading=(lambda row, _: row["model"]) if several else None,
        look=Look.of(labels_in(rows, "variant"), roles),
        lowest=lowest,
        highest=highest,
        one_scale=lowest is not None,
        title=title,
    )


@figure("summary", _MEDIANS.format("bars"), "against what was varied", places=("setting",))
@checked
def by_setting(
    summary: pl.DataFrame, *, metric: str, roles: Roles | None = None, title: str | None = None
) -> alt.ConcatChart:
    """A metric against the varied parameter: medians, bars from the 10th to the 90th percentile.

    >>> from rankscope import tables
    >>> ranks = {"setting": [2.0, 4.0], "metric": ["rank"] * 2, "value": [2.0, 3.0]}
    >>> chart = by_setting(tables.summary(tables.frame(ranks)), metric="rank")

    ``summary`` has a column ``setting``; with ``parameter`` (and ``model``) each has its panel,
    with ``variant`` each its curve; ``roles`` are those of ``by_depth``. Positive settings that
    span a factor of 8 or more are laid out logarithmically.
    """
    keys = ("model", "parameter", "variant", "setting")
    rows = select(summary, [metric], drawer="by_setting", needed=("setting",), keys=keys)
    several = len(labels_in(rows, "model")) > 1

    def heading(row: Row, entry: Metric) -> str:
        text = f"{entry.title} by {parameter_of(row)}"
        return f"{row['model']}: {text[:1].lower()}{text[1:]}" if several else text

    return lines(
        rows,
        x=lambda rows_: setting_axis(
            parameter_of(rows_[0]), sorted({row["setting"] for row in rows_})
        ),
        facet=[name for name in ("model", "parameter") if labels_in(rows, name)],
        heading=heading,
        look=Look.of(labels_in(rows, "variant"), roles),
        spread="bar",
        title=title,
    )


def parameter_of(row: Row) -> str:
    """The varied parameter, in words."""
    return str(row.get("parameter") or "setting").replace("_", " ")


@figure("summary", _MEDIANS.format("bands"), "layer by layer")
@checked
def by_layer(
    summary: pl.DataFrame, *, metrics: str | Sequence[str] | None = None, title: str | None = None
) -> alt.ConcatChart:
    """Each metric against the layer, one panel each: median, 10th to 90th percentile.

    >>> from rankscope import tables
    >>> cosines = {"layer": [0, 1], "metric": ["mean_cosine"] * 2, "value": [0.1, 0.8]}
    >>> chart = by_layer(tables.summary(tables.frame(cosines)), metrics=["mean_cosine"])

    ``summary`` is what ``tables.summary`` returns; with a ``variant`` column each variant has its
    line, in the colour it has in every figure. ``metrics`` chooses the panels and their order.
    Pointing at a line, or clicking on a name in the legend, brings that variant to the front.
    """
    asked = labels_in(summary, "metric") if metrics is None else metrics
    names = list(dict.fromkeys([asked] if isinstance(asked, str) else asked))
    keys = ("metric", "variant", "layer")
    rows = select(summary, names, drawer="by_layer", needed=("layer",), keys=keys)
    look = Look.of(labels_in(rows, "variant"), kinds=2)
    ordered = pl.concat([rows.filter(pl.col("metric") == name) for name in names])
    axis = layer_axis(rows["layer"].to_list())
    return lines(ordered, x=axis, facet=("metric",), look=look, title=title)


@figure("summary", _MEDIANS.format("bands"), "layer by layer")
@checked
def by_model(
    summary: pl.DataFrame, *, metric: str = "relative_residual", title: str | None = None
) -> alt.ConcatChart:
    """One metric against the layer, one panel per model (Dong et al. 2021, figure 2).

    >>> from rankscope import tables
    >>> cosines = {"model": ["a", "b"], "layer": [0, 0], "value": [0.1, 0.8]}
    >>> table = tables.frame({**cosines, "metric": ["mean_cosine"] * 2})
    >>> chart = by_model(tables.summary(table), metric="mean_cosine")

    ``summary`` has the columns of ``by_layer`` and a ``model`` column.
    """
    keys = ("model", "variant", "layer")
    rows = select(summary, [metric], drawer="by_model", needed=("model", "layer"), keys=keys)
    return lines(
        rows,
        x=layer_axis(rows["layer"].to_list()),
        facet=("model",),
        heading=lambda row, _: str(row["model"]),
        look=Look.of(labels_in(rows, "variant"), kinds=2),
        title=title,
    )


_ALONE: Final = "_alone"  # ends the name of what a step would do without its skip
_BEYOND: Final = 2.0  # times the largest step: marks beyond it stand at the edge


@figure(
    "summary",
    "Bars are medians over the samples, whiskers their 10th to 90th percentile; below zero tokens "
    "become more alike, and the bars of all layers add up to the whole way.",
    "by layer and part",
)
@checked
def steps(summary: pl.DataFrame, *, metric: str, title: str | None = None) -> alt.ConcatChart:
    """Signed changes by layer: a bar with its spread for each sublayer, and a zero line.

    >>> from rankscope import tables
    >>> changes = {"layer": [1, 1], "variant": ["attention", "MLP"], "value": [-0.2, 0.1]}
    >>> table = tables.frame({**changes, "metric": ["step"] * 2})
    >>> chart = steps(tables.summary(table), metric="step")

    ``summary`` is what ``tables.summary`` returns, with the parts in the column ``variant``. Bars
    are medians, whiskers go from the 10th to the 90th percentile. Rows of the metric with
    ``_alone`` after its name say what a step would do without its skip, and are hollow marks beside
    the bars; those far beyond all bars stand at the edge, as triangles.
    """
    names = [metric, *(name for name in labels_in(summary, "metric") if name == metric + _ALONE)]
    rows = select(
        summary,
        names,
        drawer="steps",
        needed=("layer", "variant"),
        single=("part", "run", "model"),
        keys=("metric", "layer", "variant"),
    )
    entry, look = metric_catalogue.metric(metric), Look.of(labels_in(rows, "variant"))
    bars = rows.filter(pl.col("metric") == metric).to_dicts()
    alone = rows.filter(pl.col("metric") != metric).to_dicts()
    # An even axis with zero on it, which marks far beyond the bars do not stretch.
    ends = [finite_or_none(row[name]) for row in bars for name in STATISTICS]
    changes = [end for end in ends if end is not None]
    reach = _BEYOND * max(map(abs, changes), default=1.0)
    marks = [row["median"] for row in alone if row["median"] is not None]
    beside = [min(max(mark, -reach), reach) for mark in marks if not math.isnan(mark)]
    y = linear_axis(entry.symbol, [*changes, *beside], includes=[0.0])
    layers = sorted(set(rows["layer"].to_list()))
    axis = alt.Axis(title="layer", values=whole_numbers(layers, most=20), labelAngle=0, grid=False)
    band = alt.Scale(type="band", domain=layers, paddingInner=0.3, paddingOuter=0.15)
    shared: dict[str, Any] = {
        "x": alt.X("layer:O", axis=axis, scale=band),
        "xOffset": alt.XOffset("variant:N", scale=alt.Scale(domain=look.names, paddingInner=0.15)),
    }
    tooltip = [
        alt.Tooltip("variant:N", title="part"),
        alt.Tooltip("layer:Q", format="d"),
        *tell_values(),
    ]
    encodings = {"color": look.colour(), "y": y.encode("drawn:Q"), "tooltip": tooltip}
    base = over([_step_row(row, y) for row in bars]).encode(**shared)
    bar = base.mark_bar().encode(**encodings, y2=alt.datum(0), opacity=look.opacity(0.9))
    spread = base.mark_rule(color=theme.INK["text"], strokeWidth=1.2).encode(
        y=y.encode("low:Q"), y2="high:Q", opacity=look.opacity(0.75)
    )
    zero = over([{"zero": 0}]).mark_rule(color=theme.INK["muted"], strokeWidth=1.2)
    layer = [bar.properties(name=view_name(0)), spread, zero.encode(y=y.encode("zero:Q"))]
    if alone:
        hollow = over([_step_row(row, y) for row in alone]).mark_point(
            filled=False, fill=theme.INK["paper"], strokeWidth=1.6, size=theme.POINT_SIZE
        )
        shape = alt.Shape("shape:N", scale=None)
        layer.append(hollow.encode(**shared, **encodings, shape=shape, opacity=look.opacity(1.0)))
    said = [entry.meaning, "hollow: the same step without its skip" if alone else ""]
    panel = alt.LayerChart(
        layer=layer,
        title=alt.Title(entry.title, subtitle="; ".join(filter(None, said)) or " "),
        width=theme.WIDE[0],
        height=theme.WIDE[1],
    )
    return lay_out([panel], title=title, names=look.names)


def _step_row(row: Row, axis: Vertical) -> dict[str, Any]:
    """A row of chart data; a median beyond the axis is a triangle at its edge."""
    low, high = axis.domain
    median = row["median"]
    known = median is not None and not math.isnan(median)
    drawn = min(max(median, low), high) if known else None
    shape = "circle" if drawn == median else "triangle-down" if drawn == low else "triangle-up"
    return {
        **{name: row[name] for name in ("layer", "variant", "count")},
        **{name: finite_or_none(row[name]) for name in ("low", "high")},
        **{f"exact_{name}": exact_text(row[name]) for name in STATISTICS},
        "drawn": drawn,
        "shape": shape,
    }


_X, _Y = "x_coordinate", "y_coordinate"
_SIDE: Final = 210  # pixels of a panel, which is square as the plane is
_ROOM: Final = 1.8  # how far the axes reach beyond what is in the background
_FAR: Final = 4.0  # times that: a line that leaves the panel still leaves it in its direction
_PLACES: Final = ("model", "variant", "parameter", "layer")


@figure(
    "table",
    "Each point is one step further than the one before; rings are where they start, and the light "
    "line behind is where they should go.",
    "steps in the plane",
)
@checked
def trajectories(table: pl.DataFrame, *, title: str | None = None) -> alt.ConcatChart:
    """Trajectories of points: a row of panels per variant, a column per model.

    >>> from rankscope import tables
    >>> rows = [(None, "arc", 0, "a", m, 0.3) for m in ("x_coordinate", "y_coordinate")]
    >>> rows += [("m", "v", 0, "a", m, 0.1) for m in ("x_coordinate", "y_coordinate")]
    >>> names = ("model", "variant", "layer", "parameter", "metric", "value")
    >>> chart = trajectories(tables.from_rows(names, rows))

    ``layer`` counts the steps and ``parameter`` names the point. Rows without a model are drawn
    light behind every panel, and say how far the axes reach; points that leave them are followed
    to the edge.
    """
    rows = select(
        table,
        [_X, _Y],
        drawer="trajectories",
        needed=_PLACES,
        numbers=VALUE,
        filled=(),
        single=("part", "run"),
        keys=(*_PLACES, "metric"),
    )
    places = rows.pivot("metric", index=list(_PLACES), values="value").sort("layer")
    behind = places.filter(pl.col("model").is_null())
    moving = places.filter(pl.col("model").is_not_null())
    sized = behind if behind.height else moving
    reach = _ROOM * max(abs(value) for name in (_X, _Y) for value in sized[name].to_list())
    look = Look.of(labels_in(rows, "parameter"), kinds=1)
    named = rows.drop_nulls("model")
    variants, models = labels_in(named, "variant"), labels_in(named, "model")
    panels = [
        _plane(
            moving.filter(pl.col("model") == model, pl.col("variant") == variant).to_dicts(),
            behind.to_dicts(),
            title=alt.Title(variant, subtitle=model, offset=8),
            reach=reach,
            look=look,
        )
        for variant in variants
        for model in models
    ]
    # Square panels in rows and columns that mean something: a page must leave them as they are.
    return lay_out(panels, title=title, names=look.names, columns=len(models), fixed={})


def _plane(
    rows: Sequence[Row], behind: Sequence[Row], *, title: alt.Title, reach: float, look: Look
) -> alt.LayerChart:
    """The trajectories of all points over the reference ones, with a ring at each start."""
    scale = alt.Scale(domain=[-reach, reach], nice=False, zero=False)
    axis = alt.Axis(title=None, tickCount=5, format="~g", **theme.WORDS_AS_TITLE)
    plane: dict[str, Any] = {
        "x": alt.X("x:Q", scale=scale, axis=axis),
        "y": alt.Y("y:Q", scale=scale, axis=axis),
    }
    ways, light = (
        over(_cut(points, _FAR * reach)).encode(**plane, order="layer:Q")
        for points in (rows, behind)
    )
    ways = ways.encode(color=look.colour())
    tooltip = [
        alt.Tooltip("variant:N", title="point"),
        alt.Tooltip("layer:Q", title="step", format="d"),
        alt.Tooltip("exact_x:N", title="x"),
        alt.Tooltip("exact_y:N", title="y"),
    ]
    start = ways.transform_filter("datum.layer === 0").mark_point(
        filled=False, fill=theme.INK["paper"], size=95, strokeWidth=2.2, opacity=1
    )
    return alt.LayerChart(
        layer=[
            light.encode(detail="variant:N").mark_line(
                color=theme.INK["axis"], strokeWidth=7, opacity=0.4, clip=True
            ),
            ways.mark_line(strokeWidth=1.6, clip=True),
            ways.mark_point(filled=True, size=16, opacity=1, clip=True).encode(
                shape=look.shape(), tooltip=tooltip
            ),
            start.encode(tooltip=tooltip),
        ],
        title=title,
        width=_SIDE,
        height=_SIDE,
    )


def _cut(rows: Sequence[Row], far: float) -> list[dict[str, Any]]:
    """Each trajectory up to the edge of the plot; the first step beyond it is clipped."""
    points: list[dict[str, Any]] = []
    gone: set[str] = set()
    for row in rows:
        name, x, y = row["parameter"], row[_X], row[_Y]
        if name in gone:
            continue
        size = max(abs(x), abs(y))
        if not size <= far:
            gone.add(name)
            if not size < math.inf:
                continue
        shrink = far / size if size > far else 1.0
        at = {"x": x * shrink, "y": y * shrink, "exact_x": exact_text(x), "exact_y": exact_text(y)}
        points.append({"variant": name, "layer": row["layer"], **at})
    return points
