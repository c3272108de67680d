"""How long does it take to see what a design will do, beside drawing and running networks?"""

import time

import torch

from measuring import Ratio
from rankscope import Network, Spec, predict, trace
from rankscope.models.text import embed, passages

BERT = Spec(12, 12, 768, norm_place="post")
KINDS = {
    "BERT's blocks": BERT,
    "pre-norm, causal": Spec(12, 12, 768, mask="causal"),
    "pure attention": Spec.pure_attention(12, 12, 768),
    "no skips": Spec(12, 12, 768, norm_place="post", skip=False),
}
METRICS = [
    "relative_dispersion",
    "mean_cosine",
    "effective_rank",
    "token_norm",
    "attention_entropy",
]
DRAWS = 16


def main() -> list[Ratio]:
    """Sixteen draws of a network of BERT-base's shape on 128 tokens."""
    x, _ = embed(passages()[:1], 768, length=128)
    predict(BERT, x, draws=1)
    seconds = {
        name: _least(lambda spec=spec: predict(spec, x, draws=DRAWS))
        for name, spec in KINDS.items()
    }
    for name, times in seconds.items():
        print(f"Predict, {name}, 12 layers, 128 tokens, {DRAWS} draws: {times:.2f} s")
    with_gradients = _least(lambda: predict(BERT, x, draws=DRAWS, gradients=True), rounds=1)
    print(f"  with gradients: {with_gradients:.1f} s")
    measured = _least(lambda: _measure(x), rounds=1)
    print(f"  drawing and tracing as many networks: {measured:.1f} s")
    return [
        Ratio("predict, 16 draws, BERT-base, 128 tokens / 2 s", seconds["BERT's blocks"] / 2, 1.0),
        Ratio(
            "predict / as many networks drawn and traced", seconds["BERT's blocks"] / measured, 0.2
        ),
    ]


def _measure(x: torch.Tensor) -> None:
    for seed in range(DRAWS):
        trace(Network.random(BERT, seed=seed), x, metrics=METRICS)


def _least(job, rounds: int = 3) -> float:
    """The least of some runs: other work on the machine only ever adds."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
