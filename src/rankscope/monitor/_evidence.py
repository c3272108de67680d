"""What the rules of a monitor are made of: the record of a rule, figures of a history, and words.

A rule looks at the latest record of a history and returns the layers that meet its condition. It
is asked with two sets of limits: the stricter ones raise an alarm and the looser ones keep it, so
that a figure that hovers about a limit raises one alarm and not many.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from rankscope.core.theory import thresholds
from rankscope.monitor._history import History, StepRecord
from rankscope.monitor._names import MONITORED
from rankscope.numerals import plural, short, span_of
from rankscope.version import documentation

_FALLEN_GRADIENT: Final = 3.0
"""Fall of the gradients of queries and keys from which on a sentence mentions it."""

Layer = int | None
"""A layer; None for the whole model."""
Limits = Mapping[str, float]


@dataclass(frozen=True)
class Met:
    """Where a condition holds in the latest record, with the figures, and the words for a layer."""

    values: Mapping[Layer, float]
    words: Callable[[Layer], str]


Check = Callable[[History, Limits], Met | None]
"""Which layers meet the limits in the latest record; None if figures are missing."""


@dataclass(frozen=True)
class Rule:
    """A rule: its condition, and for how many records it must hold.

    ``limits`` has the numbers of the condition, each twice: to raise an alarm and to keep it.
    An alarm begins after ``patience`` records in a row, over ``steps`` steps or more, with the
    first and ends after ``calm`` records in a row without the second. It does not begin while
    ``excludes`` is an open alarm.
    """

    name: str
    title: str
    meaning: str
    condition: str
    limits: Mapping[str, tuple[float, float]]
    check: Check
    kept: str = ""
    patience: int = 2
    steps: int = 0
    calm: int = 2
    excludes: str = ""

    @property
    def raising(self) -> Limits:
        """The limits that raise an alarm."""
        return {name: strict for name, (strict, _) in self.limits.items()}

    @property
    def keeping(self) -> Limits:
        """The limits that keep it."""
        return {name: loose for name, (_, loose) in self.limits.items()}

    @property
    def raised_when(self) -> str:
        """When an alarm begins, in words."""
        wait = f", in {self.patience} records in a row" if self.patience > 1 else ""
        wait += f" over {self.steps} steps or more" if self.steps else ""
        return f"{self.condition.format(**self.raising)}{wait}"

    @property
    def ended_when(self) -> str:
        """When it ends, in words."""
        condition = (self.kept or self.condition).format(**self.keeping)
        return f"in {plural(self.calm, 'record')} in a row it no longer holds that {condition}"

    @property
    def url(self) -> str:
        """The page of the documentation about this rule."""
        return documentation("alarms", self.name)


RULES: Final[dict[str, Rule]] = {}
"""Every rule by its name."""


def rule(
    name: str,
    title: str,
    meaning: str,
    condition: str,
    *,
    kept: str = "",
    patience: int = 2,
    steps: int = 0,
    excludes: str = "",
    **limits: tuple[float, float],
) -> Callable[[Check], Check]:
    """Register a function as the check of a rule."""

    def register(check: Check) -> Check:
        RULES[name] = Rule(
            name, title, meaning, condition, limits, check,
            kept=kept, patience=patience, steps=steps, excludes=excludes,
        )  # fmt: skip
        return check

    return register


def finite_values(record: StepRecord, metric: str) -> dict[int, float]:
    """A metric by layer, where it is a number."""
    return {layer: value for layer, value in record.at(metric).items() if isfinite(value)}


def values_with_baseline(history: History, metric: str) -> dict[int, tuple[float, float]]:
    """Latest value and baseline by layer, where both are numbers."""
    starts = finite_values(history.baseline, metric)
    latest = finite_values(history.last, metric)
    return {layer: (v, starts[layer]) for layer, v in latest.items() if layer in starts}


def numbers_of(records: Iterable[StepRecord], metric: str, layer: Layer = None) -> Iterator[float]:
    """The numbers among the values of a metric."""
    values = (record.get(metric, layer) for record in records)
    return (value for value in values if isfinite(value))


def earlier_values(history: History, metric: str, layer: Layer, most: float) -> list[float]:
    """A metric in up to ``most`` records before the latest one."""
    return list(numbers_of(history.records[-1 - int(most) : -1], metric, layer))


def fact(history: History, name: str, default: float = math.nan) -> float:
    """A number among the facts of a run."""
    value = history.facts.get(name)
    return default if value is None else float(value)


def is_untrained(history: History) -> bool:
    """Whether the baseline is that of weights as drawn."""
    return fact(history, "untrained") == 1


def even_entropy(history: History) -> float:
    """Entropy of uniform attention over what a query sees; NaN if it is not known."""
    tokens = fact(history, "tokens")
    return fact(history, "even_entropy", math.log(tokens) if tokens > 1 else math.nan)


def has_labels(history: History) -> bool:
    """Whether the loss has targets that do not depend on the model: then K is known."""
    return fact(history, "classes") > 1


def has_enough_samples(history: History) -> bool:
    """Whether the probe has enough samples to compare their embeddings."""
    return fact(history, "samples", math.inf) >= thresholds.LEAST_TEXTS


def figure_text(
    history: History, metric: str, layer: Layer, value: float, *, named: bool = True
) -> str:
    """A figure with its layer and step: "layer 9: relative residual 0.04 at step 1,200"."""
    title = MONITORED[metric].metric.title
    where = f"layer {layer}: " if layer is not None and named else ""
    at_start = len(history.records) == 1 and is_untrained(history)
    when = "at initialisation" if at_start else f"at step {history.last.step:,}"
    return f"{where}{title[:1].lower()}{title[1:]} {short(value)} {when}"


def text_against_start(history: History, metric: str, layer: Layer) -> str:
    """A figure beside its first value and the predicted band."""
    words = figure_text(history, metric, layer, history.last.get(metric, layer))
    start = history.first(metric, layer)
    if len(history.records) > 1 and isfinite(start):
        is_initial = is_untrained(history) and (metric, layer) in history.baseline.values
        words += f"; {short(start)} {'at initialisation' if is_initial else 'at the start'}"
    band = history.predicted.get((metric, layer))
    return words if band is None else f"{words}, {span_of(*band)} predicted"


def gradients_text(history: History, layers: Iterable[Layer]) -> str:
    """What became of the gradients of queries and keys in some layers, if they fell."""
    falls: dict[int, float] = {}
    for layer in layers:
        value = history.last.get("grad/qk_over_v", layer)
        start = history.first("grad/qk_over_v", layer)
        if layer is not None and value > 0 and start >= _FALLEN_GRADIENT * value:
            falls[layer] = start / value
    if not falls:
        return ""
    low, high = (short(fall, digits=2) for fall in (min(falls.values()), max(falls.values())))
    span = f"{low}-fold" if low == high else f"{low}- to {high}-fold"
    return f"; gradients of queries and keys of {layers_text(falls)} fell {span}"


def layers_text(layers: Iterable[int]) -> str:
    """Layers in words.

    >>> layers_text([9, 10, 11, 3]), layers_text([4]), layers_text([4, 5])
    ('layers 3 and 9 to 11', 'layer 4', 'layers 4 and 5')
    """
    numbers = sorted(layers)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [
        part
        for run in runs
        for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(n) for n in run])
    ]
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if parts[1:] else parts[0]
    return f"layer{'s' * (len(numbers) > 1)} {listed}"
