"""The board of a monitor's alarms: which begin and which end after a record.

It keeps no state of its own: everything follows from the records and the alarms of the history,
so a resumed run continues as if it had not been interrupted.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from rankscope.errors import InputError
from rankscope.monitor._evidence import Layer, Limits, Met, Rule, layers_text
from rankscope.monitor._history import Alarm, History
from rankscope.monitor._rules import RULES

_LOOK_BACK: Final = 64
"""Records among which those are searched that a rule can judge."""


class AlarmBoard:
    """Decides after every record which alarms begin and which end.

    >>> AlarmBoard(["rank-collapse"]).names
    ('rank-collapse',)

    ``rules`` are the names of the rules to apply; all of them unless given.
    """

    def __init__(self, rules: Iterable[str] | None = None) -> None:
        self.names = tuple(RULES if rules is None else rules)
        for name in self.names:
            if name not in RULES:
                raise InputError(f"There is no rule {name!r}; rules are {', '.join(RULES)}.")

    def update(self, history: History) -> list[Alarm]:
        """End and begin alarms after a record was added; the new ones are returned."""
        step = history.last.step
        for number, alarm in enumerate(history.alarms):
            rule = RULES.get(alarm.rule)
            if rule and alarm.ended is None and _has_cleared(rule, history):
                history.alarms[number] = replace(alarm, ended=step)
        begun = []
        for name in self.names:
            open_rules = {alarm.rule for alarm in history.alarms if alarm.ended is None}
            if not open_rules & {name, RULES[name].excludes}:
                alarms = _raise(RULES[name], history)
                history.alarms += alarms
                begun += alarms
        return begun


def _judged(rule: Rule, history: History, limits: Limits) -> Iterator[tuple[int, Met]]:
    """Steps and what a rule found there, the latest first, without records it cannot judge.

    Nothing if it cannot judge the latest one.
    """
    records = history.records
    for count in range(len(records), max(0, len(records) - _LOOK_BACK), -1):
        met = rule.check(replace(history, records=records[:count]), limits)
        if met is not None:
            yield records[count - 1].step, met
        elif count == len(records):
            return


def _raise(rule: Rule, history: History) -> list[Alarm]:
    """The alarm of a rule if some layer met its condition for long enough; else none."""
    found: list[Met] = []
    layers: set[Layer] = set()
    for step, met in _judged(rule, history, rule.raising):
        layers = layers & set(met.values) if found else set(met.values)
        found.append(met)
        long_enough = history.last.step - step >= rule.steps
        if not layers or (len(found) >= rule.patience and long_enough):
            break
    else:
        return []
    if not layers:
        return []
    latest = found[0]
    first = min(layers, key=lambda layer: math.inf if layer is None else layer)
    others = [layer for layer in latest.values if layer is not None and layer != first]
    also = f"; {layers_text(others)} as well" if others else ""
    sentence = f"{latest.words(first)}{also}"
    value = latest.values[first]
    return [Alarm(rule.name, history.last.step, first, value, sentence, rule.url)]


def _has_cleared(rule: Rule, history: History) -> bool:
    """Whether no layer met the looser condition for long enough."""
    found = [bool(met.values) for _, met in islice(_judged(rule, history, rule.keeping), rule.calm)]
    return len(found) == rule.calm and not any(found)
