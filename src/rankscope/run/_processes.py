"""Runs on the cores of this machine, in processes that may die without harm to other runs."""

import os
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from typing import Final

from rankscope.arguments import Count, checked
from rankscope.errors import InputError, RankscopeError
from rankscope.run._engine import Outcome
from rankscope.run._hired import Job, Worker
from rankscope.run._run import Run, Work

_LOOK_EVERY: Final = 1.0
"""Seconds between looks at processes whose pipe says nothing."""
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
        cores = _cores()
        self.workers = workers or cores
        self.threads = threads or max(1, cores // self.workers)
        self.retries = retries
        self._crew: list[Worker] = []
        self._failed_starts = 0

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[Outcome]:
        """Each run's outcome as soon as it is there."""
        jobs = _Jobs(runs)
        program = _importable(work)
        try:
            while self._staff(jobs, program):
                for worker in self._waited_for():
                    outcome = self._hear(worker, jobs)
                    if outcome is not None:
                        self._occupy(worker, jobs)  # before the outcome is written
                        yield outcome
        finally:
            self.close()

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        crew, self._crew = self._crew, []
        for worker in crew:
            worker.hang_up()
        for worker in crew:
            worker.dismiss()

    def _staff(self, jobs: "_Jobs", program: bytes) -> bool:
        """Give idle workers runs, hire as many as are needed; whether anyone has anything to do."""
        for worker in self._crew:
            self._occupy(worker, jobs)
        starting = sum(not worker.is_ready for worker in self._crew)
        while len(self._crew) < self.workers and jobs.are_more_than(starting):
            self._crew.append(Worker(program, self.threads))
            starting += 1
        return any(worker.job is not None for worker in self._crew) or jobs.are_more_than(0)

    def _occupy(self, worker: Worker, jobs: "_Jobs") -> None:
        if worker in self._crew and worker.is_idle and jobs.are_more_than(0):
            worker.begin(jobs.take())

    def _waited_for(self) -> list[Worker]:
        """Workers that have something to say, or never will again."""
        speaking = set(wait([worker.pipe for worker in self._crew], _LOOK_EVERY))
        return [worker for worker in self._crew if worker.pipe in speaking or worker.is_gone]

    def _hear(self, worker: Worker, jobs: "_Jobs") -> Outcome | None:
        """An outcome, if that is what a worker has to say."""
        job = worker.job
        try:
            outcome = worker.listen()
        except EOFError:
            return self._replace(worker, job, jobs)
        self._failed_starts = 0
        return outcome

    def _replace(self, worker: Worker, job: Job | None, jobs: "_Jobs") -> Outcome | None:
        """A worker has died: its run is repeated, or has failed if that happened too often."""
        self._crew.remove(worker)
        how, said = worker.last_words()
        worker.dismiss()
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= _START_FAILURES:
                why = f": {said.splitlines()[-1]}" if said else "."
                raise RankscopeError(f"no worker process can be started; the last {how}{why}")
        if job is None:
            return None
        if job.attempts <= self.retries:
            jobs.put_back(job)
            return None
        times = f", {job.attempts} times" * (job.attempts > 1)
        return Outcome(
            job.run,
            error=f"its worker process {how}{times}.",
            traceback=said,
            attempts=job.attempts,
        )


class _Jobs:
    """Runs that are still to be begun: taken from where they come only as they are needed."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._rest = iter(runs)
        self._next: deque[Job] = deque()

    def are_more_than(self, count: int) -> bool:
        """Whether there are; so many are looked at."""
        while len(self._next) <= count:
            try:
                self._next.append(Job(next(self._rest)))
            except StopIteration:
                return False
        return True

    def take(self) -> Job:
        """The next."""
        return self._next.popleft()

    def put_back(self, job: Job) -> None:
        """One that has to be begun again, before all others."""
        self._next.appendleft(job)


def _importable(work: Work) -> bytes:
    """The name of the work's function, by which a worker imports it."""
    try:
        if getattr(work, "__module__", "") == "__main__":
            raise InputError("it is written in the program itself")
        return pickle.dumps(work)
    except Exception as error:
        raise InputError(
            f"work={work!r} cannot be sent to another process ({error}); give a function of a "
            "module, or use the engine Inline()."
        ) from error


def _cores() -> int:
    """Those this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
