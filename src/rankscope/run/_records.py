"""What is written beside results: a line for every run carried out, a file for every failure."""

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rankscope.errors import InputError
from rankscope.process.files import whole_file
from rankscope.run import _journal as journal
from rankscope.run._folder import Folder, keys_in

_TAIL: Final = 2**20
"""Bytes at a journal's end that hold more than its last minutes."""


@dataclass(frozen=True)
class Finished:
    """A line of the journal: a run was carried out."""

    key: str
    seconds: float
    finished: float
    """When, in seconds since 1970."""
    worker: str
    digest: str = ""
    """Of the file with its result; nothing if it failed."""


@dataclass(frozen=True)
class Failure:
    """A run that failed: why, where, and how often it was tried."""

    key: str
    experiment: str
    axes: dict[str, Any]
    error: str
    traceback: str = field(repr=False)
    attempts: int
    finished: str
    """When, in UTC."""


def append(folder: Folder, line: Finished) -> None:
    """Write down that a run was carried out."""
    try:
        journal.append_line(folder.journal, asdict(line))
    except OSError as error:
        raise InputError(f"{folder.journal} cannot be written: {error.strerror}.") from error


def finished(folder: Folder, *, last: bool = False) -> Iterator[Finished]:
    """The lines of the journal, or only the ``last`` of them; what is no line is passed over."""
    try:
        file = folder.journal.open("rb")
    except OSError:
        return
    with file:
        if last:
            file.seek(max(0, folder.journal.stat().st_size - _TAIL))
        for line in file:
            with suppress(ValueError, TypeError, RecursionError):
                read = Finished(**json.loads(line))
                if _is_sound(read):
                    yield read


def fail(folder: Folder, failure: Failure) -> None:
    """Write a failure down, in the place of an earlier one of the same run."""
    with whole_file(_place(folder, failure.key)) as unfinished:
        unfinished.write_text(json.dumps(asdict(failure), indent=1), encoding="utf-8")


def failure(folder: Folder, key: str) -> Failure | None:
    """The failure of a run, if there is one that can be read."""
    try:
        read = Failure(**json.loads(_place(folder, key).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    words = (read.experiment, read.error, read.traceback, read.finished)
    sound = all(isinstance(each, str) for each in words) and isinstance(read.axes, dict)
    return read if sound and read.key == key and isinstance(read.attempts, int) else None


def failures(folder: Folder) -> dict[str, Failure]:
    """Every failure that stands, by key."""
    read = {key: failure(folder, key) for key in keys_in(folder.failures, ".json")}
    return {key: each for key, each in read.items() if each is not None}


def forgive(folder: Folder, key: str) -> None:
    """Remove a failure: the run has a result by now."""
    _place(folder, key).unlink(missing_ok=True)


def now() -> str:
    """This moment, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _place(folder: Folder, key: str) -> Path:
    return folder.failures / f"{key}.json"


def _is_sound(line: Finished) -> bool:
    numbers = (line.seconds, line.finished)
    words = (line.key, line.worker, line.digest)
    return all(isinstance(each, str) for each in words) and all(
        isinstance(each, int | float) and math.isfinite(each) for each in numbers
    )
