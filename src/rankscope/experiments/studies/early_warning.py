"""Does a monitor warn early enough? Faults in small training runs, and healthy runs.

Every run is watched by ``rankscope.Monitor`` with all its rules. A faulty run has a twin, the same
run with the same seed and batches, but without the fault. The loss shows the fault

- beside the twin: when its mean over the latest ``every`` steps is 10 % above the twin's, in two
  such windows in a row. Nobody has the twin of a real run, so this is the earliest that a loss can
  tell. Where the loss rewards the fault (two views), the accuracy of a linear classifier on the
  embeddings takes its place, 0.1 below the twin's; a real run has no such labels either.
- alone: when that mean is 20 % above its lowest value so far, or not finite, in two windows in a
  row. This needs no twin. A loss that merely stops falling does not show it.

The lead time is the step at which the loss shows it less the step of the first alarm. Alarms
before the fault begins count as false alarms, as do all alarms of healthy runs.

What each fault should show. The rules (``expected``) were written down before any run, the timing
after runs for development and before those that are reported:

- Logits drift up (queries × 1.03 after every step): growing logits and falling entropy in all
  layers, well before the loss, since sharp attention still attends to something useful.
- Learning rate × 30: entropy or rank collapse, at the same time as the loss or later.
- Skip scale decays (× 0.97 a step, 8 layers): collapsing residuals in late layers. The loss should
  show it first: the layers were trained for a skip of 1, and feel every change of it.
- bf16 logits: keys get a common offset, which an exact softmax ignores, while logits are rounded
  to bfloat16: logits above 100 long before the loss suffers.
- Router bias: one expert is preferred more and more: fewer experts in use, about as early as the
  loss or earlier.
- Two views of a sequence, and nothing that keeps embeddings of different sequences apart: the loss
  is lowest at collapse and never shows it; embeddings in a cone, rank falling with the loss.
- Gemma 4's initialisation (norms on queries and keys, and logits of deviation 16): an alarm before
  the first step.

Limits of rules and strengths of faults were chosen on seeds from 1,000 on; reported figures are
those of other seeds (docs/early-warning.md).
"""

import logging
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.studies._training_faults import FAULTS, KINDS, Training
from rankscope.monitor import RULES, Alarm, Monitor
from rankscope.numerals import plural

ENTRY = kit.study(
    "early-warning",
    "Faults in small training runs: whether a monitor's alarms come before the loss shows them",
    question="How long before the loss does a monitor warn, and how often without a reason?",
    seconds=75,
    small=True,
    metrics=(
        kit.Metric(
            "alarm_step",
            "First alarm",
            "step",
            "linear",
            "step of training",
            "Step of the first alarm after the fault began.",
        ),
        kit.Metric(
            "loss_step",
            "Loss beside the twin",
            "step",
            "linear",
            "step of training",
            "Step at which the loss (or the task's accuracy) is clearly worse than that of the "
            "same run without the fault.",
        ),
        kit.Metric(
            "alone_step",
            "Loss alone",
            "step",
            "linear",
            "step of training",
            "Step at which the loss is clearly above its lowest value so far.",
        ),
        kit.Metric(
            "lead_time",
            "Lead time",
            "steps",
            "linear",
            "steps that the alarm is earlier",
            "Step at which the loss shows the fault beside the twin less that of the first alarm.",
            includes=(0.0,),
        ),
        kit.Metric(
            "false_alarms",
            "False alarms",
            "number",
            "linear",
            "0 = none without a fault",
            "Alarms of a healthy run, or before the fault of a faulty one began.",
            includes=(0.0,),
        ),
    ),
)
_WORSE: Final = 1.1
_WORSE_ACCURACY: Final = 0.1
_RISEN: Final = 1.2
_IN_A_ROW: Final = 2


@dataclass(frozen=True)
class Config(kit.Config):
    """``faults`` and healthy ``kinds`` by name (all if empty), each with so many ``seeds``.

    A fault that grows begins at step ``begin`` of ``steps``; others are there from the start. The
    twins of faulty runs are always run.
    """

    faults: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    seeds: int = 2
    steps: int = 240
    begin: int = 80
    every: int = 10


@dataclass(frozen=True)
class WatchedRun:
    """A run, healthy if it has no fault: its losses, its accuracy if the task has one, alarms.

    ``losses`` are means over ``every`` steps, ``accuracies`` are measured at the end of these.
    """

    kind: str
    fault: str
    seed: int
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    alarms: tuple[Alarm, ...]
    begin: int
    every: int

    @property
    def false_alarms(self) -> tuple[Alarm, ...]:
        """Those of a healthy run, and those before a fault begins."""
        return tuple(a for a in self.alarms if not self.fault or a.step < self.begin)

    @property
    def first(self) -> Alarm | None:
        """The first alarm since the fault began."""
        later = [alarm for alarm in self.alarms if self.fault and alarm.step >= self.begin]
        return min(later, key=lambda alarm: alarm.step, default=None)

    def shown_beside(self, twin: "WatchedRun") -> int | None:
        """The step at which loss or accuracy is clearly worse than the twin's, or None."""
        if self.accuracies:
            pairs = zip(self.accuracies, twin.accuracies, strict=True)
            return self._step_of([value < other - _WORSE_ACCURACY for value, other in pairs])
        losses = zip(self.losses, twin.losses, strict=True)
        return self._step_of([not value <= _WORSE * other for value, other in losses])

    @property
    def shown_alone(self) -> int | None:
        """The step at which the loss is clearly above its lowest value so far, or None."""
        lowest, worse = math.inf, []
        for loss in self.losses:
            worse.append(not loss <= _RISEN * lowest)
            lowest = min(lowest, loss)
        return self._step_of(worse)

    def _step_of(self, worse: Sequence[bool]) -> int | None:
        """The end of the first windows in a row that are worse."""
        for last in range(_IN_A_ROW, len(worse) + 1):
            if all(worse[last - _IN_A_ROW : last]):
                return last * self.every
        return None


@dataclass(frozen=True)
class Comparison:
    """A faulty run beside its twin."""

    run: WatchedRun
    twin: WatchedRun

    @property
    def shown(self) -> int | None:
        """The step at which the loss shows the fault beside the twin."""
        return self.run.shown_beside(self.twin)

    @property
    def lead(self) -> int | None:
        """How many steps earlier the first alarm is; None unless there are both."""
        first = self.run.first
        return None if first is None or self.shown is None else self.shown - first.step


def watch(config: Config, kind: str, fault: str, seed: int) -> WatchedRun:
    """Train, with a monitor at every ``every``-th step."""
    training, broken = Training(kind, seed, config.begin), FAULTS.get(fault)
    if broken is not None and broken.at_start is not None:
        broken.at_start(training)
    change = None if broken is None else broken.after_step
    classes = training.task.classes if training.kind.states_classes else None
    losses: list[float] = []
    accuracies: list[float] = []
    with (
        _unlogged(),
        tempfile.TemporaryDirectory() as folder,
        Monitor(
            training.model, training.task.probe, every=config.every, folder=folder, classes=classes
        ) as monitor,
    ):
        for _ in range(config.steps):
            losses.append(training.step(change))
            if monitor.step(loss=losses[-1]) and (quality := training.task.quality()) is not None:
                accuracies.append(quality)
    windows = range(0, config.steps - config.every + 1, config.every)
    return WatchedRun(
        kind,
        fault,
        seed,
        tuple(fmean(losses[start : start + config.every]) for start in windows),
        tuple(accuracies),
        monitor.alarms,
        0 if change is None else config.begin,
        config.every,
    )


@contextmanager
def _unlogged() -> Iterator[None]:
    """Without the monitor's warnings: alarms are what is studied."""
    logger = logging.getLogger("rankscope.monitor")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def cases(config: Config) -> Iterator[tuple[str, str, int]]:
    """Kind, fault (empty for none) and seed of every run; healthy ones first."""
    for asked, known in ((config.faults, FAULTS), (config.kinds, KINDS)):
        if unknown := {*asked} - {*known}:
            raise InputError(f"there is no run {min(unknown)!r}; choose {', '.join(known)}.")
    faults = config.faults or tuple(FAULTS)
    twins = {FAULTS[fault].kind for fault in faults}
    kinds = [kind for kind in KINDS if kind in twins or kind in (config.kinds or KINDS)]
    for seed in range(config.seed, config.seed + config.seeds):
        for kind in kinds:
            yield kind, "", seed
        for fault in faults:
            yield FAULTS[fault].kind, fault, seed


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[list[WatchedRun]]:
    """Train every healthy and every faulty run."""
    return tabulate([watch(config, *case) for case, _ in kit.tracked(list(cases(config)), on_step)])


def tabulate(runs: list[WatchedRun]) -> kit.Measured[list[WatchedRun]]:
    """The numbers of all runs."""
    rows: list[tuple[Any, ...]] = []
    for run in runs:
        name = (run.fault or run.kind, "faulty" if run.fault else "healthy", run.seed)
        rows.append((*name, "false_alarms", float(len(run.false_alarms))))
        if (alone := run.shown_alone) is not None:
            rows.append((*name, "alone_step", float(alone)))
    for pair in compare(runs):
        name = (pair.run.fault, "faulty", pair.run.seed)
        first = None if pair.run.first is None else pair.run.first.step
        steps = {"alarm_step": first, "loss_step": pair.shown, "lead_time": pair.lead}
        rows += [(*name, metric, float(at)) for metric, at in steps.items() if at is not None]
    table = tables.from_rows(("model", "variant", "sample", "metric", "value"), rows)
    return kit.Measured(table, facts=runs)


def compare(runs: Sequence[WatchedRun]) -> list[Comparison]:
    """Every faulty run with its twin."""
    twins = {(run.kind, run.seed): run for run in runs if not run.fault}
    return [Comparison(run, twins[run.kind, run.seed]) for run in runs if run.fault]


def judge(config: Config, measured: kit.Measured[list[WatchedRun]]) -> kit.Answer:
    """How often and how much earlier alarms came, rule by rule, and the false ones."""
    runs, pairs = measured.facts, compare(measured.facts)
    healthy = [run for run in runs if not run.fault]
    leads = [pair.lead for pair in pairs if pair.lead is not None]
    warned = [pair for pair in pairs if pair.run.first is not None]
    earlier = [pair for pair in warned if pair.shown is None or (pair.lead or 0) > 0]
    alarmed = [run for run in healthy if run.false_alarms]
    figures = {
        "faulty runs with an alarm": len(warned) / len(pairs),
        "with an alarm before the loss": len(earlier) / len(pairs),
        "healthy runs with an alarm": len(alarmed) / len(healthy),
    }
    if leads:
        figures["median lead time in steps"] = median(leads)
    return kit.Answer(
        [
            f"Of {plural(len(pairs), 'faulty run')}, {len(warned)} raised an alarm, "
            f"{len(earlier)} of them before the loss showed the fault beside a twin without it.",
            f"Of {plural(len(healthy), 'healthy run')}, {len(alarmed)} raised one.",
        ],
        key_figures=figures,
        listings=(list_faults(pairs), list_rules(runs), list_healthy(healthy), _list_runs(pairs)),
        charts=(),
        shown=("lead_time",),
        about={"rule of the loss": f"see {__name__}", "records": f"every {config.every} steps"},
    )


def list_faults(pairs: Sequence[Comparison]) -> kit.Listing:
    """A row for each fault, over its seeds."""
    rows = []
    for fault in dict.fromkeys(pair.run.fault for pair in pairs):
        group = [pair for pair in pairs if pair.run.fault == fault]
        firsts = [pair.run.first for pair in group if pair.run.first is not None]
        rules = Counter(alarm.rule for alarm in firsts)
        alone = [pair.run.shown_alone for pair in group]
        rows.append(
            (
                fault,
                ", ".join(FAULTS[fault].expected),
                ", ".join(f"{rule} {count}" for rule, count in rules.most_common()) or "none",
                _steps([alarm.step for alarm in firsts], len(group)),
                _steps([pair.shown for pair in group], len(group)),
                _steps([pair.lead for pair in group], len(group)),
                _steps(alone, len(group)),
            )
        )
    return kit.Listing(
        "Steps of the first alarm and of the loss, by fault",
        ("fault", "expected", "first alarm", "at step", "loss beside twin", "lead", "loss alone"),
        tuple(rows),
        "Median over seeds, smallest and largest in brackets; how many runs have it, unless all "
        "have. Faults that grow begin in the middle of the run.",
    )


def list_rules(runs: Sequence[WatchedRun]) -> kit.Listing:
    """A row for each rule: where it was expected, raised, and raised without a reason."""
    faulty, healthy = ([run for run in runs if bool(run.fault) is side] for side in (True, False))
    rows = []
    for rule in RULES:
        expected = [run for run in faulty if rule in FAULTS[run.fault].expected]
        seen = [run for run in expected if _raised(run, rule)]
        others = [run for run in faulty if run not in expected and _raised(run, rule)]
        first = [run for run in faulty if run.first is not None and run.first.rule == rule]
        false = [run for run in healthy if _raised(run, rule)]
        shares = (f"{len(seen)} of {len(expected)}" if expected else "–", len(first), len(others))
        rows.append((rule, *shares, f"{len(false)} of {len(healthy)}"))
    return kit.Listing(
        "Runs in which a rule was met",
        ("rule", "where expected", "as the first", "in other faulty runs", "in healthy runs"),
        tuple(rows),
    )


def list_healthy(healthy: Sequence[WatchedRun]) -> kit.Listing:
    """A row for each kind of healthy run: its false alarms."""
    rows = []
    for kind in dict.fromkeys(run.kind for run in healthy):
        group = [run for run in healthy if run.kind == kind]
        rules = Counter(alarm.rule for run in group for alarm in run.false_alarms)
        risen = sum(run.shown_alone is not None for run in group)
        listed = ", ".join(f"{rule} {count}" for rule, count in rules.most_common())
        alarmed = sum(bool(run.false_alarms) for run in group)
        rows.append((kind, f"{alarmed} of {len(group)}", listed or "none", risen))
    return kit.Listing(
        "Healthy runs", ("run", "with an alarm", "alarms", "loss alone would alarm"), tuple(rows)
    )


def _list_runs(pairs: Sequence[Comparison]) -> kit.Listing:
    rows = []
    for pair in pairs:
        first = pair.run.first
        alarm = ("none", None, None) if first is None else (first.rule, first.layer, first.step)
        rows.append((pair.run.fault, pair.run.seed, *alarm, pair.shown, pair.lead))
    return kit.Listing(
        "Every faulty run",
        ("fault", "seed", "first alarm", "layer", "at step", "loss beside twin", "lead"),
        tuple(rows),
    )


def _raised(run: WatchedRun, rule: str) -> bool:
    """Whether an alarm of the rule was raised, since the fault began if there is one."""
    return any(alarm.rule == rule and alarm.step >= run.begin for alarm in run.alarms)


def _steps(values: Sequence[int | None], runs: int) -> str:
    """Median and range, and of how many runs."""
    there = sorted(value for value in values if value is not None)
    if not there:
        return "never"
    span = f"{median(there):g}" + (f" ({there[0]} to {there[-1]})" if there[0] < there[-1] else "")
    return span if len(there) == runs else f"{span}; {len(there)} of {runs} runs"
