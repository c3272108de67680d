"""``drive``: runs that are not done yet, carried out by an engine, each kept as soon as it is."""

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
from rankscope.run._engine import Engine, Outcome, Run, Work, in_words
from rankscope.run._store import Ended, Store, held, is_key, new_or_known

_AT_WORK: Final[set[int]] = set()
_CHOOSING: Final = threading.Lock()


@dataclass(frozen=True)
class Progress:
    """How far a sweep is that was started ``seconds`` ago."""

    total: int  # different runs that were asked for
    before: int  # of them, those that were done when it was started
    done: int
    failed: int  # now or before, and without a result
    left: int
    seconds: float
    aside: Mapping[str, str] = field(default_factory=dict)
    """Damaged files that were set aside when it was started, and what was wrong with each."""


OnOutcome = Callable[[Outcome, Progress], None]
"""Called after each run, once its result is on the disk."""


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
    """Carry out the runs that ``folder`` has no result of, and keep each result as it comes.

    Whatever ends it, what is done stays done: start it again, and only the rest is computed. A run
    that fails is written down and not repeated, unless ``retry_failed``. One sweep at a time works
    in a folder; a second is refused, or waits until the first has ended if it is to ``wait``.
    """
    place = new_or_known(folder)
    wanted: dict[str, Run] = {}
    for run in runs:
        if not is_key(run.key):
            wrong = f"{run.key!r} cannot be the key of a run"
            raise InputError(f"{wrong}; expected hexadecimal digits.")
        if "run" in run.axes:
            raise InputError("an axis cannot be called 'run', the column of the runs' keys.")
        wanted.setdefault(run.key, run)
    started = time.monotonic()
    with held(place, wait=wait), Store(place, "sweep", create=True) as store:
        store.claim()
        try:
            whole, aside = _results.tidy(store)
        except OSError as error:
            raise InputError(f"{place} cannot be put in order: {in_words(error)}") from error
        store.ask(((run.key, run.axes) for run in runs), grid or {})
        before = set() if retry_failed else {run.key for run in store.runs("status = 'failed'")}
        left = [run for key, run in wanted.items() if key not in whole | before]
        done = len(whole & wanted.keys())
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
    """Refuse an engine that carries out another sweep: it would mix up their outcomes."""
    with _CHOOSING:
        if id(engine) in _AT_WORK:
            raise InputError("this engine carries out another sweep; give each sweep its own.")
        _AT_WORK.add(id(engine))
    try:
        yield
    finally:
        _AT_WORK.discard(id(engine))


def _keep(store: Store, outcome: Outcome, progress: Progress) -> bool:
    """Write down what became of a run; whether it has a result. An error if the disk is full."""
    run, content, error, done = outcome.run, b"", outcome.error, progress.done
    if not error:
        try:
            content = _results.to_bytes(run, outcome.result)
        except RankscopeError as wrong:
            error = str(wrong)
    settings = {"axes": dict(run.axes), "fields": dict(run.fields)}
    how = (outcome.seconds, outcome.worker, outcome.attempts)
    ended = Ended(run.key, run.experiment, settings, time.time(), *how)
    try:
        if error:
            before = sum(noted.attempts for noted in store.runs("key = ?", run.key))
            where, attempts = outcome.traceback, before + outcome.attempts
            store.note(replace(ended, error=error, traceback=where, attempts=attempts))
        else:
            _results.write(store.folder, run.key, content)
            done += 1
            store.note(replace(ended, **_results.described(run.key, content)))
    except (InputError, OSError) as unwritten:
        raise InputError(
            f"{in_words(unwritten).rstrip('.')}. {done} of {progress.total} results are kept; once "
            "that is mended, start the sweep again: it goes on from there."
        ) from unwritten
    return not error
