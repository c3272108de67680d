"""``drive``: execute the runs that are not done yet with an engine, saving each result."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rankscope.arguments import checked
from rankscope.errors import InputError, RankscopeError
from rankscope.run import _results
from rankscope.run._engine import Engine, Run, RunOutcome, Work, in_words
from rankscope.run._store import RunRecord, Store, is_key, lock_folder, new_or_known

_AT_WORK: Final[set[int]] = set()
_CHOOSING: Final = threading.Lock()


@dataclass(frozen=True)
class Progress:
    """Progress of a sweep, ``seconds`` after its start.

    >>> from rankscope.run import Progress
    >>> Progress(total=8, before=2, done=5, failed=0, left=3, seconds=12.0).left
    3
    """

    total: int  # distinct runs of the grid
    before: int  # runs that were done at the start
    done: int
    failed: int  # now or in an earlier sweep
    left: int
    seconds: float
    aside: Mapping[str, str] = field(default_factory=dict)
    """Damaged files that were moved aside at the start, and what is wrong with each."""


OnOutcome = Callable[[RunOutcome, Progress], None]
"""Called after each run, once its result is saved."""


@checked
def drive(
    runs: Sequence[Run],
    folder: str | Path,
    *,
    engine: Engine,
    work: Work,
    grid: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    wait: bool = False,
    on_outcome: OnOutcome | None = None,
) -> Progress:
    """Execute the runs that have no result in ``folder``, and save each result as it finishes.

    An interrupted sweep can be resumed: a second call executes only the remaining runs. A failed
    run is recorded and not repeated, unless ``retry_failed``. Only one sweep can use a folder at a
    time; a second raises an error, or with ``wait`` waits for the first to finish.
    """
    root = new_or_known(folder)
    wanted: dict[str, Run] = {}
    for run in runs:
        if not is_key(run.key):
            raise InputError(f"got {run.key!r} as the key of a run, expected hexadecimal digits.")
        if "run" in run.axes:
            raise InputError(
                "an axis cannot be named 'run': that column holds the keys of the runs."
            )
        wanted.setdefault(run.key, run)
    started = time.monotonic()
    with lock_folder(root, wait=wait), Store(root, "sweep", create=True) as store:
        store.claim()
        try:
            valid, aside = _results.tidy(store)
        except OSError as error:
            raise InputError(f"{root} cannot be checked: {in_words(error)}") from error
        store.set_points(((run.key, run.axes) for run in runs), grid or {})
        before = set() if retry_failed else {run.key for run in store.runs("status = 'failed'")}
        left = [run for key, run in wanted.items() if key not in valid | before]
        done = len(valid & wanted.keys())
        failed, seconds = len(wanted) - done - len(left), time.monotonic() - started
        progress = Progress(len(wanted), done, done, failed, len(left), seconds, aside)
        with _alone(engine), closing(engine):
            for outcome in engine.outcomes(left, work):
                is_done = _keep(store, outcome, progress)
                progress = replace(
                    progress,
                    done=progress.done + is_done,
                    failed=progress.failed + (not is_done),
                    left=progress.left - 1,
                    seconds=time.monotonic() - started,
                )
                if on_outcome is not None:
                    on_outcome(outcome, progress)
        return replace(progress, seconds=time.monotonic() - started)


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Raise if the engine runs another sweep: it would mix up their outcomes."""
    with _CHOOSING:
        if id(engine) in _AT_WORK:
            raise InputError("this engine is running another sweep; use one engine per sweep.")
        _AT_WORK.add(id(engine))
    try:
        yield
    finally:
        _AT_WORK.discard(id(engine))


def _keep(store: Store, outcome: RunOutcome, progress: Progress) -> bool:
    """Save the outcome of a run; return whether it has a result. Raises if the disk is full."""
    run, content, error, done = outcome.run, b"", outcome.error, progress.done
    if not error:
        try:
            content = _results.to_bytes(run, outcome.result)
        except RankscopeError as invalid:
            error = str(invalid)
    settings = {"axes": dict(run.axes), "fields": dict(run.fields)}
    how = (outcome.seconds, outcome.worker, outcome.attempts)
    ended = RunRecord(run.key, run.experiment, settings, time.time(), *how)
    try:
        if error:
            before = sum(noted.attempts for noted in store.runs("key = ?", run.key))
            where, attempts = outcome.traceback, before + outcome.attempts
            store.record(replace(ended, error=error, traceback=where, attempts=attempts))
        else:
            _results.write(store.folder, run.key, content)
            done += 1
            store.record(replace(ended, **_results.described(run.key, content)))
    except (InputError, OSError) as unwritten:
        raise InputError(
            f"{in_words(unwritten).rstrip('.')}. {done} of {progress.total} results are saved; fix "
            "the problem and start the sweep again to resume."
        ) from unwritten
    return not error
