"""How far a sweep is, read from its folder; also while it is running elsewhere."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.arguments import checked
from rankscope.run import _manifest, _records
from rankscope.run._check import counted
from rankscope.run._folder import known
from rankscope.run._lock import Holder, holder
from rankscope.run._records import Failure

RECENT: Final = 300.0
"""Seconds over which the speed is measured."""


@dataclass(frozen=True)
class Status:
    """How many runs are done, failed and left, and how fast it goes."""

    total: int
    """Runs of the grid that was asked for last."""
    done: int
    failures: tuple[Failure, ...]
    others: int
    """Results that are kept of runs which the grid no longer has."""
    holder: Holder | None
    """The sweep that is running, if one is."""
    running_seconds: float | None
    """For how long it has been, if it is."""
    runs_per_minute: float | None
    """Over the last minutes, while it is running and once a run has ended."""

    @property
    def failed(self) -> int:
        """How many runs failed and have no result."""
        return len(self.failures)

    @property
    def left(self) -> int:
        """How many runs were not carried out yet."""
        return self.total - self.done - self.failed

    @property
    def seconds_left(self) -> float | None:
        """How long the rest will take at this speed."""
        return None if not self.runs_per_minute else self.left / self.runs_per_minute * 60


@checked
def status(folder: str | Path) -> Status:
    """How far the sweep in a folder is. Nothing is looked into, so that this is quick."""
    place = known(folder)
    asked, found, running = _manifest.keys(place), counted(place), holder(place)
    wanted, done, now = set(asked), found.done, time.time()
    failures = (_records.failure(place, key) for key in asked if key in found.failed)
    speed = None
    if running is not None:
        since = max(running.started, now - RECENT)
        recent = sum(since <= line.finished <= now for line in _records.finished(place, last=True))
        speed = recent / (now - since) * 60 if recent and now > since else None
    return Status(
        total=len(wanted),
        done=len(done & wanted),
        failures=tuple(each for each in failures if each is not None),
        others=len(done - wanted),
        holder=running,
        running_seconds=None if running is None else max(0.0, now - running.started),
        runs_per_minute=speed,
    )
