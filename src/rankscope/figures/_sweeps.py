"""A metric against a setting that is varied: a panel for each parameter."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.figures import _theme as theme
from rankscope.figures._annotations import draw_named_values, mark_equal_tokens
from rankscope.figures._axes import Vertical
from rankscope.figures._curves import (
    NEEDED,
    WIDE,
    Curves,
    Roles,
    build_axis,
    chart_row,
    check_roles,
    finite_values,
    fit_legend,
    is_zero,
    labels_in,
    refuse_duplicates,
    tooltip,
)
from rankscope.figures._layout import lay_out
from rankscope.figures._panel import view_name
from rankscope.figures._validation import require_values, select_metric

Row = Mapping[str, Any]

_WIDE_SPAN: Final = 8.0  # from the least setting to the largest: then their axis is logarithmic
_MOST_NAMED: Final = 12  # settings an axis has room to name


def by_setting(
    summary: pl.DataFrame, *, metric: str, roles: Roles | None = None, title: str | None = None
) -> alt.ConcatChart:
    """A metric against what was varied: medians, with bars from the 10th to the 90th percentile.

    >>> from rankscope import tables
    >>> ranks = {"setting": [2.0, 4.0], "metric": ["rank"] * 2, "value": [2.0, 3.0]}
    >>> chart = by_setting(tables.summary(tables.frame(ranks)), metric="rank")

    ``summary`` has a column ``setting``; with ``parameter`` (and ``model``) each has its panel,
    with ``variant`` each its curve; ``roles`` are those of ``by_depth``. Positive settings that
    span a factor of 8 or more are laid out logarithmically.
    """
    source = "summaries by setting"
    rows = select_metric(summary, metric, ("setting", *NEEDED), drawer="by_setting", source=source)
    require_values(rows, ["setting"])
    refuse_duplicates(rows, ("model", "parameter", "variant", "setting"), drawer="by_setting")
    divided = [name for name in ("model", "parameter") if labels_in(rows, name)]
    parts = rows.partition_by(divided, maintain_order=True) if divided else [rows]
    look = Curves(
        labels_in(rows, "variant"), (1, rows["setting"].n_unique()), roles=check_roles(roles)
    )
    several = len(labels_in(rows, "model")) > 1
    size = WIDE if len(parts) == 1 else (theme.PANEL_WIDTH, theme.PANEL_HEIGHT)
    panels = [
        _panel(part, metric, look, number=number, size=size, several=several)
        for number, part in enumerate(parts)
    ]
    return fit_legend(lay_out(panels, title=title, names=look.variants, shapes=True), len(panels))


def _panel(
    part: pl.DataFrame,
    metric: str,
    look: Curves,
    *,
    number: int,
    size: tuple[int, int],
    several: bool,
) -> alt.LayerChart:
    entry = metric_catalogue.metric(metric)
    rows = part.sort("setting", maintain_order=True).to_dicts()
    parameter = (rows[0].get("parameter") or "setting").replace("_", " ")
    vertical = build_axis(entry, finite_values(rows), ending=any(map(is_zero, rows)))
    settings = sorted({row["setting"] for row in rows})
    data = [
        {**chart_row(row, vertical, entry), "across": _across(row["setting"], settings)}
        for row in rows
    ]
    x = _horizontal(parameter, settings)
    marks = _marks(vertical, x, look, parameter)
    # A legend listens to a selection only if the first of its layers holds it.
    marks[0] = marks[0].properties(name=view_name(number))
    ends = [row for row in data if row["all_equal"]]
    heading = f"{entry.title} by {parameter}"
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=[
            *draw_named_values(entry, vertical, data, size),
            *vertical.tick_labels(),
            *marks,
            *mark_equal_tokens(ends, x, "setting", look, size),
        ],
        title=alt.Title(
            f"{rows[0]['model']}: {heading[:1].lower()}{heading[1:]}" if several else heading,
            subtitle=entry.meaning or " ",
        ),
        width=size[0],
        height=size[1],
    )


def _marks(vertical: Vertical, x: alt.X, look: Curves, parameter: str) -> list[alt.Chart]:
    """Bars, line, points, and on top of them the invisible targets that carry the tooltip."""
    base = alt.Chart().encode(x=x, color=look.colour(), y=vertical.encode("drawn_median:Q"))
    bar = base.mark_rule(strokeWidth=5, strokeCap="round").encode(
        y=vertical.encode("drawn_low:Q"), y2="drawn_high:Q", opacity=look.opacity(0.3)
    )
    full = look.opacity(1.0)
    line = base.mark_line(strokeWidth=1.5).encode(opacity=full, strokeDash=look.dash())
    point = base.mark_point(filled=True, size=1.5 * theme.POINT_SIZE).encode(
        shape=look.shape(), opacity=full
    )
    place = alt.Tooltip("setting:Q", title=parameter, format=".6~g")
    target = base.mark_point(filled=True, size=theme.TARGET_SIZE, opacity=0).encode(
        tooltip=tooltip([place], look)
    )
    return [bar, line, point, target]


def _horizontal(parameter: str, settings: Sequence[float]) -> alt.X:
    named = settings[:: math.ceil(len(settings) / _MOST_NAMED)]
    ends = [settings[0], settings[-1]]
    if ends[0] == ends[1]:
        ends = [ends[0] - 1, ends[1] + 1]
    return alt.X(
        "setting:Q",
        axis=alt.Axis(title=parameter, values=named, format="~g", grid=False),
        scale=alt.Scale(
            type="log" if _logarithmic(settings) else "linear",
            domain=ends,
            nice=False,
            zero=False,
            padding=14,
        ),
    )


def _logarithmic(settings: Sequence[float]) -> bool:
    return settings[0] > 0 and settings[-1] >= _WIDE_SPAN * settings[0]


def _across(setting: float, settings: Sequence[float]) -> float:
    """How far right a setting is in its panel, from 0 to 1."""
    first, last = settings[0], settings[-1]
    if first == last:
        return 0.5
    if _logarithmic(settings):
        return math.log(setting / first) / math.log(last / first)
    return (setting - first) / (last - first)
