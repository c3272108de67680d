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
        scalars = {
            name: value
            for name, value in _alarms(history)
            if not self._names or is_chosen(name, self._names)
        }
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
        return scalars if self._names else dict(list(scalars.items())[:MOST_LOGGED])


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
        if math.isfinite(start) and start > 0 and not metric.endswith("mean_cosine"):
            yield place, VS_INIT, value / start
        if place in history.predicted:
            middle = sum(history.predicted[place]) / 2
            if middle > 0 and not metric.endswith("mean_cosine"):
                yield place, VS_PREDICTED, value / middle


def _alarms(history: History) -> Iterator[tuple[str, float]]:
    """1 for every rule with an alarm that goes on, and once 0 when it has ended."""
    for alarm in history.alarms:
        if alarm.ended in (None, history.last.step):
            yield f"{ALARM}{alarm.rule}", float(alarm.ended is None)
