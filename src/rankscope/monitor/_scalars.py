"""The numbers that go to loggers, and those relative to the baseline and the prediction."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rankscope.monitor._history import History, Place, StepRecord
from rankscope.monitor._names import (
    ALARM,
    LOSS,
    MONITORED,
    MOST_LOGGED,
    OVERHEAD,
    VS_INIT,
    VS_PREDICTED,
    is_chosen,
    logged_layers,
    scalar_name,
)

if TYPE_CHECKING:
    import polars


class Scalars:
    """Chooses numbers of a record for loggers: those whose names match ``names``, or a few."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def of(self, history: History) -> dict[str, float]:
        """The numbers of the latest record by name."""
        scalars = dict(_alarms(history))
        layers = logged_layers(history.layers)
        for place, kind, value in _with_ratios(history, history.last):
            metric, layer = place
            name = scalar_name(metric, layer, history.layers) + (f"/{kind}" if kind else "")
            if self._names:
                wanted = is_chosen(name, self._names)
            else:
                entry = MONITORED[metric]
                wanted = metric == OVERHEAD or (
                    entry.logged and (layer is None or layer in layers)
                    and (not kind or metric == "rank/residual")
                )  # fmt: skip
            if wanted:
                scalars[name] = value
        if self._names:
            return {name: value for name, value in scalars.items() if is_chosen(name, self._names)}
        return dict(list(scalars.items())[:MOST_LOGGED])


def add_ratios(history: History) -> "polars.DataFrame":
    """The table of a history, with ``/vs_init`` and ``/vs_predicted`` as metrics of their own."""
    from rankscope import tables

    rows: list[tuple[Any, ...]] = [
        (record.step, layer, f"{metric}/{kind}", value)
        for record in history.records
        for (metric, layer), kind, value in _with_ratios(history, record)
        if kind
    ]
    columns = ("step", "layer", "metric", "value")
    return tables.stack([history.table, tables.from_rows(columns, rows)])


def _with_ratios(history: History, record: StepRecord) -> Iterator[tuple[Place, str, float]]:
    """Values of a record, each followed by its ratios, where there is something to divide by."""
    for place, value in record.values.items():
        metric, _ = place
        yield place, "", value
        if metric in (LOSS, OVERHEAD):
            continue
        start = history.first(*place)
        if math.isfinite(start) and start:
            yield place, VS_INIT, value / start
        if place in history.predicted:
            middle = sum(history.predicted[place]) / 2
            if middle:
                yield place, VS_PREDICTED, value / middle


def _alarms(history: History) -> Iterator[tuple[str, float]]:
    """1 for every rule with an alarm that goes on, 0 for one whose alarms have ended."""
    for rule in dict.fromkeys(alarm.rule for alarm in history.alarms):
        is_open = any(alarm.rule == rule and alarm.ended is None for alarm in history.alarms)
        yield f"{ALARM}{rule}", float(is_open)
