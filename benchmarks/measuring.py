"""Timing and memory, measured so that ratios mean something on a busy machine."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile

Job = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """A measured ratio and the bar it is held against."""

    what: str
    measured: float
    bar: float

    @property
    def met(self) -> bool:
        return self.measured <= self.bar


@dataclass(frozen=True)
class Timing:
    """Seconds of each job in each round."""

    rounds: dict[str, list[float]]

    def __getitem__(self, job: str) -> float:
        """The median of a job's rounds."""
        return statistics.median(self.rounds[job])

    def ratio(self, job: str, to: str) -> float:
        """The median over rounds of one job's time over another's in the same round."""
        pairs = zip(self.rounds[job], self.rounds[to], strict=True)
        return statistics.median(first / other for first, other in pairs)


def interleaved(
    jobs: dict[str, Job], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> Timing:
    """Jobs run in turn, round by round, so that a noisy neighbour hits all of a round alike.

    On a busy machine ``time.process_time`` counts what the jobs themselves take, in all threads.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            start = clock()
            job()
            times[name].append(clock() - start)
    return Timing(times)


def peak_bytes(job: Job) -> int:
    """The most bytes PyTorch held at once while a job ran, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        job()
    kineto = recorded.profiler.kineto_results
    moves = sorted(
        (event.start_ns(), event.nbytes())
        for event in kineto.events()
        if event.name() == "[memory]"
    )
    allocated = peak = 0
    for _, size in moves:
        allocated += size
        peak = max(peak, allocated)
    return peak
