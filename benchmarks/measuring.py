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


def interleaved(jobs: dict[str, Job], *, rounds: int) -> dict[str, float]:
    """Median seconds of each job, run in turn so that a noisy neighbour hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


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
    held = peak = 0
    for _, size in moves:
        held += size
        peak = max(peak, held)
    return peak
