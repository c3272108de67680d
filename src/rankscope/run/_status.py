"""How far a sweep is and how claims ended, read from their folders. Imports nothing heavy."""

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
from rankscope.run._store import NAME, Ended, Store, holder

RECENT: Final = 300.0
"""Seconds over which the speed is measured."""


@dataclass(frozen=True)
class Status:
    """How many runs are done, failed and left, and how fast it goes."""

    total: int  # runs of the grid that was asked for last
    done: int
    failures: tuple[Ended, ...]
    others: int  # results that are kept of runs which the grid no longer has
    holder: str | None  # the sweep that is running, if one is
    running_seconds: float | None  # for how long it has been, if it is
    runs_per_minute: float | None
    """Over the last minutes, while it is running and once a run has ended."""

    @property
    def failed(self) -> int:
        """Runs without a result."""
        return len(self.failures)

    @property
    def left(self) -> int:
        """Runs that were not carried out yet."""
        return self.total - self.done - self.failed

    @property
    def seconds_left(self) -> float | None:
        """How long the rest will take at this speed."""
        return None if not self.runs_per_minute else self.left / self.runs_per_minute * 60

    @property
    def state(self) -> str:
        """Whether it is running, how fast, and how long it will take, in words."""
        if self.holder is None:
            return "not running" + ("; start it again for the rest" if self.left else "")
        speed = f", {self.runs_per_minute:.3g} runs a minute" if self.runs_per_minute else ""
        left = f", about {duration(self.seconds_left)} left" if self.seconds_left else ""
        return f"running for {duration(self.running_seconds or 0)} ({self.holder}){speed}{left}"

    def __str__(self) -> str:
        counts = f"{self.done:,} done, {self.failed:,} failed, {self.left:,} left"
        return f"{plural(self.total, 'run')}: {counts}"


@checked
def status(folder: str | Path) -> Status:
    """How far the sweep in a folder is. No result is looked into, so that this is quick."""
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
    """One claim, run once: its whole result is in the file ``<stem>.parquet``."""

    id: str
    stem: str  # what its files are called; nothing if it failed to run
    seed: int | None  # None if the claim draws no random numbers
    scale: str
    series: str  # shared by the runs that differ from this one in the seed alone
    judgement: Judgement | None
    beyond: Judgement | None
    key_figure: tuple[str, float] | None
    seconds: float | None  # how long it took, if that is known
    finished: str  # when, in UTC
    failure: str = ""  # why it could not be run, if it could not
    traceback: str = field(default="", repr=False)


@checked
@dataclass(frozen=True)
class ClaimSeries:
    """A claim over seeds: the runs that differ in the seed alone, by seed; or one that failed."""

    runs: tuple[ClaimRun, ...]

    @property
    def judgement(self) -> Judgement | None:
        """On the claim's domain: that of the first seed if all agree, else which says what."""
        return self._over_seeds(run.judgement for run in self.runs)

    @property
    def beyond(self) -> Judgement | None:
        """The same, beyond that domain."""
        return self._over_seeds(run.beyond for run in self.runs)

    @property
    def verdict(self) -> str:
        """The whole verdict in words."""
        return judgements.in_words(self.judgement, self.beyond)

    @property
    def seeds(self) -> str:
        """Which seeds the verdict rests on, and whether they agree, check by check."""
        seeds = [run.seed for run in self.runs]
        if len(seeds) == 1:
            return "no random numbers" if seeds[0] is None else f"seed {seeds[0]} only"
        named = f"seeds {', '.join(map(str, seeds))}"
        sides = [[run.judgement for run in self.runs], [run.beyond for run in self.runs]]
        given = [[judgement for judgement in side if judgement] for side in sides]
        if any(len({judgement.verdict for judgement in side}) > 1 for side in given):
            return f"{named}: not stable"
        unstable = {
            name: met for side in given for name, met in judgements.unstable_checks(side).items()
        }
        if not unstable:
            return f"{named}: stable"
        counts = ", ".join(f"{name} in {met} of {len(seeds)}" for name, met in unstable.items())
        return f"{named}: the same verdict, but {counts}"

    def _over_seeds(self, judged: Iterable[Judgement | None]) -> Judgement | None:
        by_seed = {
            run.seed or 0: judgement
            for run, judgement in zip(self.runs, judged, strict=True)
            if judgement is not None
        }
        return judgements.over_seeds(by_seed) if by_seed else None


@checked
def over_seeds(runs: Sequence[ClaimRun]) -> list[ClaimSeries]:
    """Runs of claims, those that differ in the seed alone as one; the last run last."""
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
    """Every run of a claim whose file is still there, and failures since; the last run last."""
    if not (Path(folder) / NAME).is_file():
        return []
    with Store(Path(folder), "reproduce") as store:
        runs = filter(None, map(claim_run, store.runs()))
        return [
            run for run in runs if run.failure or (Path(folder) / f"{run.stem}.parquet").is_file()
        ]


def claim_run(noted: Ended) -> ClaimRun | None:
    """A run of a claim as it was noted; nothing if that is none: anybody may have written it."""
    try:
        details = {**dict.fromkeys(("judgement", "beyond", "key_figure")), **noted.details}
        figure = details.pop("key_figure")
        judged: dict[str, Any] = {
            name: None if kept is None else Judgement(**kept) for name, kept in details.items()
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
