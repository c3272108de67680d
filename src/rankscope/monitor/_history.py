"""What a run measured so far, and the file that keeps it.

A run is a folder with ``monitor.parquet`` and a journal of what came since it was written. Each
recorded step is one line of the journal, flushed to the disk before training goes on; a torn last
line, of a killed process, is ignored. From time to time the journal is merged into the Parquet
file, which is replaced as a whole. The first line of a journal says which Parquet file it
continues: between the replacement of the one and of the other, a reader sees the journal of an
older file, and ignores it.
"""

import json
import math
import os
import secrets
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankscope.errors import InputError
from rankscope.process import is_unfinished, versions, write_file

if TYPE_CHECKING:
    import polars

TABLE: Final = "monitor.parquet"
JOURNAL: Final = "monitor.journal"
_KEY: Final = "rankscope.monitor"
_MERGED_AFTER: Final = 64
"""Lines of the journal after which it is merged into the Parquet file, if that has few records."""
_MERGED_SHARE: Final = 0.5
"""Lines of the journal per record of a longer Parquet file: a merge writes all records, so that
merges at growing distances cost a run a fixed time per record."""
_ATTEMPTS: Final = 100
"""Reads of a run whose files are replaced meanwhile, before a reader gives up."""

Place = tuple[str, int | None]
"""A metric, and a layer (None for the whole model)."""


@dataclass(frozen=True)
class Alarm:
    """A rule that is met: where and when first, in a sentence with its figures.

    >>> from rankscope.monitor import Alarm
    >>> Alarm("rank-collapse", step=1200, layer=9, value=0.04, sentence="…").ended is None
    True

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

    >>> import tempfile, torch
    >>> from rankscope import Monitor, Network, Spec
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> with Monitor(net, torch.randn(4, 5, 8), folder=tempfile.mkdtemp()) as monitor:
    ...     pass
    >>> monitor.history.layers, monitor.history.baseline.step, monitor.history.alarms
    (2, 0, [])

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
        if self.records and record.step <= self.last.step:
            self.rewind(record.step)
            if record.step <= self.baseline.step:  # the baseline is that step's record
                return
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

        ends = {
            (metric + end, layer): value
            for (metric, layer), band in self.predicted.items()
            for end, value in zip((PREDICTED_LOW, PREDICTED_HIGH), band, strict=True)
        }
        first = self.records[0].step if self.records else 0
        parts = [*self.records, StepRecord(first, ends)]
        places = list(chain.from_iterable(part.values for part in parts))
        return tables.frame(
            {
                "step": [part.step for part in parts for _ in part.values],
                "layer": [layer for _, layer in places],
                "metric": [metric for metric, _ in places],
                "value": list(chain.from_iterable(part.values.values() for part in parts)),
            }
        )


class RunFile:
    """The folder of a run, to which records are appended.

    One process writes a run. If a write fails, the records stay in the history, and the next call
    of ``append`` writes all of them.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._token = ""
        self._merged = 0
        self._written: tuple[int, StepRecord | None] = (0, None)
        self._alarms: list[Alarm] = []
        self._facts: dict[str, Any] = {}

    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.folder / TABLE).is_file()

    def begin(self, history: History) -> None:
        """Write all of a run into its Parquet file: a new run, one that was rewound or one that
        ends. Nothing is left in the journal.
        """
        from rankscope import tables

        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} is a file; name a folder for the run.")
        token, self._token = secrets.token_hex(8), ""
        more = {
            "token": token,
            "facts": history.facts,
            "alarms": [asdict(alarm) for alarm in history.alarms],
            "records": [[record.step, len(record.values)] for record in history.records],
        }
        provenance = {"versions": versions(), "facts": history.facts}
        tables.write(history.table, self.folder / TABLE, provenance, {_KEY: json.dumps(more)})
        write_file(self.folder / JOURNAL, _header(token))
        if not self._merged:
            self._discard_unfinished()
        self._token, self._merged = token, len(history.records)
        self._note(history)

    def append(self, history: History) -> None:
        """Add the records since the last call, and the alarms as they are now."""
        count, latest = self._written
        rewound = count > len(history.records) or (
            count > 0 and history.records[count - 1] is not latest
        )
        lines = len(history.records) - self._merged
        if not self._token or rewound or lines >= max(_MERGED_AFTER, _MERGED_SHARE * self._merged):
            self.begin(history)
            return
        entries = [_entry(record) for record in history.records[count:]] or [{}]
        if history.alarms != self._alarms:  # on the line of their record: both are read, or none
            entries[-1]["alarms"] = [asdict(alarm) for alarm in history.alarms]
        if history.facts != self._facts:
            entries[-1]["facts"] = history.facts
        content = b"".join(map(_encode, entries))
        token, self._token = self._token, ""  # unknown until all is written: Ctrl-C may come here
        try:
            with (self.folder / JOURNAL).open("r+b") as file:
                header = _header(token)
                if file.read(len(header)) != header:
                    raise InputError(
                        f"another process writes to {self.folder}; one run per folder."
                    )
                file.seek(0, os.SEEK_END)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # a line may be torn, or the folder gone: write everything, or say why not
            self.begin(history)
            return
        self._token = token
        self._note(history)

    def _note(self, history: History) -> None:
        self._written = len(history.records), history.records[-1] if history.records else None
        self._alarms, self._facts = list(history.alarms), dict(history.facts)

    def _discard_unfinished(self) -> None:
        """Remove what an earlier process left that was killed while it wrote."""
        with suppress(OSError):
            for path in self.folder.iterdir():
                if is_unfinished(path):
                    path.unlink()


def _encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _header(token: str) -> bytes:
    return _encode({"continues": token})


def _entry(record: StepRecord) -> dict[str, Any]:
    values = [[metric, layer, float(value)] for (metric, layer), value in record.values.items()]
    return {"step": record.step, "values": values}


class RunReader:
    """Reads a run, also one that is going on, again and again at the cost of what is new.

    >>> from rankscope.monitor import RunReader
    >>> RunReader("no-run-yet").has_begun()
    False

    ``run`` is the folder of a run or its Parquet file.
    """

    def __init__(self, run: str | Path) -> None:
        path = Path(run)
        self.table = path if path.suffix == ".parquet" else path / TABLE
        self._token = ""
        self._state: tuple[int, ...] = ()
        self._read = 0  # bytes of the journal
        self._history = History({"layers": 0})

    def has_begun(self) -> bool:
        """Whether there is a run to read."""
        try:
            return self.table.is_file()
        except OSError as error:
            raise InputError(f"{self.table} cannot be read: {error.strerror}.") from error

    def signature(self) -> tuple[int, ...]:
        """What changes with the files of the run; empty if it has not begun."""
        states: list[int] = []
        for path in (self.table, self.table.with_name(JOURNAL)):
            with suppress(OSError):
                states += _state(path)
        return tuple(states)

    def read(self) -> History:
        """All that was recorded so far, always of one moment."""
        if not self.has_begun():
            raise InputError(_missing(self.table))
        try:
            for _ in range(_ATTEMPTS):
                state = _state(self.table)
                if state != self._state:
                    self._read_table()
                    self._state = state
                # A table that was replaced meanwhile continues elsewhere: read that.
                if self._read_journal() or _state(self.table) == state:
                    return self._history
        except FileNotFoundError:
            raise InputError(f"{self.table} was removed while it was read.") from None
        except OSError as error:
            raise InputError(f"{error.filename} cannot be read: {error.strerror}.") from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{self.table} is not a run that can be read ({error}).") from None
        raise InputError(f"{self.table} is replaced faster than it can be read; try again.")

    def _read_table(self) -> None:
        from rankscope import tables

        table, written = tables.from_parquet(self.table)
        if _KEY not in written:
            raise InputError(f"{self.table} holds no run of a monitor but another table.")
        more = json.loads(written[_KEY])
        self._history, self._token = _from_table(table, more), more["token"]
        self._read = len(_header(self._token))

    def _read_journal(self) -> bool:
        """Take the new lines of the journal, up to a torn one; False if it is of another table."""
        header = _header(self._token)
        try:
            with self.table.with_name(JOURNAL).open("rb") as file:
                if file.read(len(header)) != header:
                    return False
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            return False
        for line in content.splitlines(keepends=True):
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                entry = None
            if entry is None:
                break
            self._read += len(line)
            if "values" in entry:
                values = {(name, layer): value for name, layer, value in entry["values"]}
                self._history.records.append(StepRecord(entry["step"], values))
            self._history.facts |= entry.get("facts", {})
            if "alarms" in entry:
                self._history.alarms = [Alarm(**alarm) for alarm in entry["alarms"]]
        return True


def read_run(run: str | Path) -> History:
    """The history of a run, also of one that is going on or was killed.

    >>> import tempfile, torch
    >>> from rankscope import Monitor, Network, Spec
    >>> from rankscope.monitor import read_run
    >>> net = Network.random(Spec(2, 2, 8), seed=0)
    >>> with Monitor(net, torch.randn(4, 5, 8), folder=tempfile.mkdtemp()) as monitor:
    ...     folder = monitor.folder
    >>> len(read_run(folder).records)
    1

    ``run`` is its folder or its Parquet file.
    """
    return RunReader(run).read()


def _state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _missing(table: Path) -> str:
    folder = table.parent
    if table.name != TABLE:
        return f"{table} does not exist; give the folder of a run or its Parquet file."
    if not folder.exists():
        return f"{folder} does not exist; give the folder of a run."
    if not folder.is_dir():
        return f"{folder} is no run of a monitor; give the folder of a run or its Parquet file."
    inside = sorted(path.parent.name for path in folder.glob(f"*/{TABLE}"))
    listed = f"; it has the runs {', '.join(inside[-5:])}" if inside else ""
    return f"{folder} holds no run of a monitor: there is no {TABLE}{listed}."


def _from_table(table: "polars.DataFrame", more: Mapping[str, Any]) -> History:
    from rankscope.monitor._names import PREDICTED_HIGH, PREDICTED_LOW

    names = ("metric", "layer", "value")
    metrics, layers, values = (table[name].to_list() for name in names)
    places = list(zip(metrics, layers, strict=True))
    records, start = [], 0
    for step, size in more["records"]:
        end = start + size
        records.append(
            StepRecord(step, dict(zip(places[start:end], values[start:end], strict=True)))
        )
        start = end
    ends = dict(zip(places[start:], values[start:], strict=True))
    predicted = {
        (metric.removesuffix(PREDICTED_LOW), layer): (
            low,
            ends[metric.removesuffix(PREDICTED_LOW) + PREDICTED_HIGH, layer],
        )
        for (metric, layer), low in ends.items()
        if metric.endswith(PREDICTED_LOW)
    }
    alarms = [Alarm(**alarm) for alarm in more["alarms"]]
    return History(dict(more["facts"]), predicted, records, alarms)


def new_folder(parent: Path = Path("rankscope-output")) -> Path:
    """Make the first free folder ``monitor-0001``, ``monitor-0002``, …, for one run alone."""
    taken: Sequence[str] = [path.name for path in parent.glob("monitor-*")]
    numbers = [int(name[8:]) for name in taken if name[8:].isdecimal()]
    for number in count(max(numbers, default=0) + 1):
        folder = parent / f"monitor-{number:04d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:  # another run was faster
            continue
        except OSError as error:
            raise InputError(f"{folder} cannot be made: {error.strerror}.") from error
        return folder
    raise AssertionError("count does not end")
