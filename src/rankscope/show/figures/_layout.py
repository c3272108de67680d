"""Panels put together: side by side, under one title, with what listens to the pointer."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import altair as alt

from rankscope.show.figures import _theme as theme
from rankscope.show.figures._chart import OfflineChart
from rankscope.show.figures._look import HOVERED, PINNED

# The title of a y axis that is words, not a formula.
WORDS_AS_TITLE: Final[Mapping[str, Any]] = {
    "titleFont": theme.FONT,
    "titleFontSize": 11.5,
    "titleColor": theme.INK["muted"],
}


def lay_out(
    panels: Sequence[alt.LayerChart], *, title: str | None, names: Sequence[str] = ()
) -> alt.ConcatChart:
    """Put the panels side by side, in the house style.

    ``names`` are those of the legend, one for all panels, which then listens to the pointer; in the
    panels' data the field ``variant`` holds them.
    """
    figure = OfflineChart(
        concat=list(panels),
        columns=theme.COLUMNS,
        spacing=dict(theme.SPACING),
        params=_selections(len(panels)) if names else alt.Undefined,
    )
    shared: Literal["shared", "independent"] = "shared" if names else "independent"
    figure = figure.resolve_scale(color=shared, shape=shared)
    if title is not None:
        figure = figure.properties(title=alt.Title(title, fontSize=16, offset=20, frame="bounds"))
    return theme.apply_style(figure, names=names)


def view_name(number: int) -> str:
    """The name under which a figure's selections find a panel."""
    return f"metric_{number}"


def _selections(panels: int) -> list[alt.TopLevelSelectionParameter]:
    """The name under the pointer, and the names clicked on in the legend."""
    views = [view_name(number) for number in range(panels)]
    on_a_curve = "event.item && event.item.datum && isDefined(event.item.datum.variant)"
    pointed = {
        "type": "point",
        "fields": ["variant"],
        "on": {"type": "pointerover", "filter": on_a_curve},
        "clear": "pointerout",
    }
    clicked = {"type": "point", "fields": ["variant"], "toggle": "true"}
    return [
        alt.TopLevelSelectionParameter(
            name=HOVERED, select=pointed, bind={"legend": "pointerover"}, views=views
        ),
        alt.TopLevelSelectionParameter(name=PINNED, select=clicked, bind="legend", views=views),
    ]
