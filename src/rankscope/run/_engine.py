"""Runs, and engines that execute them in this process, in many, or on a cluster."""

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

AxisValue = str | int | float | bool | None
"""A value on an axis of the grid, which becomes a column of the table."""


@checked
@dataclass(frozen=True)
class Run:
    """One experiment to run, and the key of its result.

    ``axes`` are the values on the grid's axes, in the grid's order; ``fields`` are all fields of
    the experiment, including axes, as JSON values. Paths in ``fields`` are relative to ``folder``.

    >>> print(Run("0123456789ab", "trace", {"layers": 2}, {"layers": 2, "width": 8}))
    trace (layers=2)
    """

    key: str
    experiment: str
    axes: Mapping[str, AxisValue]
    fields: Mapping[str, Any]
    folder: str = ""

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.axes.items())
        return f"{self.experiment} ({settings})" if settings else self.experiment


Work = Callable[[Run], Any]
"""Computes a run: for a sweep, the long table of its result."""


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of one run: its result or an error.

    >>> from rankscope.run import Run, RunOutcome
    >>> RunOutcome(Run("0123456789ab", "trace", {}, {}), error="out of memory").attempts
    1
    """

    run: Run
    result: Any = None  # the value that the work returned: for a sweep, a table
    error: str = ""  # one sentence
    traceback: str = ""
    seconds: float = 0.0
    worker: str = ""
    attempts: int = 1  # how often it was started: more than once if a worker died


@runtime_checkable
class Engine(Protocol):
    """Executes runs and yields each outcome as soon as it is available, in any order.

    >>> from rankscope.run import Engine, Inline
    >>> isinstance(Inline(), Engine)
    True

    ``runs`` is consumed as workers become free. ``close`` stops all remaining runs.
    """

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[RunOutcome]: ...

    def close(self) -> None: ...


@checked
class Inline:
    """Execute runs in this process: for a few runs, or for a debugger.

    >>> from rankscope.run import Inline, Run
    >>> (outcome,) = Inline().outcomes([Run("0123456789ab", "trace", {}, {})], lambda run: run.key)
    >>> outcome.result
    '0123456789ab'
    """

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[RunOutcome]:
        """Yield each run's outcome, in the order of the runs."""
        for run in runs:
            yield carry_out(run, work, "this process")

    def close(self) -> None:
        """Do nothing: no run is left."""


@dataclass(frozen=True)
class EngineOption:
    """An option of an engine: an argument of its class."""

    help: str
    kind: type = float
    least: float = 0.0


@dataclass(frozen=True)
class EngineKind:
    """A named engine: its class, as ``module:name``, and its options."""

    engine: str
    help: str
    options: Mapping[str, EngineOption] = field(default_factory=dict)


ENGINES: Final = {
    "processes": EngineKind(
        "rankscope.run._processes:Processes",
        "local processes",
        {"workers": EngineOption("Number of processes (default: one per core).", int, least=1)},
    ),
    "inline": EngineKind("rankscope.run._engine:Inline", "this process"),
    "ray": EngineKind(
        "rankscope.run._ray:RayEngine",
        "a Ray cluster",
        {
            "address": EngineOption(
                "Cluster address: auto, host:port, ray://host:port (default: a new local cluster).",
                str,
            ),
            "cpus": EngineOption("CPUs per run (default: 1)."),
            "gpus": EngineOption("GPUs per run (default: 0)."),
            "memory": EngineOption("Memory per run in GiB.", least=0.001),
        },
    ),
}
"""All named engines; the options of the command line are generated from this."""


def make_engine(name: str, **options: Any) -> Engine:
    """Create an engine by name; an option that it does not have is an error."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; choose {', '.join(ENGINES)}.")
    kind = ENGINES[name]
    chosen = {option: value for option, value in options.items() if value is not None}
    if unknown := [option for option in chosen if option not in kind.options]:
        words = ", ".join(kind.options) or "no options"
        raise InputError(f"engine {name} has no option {unknown[0]}; it has {words}.")
    engine: Engine = resolve_name(kind.engine)(**chosen)
    return engine


def carry_out(run: Run, work: Work, worker: str) -> RunOutcome:
    """Execute one run; an exception becomes its outcome and does not affect other runs."""
    started = time.perf_counter()
    result, error, where = None, "", ""
    try:
        result = work(run)
    except KeyboardInterrupt:
        raise
    except (
        BaseException
    ) as raised:  # also SystemExit, and panics of polars, which are not Exceptions
        error = in_words(raised)
        with suppress(Exception):  # an error whose __str__ fails
            where = "".join(traceback.format_exception(raised))
    return RunOutcome(run, result, error, where, time.perf_counter() - started, worker)


def packed(outcome: RunOutcome) -> bytes:
    """Pickle an outcome; one that cannot be pickled becomes a failure."""
    try:
        return pickle.dumps(outcome)
    except BaseException as error:  # a panic of polars is not an Exception
        failed = f"the run's result cannot be pickled: {in_words(error)}"
        return pickle.dumps(replace(outcome, result=None, error=failed))


def in_words(error: BaseException) -> str:
    """One sentence about an error, with its class name unless it is a RankscopeError."""
    message = "(no message)"
    with suppress(Exception):  # an error whose __str__ fails
        message = str(error)
    if not isinstance(error, RankscopeError):
        message = f"{type(error).__name__}: {message}"
    return message.strip().rstrip(".:") + "."
