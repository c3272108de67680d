"""What does the exact decomposition cost, and what would adding up single paths cost?"""

import time

import torch

from measuring import Job, Ratio, interleaved, peak_bytes
from rankscope import Network, Spec, load, path_lengths
from rankscope.core.paths import count_paths, enumerate_paths, path_outputs
from rankscope.models.text import embed, passages

PLAIN, LENGTHS = "plain forward pass", "path_lengths"
_MOST = 3000
"""Single paths are added up while there are no more of them than this."""


def main() -> list[Ratio]:
    """BERT-base with biases that count, then growth with depth on a small network."""
    loaded = load("bert-base", at_init=True)
    network = loaded.network
    with torch.no_grad():  # a trained model's biases are not zero
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    x, _, _ = loaded.inputs(passages()[:8], length=128)
    jobs: dict[str, Job] = {PLAIN: lambda: network(x), LENGTHS: lambda: path_lengths(network, x)}
    with torch.no_grad():
        seconds = interleaved(jobs, rounds=5)
        peak = peak_bytes(jobs[LENGTHS])
    layers = network.spec.layers
    streams = (layers + 1) * x.numel() * x.element_size()
    measured = seconds.ratio(LENGTHS, PLAIN)
    print(f"Paths, BERT-base, 8 × 128 tokens: {count_paths(layers, 12).total:.2e} paths")
    print(f"  {PLAIN:<20} {seconds[PLAIN]:7.2f} s")
    print(f"  {LENGTHS:<20} {seconds[LENGTHS]:7.2f} s   {measured:.2f}× (bar {(layers + 3) / 2})")
    print(
        f"  peak memory {peak / 2**20:.0f} MiB; all lengths of one layer: {streams / 2**20:.0f} MiB"
    )
    _growth()
    return [Ratio("path_lengths / ((L+3)/2 forward passes)", measured / ((layers + 3) / 2), 1.0)]


def _growth() -> None:
    """Seconds against depth: single paths while that is possible, lengths throughout."""
    print("  layers        paths    single paths    by length   (12 heads, width 96, 32 tokens)")
    for layers in (1, 2, 3, 4, 6, 12, 24, 48):
        network = Network.random(Spec(layers, 12, 96), dtype=torch.float64)
        x, _ = embed(passages()[:1], 96, length=32, dtype=torch.float64)
        total = count_paths(layers, 12).total
        start = time.perf_counter()
        lengths = path_lengths(network, x)
        by_length = time.perf_counter() - start
        single = "not possible"
        if total <= _MOST:
            start = time.perf_counter()
            summed = path_outputs(network, x, list(enumerate_paths(layers, 12))).sum(0)
            single = f"{time.perf_counter() - start:10.2f} s"
            assert torch.allclose(summed, lengths.contributions.sum(0), rtol=1e-9)
        print(f"  {layers:>6} {total:12.2e}    {single:>12} {by_length:10.2f} s")


if __name__ == "__main__":
    main()
