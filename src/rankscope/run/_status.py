"""Progress of a sweep and outcomes of claims, read from their folders. No heavy imports."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rankscope import judgements
from rankscope.arguments import checked
from rankscope.judgements import Judgement
from rankscope.numerals import duration, plural
from rankscope.run._store import NAME, RunRecord, Store, holder

RECENT: Final = 300.0
"""Seconds over which the speed is measured."""


@dataclass(frozen=True)
class Status:
    """The number of runs that are done, failed and left, and the speed.

    >>> from rankscope.run import status, sweep
    >>> asked = {"heads": 1, "width": 8, "length": 4, "samples": 1, "axes": {"layers": [1, 2]}}
    >>> _ = sweep(asked, "depths", engine="inline")
    >>> found = status("depths")
    >>> found.done, found.failed, found.left
    (2, 0, 0)
    """

    total: int  # runs of the latest grid
    done: int
    failures: tuple[RunRecord, ...]
    others: int  # saved results of runs that are not in the grid any more
    holder: str | None  # the process that is running the sweep, if any
    running_seconds: float | None  # how long it has been running
    runs_per_minute: float | None
    """Over the last minutes; None if the sweep is not running or no run has finished."""

    @property
    def failed(self) -> int:
        """The number of failed runs."""
        return len(self.failures)

    @property
    def left(self) -> int:
        """The number of runs not executed yet."""
        return self.total - self.done - self.failed

    @property
    def seconds_left(self) -> float | None:
        """The estimated time for the remaining runs."""
        return None if not self.runs_per_minute else self.left / self.runs_per_minute * 60

    @property
    def state(self) -> str:
        """Whether it is running, its speed and the remaining time, in words."""
        if self.holder is None:
            return "not running" + ("; start it again to resume" if self.left else "")
        speed = f", {self.runs_per_minute:.3g} runs per minute" if self.runs_per_minute else ""
        left = f", about {duration(self.seconds_left)} left" if self.seconds_left else ""
        return f"running for {duration(self.running_seconds or 0)} ({self.holder}){speed}{left}"

    def __str__(self) -> str:
        counts = f"{self.done:,} done, {self.failed:,} failed, {self.left:,} left"
        return f"{plural(self.total, 'run')}: {counts}"


@checked
def status(folder: str | Path) -> Status:
    """The progress of the sweep in a folder, without reading any result.

    >>> from rankscope.run import status, sweep
    >>> asked = {"heads": 1, "width": 8, "length": 4, "samples": 1, "axes": {"layers": [1, 2]}}
    >>> _ = sweep(asked, "depths", engine="inline")
    >>> status("depths").done
    2
    """
    with Store(Path(folder), "sweep") as store:
        wanted = list(dict.fromkeys(key for key, _ in store.points()))
        done = store.results().keys()
        failed = {run.key: run for run in store.runs("status = 'failed'")}
        running, speed, now = holder(Path(folder)), None, time.time()
        words, started = running or (None, now)
        since = max(started, now - RECENT)
        recent = store.ended_since(since) if running else 0
        if recent and now > since:
            speed = recent / (now - since) * 60
    return Status(
        total=len(wanted),
        done=len(done & set(wanted)),
        failures=tuple(failed[key] for key in wanted if key in failed),
        others=len(done - set(wanted)),
        holder=words,
        running_seconds=None if running is None else max(0.0, now - started),
        runs_per_minute=speed,
    )


@checked
@dataclass(frozen=True)
class ClaimRun:
    """One run of a claim; its result is in the file ``<stem>.parquet``.

    >>> from rankscope.run import reproduce
    >>> claim, *_ = reproduce(["D8"], "out")
    >>> claim.run.id, claim.run.scale, claim.run.judgement.verdict
    ('D8', 'quick', 'holds')
    """

    id: str
    stem: str  # what its files are called; nothing if it failed to run
    seed: int | None  # None if the claim draws no random numbers
    scale: str
    series: str  # the same for runs that differ only in the seed
    judgement: Judgement | None
    beyond: Judgement | None
    key_figure: tuple[str, float] | None
    seconds: float | None  # run time, if known
    finished: str  # when, in UTC
    failure: str = ""  # the error, if it failed
    traceback: str = field(default="", repr=False)


@checked
@dataclass(frozen=True)
class ClaimSeries:
    """Runs of a claim that differ only in the seed, in order of the seed; or a failed run."""

    runs: tuple[ClaimRun, ...]

    @property
    def judgement(self) -> Judgement | None:
        """On the claim's domain: the judgement of the first seed if all agree, else by seed."""
        return self._over_seeds(run.judgement for run in self.runs)

    @property
    def beyond(self) -> Judgement | None:
        """The judgement beyond that domain."""
        return self._over_seeds(run.beyond for run in self.runs)

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return judgements.in_words(self.judgement, self.beyond)

    @property
    def seeds(self) -> str:
        """The seeds of the verdict, and whether they agree, check by check."""
        seeds = [run.seed for run in self.runs]
        if len(seeds) == 1:
            return "no random numbers" if seeds[0] is None else f"seed {seeds[0]} only"
        named = f"seeds {', '.join(map(str, seeds))}"
        sides = [[run.judgement for run in self.runs], [run.beyond for run in self.runs]]
        judged = [[judgement for judgement in side if judgement] for side in sides]
        if any(len({judgement.verdict for judgement in side}) > 1 for side in judged):
            return f"{named}: not stable"
        unstable = {
            name: met for side in judged for name, met in judgements.unstable_checks(side).items()
        }
        if not unstable:
            return f"{named}: stable"
        counts = ", ".join(f"{name} in {met} of {len(seeds)}" for name, met in unstable.items())
        return f"{named}: same verdict, but {counts}"

    def _over_seeds(self, judged: Iterable[Judgement | None]) -> Judgement | None:
        by_seed = {
            run.seed or 0: judgement
            for run, judgement in zip(self.runs, judged, strict=True)
            if judgement is not None
        }
        return judgements.over_seeds(by_seed) if by_seed else None


@checked
def over_seeds(runs: Sequence[ClaimRun]) -> list[ClaimSeries]:
    """Group runs of claims that differ only in the seed; the latest group is last."""
    by_series: dict[tuple[str, str], list[ClaimRun]] = {}
    for run in runs:
        key = (run.id, run.failure or run.series)
        by_series[key] = [*by_series.pop(key, ()), run]
    return [
        ClaimSeries(tuple(sorted(series, key=lambda run: run.seed or 0)))
        for series in by_series.values()
    ]


@checked
def claim_runs(folder: str | Path) -> list[ClaimRun]:
    """All runs of claims whose files exist, and failures; the latest is last.

    >>> from rankscope.run import claim_runs, reproduce
    >>> _ = reproduce(["D8"], "out")
    >>> [run.id for run in claim_runs("out")]
    ['D8']
    """
    if not (Path(folder) / NAME).is_file():
        return []
    with Store(Path(folder), "reproduce") as store:
        runs = filter(None, map(claim_run, store.runs()))
        return [
            run for run in runs if run.failure or (Path(folder) / f"{run.stem}.parquet").is_file()
        ]


def claim_run(noted: RunRecord) -> ClaimRun | None:
    """A recorded run of a claim; None if the record is invalid."""
    try:
        details = {**dict.fromkeys(("judgement", "beyond", "key_figure")), **noted.details}
        figure = details.pop("key_figure")
        judged: dict[str, Any] = {
            name: None if saved is None else Judgement(**saved) for name, saved in details.items()
        }
        run = ClaimRun(
            id=noted.experiment,
            stem="" if noted.error else noted.key,
            seconds=noted.seconds,
            finished=noted.finished,
            failure=noted.error,
            traceback=noted.traceback,
            key_figure=None if figure is None else (str(figure[0]), float(figure[1])),
            **{**judged, **noted.settings},
        )
    except (TypeError, ValueError, LookupError, ArithmeticError, OSError):
        return None
    is_sound = run.key_figure is None or math.isfinite(run.key_figure[1])
    return run if is_sound and run.stem == Path(run.stem).name else None
