"""What does tracing cost beside the forward pass it rides on?"""

import torch

from measuring import Job, Ratio, interleaved, peak_bytes
from rankscope import Network, Spec, attach, trace
from rankscope.core.tracing import MEASURES
from rankscope.models.text import embed, passages

BATCH, TOKENS = 8, 128
SPECTRAL = tuple(name for name, measure in MEASURES.items() if measure.of == "spectrum")
PLAIN, TRACED, SPECTRALLY = "plain forward pass", "default metrics", "all spectral metrics"
AGAIN, SPECTRALLY_AGAIN = "default metrics, session", "spectral metrics, session"


def main() -> list[Ratio]:
    """A BERT-base-shaped network on 8 passages of 128 tokens."""
    network = Network.random(Spec(12, 12, 768, norm_place="post"), seed=0).eval()
    x, _ = embed(passages()[:BATCH], 768, length=TOKENS)
    session = attach(network)
    jobs: dict[str, Job] = {
        PLAIN: lambda: network(x),
        TRACED: lambda: trace(network, x),
        SPECTRALLY: lambda: trace(network, x, metrics=SPECTRAL),
        AGAIN: lambda: session.trace(x),
        SPECTRALLY_AGAIN: lambda: session.trace(x, metrics=SPECTRAL),
    }
    with torch.no_grad():
        seconds = interleaved(jobs, rounds=21)
        plain_peak, traced_peak = peak_bytes(jobs[PLAIN]), peak_bytes(jobs[TRACED])
    extra = traced_peak - plain_peak
    two_layers = 2 * x.numel() * x.element_size()
    print(f"Tracing, BERT-base shape, {BATCH} × {TOKENS} tokens, {torch.get_num_threads()} threads")
    for name in jobs:
        ratio = seconds.ratio(name, PLAIN)
        print(f"  {name:<26} {seconds[name] * 1e3:8.0f} ms   {ratio:.3f}×")
    print(
        f"  peak memory {plain_peak / 2**20:.1f} → {traced_peak / 2**20:.1f} MiB: "
        f"{extra / 2**20:.2f} added (two layers' states: {two_layers / 2**20:.1f})"
    )
    return [
        Ratio("trace, default metrics / forward", seconds.ratio(TRACED, PLAIN), 1.03),
        Ratio("trace, spectral metrics / forward", seconds.ratio(SPECTRALLY, PLAIN), 1.1),
        Ratio("session, default metrics / forward", seconds.ratio(AGAIN, PLAIN), 1.03),
        Ratio("session, spectral metrics / forward", seconds.ratio(SPECTRALLY_AGAIN, PLAIN), 1.1),
        Ratio("trace, peak memory added / two layers' states", extra / two_layers, 1.0),
    ]


if __name__ == "__main__":
    main()
