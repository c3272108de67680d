"""Execute runs in local processes; a process that dies does not affect other runs."""

import os
import pickle
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from rankscope.arguments import Count, checked
from rankscope.errors import InputError, RankscopeError
from rankscope.process import Answer, Worker
from rankscope.run._engine import Run, RunOutcome, Work, carry_out, packed

_CHECK_EVERY: Final = 0.2
"""Seconds between checks for Ctrl-C, which does not interrupt a wait for threads once polars has
installed its own signal handler."""
_START_FAILURES: Final = 3
"""Number of consecutive workers that may exit before they are ready."""


@checked
class Processes:
    """``workers`` processes (default: one per core) with ``threads`` threads each.

    >>> from rankscope.run import Processes
    >>> engine = Processes(workers=4, threads=1)
    >>> engine.workers, engine.retries
    (4, 2)

    A run whose worker dies is repeated up to ``retries`` times before it counts as failed.
    """

    def __init__(
        self, workers: Count | None = None, threads: Count | None = None, retries: int = 2
    ) -> None:
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        cores = len(usable) or os.cpu_count() or 1
        self.workers = workers or cores
        self.threads = threads or max(1, cores // self.workers)
        self.retries = retries
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        self._failed_starts = 0
        self._closed = True

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[RunOutcome]:
        """Yield each run's outcome as soon as it is available.

        One thread waits for each process. One run more than there are processes is queued, so that
        no process is idle while an outcome is written.
        """
        answer = partial(_answer, work)
        try:
            if getattr(work, "__module__", "") == "__main__":
                raise InputError("it is defined in __main__")
            pickle.dumps(answer)
        except Exception as error:
            raise InputError(
                f"work={work!r} cannot be pickled ({error}); give a function of a module, or "
                "use the engine Inline()."
            ) from error
        rest, pending = iter(runs), set[Future[RunOutcome]]()
        self._failed_starts, self._closed = 0, False
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sweep") as threads:
            try:
                while True:
                    for run in islice(rest, self.workers + 1 - len(pending)):
                        pending.add(threads.submit(self._outcome, run, answer))
                    if not pending:
                        return
                    done, pending = wait(pending, _CHECK_EVERY, FIRST_COMPLETED)
                    while done:
                        yield done.pop().result()
            finally:
                for future in pending:
                    future.cancel()
                self.close()

    def close(self) -> None:
        """Stop all workers at once."""
        with self._lock:
            self._closed = True
            workers, self._workers, self._idle = self._workers, [], []
        for worker in workers:
            worker.close()

    def _outcome(self, run: Run, answer: Answer) -> RunOutcome:
        """Execute a run; if its worker dies, repeat it with another."""
        ending, stderr, attempts = "", "", 0
        while attempts <= self.retries:
            worker = self._idle_worker(answer)
            attempts += 1
            try:
                outcome: RunOutcome = pickle.loads(worker.ask(pickle.dumps(run)))
            except EOFError:
                ending, stderr = self._remove(worker)
            else:
                with self._lock:
                    self._idle.append(worker)
                return replace(outcome, attempts=attempts)
        times = f", {attempts} times" * (attempts > 1)
        error = f"its worker process {ending}{times}."
        return RunOutcome(run, error=error, traceback=stderr, attempts=attempts)

    def _idle_worker(self, answer: Answer) -> Worker:
        """An idle worker, or a new one once it is ready."""
        while True:
            with self._lock:
                if self._closed:
                    raise RankscopeError("the engine was closed.")
                if self._idle:
                    return self._idle.pop()
                worker = Worker(answer, threads=self.threads)
                self._workers.append(worker)
            try:
                worker.wait_until_ready()
            except EOFError:
                ending, stderr = self._remove(worker)
                self._failed_starts += 1
                if self._failed_starts >= _START_FAILURES:
                    why = f": {stderr.splitlines()[-1]}" if stderr else "."
                    raise RankscopeError(
                        f"no worker process can be started; the last one {ending}{why}"
                    ) from None
            else:
                self._failed_starts = 0
                return worker

    def _remove(self, worker: Worker) -> tuple[str, str]:
        """Remove a dead worker; return how it ended, and its standard error."""
        with self._lock:
            if self._closed:
                raise RankscopeError("the engine was closed.")
            self._workers.remove(worker)
        ending = worker.ending()
        worker.close()
        return ending


def _answer(work: Work, message: bytes) -> bytes:
    return packed(carry_out(pickle.loads(message), work, f"process {os.getpid()}"))
