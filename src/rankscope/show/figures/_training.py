"""Figures of a training run: maps of layers against steps and curves over steps, with events."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import altair as alt
import polars as pl

from rankscope import metric_catalogue
from rankscope.arguments import checked
from rankscope.metric_catalogue import Metric
from rankscope.show.figures import _theme as theme
from rankscope.show.figures._axes import Horizontal, over, whole_numbers
from rankscope.show.figures._catalogue import describe, figure
from rankscope.show.figures._chart import lay_out
from rankscope.show.figures._heatmap import DARK, LIGHT, Cells, MapSide, heat_panel, shades_of
from rankscope.show.figures._lines import Panel, build_axis, line_panel
from rankscope.show.figures._rows import VALUE, finite_or_none, select
from rankscope.show.figures._theme import Look

_ONE: Final = ("part", "run", "model", "variant")
_MOST_CELLS: Final = 4800  # of more steps, evenly spaced ones and those of events are drawn
_MOST_STEPS: Final = 240
_MOST_GAPS: Final = 24  # columns of cells that are separated, also on a narrow page
_HIGHEST: Final = 26.0  # pixels of a layer
_LOWEST: Final = 56.0  # pixels of a map
_TALLEST: Final = 420.0
_MOST_NAMED: Final = 5  # events that are named above a map
_LINE: Final = 15.0  # pixels of a name
_NEAR: Final = 0.035  # of a panel's width: numbers of events that are closer are joined
_ALERT: Final = theme.VARIANT_COLOURS["SAN"]
_NUMBERED: Final = "Numbered lines are events, in the order of the table of alarms."


@dataclass(frozen=True)
class Event:
    """Something that happened at a step, in a layer or in the whole model."""

    number: int
    name: str
    step: int
    layer: int | None

    @property
    def where(self) -> str:
        """Its name and place in words."""
        layer = "" if self.layer is None else f", layer {self.layer}"
        return f"{self.name}{layer}, step {self.step:,}"


@figure(
    "table",
    f"Grey cells are not finite or were not measured. {_NUMBERED} A ring is its layer.",
    "by layer and step",
    places=(),
)
@checked
def step_map(
    table: pl.DataFrame, *, metric: str, events: Sequence[str] = (), title: str | None = None
) -> alt.ConcatChart:
    """A metric of a training run as shades: layers downwards, steps to the right.

    >>> from rankscope import tables
    >>> ranks = {"step": [0, 0, 50, 50], "layer": [1, 2, 1, 2], "value": [4.0, 4.0, 3.0, 1.0]}
    >>> chart = step_map(tables.frame({**ranks, "metric": ["rank"] * 4}), metric="rank")

    ``events`` are metrics whose rows are not values but happened at a ``step``, in a ``layer`` or
    without one: numbered lines with a ring at the layer, the first of them also named. Of many
    steps, evenly spaced ones are drawn, and those of events.
    """
    rows = select(
        table,
        [metric],
        drawer="step_map",
        needed=("step", "layer"),
        numbers=VALUE,
        single=_ONE,
        keys=("step", "layer"),
    )
    entry, happened = metric_catalogue.metric(metric), _events(table, events)
    layers = range(rows["layer"].min(), rows["layer"].max() + 1)  # type: ignore[arg-type, operator]
    most = min(_MOST_STEPS, max(40, _MOST_CELLS // len(layers)))
    steps = _thin(rows["step"].unique().sort().to_list(), most, happened)
    width, height = theme.WIDE[0], min(max(_HIGHEST * len(layers), _LOWEST), _TALLEST)
    down = max(1, round(height / 14))
    cells = Cells(
        rows.filter(pl.col("step").is_in(steps)).select("value", x="step", y="layer"),
        _step_side(steps),
        MapSide.of_numbers("layer", layers, most=down, down=True, look=theme.WORDS_AS_TITLE),
        alt.Title(entry.title, subtitle=entry.meaning or " "),
    )
    shades = shades_of(entry.scale, rows["value"].to_list())
    size = (width, height)
    bar = entry.symbol or entry.title
    gaps = len(steps) <= _MOST_GAPS
    panel = heat_panel(cells, shades, entry, size=size, value_title="value", bar=bar, gaps=gaps)
    places = {event: float(bisect_left(steps, event.step)) for event in happened}
    x = cells.x.encode(alt.X, "at")
    y = cells.y.encode(alt.Y, "up")
    rings = [
        {"at": at, "up": cells.y.index[event.layer], "event": event.where}
        for event, at in places.items()
        if event.layer in cells.y.index
    ]
    lines = over([{"at": at, "event": event.where} for event, at in places.items()])
    tooltip = [alt.Tooltip("event:N")]
    for colour, thick in ((DARK, 3.4), (LIGHT, 1.6)) if happened else ():
        # Light between dark edges, so that it is seen on every shade.
        line = lines.mark_rule(color=colour, strokeWidth=thick).encode(x=x, tooltip=tooltip)
        ring = over(rings).mark_point(filled=False, size=150, color=colour, strokeWidth=thick)
        panel.layer += [line, ring.encode(x=x, y=y, tooltip=tooltip)]
    spread = max(len(steps) - 1, 1)
    panel.layer += [*_numbers(places, x, spread), *_names(happened)]
    said = describe(rows, [metric], ("layer", "step"))
    words = [f"{event.number}: {event.where}." for event in happened]
    chart = lay_out([panel], title=title)
    return chart.properties(description=" ".join([f"{entry.title}.", *said, *words]))


@figure(
    "table",
    f"The horizontal line is the value at the start, a band what is predicted. {_NUMBERED}",
    "over the steps",
    places=(),
)
@checked
def by_step(
    table: pl.DataFrame,
    *,
    metrics: str | Sequence[str],
    layers: Sequence[int] = (),
    events: Sequence[str] = (),
    band: Sequence[str] = (),
    title: str | None = None,
) -> alt.ConcatChart:
    """Metrics of a training run over its steps: a panel for each, and for each of some ``layers``.

    >>> from rankscope import tables
    >>> losses = {"step": [0, 50], "metric": ["loss"] * 2, "value": [4.0, 3.0]}
    >>> chart = by_step(tables.frame(losses), metrics="loss")

    Without ``layers``, rows without a layer are drawn. ``band`` are two endings of a metric's name:
    rows of the metrics with them are the ends of a band behind its curves. ``events`` are those of
    ``step_map``. Steps without a finite value are crosses at the bottom.
    """
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    layer = pl.col("layer") if "layer" in table.columns else pl.lit(None, pl.Int64)
    kept = layer.is_in(list(layers)) if layers else layer.is_null()
    places = ("metric", "layer", "step")
    rows = select(
        table.filter(kept),
        names,
        drawer="by_step",
        needed=("step",),
        numbers=VALUE,
        single=_ONE,
        keys=places,
    )
    happened = _events(table, events)
    steps = sorted(set(rows["step"].to_list()))
    panels: list[alt.LayerChart] = []
    said: list[str] = []
    count = len(names) * max(1, len(layers))
    size = theme.WIDE if count == 1 else theme.PANEL
    for name in names:
        for at in layers or (None,):
            of_panel = pl.col("metric") == name, layer.eq_missing(pl.lit(at, pl.Int64))
            curve = rows.filter(*of_panel)
            if not curve.height:
                continue
            entry = metric_catalogue.metric(name)
            titled = replace(entry, title=f"{entry.title}, layer {at}") if layers else entry
            ends = _ends(table.filter(of_panel[1]), [name + end for end in band])
            panels.append(_curve(titled, curve, steps, happened, ends, at, size, len(panels)))
            said += describe(curve, [name], ("step",), entry=titled)
    words = [f"{event.number}: {event.where}." for event in happened]
    chart = lay_out(panels, title=title)
    return chart.properties(description=" ".join([*said, *words]))


def _events(table: pl.DataFrame, names: Sequence[str]) -> list[Event]:
    """The events of a table, in the order of their steps."""
    rows = table.filter(pl.col("metric").is_in(list(names))).sort("step", maintain_order=True)
    return [
        Event(number, metric_catalogue.metric(row["metric"]).title, row["step"], row.get("layer"))
        for number, row in enumerate(rows.iter_rows(named=True), start=1)
    ]


def _thin(steps: list[int], most: int, events: Sequence[Event]) -> list[int]:
    """Evenly spaced steps, with the last one and those of events."""
    kept = set(steps[:: math.ceil(len(steps) / most)]) | {steps[-1]}
    return sorted(kept | ({event.step for event in events} & set(steps)))


def _step_side(steps: list[int]) -> MapSide:
    """The steps of a map, with ticks at round ones if there are some."""
    texts = [f"{step:,}" for step in steps]
    numbers = set(whole_numbers(steps, most=7))
    named = [at for at, step in enumerate(steps) if step in numbers]
    if len(named) < min(len(steps), 3):
        return MapSide.of_words("step", steps, texts, most=7)
    return MapSide("step", steps, texts, named)


def _ends(table: pl.DataFrame, names: Sequence[str]) -> list[float]:
    """The ends of a band, by the names of their metrics; none if one is not known."""
    ends = [table.filter(pl.col("metric") == name)["value"] for name in names]
    values = [finite_or_none(end[0]) for end in ends if end.len()]
    known = [value for value in values if value is not None]
    return known if len(known) == 2 else []


def _curve(
    entry: Metric,
    rows: pl.DataFrame,
    steps: Sequence[int],
    events: Sequence[Event],
    band: Sequence[float],
    layer: int | None,
    size: tuple[int, int],
    number: int,
) -> alt.LayerChart:
    """A panel of one curve, with its start, its predicted band and the events."""
    values = dict(rows.select("step", "value").sort("step").iter_rows())
    drawn = _thin(list(values), _MOST_STEPS, events)
    start = next((value for value in values.values() if math.isfinite(value)), None)
    marks = () if start is None or len(values) == 1 else ((start, "start"),)
    ends = [end for end in band if entry.scale != "log" or end > 0]
    entry = replace(entry, includes=(*entry.includes, *ends), marks=(*entry.marks, *marks))
    data = [{"step": step, "median": values[step], "marked": len(drawn) <= 30} for step in drawn]
    x = Horizontal(
        "step",
        "linear",
        (steps[0], max(steps[-1], steps[0] + 1)),
        {"title": "step", "format": ",d", "tickCount": 5, "tickMinStep": 1},
    )
    panel = Panel(entry, x, build_axis(entry, data), Look.of([]), size=size, spread="none")
    chart = line_panel(panel, data, number=number, heading=entry.title)
    behind: list[alt.Chart] = []
    if len(ends) == 2:
        area = over([{"from": ends[0], "to": ends[1]}])
        rect = area.mark_rect(color=theme.SINGLE_COLOUR, opacity=theme.BAND_OPACITY)
        behind.append(rect.encode(y=panel.y.encode("from:Q"), y2="to:Q"))
    lost = [{"step": step} for step, value in values.items() if not math.isfinite(value)]
    cross = over(lost).mark_point(shape="cross", angle=45, size=40, filled=True, color=_ALERT)
    concerned = [event for event in events if event.layer in (None, layer)]
    for colour, some in ((theme.INK["axis"], events), (_ALERT, concerned)):
        data_ = over([{"at": event.step, "event": event.where} for event in some])
        rule = data_.mark_rule(color=colour, strokeWidth=1.4, strokeDash=[4, 3])
        behind.append(rule.encode(x=_at(x), tooltip=[alt.Tooltip("event:N")]))
    places = {event: float(event.step) for event in events}
    chart.layer = [
        *behind,
        *chart.layer,
        *([cross.encode(x=x.encode(), y=alt.value(size[1] - 6))] if lost else []),
        *_numbers(places, _at(x), x.domain[1] - x.domain[0]),
    ]
    return chart


def _at(x: Horizontal) -> alt.X:
    return replace(x, field="at").encode()


def _numbers(places: dict[Event, float], x: alt.X, span: float) -> list[alt.Chart]:
    """The numbers of events above a panel; those that would overlap are joined."""
    joined: list[dict[str, Any]] = []
    for event, at in places.items():
        if joined and at - joined[-1]["last"] < _NEAR * span:
            joined[-1] |= {"last": at, "text": f"{joined[-1]['first']}–{event.number}"}
        else:
            joined.append({"at": at, "last": at, "first": event.number, "text": f"{event.number}"})
    text = over(joined).mark_text(
        fontSize=11, fontWeight=600, baseline="bottom", color=_ALERT, clip=False
    )
    return [text.encode(x=x, y=alt.value(-3), text="text:N")] if joined else []


def _names(events: Sequence[Event]) -> list[alt.Chart]:
    """The first events in words, one below the other, between the title and the plot."""
    texts = [f"{event.number}  {event.where}" for event in events[:_MOST_NAMED]]
    if len(events) > _MOST_NAMED:
        texts.append(f"and {len(events) - _MOST_NAMED} more in the table of alarms")
    rows = [
        {"text": text, "up": -18.0 - _LINE * (len(texts) - 1 - line)}
        for line, text in enumerate(texts)
    ]
    mark = over(rows).mark_text(align="left", baseline="bottom", fontSize=11.5, color=_ALERT)
    up: Any = alt.value({"expr": "datum.up"})
    return [mark.encode(x=alt.value(0), y=up, text="text:N")] if rows else []
