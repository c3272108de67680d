"""Networks whose layers share weights: drawn whole, since no layer has a law of its own.

What a matrix did to the tokens it does again to what it made of them, so that layers are no
independent draws. Here the networks themselves are drawn and run.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankscope.core.deep import deep_states
from rankscope.core.network import Network, Spec
from rankscope.core.prediction._backward import measured_gradients
from rankscope.core.prediction._coordinates import Coordinates, coordinates
from rankscope.core.prediction._ensemble import need_scaling
from rankscope.core.prediction._measure import Course, Figures, of_state, of_tokens
from rankscope.core.tracing import trace
from rankscope.streams import stream_seed


def tied_figures(
    spec: Spec,
    tokens: Coordinates,
    token_mask: Tensor | None,
    *,
    seed: int,
    repeat: int,
    gradients: bool,
) -> Course:
    """Every figure of one random network by layer and sample; ``tokens`` are coordinates."""
    # The reflection that made the row of ones a coordinate undoes itself.
    x = coordinates(pad(tokens, (0, spec.width - tokens.shape[-1])))
    network = Network.random(spec, seed=seed).repeat(repeat)
    found = _states(network, x, token_mask)
    by_layer = {name: torch.stack([each[name] for each in found]) for name in found[0]}
    by_layer["attention_entropy"] = _entropies(network.double(), x, token_mask)
    if gradients:
        by_layer |= measured_gradients(network, x, token_mask=token_mask, seed=seed)
    return by_layer


def network_seed(seed: int, draw: int) -> int:
    """The seed of the network of one draw."""
    return stream_seed(seed, "prediction", "network", draw)


def _states(network: Network, x: Coordinates, token_mask: Tensor | None) -> list[Figures]:
    """Figures of every layer: from a plain pass, unless that cannot hold what it would see."""
    states = [x.float(), *network.states(x.float(), token_mask)]
    if all(_is_plain(state, token_mask) for state in states):
        return [of_tokens(state, token_mask) for state in states]
    return [of_state(state) for _, state in deep_states(network, x, token_mask)]


def _is_plain(state: Coordinates, token_mask: Tensor | None) -> bool:
    return bool(state.isfinite().all()) and not bool(need_scaling(state, token_mask).any())


def _entropies(network: Network, x: Coordinates, token_mask: Tensor | None) -> Tensor:
    """The mean entropy of all heads, by layer and sample; the input has none."""
    columns = trace(network, x, metrics=["attention_entropy"], token_mask=token_mask).columns
    out = torch.zeros(network.spec.layers + 1, len(x), dtype=torch.float64)
    out[0] = math.nan
    at = [torch.tensor(columns[name]) for name in ("layer", "sample")]
    values = torch.tensor(columns["value"], dtype=torch.float64)
    return out.index_put((at[0], at[1]), values / network.spec.heads, accumulate=True)
