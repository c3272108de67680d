"""What does tracing cost beside the forward pass it rides on?"""

import statistics
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from rankscope import Network, Spec, trace
from rankscope.text import embed, passages
from rankscope.tracing import MEASURES

BATCH, TOKENS = 8, 128
SPECTRAL = tuple(name for name, each in MEASURES.items() if each.of == "spectrum")
PLAIN, TRACED, SPECTRALLY = "plain forward pass", "default metrics", "all spectral metrics"


def bert_base() -> tuple[Network, torch.Tensor]:
    """A BERT-base-shaped network and a batch of bundled text."""
    network = Network.random(Spec(12, 12, 768, norm_place="post"), seed=0).eval()
    x, _ = embed(passages()[:BATCH], 768, length=TOKENS)
    return network, x


def main() -> list[tuple[str, float, float]]:
    """Print ratios; return (what, measured, bar) for the summary."""
    network, x = bert_base()
    jobs: dict[str, Callable[[], object]] = {
        PLAIN: lambda: network(x),
        TRACED: lambda: trace(network, x),
        SPECTRALLY: lambda: trace(network, x, metrics=SPECTRAL),
    }
    with torch.no_grad():
        seconds = interleaved(jobs, rounds=9)
        plain_peak, traced_peak = peak_bytes(jobs[PLAIN]), peak_bytes(jobs[TRACED])
    extra = traced_peak - plain_peak
    print(f"BERT-base shape, {BATCH} × {TOKENS} tokens, {torch.get_num_threads()} threads")
    for name, value in seconds.items():
        print(f"  {name:<26} {value * 1e3:8.0f} ms   {value / seconds[PLAIN]:.3f}×")
    two_layers = 2 * x.numel() * x.element_size()
    print(
        f"  peak memory {plain_peak / 2**20:.1f} → {traced_peak / 2**20:.1f} MiB: "
        f"{extra / 2**20:.2f} added (two layers' states: {two_layers / 2**20:.1f})"
    )
    return [
        ("trace, default metrics / forward", seconds[TRACED] / seconds[PLAIN], 1.05),
        ("trace, spectral metrics / forward", seconds[SPECTRALLY] / seconds[PLAIN], 1.3),
        ("trace, peak memory added / two layers' states", extra / two_layers, 1.0),
    ]


def interleaved(jobs: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Fastest seconds of each job, run in turn so that a noisy neighbour hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def peak_bytes(job: Callable[[], object]) -> int:
    """The most bytes PyTorch held at once while a job ran, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        job()
    kineto = recorded.profiler.kineto_results  # type: ignore[union-attr]
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


if __name__ == "__main__":
    main()
