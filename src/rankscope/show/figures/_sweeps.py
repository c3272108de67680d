"""A metric against a setting that is varied: a panel for each parameter."""

import math
from collections.abc import Sequence
from typing import Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import Horizontal
from rankscope.show.figures._curves import draw_panel
from rankscope.show.figures._layout import lay_out
from rankscope.show.figures._look import Look, Roles
from rankscope.show.figures._panel import NEEDED, Panel, build_axis
from rankscope.show.figures._validation import (
    labels_in,
    refuse_duplicates,
    require_values,
    select_metrics,
)

_WIDE_SPAN: Final = 8.0  # from the least setting to the largest: then their axis is logarithmic
_MOST_NAMED: Final = 12  # settings an axis has room to name


@checked
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
    needed = ("setting", *NEEDED)
    rows = select_metrics(summary, [metric], needed, drawer="by_setting", source=source)
    require_values(rows, ["setting"])
    refuse_duplicates(rows, ("model", "parameter", "variant", "setting"), drawer="by_setting")
    entry = metric_catalogue.metric(metric)
    look = Look.of(labels_in(rows, "variant"), roles)
    divided = [name for name in ("model", "parameter") if labels_in(rows, name)]
    parts = rows.partition_by(divided, maintain_order=True) if divided else [rows]
    size = theme.WIDE if len(parts) == 1 else theme.PANEL
    panels = []
    for number, part in enumerate(parts):
        own = part.to_dicts()
        parameter = (own[0].get("parameter") or "setting").replace("_", " ")
        heading = f"{entry.title} by {parameter}"
        if len(labels_in(rows, "model")) > 1:
            heading = f"{own[0]['model']}: {heading[:1].lower()}{heading[1:]}"
        x = setting_axis(parameter, sorted({row["setting"] for row in own}))
        panel = Panel(entry, x, build_axis(entry, own), look, size=size, settings=True)
        panels.append(draw_panel(panel, own, number=number, heading=heading))
    return lay_out(panels, title=title, names=look.names)


def setting_axis(
    parameter: str, settings: Sequence[float], *, field: str = "setting"
) -> Horizontal:
    """Where settings are laid out, and which of them are named."""
    first, last = settings[0], settings[-1]
    logarithmic = first > 0 and last >= _WIDE_SPAN * first
    named: dict[str, object] = {"values": settings[:: math.ceil(len(settings) / _MOST_NAMED)]}
    if len(settings) > _MOST_NAMED and any(float(f"{each:.3g}") != each for each in settings):
        named = {"tickCount": 6}  # measured, not chosen: round numbers say more
    return Horizontal(
        field,
        "log" if logarithmic else "linear",
        (first, last) if first < last else (first - 1, first + 1),
        {"title": parameter, **named, "format": "~g"},
        padding=14,
    )
