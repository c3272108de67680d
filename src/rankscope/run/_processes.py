"""Runs on the cores of this machine, in processes that may die without harm to other runs."""

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
from rankscope.run._engine import Outcome, Run, Work, carry_out, packed

_LOOK_EVERY: Final = 0.2
"""Seconds between looks for an interruption, by which no wait for threads is ended once polars has
set a handler of its own."""
_START_FAILURES: Final = 3
"""Workers in a row that end before they are ready, after which none is started any more."""


@checked
class Processes:
    """``workers`` processes (one for each core unless said) of ``threads`` threads each.

    A run whose worker dies is repeated up to ``retries`` times, then it has failed.
    """

    def __init__(
        self, workers: Count | None = None, threads: Count | None = None, retries: int = 2
    ) -> None:
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        cores = len(usable) or os.cpu_count() or 1
        self.workers = workers or cores
        self.threads = threads or max(1, cores // self.workers)
        self.retries = retries
        self._hiring = threading.Lock()
        self._crew: list[Worker] = []
        self._idle: list[Worker] = []
        self._failed_starts = 0
        self._closed = True

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[Outcome]:
        """Each run's outcome as soon as it is there.

        A thread waits for each process. One run more than there are processes is handed out, so
        that none waits while an outcome is written.
        """
        answer = partial(_answer, work)
        try:
            if getattr(work, "__module__", "") == "__main__":
                raise InputError("it is written in the program itself")
            pickle.dumps(answer)
        except Exception as error:
            raise InputError(
                f"work={work!r} cannot be sent to another process ({error}); give a function of a "
                "module, or use the engine Inline()."
            ) from error
        rest, pending = iter(runs), set[Future[Outcome]]()
        self._failed_starts, self._closed = 0, False
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sweep") as threads:
            try:
                while True:
                    for run in islice(rest, self.workers + 1 - len(pending)):
                        pending.add(threads.submit(self._outcome, run, answer))
                    if not pending:
                        return
                    done, pending = wait(pending, _LOOK_EVERY, FIRST_COMPLETED)
                    while done:
                        yield done.pop().result()
            finally:
                for future in pending:
                    future.cancel()
                self.close()

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        with self._hiring:
            self._closed = True
            crew, self._crew, self._idle = self._crew, [], []
        for worker in crew:
            worker.close()

    def _outcome(self, run: Run, answer: Answer) -> Outcome:
        """Have a run carried out; if its worker dies of it, by others, until it has failed."""
        how, said, attempts = "", "", 0
        while attempts <= self.retries:
            worker = self._hire(answer)
            attempts += 1
            try:
                outcome: Outcome = pickle.loads(worker.ask(pickle.dumps(run)))
            except EOFError:
                how, said = self._bury(worker)
            else:
                with self._hiring:
                    self._idle.append(worker)
                return replace(outcome, attempts=attempts)
        times = f", {attempts} times" * (attempts > 1)
        error = f"its worker process {how}{times}."
        return Outcome(run, error=error, traceback=said, attempts=attempts)

    def _hire(self, answer: Answer) -> Worker:
        """An idle worker, or a new one once it is ready."""
        while True:
            with self._hiring:
                if self._closed:
                    raise RankscopeError("the engine was closed.")
                if self._idle:
                    return self._idle.pop()
                worker = Worker(answer, threads=self.threads)
                self._crew.append(worker)
            try:
                worker.wait_until_ready()
            except EOFError:
                how, said = self._bury(worker)
                self._failed_starts += 1
                if self._failed_starts >= _START_FAILURES:
                    why = f": {said.splitlines()[-1]}" if said else "."
                    raise RankscopeError(
                        f"no worker process can be started; the last {how}{why}"
                    ) from None
            else:
                self._failed_starts = 0
                return worker

    def _bury(self, worker: Worker) -> tuple[str, str]:
        """How a worker has ended, and its last words."""
        with self._hiring:
            if self._closed:
                raise RankscopeError("the engine was closed.")
            self._crew.remove(worker)
        ending = worker.ending()
        worker.close()
        return ending


def _answer(work: Work, message: bytes) -> bytes:
    return packed(carry_out(pickle.loads(message), work, f"process {os.getpid()}"))
