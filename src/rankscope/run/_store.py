"""What ran in a folder, when, how it ended and where its file is: one SQLite database.

Results themselves are files beside it. A result is written first and noted here second, so that
whatever ends the program leaves it whole, noted or not, and never half of either. Imports nothing
heavy: a list of what has run is shown at once.
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
"""Where files go unless another folder is named."""
NAME: Final = "runs.sqlite"
RESULTS: Final = "results"
ASIDE: Final = "aside"
Kind = Literal["sweep", "reproduce"]
_LOCK: Final = "lock.sqlite"
_BESIDE: Final = ("", "-wal", "-shm", "-journal")
_OURS: Final = {f"{name}{end}" for name in (NAME, _LOCK) for end in _BESIDE} | {RESULTS, ASIDE}
_FORMAT: Final = 2  # of the tables below; a later one may be laid out otherwise
_PATIENCE: Final = 0.5
"""Seconds to try for: who only asks whether a sweep is running holds the lock for an instant."""
_BUSY: Final = 30.0  # seconds for which a write waits for that of another program
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
"""Tables, and the rows of each that the seal is a digest of."""


@checked
@dataclass(frozen=True)
class Ended:
    """How one run ended: with a file, or with an error."""

    key: str
    experiment: str
    settings: Mapping[str, Any]  # what was asked for, in what JSON has
    ended: float  # when, in seconds since 1970
    seconds: float | None = None  # how long it took, if that is known
    worker: str = ""
    attempts: int = 1
    error: str = ""
    traceback: str = field(default="", repr=False)
    file: str = ""
    digest: str = ""  # of the file, when it was written
    details: Mapping[str, Any] = field(default_factory=dict)
    """What is known of the result without reading it, in what JSON has."""

    @property
    def axes(self) -> Mapping[str, Any]:
        """Of a run of a sweep, the settings along the axes."""
        axes = self.settings.get("axes")
        return axes if isinstance(axes, Mapping) else {}

    @property
    def finished(self) -> str:
        """When it ended, in UTC."""
        return datetime.fromtimestamp(self.ended, UTC).isoformat(timespec="seconds")

    def __str__(self) -> str:
        return str(Run(self.key, self.experiment, self.axes, {}))


class Store:
    """The database of a folder; everything that goes wrong with it is an ``InputError``."""

    def __init__(self, folder: Path, kind: Kind, *, create: bool = False) -> None:
        self.folder, self.path = folder, folder / NAME
        _refuse_links(folder)
        if not create and not self.path.is_file():
            raise InputError(f"{folder} is no folder of a {kind}: it has no {NAME}.")
        with self._said("read"):
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

    def ask(self, points: Iterable[tuple[str, Mapping[str, Any]]], grid: Mapping[str, Any]) -> None:
        """Write down the run's key and settings at each point of a grid, instead of the last."""
        rows = dict.fromkeys((key, json.dumps(dict(axes))) for key, axes in points)
        with self._writing():
            with self._sealing("points", "1"):
                self._database.execute("DELETE FROM points")
                self._database.executemany("INSERT INTO points (key, axes) VALUES (?, ?)", rows)
            self._note_meta("grid", dict(grid))

    def note(self, *runs: Ended) -> None:
        """Write down how runs ended, each in the place of what was noted of it before."""
        with self._writing():
            for run in runs:
                row = _columns(run)
                places = ", ".join(f":{name}" for name in row)
                query = f"INSERT OR REPLACE INTO runs ({', '.join(row)}) VALUES ({places})"
                with self._sealing("runs", "key = ?", run.key):
                    self._database.execute(query, row)

    def forget(self, *keys: str) -> None:
        """Remove what was noted of runs: there is no result of theirs."""
        with self._writing():
            for key in keys:
                with self._sealing("runs", "key = ?", key):
                    self._database.execute("DELETE FROM runs WHERE key = ?", (key,))

    def runs(self, where: str = "1", *values: Any) -> list[Ended]:
        """Runs that were noted, the last one last; what anybody else wrote is passed over."""
        names = [column.name for column in fields(Ended)]
        asked = f"SELECT {', '.join(names)} FROM runs WHERE {where} ORDER BY asked"
        read = (_ended(dict(zip(names, row, strict=True))) for row in self._rows(asked, *values))
        return [run for run in read if run is not None]

    def results(self) -> dict[str, str]:
        """Runs that have a result, with the digest of its file."""
        rows = self._rows("SELECT key, digest FROM runs WHERE status = 'done'")
        return {key: digest for key, digest in rows if is_key(key) and isinstance(digest, str)}

    def points(self) -> list[tuple[str, dict[str, Any]]]:
        """What was asked for last, in the grid's order."""
        try:
            rows = self._rows("SELECT key, axes FROM points ORDER BY number")
            return [(str(key), dict(json.loads(axes))) for key, axes in rows]
        except (TypeError, ValueError, RecursionError) as error:
            raise self._damaged(error) from error

    def ended_since(self, moment: float) -> int:
        """How many runs have ended since a moment, up to now."""
        asked = "SELECT count(*) FROM runs WHERE ended BETWEEN ? AND ?"
        ((count,),) = self._rows(asked, moment, time.time())
        return int(count)

    def claim(self) -> None:
        """Write down that this process is working in the folder."""
        words = f"process {os.getpid()} on {socket.gethostname()}"
        with self._writing():
            self._note_meta("driver", [words, time.time()])

    def meta(self, name: str) -> Any:
        """What is noted about the whole folder under a name, as text."""
        with self._said("read"):
            return self._value(f"SELECT value FROM meta WHERE name = '{name}'")

    def _open(self, mode: str) -> None:
        place = f"{self.path.absolute().as_uri()}?mode={mode}"
        self._database = sqlite3.connect(place, uri=True, timeout=_BUSY, isolation_level=None)
        try:
            self._database.execute("PRAGMA trusted_schema = OFF")
            self._value("PRAGMA user_version")
        except sqlite3.OperationalError:
            self._database.close()
            if mode != "rw" or os.access(self.folder, os.W_OK):
                raise
            # A folder that cannot be written to; nobody else can be writing either.
            self._open("ro&immutable=1")

    def _check(self, kind: Kind, *, create: bool) -> None:
        """Lay an empty database out; refuse one that is not ours."""
        with self._said("written" if create else "read"):
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
        if (said := self.meta("kind")) != kind:
            raise InputError(
                f"{self.folder} holds runs of {said!r}, not of {kind!r}; name another."
            )

    def _check_seal(self) -> None:
        """Refuse a database of which anything is not what was written."""
        self._database.execute("BEGIN")  # all of it at one moment, whoever writes meanwhile
        try:
            sound = self._value("PRAGMA integrity_check(1)")
            seal = sum(self._sum(table, where) for table, where in _SEALED.items())
            if sound != "ok" or self._value(_SEAL) != str(seal):
                raise self._damaged("its digest is wrong" if sound == "ok" else sound)
        finally:
            self._database.execute("ROLLBACK")

    def _sum(self, table: str, where: str, *values: Any) -> int:
        """Over the digests of rows, so that no others need be read where some are written."""
        rows = self._database.execute(f"SELECT * FROM {table} WHERE {where}", values)
        return sum(_number(table, row) for row in rows)

    @contextmanager
    def _sealing(self, table: str, where: str, *values: Any) -> Iterator[None]:
        """Keep the seal in step with rows that are written."""
        before = self._sum(table, where, *values)
        yield
        seal = int(self._value(_SEAL)) - before + self._sum(table, where, *values)
        self._database.execute("UPDATE meta SET value = ? WHERE name = 'seal'", (str(seal),))

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._said("read"):
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
        """All of it is written or nothing, also if the program ends."""
        with self._said("written"), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def _said(self, doing: str) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except (sqlite3.Error, OverflowError, ValueError) as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if not isinstance(error, sqlite3.OperationalError) or code == sqlite3.SQLITE_ERROR:
                raise self._damaged(error) from error
            advice = "make sure of disk space and permissions, and try again"
            raise InputError(f"{self.path} cannot be {doing}: {error}; {advice}.") from error

    def _damaged(self, error: object) -> InputError:
        return InputError(
            f"{self.path} is damaged ({error}); move it away and start again, which takes up the "
            "results that are there."
        )


def new_or_known(path: str | Path) -> Path:
    """The folder of a sweep to run: one that is new, empty, or a sweep's already."""
    try:
        str(path).encode()
        folder = Path(path).absolute()  # a program may go elsewhere in the midst of a sweep
        folder.mkdir(parents=True, exist_ok=True)
        visible = sorted(inside.name for inside in folder.iterdir() if inside.name[0] != ".")
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!r} is no Unicode text; name another folder.") from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be a sweep's folder: {error.strerror or error}."
        ) from error
    foreign = [name for name in visible if name not in _OURS]
    if foreign and NAME not in visible:
        raise InputError(
            f"{path} holds something else than a sweep ({foreign[0]}); name a folder that is new, "
            "empty, or a sweep's."
        )
    _refuse_links(folder)
    return folder


@contextmanager
def held(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other sweeps out of a folder; refuse if one is in it, or wait until it has ended.

    An open transaction in a database of its own, which the system ends with the process.
    """
    path, until = folder / _LOCK, time.monotonic() + _PATIENCE
    try:
        with closing(sqlite3.connect(path, timeout=0.1, isolation_level=None)) as lock:
            while not _claimed(lock):
                if not wait and time.monotonic() >= until:
                    raise InputError(
                        f"another sweep is running in {folder} ({_driver(folder)[0]}); wait until "
                        "it has ended, or name another folder."
                    )
            yield
    except sqlite3.Error as error:
        raise InputError(f"{path} cannot be locked: {error}.") from error


def holder(folder: Path) -> tuple[str, float] | None:
    """Who sweeps in a folder just now, if anybody does, and since when."""
    path = folder / _LOCK
    if not path.is_file() or path.is_symlink():
        return None
    lock = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)
    try:
        lock.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError:
        return _driver(folder)
    except sqlite3.Error:  # it is no database, and nobody's
        return None
    finally:
        lock.close()
    return None


def digest_of(content: bytes) -> str:
    """A name for a file's content, by which a change of it is found out."""
    return hashlib.sha256(content).hexdigest()[:32]


def _number(table: str, row: Iterable[Any]) -> int:
    """The digest of a row of a table, as a number."""
    return int(digest_of(repr((table, *row)).encode()), 16)


def is_key(text: Any) -> bool:
    """Whether it can be the key of a sweep's run, and hence the name of a file."""
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
    """Who said last to be working in a folder, and since when."""
    with suppress(RankscopeError, TypeError, ValueError, RecursionError):
        with Store(folder, "sweep") as store:
            words, since = json.loads(store.meta("driver"))
        return str(words), float(since)
    return "it began just now", time.time()


def _refuse_links(folder: Path) -> None:
    """A link in the place of a file of ours, as an unpacked archive may hold, leads elsewhere."""
    for name in sorted(_OURS):
        path = folder / name
        if path.is_symlink():
            raise InputError(f"{path} is a symbolic link; remove it, or name another folder.")
        if path.exists() and not (path.is_dir() if name in (RESULTS, ASIDE) else path.is_file()):
            raise InputError(f"{path} is not a sweep's; remove it, or name another folder.")


def _columns(run: Ended) -> dict[str, Any]:
    """A run as the database holds it; text that is no Unicode is made so."""
    started = None if run.seconds is None else run.ended - run.seconds
    row = {**asdict(run), "status": "failed" if run.error else "done", "started": started}
    for name in ("settings", "details"):
        row[name] = json.dumps(row[name])
    for name in ("worker", "error", "traceback"):
        row[name] = row[name].encode(errors="replace").decode()
    return row


def _ended(row: dict[str, Any]) -> Ended | None:
    """A run, if all of a row is what it should be: anybody may have written it."""
    try:
        row |= {name: json.loads(row[name]) for name in ("settings", "details")}
        run = Ended(**row)
    except (TypeError, ValueError, RecursionError):
        return None
    return run if math.isfinite(run.ended) and math.isfinite(run.seconds or 0.0) else None
