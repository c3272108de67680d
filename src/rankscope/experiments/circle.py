"""Two points on two arcs, and a trained step in the plane as a layer of a network."""

import copy
import math
from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rankscope.core.deep import deep_trace
from rankscope.core.network import Block, Network
from rankscope.core.tracing import Trace
from rankscope.models.training import Examples, SequenceModel

RADIUS = 0.3


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
    """A model's step in the plane as one layer, whose tokens are places followed by zeros.

    With the encoder ``x ↦ E x + e``, ``E`` goes into the matrices of queries, keys and values and
    ``e`` into their biases; the readout goes into the last matrix and its bias.
    """
    model = model.double()
    network = copy.deepcopy(model.network)
    block = cast(Block, network.blocks[0])
    encoder, readout = cast(nn.Linear, model.encoder), cast(nn.Linear, model.readout)
    attention = block.attention
    last = cast(nn.Linear, attention.output if block.mlp is None else block.mlp.down)
    with torch.no_grad():
        for part in (attention.query, attention.key, attention.value):
            first = cast(nn.Linear, part)
            first.bias.add_(first.weight @ encoder.bias)
            first.weight.copy_(_padded(first.weight @ encoder.weight, first.weight))
        last.bias.copy_(_padded(readout.weight @ last.bias + readout.bias, last.bias))
        last.weight.copy_(_padded(readout.weight @ last.weight, last.weight))
    spec = replace(network.spec, skip=skip)
    return Network(spec, [Block(spec, attention=attention, mlp=block.mlp, norms={})])


def as_tokens(places: Tensor, width: int) -> Tensor:
    """Places in the plane as tokens of a folded layer."""
    return torch.nn.functional.pad(places, (0, width - places.shape[-1]))


def _padded(small: Tensor, like: Tensor) -> Tensor:
    """A matrix or a bias with zeros where another one of its kind has more."""
    whole = torch.zeros_like(like)
    whole[tuple(slice(size) for size in small.shape)] = small
    return whole


@torch.no_grad()
def trajectory(model: SequenceModel, times: int, *, skip: bool) -> Float[Tensor, "time point 2"]:
    """Where the two points go when the model is applied again and again, in plain float64."""
    model = model.double()
    places = [arcs(1)[:1]]
    for _ in range(times):
        moved = model(places[-1])
        places.append(places[-1] + moved if skip else moved)
    return torch.cat(places)


def deep_distances(model: SequenceModel, times: int, *, skip: bool) -> Trace:
    """The distance of the two points before the first step and after each, in scaled arithmetic.

    A deep trace of the step repeated; ``log10_distances`` reads the distances off it.
    """
    network = folded(model, skip=skip).repeat(times)
    start = as_tokens(arcs(1)[:1], network.spec.width)
    return deep_trace(network, start, norm="fro")


def log10_distances(traced: Trace) -> list[float]:
    """The residual of two points about their mean is their distance over √2."""
    names, values = traced.columns["metric"], traced.columns["value"]
    logs = [v for name, v in zip(names, values, strict=True) if name == "log10_residual"]
    return [float(log) + math.log10(2) / 2 for log in logs]
