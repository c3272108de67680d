"""Is our network as fast as the original it was built from, and as sparing with memory?"""

import torch

from measuring import Job, Ratio, interleaved, peak_bytes
from rankscope import load
from rankscope.models.text import passages

OURS, THEIRS = "our network", "the original"


def main() -> list[Ratio]:
    """BERT-base at initialisation, 8 passages of 128 tokens, the blocks of both."""
    loaded = load("bert-base", at_init=True)
    x, token_mask, _ = loaded.inputs(passages()[:8], length=128)
    blocks = loaded.body.encoder
    assert bool(token_mask.all())
    jobs: dict[str, Job] = {THEIRS: lambda: blocks(x), OURS: lambda: loaded.network(x)}
    with torch.no_grad():
        seconds = interleaved(jobs, rounds=15)
        peaks = {name: peak_bytes(job) for name, job in jobs.items()}
    one_layer = 8 * 12 * 128 * 128 * 4
    print(f"Forward pass, BERT-base, 8 × 128 tokens, {torch.get_num_threads()} threads")
    for name in jobs:
        print(f"  {name:<26} {seconds[name] * 1e3:8.0f} ms   peak {peaks[name] / 2**20:.1f} MiB")
    print(f"  (one layer's attention matrices would be {one_layer / 2**20:.1f} MiB)")
    return [Ratio("our forward pass / the original's", seconds.ratio(OURS, THEIRS), 1.1)]


if __name__ == "__main__":
    main()
