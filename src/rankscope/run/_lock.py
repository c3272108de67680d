"""One sweep at a time in a folder: a lock that is let go whenever its holder ends, however."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from rankscope.errors import InputError
from rankscope.run._folder import Folder

_PATIENCE: Final = 0.5
"""Seconds to try for: who only asks whether a sweep is running holds the lock for an instant."""


@dataclass(frozen=True)
class Holder:
    """The sweep that is running in a folder."""

    pid: int
    host: str
    started: float
    """In seconds since 1970."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@contextmanager
def hold(folder: Folder, *, wait: bool = False) -> Iterator[None]:
    """Keep other sweeps out of a folder; refuse if one is in it, or wait until it has ended."""
    try:
        file = folder.lock.open("a+", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder.lock} cannot be written: {error.strerror or error}.") from error
    with file:
        if not _taken(file, 0.0 if wait else _PATIENCE):
            if not wait:
                running = _read(file) or "it began just now"
                raise InputError(
                    f"another sweep is running in {folder.path} ({running}); "
                    "wait until it has ended, or name another folder."
                )
            fcntl.flock(file, fcntl.LOCK_EX)
        _write(file, Holder(os.getpid(), socket.gethostname(), time.time()))
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing leaves it to whatever a run has forked


def running_in(folder: str | Path) -> Holder | None:
    """Who sweeps in a folder, which need not be there yet."""
    return holder(Folder(Path(folder)))


def holder(folder: Folder) -> Holder | None:
    """Who sweeps in a folder just now, if anybody does."""
    try:
        file = folder.lock.open("r", encoding="utf-8")
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _read(file) or Holder(0, "this machine", time.time())
    return None


def _taken(file: IO[str], patience: float) -> bool:
    """Whether the lock could be had soon."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        else:
            return True


def _write(file: IO[str], held_by: Holder) -> None:
    with suppress(OSError):  # of a full disk, the files that matter will tell
        file.truncate(0)
        os.write(file.fileno(), json.dumps(asdict(held_by)).encode())


def _read(file: IO[str]) -> Holder | None:
    try:
        file.seek(0)
        written = json.loads(file.read())
        return Holder(int(written["pid"]), str(written["host"]), float(written["started"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None  # its holder has not written yet
