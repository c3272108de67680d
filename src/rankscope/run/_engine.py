"""Runs, and what carries them out: this process, many, or a cluster, behind one interface."""

import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import Any, Final, Protocol, runtime_checkable

from rankscope.arguments import checked
from rankscope.errors import InputError, RankscopeError

Setting = str | int | float | bool | None
"""A value along an axis, which becomes a column of the table."""


@checked
@dataclass(frozen=True)
class Run:
    """What is to be computed, and the key its result is filed under.

    ``axes`` are the settings along the grid's axes, in the grid's order; ``fields`` everything that
    was said about the experiment, axes included that are fields of it, in what JSON has. Paths in
    ``fields`` are relative to ``folder``.

    >>> print(Run("0123456789ab", "trace", {"layers": 2}, {"layers": 2, "width": 8}))
    trace (layers=2)
    """

    key: str
    experiment: str
    axes: Mapping[str, Setting]
    fields: Mapping[str, Any]
    folder: str = ""

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.axes.items())
        return f"{self.experiment} ({settings})" if settings else self.experiment


Work = Callable[[Run], Any]
"""What a run comes to: for a sweep, the long table of its result."""


@dataclass(frozen=True)
class Outcome:
    """What became of one run: its result, or why there is none."""

    run: Run
    result: Any = None  # what the work returned: for a sweep, a table
    error: str = ""  # one sentence
    traceback: str = ""
    seconds: float = 0.0
    worker: str = ""
    attempts: int = 1  # how often it was begun: more than once where a worker died of it


@runtime_checkable
class Engine(Protocol):
    """Carries runs out and hands each outcome back as soon as it is there, in any order.

    ``runs`` are taken one by one as there is room for them. ``close`` ends whatever still runs.
    """

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[Outcome]: ...

    def close(self) -> None: ...


@checked
class Inline:
    """The simplest engine: good for a few runs, for a debugger, and where processes are not."""

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[Outcome]:
        """Each run's outcome, in the order of the runs."""
        for run in runs:
            yield carry_out(run, work, "this process")

    def close(self) -> None:
        """Nothing is left running."""


@dataclass(frozen=True)
class EngineOption:
    """What can be chosen about an engine by a word: an argument of its class."""

    help: str
    kind: type = float
    least: float = 0.0


@dataclass(frozen=True)
class EngineKind:
    """An engine that has a name: its class, as ``module:name``, and what can be chosen of it."""

    engine: str
    help: str
    options: Mapping[str, EngineOption] = field(default_factory=dict)


ENGINES: Final = {
    "processes": EngineKind(
        "rankscope.run._processes:Processes",
        "processes of this machine",
        {"workers": EngineOption("Processes; one for each core unless given.", int, least=1)},
    ),
    "inline": EngineKind("rankscope.run._engine:Inline", "this process alone"),
    "ray": EngineKind(
        "rankscope.run._ray:RayEngine",
        "a Ray cluster",
        {
            "address": EngineOption(
                "Of a cluster: auto, host:port, ray://host:port; unless given, a new one.", str
            ),
            "cpus": EngineOption("CPUs a run needs; 1 unless given."),
            "gpus": EngineOption("GPUs a run needs; 0 unless given."),
            "memory": EngineOption("GiB of memory a run needs.", least=0.001),
        },
    ),
}
"""Every engine that has a name; the command line's options are made from this."""


def make_engine(name: str, **options: Any) -> Engine:
    """An engine by its name; an option that it has no use for is refused."""
    if name not in ENGINES:
        raise InputError(f"the engine is {name!r}; choose {', '.join(ENGINES)}.")
    kind = ENGINES[name]
    chosen = {option: value for option, value in options.items() if value is not None}
    if unknown := [option for option in chosen if option not in kind.options]:
        words = ", ".join(kind.options) or "no options"
        raise InputError(f"the engine {name} takes no {unknown[0]}; it takes {words}.")
    engine: Engine = resolve_name(kind.engine)(**chosen)
    return engine


def carry_out(run: Run, work: Work, worker: str) -> Outcome:
    """Do the work of one run; whatever it raises is its outcome and harms no other run."""
    started = time.perf_counter()
    result, error, where = None, "", ""
    try:
        result = work(run)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # also an exit, or a panic of polars, which is no Exception
        error = in_words(raised)
        with suppress(Exception):  # an error that cannot even be printed
            where = "".join(traceback.format_exception(raised))
    return Outcome(run, result, error, where, time.perf_counter() - started, worker)


def packed(outcome: Outcome) -> bytes:
    """An outcome to be sent to another process; one that cannot be is a failure, and says why."""
    try:
        return pickle.dumps(outcome)
    except BaseException as error:  # a panic of polars is no Exception
        failed = f"the run's result cannot be sent: {in_words(error)}"
        return pickle.dumps(replace(outcome, result=None, error=failed))


def in_words(error: BaseException) -> str:
    """One sentence about an error; its kind is named unless it is one of ours."""
    said = "which cannot be shown"
    with suppress(Exception):  # an error that cannot even be printed
        said = str(error)
    named = said if isinstance(error, RankscopeError) else f"{type(error).__name__}: {said}"
    return named.strip().rstrip(".:") + "."
