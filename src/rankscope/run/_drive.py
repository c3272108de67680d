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

    total: int
    """Different runs that were asked for."""
    before: int
    """How many of them were done when it was started."""
    done: int
    """How many are done by now."""
    failed: int
    """How many failed, now or before, and have no result."""
    left: int
    """How many are still to be carried out."""
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
    for run in runs:
        if not is_key(run.key):
            raise InputError(
                f"{run.key!r} cannot be the key of a run; expected hexadecimal digits."
            )
        if "run" in run.axes:
            raise InputError(
                "an axis cannot be called 'run', which is the column of the runs' keys."
            )
    with held(place, wait=wait), Store(place, "sweep", create=True) as store:
        store.claim()
        sweep = _Driver(store, runs, retry_failed=retry_failed)
        store.ask(((run.key, run.axes) for run in runs), grid or {})
        with _alone(engine), closing(engine):
            for outcome in engine.outcomes(sweep.left, work):
                sweep.keep(outcome)
                if on_outcome is not None:
                    on_outcome(outcome, sweep.progress())
        return sweep.progress()


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Refuse an engine that carries out another sweep: it would mix up whose outcome is whose."""
    with _CHOOSING:
        if id(engine) in _AT_WORK:
            raise InputError("this engine carries out another sweep; give each sweep its own.")
        _AT_WORK.add(id(engine))
    try:
        yield
    finally:
        _AT_WORK.discard(id(engine))


class _Driver:
    """The folder's results while a sweep is adding to them."""

    def __init__(self, store: Store, runs: Sequence[Run], *, retry_failed: bool) -> None:
        self.started = time.monotonic()
        self.store = store
        try:
            found = _results.tidy(store)
        except OSError as error:
            raise InputError(f"{store.folder} cannot be put in order: {in_words(error)}") from error
        skipped = found.done if retry_failed else found.done | found.failed
        wanted: dict[str, Run] = {}
        for run in runs:
            wanted.setdefault(run.key, run)
        self.left = [run for key, run in wanted.items() if key not in skipped]
        self.total = len(wanted)
        self.done = self.before = len(found.done & wanted.keys())
        self.failed = self.total - self.done - len(self.left)
        self.aside = found.aside

    def progress(self) -> Progress:
        """How far it is by now."""
        return Progress(
            total=self.total,
            before=self.before,
            done=self.done,
            failed=self.failed,
            left=self.total - self.done - self.failed,
            seconds=time.monotonic() - self.started,
            aside=self.aside,
        )

    def keep(self, outcome: Outcome) -> None:
        """Write down what became of a run; an error if the disk does not take it."""
        try:
            self._keep(outcome)
        except (InputError, OSError) as error:
            raise InputError(
                f"{in_words(error).rstrip('.')}. {self.done} of {self.total} results are kept; "
                "once that is mended, start the sweep again: it goes on from there."
            ) from error

    def _keep(self, outcome: Outcome) -> None:
        run, content, error = outcome.run, b"", outcome.error
        if not error:
            try:
                content = _results.to_bytes(run, outcome.result)
            except RankscopeError as wrong:
                error = str(wrong)
        ended = Ended(
            run.key,
            run.experiment,
            {"axes": dict(run.axes), "fields": dict(run.fields)},
            time.time(),
            outcome.seconds,
            outcome.worker,
            outcome.attempts,
        )
        if error:
            before = sum(each.attempts for each in self.store.runs("key = ?", run.key))
            attempts = before + outcome.attempts
            failed = replace(ended, error=error, traceback=outcome.traceback, attempts=attempts)
            self.store.note(failed)
            self.failed += 1
        else:
            _results.write(self.store.folder, run.key, content)
            self.done += 1
            self.store.note(replace(ended, **_results.described(run.key, content)))
