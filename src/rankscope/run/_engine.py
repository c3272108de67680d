"""What carries runs out: one small interface for this process, for many, and for a cluster."""

import pickle
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import polars as pl

from rankscope.errors import RankscopeError
from rankscope.run._run import Run, Work


@dataclass(frozen=True)
class Outcome:
    """What became of one run: its table, or why there is none."""

    run: Run
    table: pl.DataFrame | None = None
    error: str = ""
    """One sentence."""
    traceback: str = ""
    seconds: float = 0.0
    worker: str = ""
    attempts: int = 1
    """How often it was begun: more than once where a worker died of it."""


@runtime_checkable
class Engine(Protocol):
    """Carries runs out and hands each outcome back as soon as it is there, in any order.

    ``runs`` are taken one by one as there is room for them. ``close`` ends whatever still runs.
    """

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[Outcome]: ...

    def close(self) -> None: ...


def carry_out(run: Run, work: Work, worker: str) -> Outcome:
    """Do the work of one run; whatever it raises is its outcome and harms no other run."""
    started = time.perf_counter()
    table, error, where = None, "", ""
    try:
        table = work(run)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # also an exit, or a panic of polars, which is no Exception
        error, where = in_words(raised), _where(raised)
    return Outcome(run, table, error, where, time.perf_counter() - started, worker)


def packed(outcome: Outcome) -> bytes:
    """An outcome to be sent to another process; one that cannot be is a failure, and says why."""
    try:
        return pickle.dumps(outcome)
    except BaseException as error:  # a panic of polars is no Exception
        failed = f"the run's result cannot be sent: {in_words(error)}"
        return pickle.dumps(replace(outcome, table=None, error=failed))


def in_words(error: BaseException) -> str:
    """One sentence about an error; its kind is named unless it is one of ours."""
    try:
        said = str(error)
    except Exception:  # an error that cannot even be printed
        said = "which cannot be shown"
    named = said if isinstance(error, RankscopeError) else f"{type(error).__name__}: {said}"
    return named.strip().rstrip(".:") + "."


def _where(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return ""
