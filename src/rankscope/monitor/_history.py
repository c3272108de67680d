"""What a run measured so far, and the file that keeps it.

A run is a folder with ``monitor.parquet`` and a journal of what came since it was written. Each
recorded step is one line of the journal, flushed to the disk before training goes on; a torn last
line, of a killed process, is ignored. From time to time the journal is merged into the Parquet
file, which is replaced as a whole.
"""

import json
import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankscope.errors import InputError
from rankscope.process import versions, write_file

if TYPE_CHECKING:
    import polars

TABLE: Final = "monitor.parquet"
JOURNAL: Final = "monitor.journal"
_KEY: Final = "rankscope.monitor"
_MERGED_AFTER: Final = 64
"""Lines of the journal after which it is merged into the Parquet file."""

Place = tuple[str, int | None]
"""A metric, and a layer (None for the whole model)."""


@dataclass(frozen=True)
class Alarm:
    """A rule that is met: where and when first, in a sentence with its figures.

    ``value`` is the figure it is about, ``url`` the page that explains the rule. ``ended`` is the
    step at which it was no longer met; None while it is.
    """

    rule: str
    step: int
    layer: int | None
    value: float
    sentence: str
    url: str = ""
    ended: int | None = None


@dataclass(frozen=True)
class StepRecord:
    """All that was measured at one step."""

    step: int
    values: Mapping[Place, float]

    def at(self, metric: str) -> dict[int, float]:
        """A metric by layer."""
        return {
            layer: value
            for (name, layer), value in self.values.items()
            if name == metric and layer is not None
        }

    def get(self, metric: str, layer: int | None = None) -> float:
        """A value; NaN if it was not measured."""
        return self.values.get((metric, layer), math.nan)


@dataclass
class History:
    """The records of a run in the order of their steps, its alarms, and facts about the run.

    The first record is the baseline. ``predicted`` has the 10 to 90 % band of random networks of
    the model's design, by metric and layer. ``facts`` describe model, probe and precision;
    numbers among them are ``layers``, ``tokens`` (of a sample of the probe, median), ``samples``,
    and where known ``classes`` (K of a loss of ln K), ``experts`` and ``untrained`` (1 if the
    weights are as drawn, 0 if not).
    """

    facts: dict[str, Any]
    predicted: dict[Place, tuple[float, float]] = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)

    @property
    def layers(self) -> int:
        """The number of layers."""
        return int(self.facts["layers"])

    @property
    def baseline(self) -> StepRecord:
        """The first record."""
        return self.records[0]

    @property
    def last(self) -> StepRecord:
        """The latest record."""
        return self.records[-1]

    def course(self, metric: str, layer: int | None = None) -> list[tuple[int, float]]:
        """The steps at which a metric was measured, and its values."""
        place = (metric, layer)
        return [(r.step, r.values[place]) for r in self.records if place in r.values]

    def first(self, metric: str, layer: int | None = None) -> float:
        """The first value that was measured (gradients have none in the baseline); else NaN."""
        return next((r.values[metric, layer] for r in self.records if (metric, layer) in r.values),
                    math.nan)  # fmt: skip

    def add(self, record: StepRecord) -> None:
        """Add a record; those at its step and later ones are replaced, as after a resumed run."""
        self.rewind(record.step)
        self.records.append(record)

    def rewind(self, step: int) -> None:
        """Forget what was recorded at a step and later; the baseline stays.

        An alarm that ended then is open again.
        """
        steps = [record.step for record in self.records]
        at = max(bisect_left(steps, step), 1)
        del self.records[at:]
        self.alarms = [
            replace(alarm, ended=None) if (alarm.ended or 0) >= step else alarm
            for alarm in self.alarms
            if alarm.step < step or alarm.step == steps[0]
        ]

    @property
    def table(self) -> "polars.DataFrame":
        """All values: step, layer, metric, value; the predicted band as metrics of its own."""
        from rankscope import tables
        from rankscope.monitor._names import PREDICTED_HIGH, PREDICTED_LOW

        rows: list[tuple[Any, ...]] = [
            (record.step, layer, metric, value)
            for record in self.records
            for (metric, layer), value in record.values.items()
        ]
        first = self.records[0].step if self.records else 0
        for (metric, layer), (low, high) in self.predicted.items():
            rows.append((first, layer, metric + PREDICTED_LOW, low))
            rows.append((first, layer, metric + PREDICTED_HIGH, high))
        return tables.from_rows(("step", "layer", "metric", "value"), rows)


class RunFile:
    """The folder of a run, to which records are appended."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lines = 0

    @cached_property
    def _journal(self) -> Path:
        return self.folder / JOURNAL

    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.folder / TABLE).is_file()

    def begin(self, history: History) -> None:
        """Write a new run, or one that was rewound; nothing is left in the journal."""
        more = {
            "facts": history.facts,
            "alarms": [asdict(alarm) for alarm in history.alarms],
            "records": len(history.records),
        }
        from rankscope import tables

        provenance = {"versions": versions(), "facts": history.facts}
        tables.write(history.table, self.folder / TABLE, provenance, {_KEY: json.dumps(more)})
        write_file(self._journal, b"")
        self._lines = 0

    def append(self, history: History) -> None:
        """Add the latest record and the alarms as they are now."""
        line = json.dumps(
            {
                "number": len(history.records),
                "step": history.last.step,
                "values": [[*place, value] for place, value in history.last.values.items()],
                "alarms": [asdict(alarm) for alarm in history.alarms],
            }
        )
        self._lines += 1
        if self._lines >= _MERGED_AFTER:
            self.begin(history)
            return
        try:
            with self._journal.open("ab") as file:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"{self._journal} cannot be written: {error.strerror}.") from error


def read_run(folder: str | Path) -> History:
    """The history of a run, also of one that is going on or was killed.

    ``folder`` may also be its Parquet file.
    """
    from rankscope import tables

    folder = Path(folder)
    folder = folder.parent if folder.name == TABLE else folder
    if not (folder / TABLE).is_file():
        raise InputError(f"{folder} holds no run of a monitor: there is no {TABLE}.")
    table, written = tables.from_parquet(folder / TABLE)
    try:
        more = json.loads(written[_KEY])
        history = _from_table(table.rows(named=True), more)
        for line in _lines(folder / JOURNAL):
            if line["number"] == len(history.records) + 1:
                values = {(name, layer): float(v) for name, layer, v in line["values"]}
                history.records.append(StepRecord(int(line["step"]), values))
                history.alarms = [Alarm(**alarm) for alarm in line["alarms"]]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder / TABLE} is not a run that can be read ({error}).") from None
    return history


def _from_table(rows: Iterable[Mapping[str, Any]], more: Mapping[str, Any]) -> History:
    from rankscope.monitor._names import PREDICTED_HIGH, PREDICTED_LOW

    bands: dict[Place, dict[str, float]] = {}
    by_step: dict[int, dict[Place, float]] = {}
    for row in rows:
        metric, layer, value = row["metric"], row["layer"], row["value"]
        for end in (PREDICTED_LOW, PREDICTED_HIGH):
            if metric.endswith(end):
                bands.setdefault((metric.removesuffix(end), layer), {})[end] = value
                break
        else:
            by_step.setdefault(row["step"], {})[metric, layer] = value
    return History(
        facts=dict(more["facts"]),
        predicted={
            place: (band[PREDICTED_LOW], band[PREDICTED_HIGH]) for place, band in bands.items()
        },
        records=[StepRecord(step, values) for step, values in by_step.items()],
        alarms=[Alarm(**alarm) for alarm in more["alarms"]],
    )


def _lines(journal: Path) -> Iterator[Any]:
    """The complete lines of a journal; a torn one ends it."""
    try:
        content = journal.read_bytes()
    except FileNotFoundError:
        return
    *complete, _ = content.split(b"\n")
    for line in complete:
        try:
            yield json.loads(line)
        except ValueError:
            return


def new_folder(parent: Path = Path("rankscope-output")) -> Path:
    """The first free folder ``monitor-0001``, ``monitor-0002``, …"""
    taken: Sequence[str] = [path.name for path in parent.glob("monitor-*")]
    numbers = [int(name[8:]) for name in taken if name[8:].isdecimal()]
    return parent / f"monitor-{max(numbers, default=0) + 1:04d}"
