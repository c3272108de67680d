"""The result of a run: what its history comes to, in words, tables and drawings."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Final

import polars as pl

from rankscope import tables
from rankscope.metric_catalogue import Metric
from rankscope.monitor._history import Alarm, History
from rankscope.monitor._names import (
    ALARM,
    LOSS,
    MONITORED,
    OVERHEAD,
    PREDICTED_HIGH,
    PREDICTED_LOW,
    MonitoredMetric,
)
from rankscope.monitor._rules import RULES
from rankscope.numerals import plural, sentence_case, short, span_of
from rankscope.process import fingerprint, versions
from rankscope.results import Drawing, Headline, Listing, Part, Result

_FOLD: Final = 2.0
"""Factor from which on a metric counts as changed."""
_SHARE: Final = 0.25
"""The same for metrics between 0 and 1, as a difference."""
_CURVES: Final = 4
"""Layers whose curves are drawn."""
_LISTED: Final = 4
"""Alarms after the first that a sentence lists."""
_DEFAULT: Final = "rank/residual"
_ALSO_MAPPED: Final = ("router/entropy",)


@dataclass(frozen=True)
class Course:
    """A metric of one layer over the steps; ``changed`` is when it left its start for good."""

    metric: str
    layer: int
    start: float
    now: float
    changed: int | None

    @property
    def change(self) -> float:
        """How far it is from its start, in folds or differences: 1 counts as changed."""
        return _change(self.metric, self.start, self.now)

    @property
    def words(self) -> str:
        """What became of it: "halved"."""
        if not isfinite(self.now):
            return "was no longer finite"
        if is_share(self.metric):
            return "moved by a quarter"
        return "halved" if self.now < self.start else "doubled"


def run_result(history: History) -> Result:
    """The result of a run so far: its alarms, when and where they began, maps and curves.

    >>> from rankscope.monitor import History, run_result
    >>> run_result(History({"layers": 2})).headline.text
    'Nothing was recorded yet'
    """
    alarms = sorted(history.alarms, key=lambda alarm: alarm.step)
    courses = [course for name in _measured(history) for course in _courses(history, name)]
    costs = _finite(history, OVERHEAD)
    labelled = [
        *_alarm_sentences(history, alarms, courses),
        ("largest change", _largest_change(courses, alarms)),
        ("run", _extent(history)),
        ("cost", f"Recording took {short(median(costs))} ms (median), "
                 f"{short(sum(costs) / 1000)} s in all." if costs else ""),
    ]  # fmt: skip
    labelled = [(label, words) for label, words in labelled if words]
    return Result(
        id="monitor",
        title=_title(history),
        question="Does the model collapse while it is trained?",
        sentences=tuple(words for _, words in labelled),
        labels=tuple(label for label, _ in labelled),
        table=_table(history, alarms),
        provenance={
            "digest": fingerprint([history.facts, _first_values(history)]),
            "run": history.facts,
            "versions": versions(),
        },
        headline=_headline(history, alarms),
        drawings=_main_drawings(history, alarms, courses),
        parts=_parts(history, alarms, courses),
        metrics=_entries(history, alarms),
    )


def write_report(history: History, path: str | Path) -> Path:
    """Write the page of a run as one HTML file, which needs no other file and no network.

    >>> from rankscope.monitor import History, write_report
    >>> write_report(History({"layers": 2}), "run.html").name
    'run.html'
    """
    from rankscope.show import report

    return report.write_html(report.page(run_result(history)), path)


def _title(history: History) -> str:
    model = history.facts.get("model")
    return str(model) if model else f"A training run of {plural(history.layers, 'layer')}"


def _extent(history: History) -> str:
    if not history.records:
        return "Nothing was recorded yet."
    first, last = history.baseline.step, history.last.step
    layers, records = plural(history.layers, "layer"), plural(len(history.records), "record")
    span = f"at step {first:,}" if first == last else f"from step {first:,} to step {last:,}"
    return f"{layers}, {records} {span}."


def _headline(history: History, alarms: Sequence[Alarm]) -> Headline:
    if not alarms:
        if not history.records:
            return Headline("Nothing was recorded yet")
        steps = history.last.step - history.baseline.step
        if not steps:
            return Headline("Only the baseline so far: no alarm")
        return Headline(f"Healthy so far: {plural(steps, 'step')}, no alarm", "holds")
    first, *others = alarms
    more = f", and {plural(len(others), 'more alarm')}" if others else ""
    is_over = all(alarm.ended is not None for alarm in alarms)
    more += f"; {'all' if others else 'it'} ended" * is_over
    text = f"{rule_title(first.rule)} {place_of(first)}{more}"
    return Headline(text, "slow" if is_over else "collapse")


def rule_title(rule: str) -> str:
    """A rule in words.

    >>> rule_title("rank-collapse")
    'Rank collapse'
    """
    return RULES[rule].title if rule in RULES else sentence_case(rule.replace("-", " "))


def place_of(alarm: Alarm) -> str:
    """Where and when an alarm began.

    >>> place_of(Alarm("rank-collapse", 1200, 9, 0.04, ""))
    'in layer 9 at step 1,200'
    """
    where = "" if alarm.layer is None else f"in layer {alarm.layer} "
    return f"{where}at step {alarm.step:,}"


def _alarm_sentences(
    history: History, alarms: Sequence[Alarm], courses: Sequence[Course]
) -> Iterator[tuple[str, str]]:
    """What the first alarm says, and when its figure began to change."""
    if not alarms:
        return
    first = alarms[0]
    yield "first alarm", f"{sentence_case(first.sentence)}."
    metric = metric_of(history, first)
    course = next((c for c in courses if (c.metric, c.layer) == (metric, first.layer)), None)
    if course is not None and course.changed is not None and course.changed < first.step:
        before = plural(first.step - course.changed, "step")
        figure = f"The {lower_title(metric)} of layer {course.layer}"
        yield "began", f"{figure} had {course.words} by step {course.changed:,}, {before} before."
    if alarms[1:]:
        listed = [f"{rule_title(alarm.rule).lower()} {place_of(alarm)}" for alarm in alarms[1:]]
        more = listed[:_LISTED] + [f"and {len(listed) - _LISTED} more"] * (len(listed) > _LISTED)
        yield "then", f"{sentence_case('; '.join(more))}."


def _largest_change(courses: Sequence[Course], alarms: Sequence[Alarm]) -> str:
    """What changed most since the start, in a run without alarms."""
    known = [course for course in courses if isfinite(course.change)]
    if alarms or not known:
        return ""
    most = max(known, key=lambda course: course.change)
    return (
        f"{sentence_case(lower_title(most.metric))} of layer {most.layer}: {short(most.start)} at "
        f"the start, {short(most.now)} now."
    )


def metric_of(history: History, alarm: Alarm) -> str:
    """The metric an alarm is about: the one that had its value; empty if there is none."""
    record = next((record for record in history.records if record.step == alarm.step), None)
    names = [
        metric
        for (metric, layer), value in (record.values if record else {}).items()
        if layer == alarm.layer and metric in MONITORED
        if value == alarm.value or (math.isnan(value) and math.isnan(alarm.value))
    ]
    # Several may be NaN: then the sentence names it.
    return next((n for n in names if lower_title(n) in alarm.sentence), names[0] if names else "")


def lower_title(metric: str) -> str:
    """The title of a metric within a sentence."""
    title = MONITORED[metric].metric.title
    return f"{title[:1].lower()}{title[1:]}"


def is_share(metric: str) -> bool:
    """Whether a metric is between 0 and 1, where differences count and not folds."""
    return MONITORED[metric].metric.includes == (0.0, 1.0)


def _measured(history: History, *, by_layer: bool = True) -> list[str]:
    """The metrics that a run has, of layers or of the whole model."""
    kinds = {
        (name, layer is not None) for record in history.records for name, layer in record.values
    }
    return [name for name in MONITORED if (name, by_layer) in kinds]


def _courses(history: History, metric: str) -> Iterator[Course]:
    """The courses of a metric, by layer."""
    by_layer: dict[int, list[tuple[int, float]]] = {}
    for record in history.records:
        for layer, value in record.at(metric).items():
            by_layer.setdefault(layer, []).append((record.step, value))
    for layer, values in sorted(by_layer.items()):
        start = values[0][1]
        changed = None
        for step, value in reversed(values):  # from when on it was changed until now
            if _change(metric, start, value) < 1:
                break
            changed = step
        yield Course(metric, layer, start, values[-1][1], changed)


def _change(metric: str, start: float, value: float) -> float:
    if not isfinite(value) or not isfinite(start):
        return 0.0 if not isfinite(start) else math.inf
    if is_share(metric):
        return abs(value - start) / _SHARE
    if start == value:
        return 0.0
    if start <= 0 or value <= 0:
        return math.inf
    return abs(math.log(value / start)) / math.log(_FOLD)


def _finite(history: History, metric: str) -> list[float]:
    return [value for _, value in history.course(metric) if isfinite(value)]


def _first_values(history: History) -> list[tuple[str, int | None, float]]:
    """What names the files of a run: a resumed one has the same baseline."""
    return (
        [(*place, value) for place, value in history.records[0].values.items()]
        if (history.records)
        else []
    )


def _table(history: History, alarms: Sequence[Alarm]) -> pl.DataFrame:
    """All values, and a row for each alarm; of two records of a step the first."""
    places = ["step", "layer", "metric"]
    rows = [(alarm.step, alarm.layer, ALARM + alarm.rule, alarm.value) for alarm in alarms]
    values = history.table.unique(places, keep="first", maintain_order=True)
    return tables.stack([values, tables.from_rows((*places, "value"), rows)])


def _entries(history: History, alarms: Sequence[Alarm]) -> tuple[Metric, ...]:
    names = [*_measured(history), *_measured(history, by_layer=False)]
    rules = dict.fromkeys(alarm.rule for alarm in alarms)
    return (
        *(MONITORED[name].metric for name in names),
        *(Metric(ALARM + rule, rule_title(rule)) for rule in rules),
    )


def _alarm_part(alarms: Sequence[Alarm]) -> Part:
    pages = list(dict.fromkeys(alarm.url for alarm in alarms if alarm.url))
    rows = []
    for number, alarm in enumerate(alarms, start=1):
        ended = "no" if alarm.ended is None else f"at step {alarm.ended:,}"
        title, figures = rule_title(alarm.rule), f"{sentence_case(alarm.sentence)}."
        rows.append((number, alarm.step, alarm.layer, title, figures, ended))
    columns = ("", "step", "layer", "alarm", "figures", "ended")
    note = f"What each alarm means and what to do: {', '.join(pages)}." if pages else ""
    return Part(
        "Alarms", listings=(Listing("In the order of their steps", columns, tuple(rows), note),)
    )


def _events(alarms: Sequence[Alarm]) -> list[str]:
    return list(dict.fromkeys(ALARM + alarm.rule for alarm in alarms))


def _main_metric(history: History, alarms: Sequence[Alarm]) -> str:
    """The metric of layers to show first: that of the first alarm, else the residual."""
    names = _measured(history)
    wanted = [metric_of(history, alarm) for alarm in alarms]
    return next((name for name in (*wanted, _DEFAULT, *names) if name in names), "")


def _main_drawings(
    history: History, alarms: Sequence[Alarm], courses: Sequence[Course]
) -> tuple[Drawing, ...]:
    """The metric of the first alarm as a map and as curves, and what the whole model has."""
    drawings = []
    events = _events(alarms)
    main = _main_metric(history, alarms)
    if main:
        drawings.append(Drawing("step_map", metric=main, options={"events": events}))
        if len(history.records) > 1:
            about = [alarm for alarm in alarms if metric_of(history, alarm) == main]
            layers = _telling_layers([c for c in courses if c.metric == main], about)
            options = {"metrics": [main], "layers": layers, "events": events, "band": _BAND}
            title = f"{MONITORED[main].metric.title} of the most telling layers"
            drawings.append(Drawing("by_step", options=options, title=title))
    whole = sorted(
        _measured(history, by_layer=False), key=lambda name: (name == OVERHEAD, name != LOSS)
    )
    if whole and len(history.records) > 1:
        options = {"metrics": whole, "events": events}
        drawings.append(Drawing("by_step", options=options, title="Loss, embeddings and overhead"))
    return tuple(drawings)


_BAND: Final = [PREDICTED_LOW, PREDICTED_HIGH]


def _telling_layers(courses: Sequence[Course], alarms: Sequence[Alarm]) -> list[int]:
    """The layers of alarms, then the first to change, then those that changed most."""
    layers = {course.layer for course in courses}
    first = [alarm.layer for alarm in alarms if alarm.layer in layers]
    early = sorted(
        courses,
        key=lambda c: (math.inf if c.changed is None else c.changed, -c.change, c.layer),
    )
    order = dict.fromkeys([*first, *(course.layer for course in early)])
    return sorted(layer for layer in list(order)[:_CURVES] if layer is not None)


def _is_mapped(entry: MonitoredMetric, alarmed: Sequence[str]) -> bool:
    return entry.logged or entry.name in _ALSO_MAPPED or entry.name in alarmed


def _parts(
    history: History, alarms: Sequence[Alarm], courses: Sequence[Course]
) -> tuple[Part, ...]:
    main, events = _main_metric(history, alarms), _events(alarms)
    alarmed = [metric_of(history, alarm) for alarm in alarms]
    mapped = [name for name in _measured(history) if _is_mapped(MONITORED[name], alarmed)]
    maps = tuple(
        Drawing("step_map", metric=name, options={"events": events})
        for name in mapped
        if name != main
    )
    parts = [_alarm_part(alarms)] if alarms else []
    if courses:
        parts.append(Part("What changed first", listings=(_changes(history, courses),)))
    if maps:
        parts.append(Part("Other metrics by layer and step", drawings=maps))
    return tuple(parts)


def _changes(history: History, courses: Sequence[Course]) -> Listing:
    """For every metric the first layer to change, or else the one that changed most."""
    rows = []
    for name in dict.fromkeys(course.metric for course in courses):
        same = [course for course in courses if course.metric == name]
        first = min(
            same, key=lambda c: (math.inf if c.changed is None else c.changed, -c.change, c.layer)
        )
        band = history.predicted.get((name, first.layer))
        rows.append((
            MONITORED[name].metric.title, first.changed, first.layer, first.start, first.now,
            "" if band is None else span_of(*band),
        ))  # fmt: skip
    rows.sort(key=lambda row: math.inf if row[1] is None else row[1])
    return Listing(
        "Metrics in the order of their first change",
        ("metric", "changed from step", "layer", "start", "now", "predicted"),
        tuple(rows),
        f"Changed: {_FOLD:g} times or 1/{_FOLD:g} of the start, or {_SHARE:g} away from it for "
        "metrics between 0 and 1, from then on until now. The layer is the first to change, or the "
        "one that changed most.",
    )
