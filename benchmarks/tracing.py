"""What does tracing cost beside the forward pass it rides on?"""

import torch
from transformers import GPT2Config, GPT2Model

from measuring import Job, Ratio, interleaved, peak_bytes
from rankscope import Network, Spec, attach, trace
from rankscope.core.tracing import MEASURES
from rankscope.models.text import embed, passages

BATCH, TOKENS = 8, 128
SPECTRAL = tuple(name for name, measure in MEASURES.items() if measure.of == "spectrum")
PLAIN, TRACED, SPECTRALLY = "plain forward pass", "default metrics", "all spectral metrics"
LONG = 4096
OF_ROWS = ("attention_entropy", "sink_mass", "largest_weight")
ALL_ROWS, SAMPLED = "attention of all queries", "attention of 64 queries"
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
        *_long_sequence(),
    ]


def _long_sequence() -> list[Ratio]:
    """Entropy, sinks and largest weight of all queries and of 64, at 4,096 tokens."""
    config = GPT2Config(
        n_layer=4,
        n_embd=768,
        n_head=12,
        n_positions=LONG,
        vocab_size=1000,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2Model(config).eval()
        ids = torch.randint(1000, (1, LONG))
    session = attach(model)
    jobs: dict[str, Job] = {
        PLAIN: lambda: model(ids),
        ALL_ROWS: lambda: session.trace(ids, metrics=OF_ROWS),
        SAMPLED: lambda: session.trace(ids, metrics=OF_ROWS, attention="sampled"),
    }
    with torch.no_grad():
        seconds = interleaved(jobs, rounds=5)
    print(f"Attention, GPT-2 of 4 layers, {LONG} tokens, {torch.get_num_threads()} threads")
    for name in jobs:
        ratio = seconds.ratio(name, PLAIN)
        print(f"  {name:<26} {seconds[name] * 1e3:8.0f} ms   {ratio:.3f}×")
    return [
        Ratio("attention of 64 queries, 4,096 tokens / forward", seconds.ratio(SAMPLED, PLAIN), 1.3)
    ]


if __name__ == "__main__":
    main()
