"""Two points on two arcs, and a trained step in the plane as a layer of a network."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rankscope.deep import deep_states
from rankscope.network import Block, Network
from rankscope.training import Examples, SequenceModel

RADIUS = 0.3
_LOG_10 = math.log(10)


def arcs(steps: int) -> Float[Tensor, "place point 2"]:
    """Both points on their half circles: from (−0.3, 0) and (0.3, 0) counter-clockwise."""
    angle = torch.linspace(0, math.pi, steps + 1, dtype=torch.float64)
    second = RADIUS * torch.stack([angle.cos(), angle.sin()], -1)
    return torch.stack([-second, second], 1)


def next_places(steps: int, *, skip: bool) -> Examples:
    """From each place on the arcs to the next; with a skip only the way is to be learnt."""
    places = arcs(steps).float()
    now, then = places[:-1], places[1:]
    return Examples(now, then - now if skip else then)


def folded(model: SequenceModel, *, skip: bool) -> Network:
    """A model's step in the plane as one layer, which leads from hidden state to hidden state.

    With the encoder ``x ↦ E x + e`` and the readout ``h ↦ D h + d``, the hidden state of the next
    place is ``E(D layer(h) + d) + e``, so ``E D`` goes into the layer's last matrix and the rest
    into its bias. With a skip it is ``h + E(D layer(h) + d)``: the place keeps its ``e``.
    """
    model = model.double()
    network = copy.deepcopy(model.network)
    block = cast(Block, network.blocks[0])
    encoder, readout = cast(nn.Linear, model.encoder), cast(nn.Linear, model.readout)
    last = cast(nn.Linear, block.attention.output if block.mlp is None else block.mlp.down)
    with torch.no_grad():
        both = encoder.weight @ readout.weight
        bias = both @ last.bias + encoder.weight @ readout.bias
        last.weight.copy_(both @ last.weight)
        last.bias.copy_(bias if skip else bias + encoder.bias)
    spec = replace(network.spec, skip=skip)
    return Network(spec, [Block(spec, attention=block.attention, mlp=block.mlp, norms={})])


@torch.no_grad()
def trajectory(model: SequenceModel, times: int, *, skip: bool) -> Float[Tensor, "time point 2"]:
    """Where the two points go when the model is applied again and again, in plain float64."""
    model = model.double()
    places = [arcs(1)[:1]]
    for _ in range(times):
        moved = model(places[-1])
        places.append(places[-1] + moved if skip else moved)
    return torch.cat(places)


def log10_distances(model: SequenceModel, times: int, *, skip: bool) -> Iterator[float]:
    """The distance of the two points before the first step and after each, in scaled arithmetic.

    The difference of two hidden states is ``E (x − y)``, and ``E`` has a left inverse.
    """
    network = folded(model, skip=skip).repeat(times)
    exact = model.double()
    to_plane = torch.linalg.pinv(cast(nn.Linear, exact.encoder).weight.detach())
    for _, state in deep_states(network, exact.embed(arcs(1)[:1])):
        first, second = state.mantissa[0]
        apart = float(torch.linalg.vector_norm(to_plane @ (first - second)))
        log = math.log10(apart) if apart > 0 else -math.inf
        yield log + float(state.log_scale[0]) / _LOG_10
