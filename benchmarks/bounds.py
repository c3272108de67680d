"""Are the bounds of the theory bounds? Random networks, and networks made to come close.

``check(count, seed)`` draws networks that meet the condition of Dong et al. 2021, and counts for
every bound how often the measured residual lies above it, and how close it comes. The same is asked
of bounds that were broken on purpose: a check that catches none of them would say nothing.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from measuring import Ratio
from rankscope.core.metrics import matrix_norm, mean_center, median_center
from rankscope.core.network import MLP, Network, Spec
from rankscope.core.theory import Bounds, bounds
from rankscope.core.theory._layer_bounds import (
    SCORE_LIMIT,
    CenteredTokens,
    HeadWeights,
    LogParts,
    a_priori_bound,
    data_bound,
    head_weights,
    log_differences,
    log_mean_cost,
    norm_bound,
    output_center,
    row_gain,
    sharp_bound,
)

PROMISED = (
    "a_priori_bound",
    "data_bound",
    "sharp_bound",
    "depth_bound",
    "depth_data_bound",
    "depth_input_bound",
)


@dataclass(frozen=True)
class Check:
    """How many cases each bound, true or broken, was tried on, and measured/bound for each."""

    networks: int
    ratios: dict[str, list[float]]

    def violations(self, name: str) -> int:
        """How often the measured value lay above the bound, or was no number.

        What is allowed is rounding, or the 1e-4 to which the best center is known.
        """
        allowed = 1.01e-4 if name in PROMISED else 1e-9
        return sum(not ratio <= allowed for ratio in self.ratios[name])

    def tightness(self, name: str) -> tuple[float, float, float]:
        """Median, 99th percentile and maximum of measured/bound, over finite cases."""
        finite = sorted(ratio for ratio in self.ratios[name] if math.isfinite(ratio))
        middle, high = finite[len(finite) // 2], finite[int(len(finite) * 0.99)]
        return math.exp(middle), math.exp(high), math.exp(finite[-1])


def check(count: int, seed: int, *, whole_every: int = 1) -> Check:
    """Hold every bound against ``count`` random networks that meet the condition.

    The search for best centers takes most of the time; ``whole_every=20`` asks ``bounds`` about
    one network in twenty, and looks at the others' first layers alone.
    """
    generator = torch.Generator().manual_seed(seed)
    ratios: dict[str, list[float]] = {}
    met = 0
    while met < count:
        network, x = drawn(generator)
        if met % whole_every == 0:
            answer = bounds(network, x)
            # Gated MLPs are outside of the theorem; their data bounds are checked all the same.
            if not all(bool(layer.condition.all()) for layer in answer.layers):
                continue
            for name, short in at_best_centers(answer):
                ratios.setdefault(name, []).append(short)
        for name, short in at_their_centers(network, x, generator):
            ratios.setdefault(name, []).append(short)
        met += 1
    return Check(met, ratios)


def at_best_centers(answer: Bounds) -> Iterator[tuple[str, float]]:
    """Every layer's ``log(measured/bound)`` of every bound that applies, as ``bounds`` says it."""
    for layer in answer.layers:
        for name in PROMISED:
            bound, measured = getattr(layer, f"log10_{name}"), layer.log10_residual
            if not bool(bound.isnan()):
                # A residual of zero is below every bound, one of zero included.
                zero = bool(measured.isneginf())
                yield name, -math.inf if zero else float(measured - bound) * math.log(10)


def drawn(generator: torch.Generator) -> tuple[Network, Tensor]:
    """A network of the theory's kind with random shape, weights and biases, and an input."""

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    def size(low: float, high: float) -> float:
        return 10 ** (low + (high - low) * float(torch.rand((), generator=generator)))

    heads = number(1, 4)
    spec = Spec(
        number(1, 4),
        heads,
        number(1, 12),
        head_width=number(1, 6),
        kv_heads=1 if number(0, 3) == 0 else heads,
        mlp_ratio=(0.0, 1.0, 2.0, 4.0)[number(0, 3)],
        activation=("relu", "gelu", "gelu_tanh", "silu")[number(0, 3)],
        gated=number(0, 4) == 0,
        attention_skip=False,
        mlp_skip=(0.0, 0.0, 0.5, 1.0)[number(0, 3)],
        mlp_as={0: "identity", 1: "activation"}.get(number(0, 7), "mlp"),
        norm="none",
        init=size(-1.2, 0.3),
    )
    network = Network.random(spec, seed=number(0, 2**31), dtype=torch.float64)
    noise = size(-2, 0.5)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.normal_(0, noise, generator=generator)
    tokens = number(2, 16)
    rest = torch.randn(1, tokens, spec.width, generator=generator, dtype=torch.float64)
    kind = number(0, 3)
    if kind == 1:  # one token stands out
        rest[:, 1:] *= size(-3, 0)
    elif kind == 2:  # two camps
        rest = rest[:, :1] * torch.sign(torch.randn(1, tokens, 1, generator=generator))
    elif kind == 3:  # heavy tails
        rest = rest**3
    center = size(-2, 1) * torch.randn(1, 1, spec.width, generator=generator, dtype=torch.float64)
    return network, center + _to_condition(network, rest, size(-2, 0)) * rest


def _to_condition(network: Network, rest: Tensor, share: float) -> float:
    """A factor that brings the first layer's largest score difference to a share of the limit."""
    weights = head_weights(network.blocks[0].attention)
    largest = log_differences(weights, _spread(rest, mean_center(rest, None))).max()
    return float(((math.log(share * SCORE_LIMIT) - largest) / 2).clamp(-20, 4).exp())


def _spread(x: Tensor, center: Tensor) -> CenteredTokens:
    return CenteredTokens(
        center, x - center.unsqueeze(1), torch.zeros(len(x), dtype=torch.float64), None
    )


def at_their_centers(
    network: Network, x: Tensor, generator: torch.Generator
) -> Iterator[tuple[str, float]]:
    """The first layer, with any center for the input and measured exactly where a bound says."""
    attention, mlp = network.blocks[0].attention, network.blocks[0].mlp
    weights = head_weights(attention)
    pick = int(torch.randint(3, (), generator=generator))
    centers = (mean_center(x, None), median_center(x, None), x[:, -1])
    spread = _spread(x, centers[pick])
    after = _attended(network, x)
    image = output_center(weights, spread)
    noise = 1e-13 * float(after.abs().max() + x.abs().max())

    def short(state: Tensor, center: Tensor, bound: Tensor) -> float:
        measured = matrix_norm(state - center.unsqueeze(1), "composite")
        if float(measured) <= noise:  # nothing is left that float64 could tell from zero
            return -math.inf
        return float((measured - noise).log() - bound)

    in_reach = float(log_differences(weights, spread).max()) <= math.log(SCORE_LIMIT)
    sharp = sharp_bound(weights, spread)
    if in_reach:
        yield "a priori, at its center", short(after, image, a_priori_bound(weights, spread))
        yield (
            "data, at its center",
            short(after, image, data_bound(weights, spread).composite),
        )
    unseen = norm_bound(weights, spread.norms, spread.counts)
    yield "sharp, at its center", short(after, image, sharp.composite)
    yield "input alone, at its center", short(after, image, unseen.composite)
    at_mean = sharp.composite + log_mean_cost(spread.counts)
    yield "sharp, at the mean", short(after, mean_center(after, None), at_mean)
    gain = row_gain(mlp, width=network.spec.width)
    if isinstance(mlp, MLP) and gain is not None:
        moved, target = mlp(x).detach(), mlp(spread.center.unsqueeze(1)).detach().squeeze(1)
        yield "MLP, at its center", short(moved, target, spread.norms.times(gain).composite)
        two = [torch.linalg.matrix_norm(p.weight.detach(), 2) for p in (mlp.up, mlp.down)]
        spectral = spread.norms.composite + two[0].log() + two[1].log()
        yield "broken: MLP by spectral norms", short(moved, target, spectral)
    for name, bound in broken(weights, spread).items():
        yield f"broken: {name}", short(after, image, bound)
    yield (
        "broken: sharp, taken for the mean",
        short(after, mean_center(after, None), sharp.composite),
    )


def _attended(network: Network, x: Tensor) -> Tensor:
    bare = network.without("mlp")
    return next(iter(bare.states(x))).detach()


def broken(weights: HeadWeights, spread: CenteredTokens) -> dict[str, Tensor]:
    """Bounds like those of the theory, each with one mistake."""
    differences = log_differences(weights, spread)
    norms, count = spread.norms, math.log(int(spread.counts[0]))
    data, sharp = data_bound(weights, spread), sharp_bound(weights, spread)
    heads = [_one_head(weights, head) for head in range(len(weights.values))]
    few = CenteredTokens(spread.center, spread.mantissa, spread.log_scale - math.log(2) / 2, None)
    halved = sharp_bound(weights, few).composite + math.log(2) / 2  # tanh(D/8)
    alone = LogParts(differences.amax(-1).amax(-1), differences.amax(-1).amax(-1))
    sizes = [matrix_norm(weights.values, norm).log().logsumexp(-1) for norm in ("one", "inf")]
    no_gamma = LogParts(alone.one + sizes[0] + norms.one, alone.inf + sizes[1] + norms.inf)
    return {
        "data without γ": math.log(2) + no_gamma.composite,
        "data, heads added after the root": _added([data_bound(w, spread) for w in heads]),
        "data, factor 2 dropped": data.composite - math.log(2),
        "sharp without the sum over queries": sharp.composite - count / 2,
        "sharp, heads added after the root": _added([sharp_bound(w, spread) for w in heads]),
        "sharp with tanh(D/8)": halved,
    }


def _one_head(weights: HeadWeights, head: int) -> HeadWeights:
    single = slice(head, head + 1)
    return HeadWeights(
        weights.query_key[single],
        weights.values[single],
        weights.key_bias[single],
        weights.bias,
        weights.scale,
    )


def _added(parts: list[LogParts]) -> Tensor:
    return torch.stack([part.composite for part in parts]).logsumexp(0)


def spotlight(tokens: int, *, difference: float = 0.05) -> tuple[Network, Tensor]:
    """One key everybody looks at, queries that differ alike: the data bound within a factor 8.

    Feature 0 is the query, ``±1/n``; feature 1 is 1 for one token, which is its key and its value,
    and gets half of all attention from a query at the center, which has ``log(n − 1)`` for it.
    """
    x = torch.zeros(1, tokens, 3, dtype=torch.float64)
    x[0, :, 0] = torch.tensor([(-1.0) ** i for i in range(tokens)]) / tokens
    x[0, 0, 1] = 1.0
    x[..., 2] = 1.0  # the same for all: the center's own query
    query_key = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    query_key[0, 0, 0, 1] = difference * tokens
    query_key[0, 0, 2, 1] = math.log(tokens - 1)
    values = torch.zeros_like(query_key)
    values[0, 0, 1, 1] = 1.0
    return Network.from_matrices(query_key, values, head_width=1), x


def cross(tokens: int, *, difference: float = 0.05) -> tuple[Network, Tensor]:
    """Two heads, one that fills a column and one that fills a row: their roots must come last.

    In the first head all queries differ and one feature is written; in the second one query differs
    and all features are written.
    """
    width = tokens + 4
    network, narrow = spotlight(tokens, difference=difference)
    x = torch.zeros(1, tokens, width, dtype=torch.float64)
    x[..., :3] = narrow
    x[0, 1, 3] = 1 / tokens
    first = head_weights(network.blocks[0].attention)
    query_key = torch.zeros(1, 2, width, width, dtype=torch.float64)
    query_key[0, :, :3, :3] = first.query_key
    query_key[0, 1, 0] = 0.0
    query_key[0, 1, 3, 1] = difference * tokens
    values = torch.zeros_like(query_key)
    values[0, 0, 1, 1] = 1.0
    values[0, 1, 1, 4:] = 1.0
    return Network.from_matrices(query_key, values, head_width=1), x


def close_calls() -> dict[str, dict[str, float]]:
    """measured/bound of true and broken bounds on the two networks made to come close."""
    ratios = {}
    for name, (network, x) in {"spotlight": spotlight(100), "cross": cross(400)}.items():
        weights = head_weights(network.blocks[0].attention)
        center = torch.zeros(1, x.shape[-1], dtype=torch.float64)
        center[:, 2] = 1.0
        spread = _spread(x, center)
        rest = _attended(network, x) - output_center(weights, spread).unsqueeze(1)
        size = matrix_norm(rest, "composite").log()
        tried = {
            "data": data_bound(weights, spread).composite,
            "sharp": sharp_bound(weights, spread).composite,
            **broken(weights, spread),
        }
        ratios[name] = {what: float((size - bound).exp()) for what, bound in tried.items()}
    return ratios


def main(count: int = 500, seed: int = 0) -> list[Ratio]:
    """Print every bound's violations and tightness; a true bound must have no violation."""
    report = check(count, seed)
    print(f"Bounds on {report.networks} random networks (seed {seed})")
    for name, ratios in sorted(report.ratios.items()):
        middle, high, most = report.tightness(name)
        print(
            f"  {name:<45} {len(ratios):6d} cases  {report.violations(name):6d} above   "
            f"measured/bound: median {middle:.1e}, 99% {high:.1e}, most {most:.3f}"
        )
    for name, tried in close_calls().items():
        print(f"  {name}: " + ", ".join(f"{what} {ratio:.3g}" for what, ratio in tried.items()))
    bad = sum(report.violations(name) for name in report.ratios if "broken" not in name)
    return [Ratio("bounds: violations by random networks", float(bad), 0.0)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    main(asked.count, asked.seed)
