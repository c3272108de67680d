"""The SQLite database of a folder: its runs, how they ended, and their files.

Results are separate files. A result is written first and recorded here second, both atomically, so
that a program that is killed never leaves a partial result. No heavy imports, so that listing runs
is fast.
"""

import hashlib
import json
import math
import os
import re
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, Self

from rankscope.arguments import checked
from rankscope.errors import InputError, RankscopeError
from rankscope.run._engine import Run

OUTPUT_FOLDER: Final = Path("rankscope-output")
"""The default output folder."""
NAME: Final = "runs.sqlite"
RESULTS: Final = "results"
ASIDE: Final = "aside"
Kind = Literal["sweep", "reproduce"]
_LOCK: Final = "lock.sqlite"
_BESIDE: Final = ("", "-wal", "-shm", "-journal")
_OURS: Final = {f"{name}{end}" for name in (NAME, _LOCK) for end in _BESIDE} | {RESULTS, ASIDE}
_FORMAT: Final = 2  # version of the tables below
_LOCK_RETRY: Final = 0.5
"""Seconds to retry the lock: a query whether a sweep is running holds it for an instant."""
_BUSY: Final = 30.0  # seconds to wait for a write of another program
_KEY: Final = re.compile(r"[0-9a-f]{8,64}")
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS points (number INTEGER PRIMARY KEY, key TEXT, axes TEXT);
CREATE TABLE IF NOT EXISTS runs (
  asked INTEGER PRIMARY KEY, key TEXT UNIQUE, experiment TEXT, settings TEXT, status TEXT,
  started REAL, ended REAL, seconds REAL, worker TEXT, attempts INTEGER, error TEXT, traceback TEXT,
  file TEXT, digest TEXT, details TEXT);
"""
_SEAL: Final = "SELECT value FROM meta WHERE name = 'seal'"
_SEALED: Final = {"meta": "name != 'seal'", "points": "1", "runs": "1"}
"""Tables, and the rows of each that the seal covers."""


@checked
@dataclass(frozen=True)
class RunRecord:
    """The record of a finished run: its file or its error.

    >>> from rankscope.run import RunRecord
    >>> RunRecord("0123456789ab", "trace", {"axes": {"layers": 2}}, ended=0.0).axes
    {'layers': 2}
    """

    key: str
    experiment: str
    settings: Mapping[str, Any]  # its configuration, as JSON values
    ended: float  # Unix time
    seconds: float | None = None  # run time, if known
    worker: str = ""
    attempts: int = 1
    error: str = ""
    traceback: str = field(default="", repr=False)
    file: str = ""
    digest: str = ""  # digest of the file
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the result that can be shown without reading it, as JSON values."""

    @property
    def axes(self) -> Mapping[str, Any]:
        """The values on the axes, for a run of a sweep."""
        axes = self.settings.get("axes")
        return axes if isinstance(axes, Mapping) else {}

    @property
    def finished(self) -> str:
        """The time at which it ended, in UTC."""
        return datetime.fromtimestamp(self.ended, UTC).isoformat(timespec="seconds")

    def __str__(self) -> str:
        return str(Run(self.key, self.experiment, self.axes, {}))


class Store:
    """The database of a folder; all of its failures are raised as ``InputError``."""

    def __init__(self, folder: Path, kind: Kind, *, create: bool = False) -> None:
        self.folder, self.path = folder, folder / NAME
        _refuse_links(folder)
        if not create and not self.path.is_file():
            raise InputError(f"{folder} is not the folder of a {kind}: it has no {NAME}.")
        with self._translated_errors("read"):
            self._open("rwc" if create else "rw")
        try:
            self._check(kind, create=create)
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def set_points(
        self, points: Iterable[tuple[str, Mapping[str, Any]]], grid: Mapping[str, Any]
    ) -> None:
        """Replace the grid: record the key and axis values of the run at each point."""
        rows = dict.fromkeys((key, json.dumps(dict(axes))) for key, axes in points)
        with self._writing():
            with self._sealing("points", "1"):
                self._database.execute("DELETE FROM points")
                self._database.executemany("INSERT INTO points (key, axes) VALUES (?, ?)", rows)
            self._note_meta("grid", dict(grid))

    def record(self, *runs: RunRecord) -> None:
        """Record finished runs; each replaces its earlier record."""
        with self._writing():
            for run in runs:
                row = _columns(run)
                places = ", ".join(f":{name}" for name in row)
                query = f"INSERT OR REPLACE INTO runs ({', '.join(row)}) VALUES ({places})"
                with self._sealing("runs", "key = ?", run.key):
                    self._database.execute(query, row)

    def delete(self, *keys: str) -> None:
        """Delete the records of runs."""
        with self._writing():
            for key in keys:
                with self._sealing("runs", "key = ?", key):
                    self._database.execute("DELETE FROM runs WHERE key = ?", (key,))

    def runs(self, where: str = "1", *values: Any) -> list[RunRecord]:
        """The recorded runs, the latest last; invalid records are skipped."""
        names = [column.name for column in fields(RunRecord)]
        asked = f"SELECT {', '.join(names)} FROM runs WHERE {where} ORDER BY asked"
        read = (_ended(dict(zip(names, row, strict=True))) for row in self._rows(asked, *values))
        return [run for run in read if run is not None]

    def results(self) -> dict[str, str]:
        """The digest of the result file of each successful run, by key."""
        rows = self._rows("SELECT key, digest FROM runs WHERE status = 'done'")
        return {key: digest for key, digest in rows if is_key(key) and isinstance(digest, str)}

    def points(self) -> list[tuple[str, dict[str, Any]]]:
        """The key and axis values at each point of the latest grid, in order."""
        try:
            rows = self._rows("SELECT key, axes FROM points ORDER BY number")
            return [(str(key), dict(json.loads(axes))) for key, axes in rows]
        except (TypeError, ValueError, RecursionError) as error:
            raise self._damaged(error) from error

    def ended_since(self, moment: float) -> int:
        """The number of runs that have ended since a moment."""
        asked = "SELECT count(*) FROM runs WHERE ended BETWEEN ? AND ?"
        ((count,),) = self._rows(asked, moment, time.time())
        return int(count)

    def claim(self) -> None:
        """Record that this process is using the folder."""
        words = f"process {os.getpid()} on {socket.gethostname()}"
        with self._writing():
            self._note_meta("driver", [words, time.time()])

    def meta(self, name: str) -> Any:
        """A property of the folder, as text."""
        with self._translated_errors("read"):
            return self._value(f"SELECT value FROM meta WHERE name = '{name}'")

    def _open(self, mode: str) -> None:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        self._database = sqlite3.connect(uri, uri=True, timeout=_BUSY, isolation_level=None)
        try:
            self._database.execute("PRAGMA trusted_schema = OFF")
            self._value("PRAGMA user_version")
        except sqlite3.OperationalError:
            self._database.close()
            if mode != "rw" or os.access(self.folder, os.W_OK):
                raise
            # A read-only folder: no other program can be writing, either.
            self._open("ro&immutable=1")

    def _check(self, kind: Kind, *, create: bool) -> None:
        """Create the tables of an empty database; raise if it is not one of ours."""
        with self._translated_errors("written" if create else "read"):
            if create and not self._value("SELECT count(*) FROM sqlite_master"):
                seal = _number("meta", ("kind", kind))
                self._database.executescript(
                    f"PRAGMA journal_mode = WAL; BEGIN IMMEDIATE; {_TABLES}"
                    f"INSERT OR IGNORE INTO meta VALUES ('kind', '{kind}'), ('seal', '{seal}');"
                    f"PRAGMA user_version = {_FORMAT}; COMMIT;"
                )
            written = self._value("PRAGMA user_version")
            if written != _FORMAT:
                raise InputError(
                    f"{self.path} was written by another version of rankscope, or by another "
                    f"program (format {written}, here {_FORMAT}); name another folder."
                )
            self._check_seal()
        if (stored := self.meta("kind")) != kind:
            raise InputError(
                f"{self.folder} has runs of {stored!r}, expected {kind!r}; name another folder."
            )

    def _check_seal(self) -> None:
        """Raise if any content of the database was changed by another program."""
        self._database.execute("BEGIN")  # a consistent snapshot, even if another program writes
        try:
            sound = self._value("PRAGMA integrity_check(1)")
            seal = sum(self._sum(table, where) for table, where in _SEALED.items())
            if sound != "ok" or self._value(_SEAL) != str(seal):
                raise self._damaged("its digest is wrong" if sound == "ok" else sound)
        finally:
            self._database.execute("ROLLBACK")

    def _sum(self, table: str, where: str, *values: Any) -> int:
        """The sum of the digests of rows, which can be updated without reading other rows."""
        rows = self._database.execute(f"SELECT * FROM {table} WHERE {where}", values)
        return sum(_number(table, row) for row in rows)

    @contextmanager
    def _sealing(self, table: str, where: str, *values: Any) -> Iterator[None]:
        """Update the seal for rows that are written in this context."""
        before = self._sum(table, where, *values)
        yield
        seal = int(self._value(_SEAL)) - before + self._sum(table, where, *values)
        self._database.execute("UPDATE meta SET value = ? WHERE name = 'seal'", (str(seal),))

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._translated_errors("read"):
            return self._database.execute(query, values).fetchall()

    def _value(self, query: str) -> Any:
        row = self._database.execute(query).fetchone()
        return None if row is None else row[0]

    def _note_meta(self, name: str, value: Any) -> None:
        written = json.dumps(value, default=str)
        with self._sealing("meta", "name = ?", name):
            self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, written))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction: all writes happen or none."""
        with self._translated_errors("written"), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def _translated_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except (sqlite3.Error, OverflowError, ValueError) as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if not isinstance(error, sqlite3.OperationalError) or code == sqlite3.SQLITE_ERROR:
                raise self._damaged(error) from error
            advice = "check disk space and permissions, and try again"
            raise InputError(f"{self.path} cannot be {doing}: {error}; {advice}.") from error

    def _damaged(self, error: object) -> InputError:
        return InputError(
            f"{self.path} is damaged ({error}); move it away and start again; existing "
            "results are reused."
        )


def new_or_known(path: str | Path) -> Path:
    """The folder of a sweep: it must be new, empty, or contain a sweep."""
    try:
        str(path).encode()
        folder = Path(
            path
        ).absolute()  # the program may change its working directory during a sweep
        folder.mkdir(parents=True, exist_ok=True)
        visible = sorted(inside.name for inside in folder.iterdir() if inside.name[0] != ".")
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!r} is not valid Unicode; name another folder.") from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be used for a sweep: {error.strerror or error}."
        ) from error
    foreign = [name for name in visible if name not in _OURS]
    if foreign and NAME not in visible:
        raise InputError(
            f"{path} contains other files ({foreign[0]}); name a folder that is new, empty, or "
            "contains a sweep."
        )
    _refuse_links(folder)
    return folder


@contextmanager
def lock_folder(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder for one sweep; raise if another holds the lock, or wait for it.

    The lock is an open transaction in a separate database, which ends with the process.
    """
    path, until = folder / _LOCK, time.monotonic() + _LOCK_RETRY
    try:
        with closing(sqlite3.connect(path, timeout=0.1, isolation_level=None)) as lock:
            while not _claimed(lock):
                if not wait and time.monotonic() >= until:
                    raise InputError(
                        f"another sweep is running in {folder} ({_driver(folder)[0]}); wait for it "
                        "to finish, or name another folder."
                    )
            yield
    except sqlite3.Error as error:
        raise InputError(f"{path} cannot be locked: {error}.") from error


def holder(folder: Path) -> tuple[str, float] | None:
    """The process that holds the lock of a folder, and since when; None if there is none."""
    path = folder / _LOCK
    if not path.is_file() or path.is_symlink():
        return None
    lock = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)
    try:
        lock.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError:
        return _driver(folder)
    except sqlite3.Error:  # not a database
        return None
    finally:
        lock.close()
    return None


def digest_of(content: bytes) -> str:
    """A digest of a file's content, which detects changes."""
    return hashlib.sha256(content).hexdigest()[:32]


def _number(table: str, row: Iterable[Any]) -> int:
    """The digest of a row of a table, as an integer."""
    return int(digest_of(repr((table, *row)).encode()), 16)


def is_key(text: Any) -> bool:
    """Whether a text can be the key of a run, and hence a file name."""
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


def _claimed(lock: sqlite3.Connection) -> bool:
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


def _driver(folder: Path) -> tuple[str, float]:
    """The process that last recorded itself in a folder, and when."""
    with suppress(RankscopeError, TypeError, ValueError, RecursionError):
        with Store(folder, "sweep") as store:
            words, since = json.loads(store.meta("driver"))
        return str(words), float(since)
    return "started just now", time.time()


def _refuse_links(folder: Path) -> None:
    """Raise if one of our files is a link, which an unpacked archive may contain."""
    for name in sorted(_OURS):
        path = folder / name
        if path.is_symlink():
            raise InputError(f"{path} is a symbolic link; remove it, or name another folder.")
        if path.exists() and not (path.is_dir() if name in (RESULTS, ASIDE) else path.is_file()):
            raise InputError(f"{path} is not a file of a sweep; remove it, or name another folder.")


def _columns(run: RunRecord) -> dict[str, Any]:
    """A run as a row of the database; invalid Unicode is replaced."""
    started = None if run.seconds is None else run.ended - run.seconds
    row = {**asdict(run), "status": "failed" if run.error else "done", "started": started}
    for name in ("settings", "details"):
        row[name] = json.dumps(row[name])
    for name in ("worker", "error", "traceback"):
        row[name] = row[name].encode(errors="replace").decode()
    return row


def _ended(row: dict[str, Any]) -> RunRecord | None:
    """A run from a row of the database; None if the row is invalid."""
    try:
        row |= {name: json.loads(row[name]) for name in ("settings", "details")}
        run = RunRecord(**row)
    except (TypeError, ValueError, RecursionError):
        return None
    return run if math.isfinite(run.ended) and math.isfinite(run.seconds or 0.0) else None
