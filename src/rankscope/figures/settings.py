"""A metric against a setting that is varied: a panel for each parameter."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope.figures import theme
from rankscope.figures.curves import (
    NEEDED,
    WIDE,
    Curves,
    gone,
    labels,
    legend_fits,
    no_twins,
    told,
    tooltip,
    values_of,
    vertical_of,
)
from rankscope.figures.drawable import no_gaps, rows_of
from rankscope.figures.framing import framed
from rankscope.figures.metric_words import metric_words
from rankscope.figures.notes import equal_marks, rules
from rankscope.figures.panel import view_name
from rankscope.figures.scales import Vertical

Row = Mapping[str, Any]

_WIDE_SPAN: Final = 8.0  # from the least setting to the largest: then their axis is logarithmic
_MOST_NAMED: Final = 12  # settings an axis has room to name


def by_setting(summary: pl.DataFrame, *, metric: str, title: str | None = None) -> alt.ConcatChart:
    """A metric against what was varied: medians, with bars from the 10th to the 90th percentile.

    >>> by_setting(summary, metric="layers_to")

    ``summary`` has a column ``setting``; with ``parameter`` (and ``model``) each has its panel,
    with ``variant`` each its curve. Positive settings that span a factor of 8 or more are laid out
    logarithmically.
    """
    source = "summaries by setting"
    rows = rows_of(summary, metric, ("setting", *NEEDED), drawer="by_setting", source=source)
    no_gaps(rows, ["setting"])
    no_twins(rows, ("model", "parameter", "variant", "setting"), drawer="by_setting")
    divided = [name for name in ("model", "parameter") if labels(rows, name)]
    parts = rows.partition_by(divided, maintain_order=True) if divided else [rows]
    look = Curves(labels(rows, "variant"), (1, rows["setting"].n_unique()))
    several = len(labels(rows, "model")) > 1
    size = WIDE if len(parts) == 1 else (theme.PANEL_WIDTH, theme.PANEL_HEIGHT)
    panels = [
        _panel(part, metric, look, number=number, size=size, several=several)
        for number, part in enumerate(parts)
    ]
    return legend_fits(framed(panels, title=title, names=look.variants, shapes=True), len(panels))


def _panel(
    part: pl.DataFrame,
    metric: str,
    look: Curves,
    *,
    number: int,
    size: tuple[int, int],
    several: bool,
) -> alt.LayerChart:
    words = metric_words(metric)
    rows = part.sort("setting", maintain_order=True).to_dicts()
    parameter = (rows[0].get("parameter") or "setting").replace("_", " ")
    vertical = vertical_of(words, values_of(rows), ending=any(map(gone, rows)))
    settings = sorted({row["setting"] for row in rows})
    data = [
        {**told(row, vertical, words), "across": _across(row["setting"], settings)} for row in rows
    ]
    x = _horizontal(parameter, settings)
    marks = _marks(vertical, x, look, parameter)
    # A legend listens to a selection only if the first of its layers holds it.
    marks[0] = marks[0].properties(name=view_name(number))
    ended = [row for row in data if row["gone"]]
    heading = f"{words.title} by {parameter}"
    return alt.LayerChart(
        data=alt.InlineData(values=data),
        layer=[
            *rules(words, vertical, data, size),
            *vertical.names(),
            *marks,
            *equal_marks(ended, x, "setting", look, size),
        ],
        title=alt.Title(
            f"{rows[0]['model']}: {heading[:1].lower()}{heading[1:]}" if several else heading,
            subtitle=words.meaning or " ",
        ),
        width=size[0],
        height=size[1],
    )


def _marks(vertical: Vertical, x: alt.X, look: Curves, parameter: str) -> list[alt.Chart]:
    """Bars, line, points, and on top of them the invisible targets that carry the tooltip."""
    base = alt.Chart().encode(x=x, color=look.colour(), y=vertical.of("drawn_median:Q"))
    bar = base.mark_rule(strokeWidth=5, strokeCap="round").encode(
        y=vertical.of("drawn_low:Q"), y2="drawn_high:Q", opacity=look.opacity(0.3)
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
