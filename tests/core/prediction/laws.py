"""Measured networks, and how far two samples of a law are apart."""

import math

import torch

from rankscope import Network
from rankscope.core.deep import deep_states
from rankscope.core.metrics import deviations, effective_rank, mean_cosine, token_norm
from rankscope.core.prediction import measured_gradients

FIGURES = {
    "relative_dispersion": lambda x, m: deviations(x, token_mask=m).relative_dispersion(),
    "mean_cosine": lambda x, m: mean_cosine(x, token_mask=m),
    "effective_rank": lambda x, m: effective_rank(x, token_mask=m),
    "token_norm": lambda x, m: token_norm(x, token_mask=m),
}
BEYOND_CHANCE = 2.2
"""The limit of Kolmogorov's statistic: two samples of one law pass it once in 8,000 times."""


def tokens(count, width, *, seed=0, mean=0.5):
    """Random tokens whose features do not average to zero, as those of real embeddings do not."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=torch.float64) + mean


@torch.no_grad()
def measured(spec, x, networks, *, first=1000, token_mask=None):
    """Figures ``(layer, network)`` of random networks with seeds of their own."""
    mask = None if token_mask is None else token_mask[None]
    states = []
    for seed in range(first, first + networks):
        net = Network.random(spec, seed=seed, dtype=torch.float64)
        states.append([x[None], *net.states(x[None], mask)])
    layers = [torch.cat(layer) for layer in zip(*states, strict=True)]
    masks = None if mask is None else mask.expand(networks, -1)
    return {
        name: torch.stack([figure(layer, masks) for layer in layers])
        for name, figure in FIGURES.items()
    }


def measured_logarithms(spec, x, networks, *, first=1000):
    """The decimal logarithm of the relative dispersion in scaled arithmetic, (layer, network)."""
    found = []
    for seed in range(first, first + networks):
        net = Network.random(spec, seed=seed, dtype=torch.float64)
        states = [state for _, state in deep_states(net, x[None])]
        logs = [state.log_residual(norm="fro") - state.log_norm(norm="fro") for state in states]
        found.append(torch.cat(logs) / math.log(10))
    return torch.stack(found, 1)


def measured_slopes(spec, x, networks, *, first=1000):
    """Norms of gradients ``(layer, network)`` by autograd."""
    found = [
        measured_gradients(Network.random(spec, seed=seed), x[None], seed=seed)
        for seed in range(first, first + networks)
    ]
    return {name: torch.cat([each[name] for each in found], 1) for name in found[0]}


def apart(one, other):
    """Kolmogorov's statistic of two samples: the largest gap of their shares, by its own scale."""
    one, other = one.sort().values, other.sort().values
    both = torch.cat((one, other))
    shares = [torch.searchsorted(each, both, right=True) / len(each) for each in (one, other)]
    scale = math.sqrt(len(one) * len(other) / (len(one) + len(other)))
    return float((shares[0] - shares[1]).abs().max()) * scale


def farthest(predicted, found, *, rounding=1e-5):
    """The largest statistic of all metrics and layers; ``predicted`` is (layer, draw, sample).

    Figures that no draw moves (tokens on a sphere) differ by rounding alone.
    """
    worst = 0.0
    for name, values in found.items():
        for layer in range(1, len(values)):
            one, other = values[layer], predicted[name][layer].flatten()
            spread = torch.cat((one, other))
            if float(spread.max() - spread.min()) > rounding * float(spread.abs().max()):
                worst = max(worst, apart(one, other))
    return worst
