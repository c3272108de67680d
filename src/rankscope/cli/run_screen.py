"""A run on one screen of a terminal: alarms, the main metrics, and a sparkline for every layer."""

import math
from collections.abc import Sequence
from math import isfinite
from statistics import median
from typing import Final

from rich.text import Text

from rankscope.errors import InputError
from rankscope.monitor import MONITORED, OVERHEAD, Alarm, History
from rankscope.numerals import plural, short

BLOCKS: Final = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS: Final = "_.-=+*#@"
"""For terminals that cannot show the others."""
_LOST: Final = "x"
_LEAST: Final = 4
"""Layers that are shown however low a terminal is."""
_MOST_ALARMS: Final = 4
_VALUES: Final = 21
"""Columns of the first and the latest value beside a sparkline."""
_CONTROLS: Final = dict.fromkeys((*range(32), *range(127, 160)), "\ufffd")


def screen(
    history: History,
    metric: str,
    *,
    title: str = "",
    width: int = 80,
    height: int | None = None,
    blocks: str = BLOCKS,
) -> Text:
    """The state of a run as lines of at most ``width`` columns, and of ``height`` lines if given.

    Sparklines of all layers have one scale, which the line above them states.
    """
    places = {place for record in history.records for place in record.values}
    names = {name for name, _ in places}
    known = [name for name in MONITORED if any(n == name and at is not None for n, at in places)]
    if metric not in known:
        raise InputError(
            f"this run has no metric {metric!r} of layers; it has {', '.join(known) or 'none'}."
        )
    rows_left = math.inf if height is None else height
    top = [*_state(history, title), *_alarms(history.alarms, width, few=rows_left < 20)]
    summary = [Text(), *_summary(history, names)]
    left = rows_left - len(top) - 2  # less an empty line and a heading
    if left - len(summary) < _LEAST:
        summary = []
    left -= len(summary)
    curves = _curves(history, metric, width, max(left, _LEAST), blocks)
    lines = [*top, Text(), *curves, *summary]
    for line in lines:
        line.truncate(width, overflow="ellipsis" if blocks == BLOCKS else "crop")
    return Text("\n").join(lines)


def _state(history: History, title: str) -> list[Text]:
    costs = [value for _, value in history.course(OVERHEAD) if isfinite(value)]
    cost = f", {short(median(costs))} ms each" if costs else ""
    records = plural(len(history.records), "record")
    running = [alarm for alarm in history.alarms if alarm.ended is None]
    ended = len(history.alarms) - len(running)
    words = plural(len(running), "open alarm") if running else "No open alarm"
    words += f", {ended} ended" if ended else ""
    style = "bold red" if running else "yellow" if ended else "bold green"
    named = f"{title.translate(_CONTROLS)}: " if title else ""
    return [
        Text(f"{named}step {history.last.step:,}, {records}{cost}", "bold"),
        Text(words if history.alarms else "No alarm", style),
    ]


def _alarms(alarms: Sequence[Alarm], width: int, *, few: bool) -> list[Text]:
    """The open alarms, then the latest ended ones: a sentence and the page that explains it."""
    order = sorted(alarms, key=lambda alarm: (alarm.ended is not None, alarm.step))
    shown = order[: 2 if few else _MOST_ALARMS]
    lines = []
    for alarm in shown:
        ended = "" if alarm.ended is None else f" (ended at step {alarm.ended:,})"
        words = Text(f"{alarm.rule}, step {alarm.step:,}{ended}: ".translate(_CONTROLS))
        words.append(alarm.sentence.translate(_CONTROLS))
        words.stylize("red" if alarm.ended is None else "yellow", 0, len(alarm.rule))
        lines += _wrapped(words, width, most=1 if few else 3)
        if alarm.url:
            lines.append(Text(f"  {alarm.url}".translate(_CONTROLS), "dim"))
    left = len(order) - len(shown)
    return [*lines, *([Text(f"and {plural(left, 'more alarm')}")] if left > 0 else [])]


def _wrapped(text: Text, width: int, most: int) -> list[Text]:
    """Lines of a text, indented from the second on; the last is cut if there are more."""
    lines: list[Text] = []
    start = 0
    while start < len(text) and len(lines) < most:
        indent = "  " if lines else ""
        end = start + width - len(indent)
        if end < len(text) and len(lines) + 1 < most:
            space = text.plain.rfind(" ", start + 1, end + 1)
            end = space if space > start else end
        elif len(lines) + 1 == most:
            end = len(text)  # ``screen`` cuts it
        lines.append(Text(indent) + text[start:end])
        start = end + (text.plain[end : end + 1] == " ")
    return lines


def _curves(history: History, metric: str, width: int, most: float, blocks: str) -> list[Text]:
    """A sparkline for each layer, or for some of them, with its first and latest value."""
    entry = MONITORED[metric].metric
    layers = sorted({layer for r in history.records for layer in r.at(metric)})
    shown = _some_layers(layers, [alarm.layer for alarm in history.alarms], most)
    records = [record for record in history.records if record.at(metric)]
    values = [v for r in records for v in r.at(metric).values() if isfinite(v)]
    if entry.scale == "log" and any(v > 0 for v in values):
        values = [value for value in values if value > 0]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    lost = any(not isfinite(v) for r in records for v in r.at(metric).values())
    left_out = f", {len(shown)} of {len(layers)} layers" if len(shown) < len(layers) else ""
    scale = f"{blocks[0]} {short(low)} to {blocks[-1]} {short(high)}"
    heading = Text(f"{entry.title} ({metric}), {scale}", "italic")
    notes = ", log" * (entry.scale == "log") + f", {_LOST} not finite" * lost + left_out
    lines = [heading + Text(notes)]
    digits = len(str(layers[-1]))
    columns = max(width - digits - _VALUES - 3, 8)
    for layer in shown:
        measured = [record.values.get((metric, layer)) for record in records]
        spark = "".join(
            _block(part, low, high, blocks, is_log=entry.scale == "log")
            for part in _columns(measured, columns)
        )
        alarmed = any(a.layer == layer and a.ended is None for a in history.alarms)
        known = [value for value in measured if value is not None]
        ends = f"{short(known[0]):>9} > {short(known[-1])}"
        line = Text(f"L{layer:0{digits}d} ", "bold red" if alarmed else "")
        lines.append(line + Text(f"{spark:<{min(columns, len(measured))}} ") + Text(ends))
    return lines


def _some_layers(layers: Sequence[int], alarmed: Sequence[int | None], most: float) -> list[int]:
    """All layers, or evenly spaced ones with the first, the last and those of alarms."""
    if len(layers) <= most:
        return list(layers)
    in_alarm = sorted({layer for layer in alarmed if layer is not None and layer in layers})
    chosen = set(in_alarm[: int(most) - 2])
    count = int(most) - len(chosen)
    last = len(layers) - 1
    spaced = [layers[round(k * last / max(count - 1, 1))] for k in range(count)]
    return sorted(chosen | set(spaced))


def _columns(values: Sequence[float | None], most: int) -> list[Sequence[float | None]]:
    """Values in their order, divided among at most so many columns."""
    count = min(len(values), most)
    bounds = [round(k * len(values) / count) for k in range(count + 1)]
    return [values[bounds[k] : bounds[k + 1]] for k in range(count)]


def _block(
    values: Sequence[float | None], low: float, high: float, blocks: str, *, is_log: bool
) -> str:
    """The latest value of a column; one that is not finite is always shown."""
    measured = [value for value in values if value is not None]
    if not measured:
        return " "
    if not all(map(isfinite, measured)):
        return _LOST
    value = measured[-1]
    if is_log and low > 0:
        value, low, high = (math.log(max(part, low)) for part in (value, low, high))
    share = (value - low) / (high - low) if high > low else 0.5
    return blocks[min(int(share * len(blocks)), len(blocks) - 1)]


def _summary(history: History, names: set[str]) -> list[Text]:
    """The main metrics at first and now: lowest and highest layer, or the one value."""
    rows = [("", "start", "now")]
    for entry in MONITORED.values():
        if entry.name in names and (entry.logged or entry.name == "loss"):
            measured = [
                [value for (name, _), value in record.values.items() if name == entry.name]
                for record in history.records
            ]
            known = [values for values in measured if values]
            rows.append((entry.name, _span(known[0]), _span(known[-1])))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        Text("  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip(),
             "dim" if number == 0 else "")
        for number, row in enumerate(rows)
    ]  # fmt: skip


def _span(values: Sequence[float]) -> str:
    finite = [value for value in values if isfinite(value)]
    lost = f" ({len(values) - len(finite)} not finite)" if len(finite) < len(values) else ""
    if not finite:
        return "not finite"
    low, high = short(min(finite)), short(max(finite))
    return (low if low == high else f"{low} to {high}") + lost
