"""What does scaled arithmetic cost, beside a plain float64 pass and beside mpmath?"""

import importlib
import sys
import time
from pathlib import Path

import torch

from measuring import Ratio, interleaved
from rankscope import Network, Spec, deep_trace
from rankscope.experiments import Subject, run
from rankscope.models.text import embed, passages

PLAIN, DEEP = "plain float64 forward pass", "deep_trace"
MASKS = ("full", "causal", "window:8", "causal-window:8", "strided:8", "bigbird:2:1:2")
SHAPES = {
    "pure attention": Spec(12, 12, 768, mlp_ratio=0.0, norm="none", skip=False),
    "BERT's blocks": Spec(12, 12, 768, norm_place="post"),
    "BERT's blocks, no skips": Spec(12, 12, 768, norm_place="post", skip=False),
    "causal, pre-norm": Spec(12, 12, 768, mask="causal"),
}


def main() -> list[Ratio]:
    """Forward passes per deep trace, a hundred layers, six masks to depth 128, and mpmath."""
    x, _ = embed(passages()[:1], 768, length=128, dtype=torch.float64)
    worst = max(_forward_passes(name, spec, x) for name, spec in SHAPES.items())
    hundred = _hundred_layers(x)
    masks = _six_masks(x)
    slower = _mpmath()
    return [
        Ratio("deep_trace / (4 float64 forward passes)", worst / 4, 1.0),
        Ratio("deep_trace of 100 layers / a minute", hundred / 60, 1.0),
        Ratio("six masks to depth 128 / three minutes", masks / 180, 1.0),
        Ratio("1000 deep traces / one mpmath run", 1000 / slower, 1.0),
    ]


def _forward_passes(name: str, spec: Spec, x: torch.Tensor) -> float:
    network = Network.random(spec, dtype=torch.float64)
    with torch.no_grad():
        jobs = {PLAIN: lambda: network(x), DEEP: lambda: deep_trace(network, x)}
        seconds = interleaved(jobs, rounds=3)
    ratio = seconds.ratio(DEEP, PLAIN)
    print(f"Deep, {name}, 12 layers, 128 tokens: {seconds[DEEP]:.2f} s, {ratio:.2f} forward passes")
    return ratio


def _hundred_layers(x: torch.Tensor) -> float:
    spec = Spec(100, 12, 768, mlp_ratio=0.0, norm="none", skip=False)
    network = Network.random(spec, dtype=torch.float64)
    start = time.perf_counter()
    columns = deep_trace(network, x).columns
    seconds = time.perf_counter() - start
    last = max(columns["layer"])
    rows = zip(columns["layer"], columns["metric"], columns["value"], strict=True)
    end = next(v for layer, metric, v in rows if (layer, metric) == (last, "log10_residual"))
    print(f"  100 layers of pure attention: {seconds:.1f} s, residual 10^({end:.4g})")
    return seconds


def _six_masks(x: torch.Tensor) -> float:
    spec = Spec(128, 12, 768, mlp_ratio=0.0, norm="none", skip=False)
    network = Network.random(spec, dtype=torch.float64)
    start = time.perf_counter()
    result = run("masks", subject=Subject(network, x), masks=MASKS)
    seconds = time.perf_counter() - start
    print(f"  six masks to depth 128: {seconds:.1f} s; {result.sentences[1]}")
    return seconds


def _mpmath() -> float:
    """How much slower mpmath is on a tiny network, at as many digits as its last layer needs."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    oracle = importlib.import_module("deep.oracle")
    network = Network.random(
        Spec(10, 2, 8, mlp_ratio=0.0, norm="none", skip=False, init="lecun"), dtype=torch.float64
    )
    x, _ = embed(passages()[:1], 8, length=6, dtype=torch.float64)
    deep_trace(network, x)
    start = time.perf_counter()
    for _ in range(20):
        columns = deep_trace(network, x).columns
    ours = (time.perf_counter() - start) / 20
    ends = [
        v for m, v in zip(columns["metric"], columns["value"], strict=True) if m == "log10_residual"
    ]
    digits = int(-ends[-1]) + 30
    start = time.perf_counter()
    states = oracle.plain_states(network, x, digits=digits)
    exact = float(oracle.log10_residual(states[-1])[0])
    theirs = time.perf_counter() - start
    assert abs(exact - ends[-1]) < 1e-8 * abs(exact), (exact, ends[-1])
    print(
        f"  tiny network, residual 10^{ends[-1]:.6f}: {ours * 1e3:.1f} ms; mpmath at {digits} "
        f"digits {theirs:.1f} s, {theirs / ours:,.0f} times slower, equal to 1e-8"
    )
    return theirs / ours


if __name__ == "__main__":
    main()
