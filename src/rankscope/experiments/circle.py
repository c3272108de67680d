"""The network and the training that Dong et al. 2021 released for figure 3, written anew.

Read off ``run_circle.py``, ``modeling_san.py`` and the README of their repository
(github.com/twistedcubic/attention-rank-collapse); no code of theirs is used. A step takes two
points in the plane to two points:

    h = LayerNorm(E x + e)
    h = LayerNorm(attention(h) + h)        in every kind, "no skip" included
    h = LayerNorm(MLP(h) + h)              only with an MLP: GELU, as wide as the layer
    y = R h + r

with dropout after each line, on the attention weights and before each sum. ``--circle_skip`` leaves
the network as it is: in training it reads the sum of a batch and the batch before it, and when it
runs by itself it reads the sum of all its outputs, each of which is plotted.

Checked against the released code when this was written: with the same weights and no dropout both
give the same outputs after five epochs (1e-7, all three kinds). The released script itself, five
seeds of each width and kind, moved 3 of 15 pairs together without skip and MLP, 1 of 15 with an
MLP, and 0 of 15 with a skip.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from rankscope.arguments import Count, Positive, Range, checked
from rankscope.process import OnStep
from rankscope.streams import stream

RADIUS: Final = 0.3
_EPS: Final = 1e-12  # of BERT's LayerNorm
_STD: Final = 0.02  # of BERT's linear maps; values and the output map are uniform instead


@checked
@dataclass(frozen=True)
class Training:
    """The released training: the README's options, Adam without schedule, batches in order."""

    points: Annotated[int, Range(4, 1_000_000)] = 1000  # on the whole circle
    epochs: Count = 70
    batch: Count = 30
    learning_rate: Positive = 1e-5
    dropout: Annotated[float, Range(0, 0.99)] = 0.1

    def pairs(self) -> Float[Tensor, "place point 2"]:
        """Both points at each place of their arcs; the second is a step short of opposite."""
        angle = torch.arange(self.points, dtype=torch.float64) * (2 * math.pi / self.points)
        circle = RADIUS * torch.stack([angle.cos(), angle.sin()], -1)
        apart = self.points // 2 - 1
        return torch.stack([circle[: apart + 1], circle[apart : 2 * apart + 1]], 1)

    def read(self, *, skip: bool) -> Float[Tensor, "place point 2"]:
        """What the network reads for each place but the last."""
        now = self.pairs()[:-1]
        if not skip:
            return now
        before = torch.zeros_like(now)
        before[self.batch :] = now[: -self.batch]
        return now + before


class CircleNetworks(nn.Module):
    """Networks of one width, all seeds at once: every weight has an axis of seeds first."""

    def __init__(self, width: int, heads: int, *, mlp: bool, seeds: Sequence[int]) -> None:
        super().__init__()
        self.heads, self.mlp = heads, mlp
        self.weights, self.biases = nn.ParameterDict(), nn.ParameterDict()
        self.gains, self.shifts = nn.ParameterDict(), nn.ParameterDict()
        shapes = {"embed": (2, width), "readout": (width, 2)}
        names = ("query", "key", "value", "output", *(("up", "down") if mlp else ()))
        for name in (*names, *shapes):
            shape = shapes.get(name, (width, width))
            drawn = [torch.randn(shape, generator=stream(seed, "circle", name)) for seed in seeds]
            if name in ("value", "output"):
                drawn = [
                    torch.rand(shape, generator=stream(seed, "circle", name)) for seed in seeds
                ]
                self.weights[name] = (2 * torch.stack(drawn) - 1) / width**0.5
            else:
                self.weights[name] = _STD * torch.stack(drawn)
            self.biases[name] = torch.zeros(len(seeds), 1, shape[1])
        for name in ("embed", "attention", *(("mlp",) if mlp else ())):
            self.gains[name] = torch.ones(len(seeds), 1, width)
            self.shifts[name] = torch.zeros(len(seeds), 1, width)
        self.dropout = SeededDropout(0.0, ())

    def forward(self, places: Float[Tensor, "seed place 2 2"]) -> Float[Tensor, "seed place 2 2"]:
        """One step."""
        drop = self.dropout
        h = drop(self.norm("embed", self.linear("embed", places.flatten(1, 2))))
        h = self.norm("attention", drop(self.linear("output", self.attention(h))) + h)
        if self.mlp:
            h = self.norm("mlp", drop(self.linear("down", gelu(self.linear("up", h)))) + h)
        return self.linear("readout", drop(h)).view_as(places)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """A linear map for each seed."""
        return torch.baddbmm(self.biases[name], x, self.weights[name])

    def norm(self, name: str, x: Tensor) -> Tensor:
        """LayerNorm with the gain and shift of each seed."""
        normed: Tensor = layer_norm(x, x.shape[-1:], eps=_EPS)
        return torch.addcmul(self.shifts[name], normed, self.gains[name])

    def attention(self, h: Float[Tensor, "seed row feature"]) -> Float[Tensor, "seed row feature"]:
        """Each pair of rows attends to itself and to the other."""
        query, key, value = (
            self.linear(name, h).unflatten(1, (-1, 2)).unflatten(-1, (self.heads, -1))
            for name in ("query", "key", "value")
        )
        scores = torch.einsum("sbqhf,sbkhf->sbhqk", query, key) / query.shape[-1] ** 0.5
        mixed = torch.einsum("sbhqk,sbkhf->sbqhf", self.dropout(scores.softmax(-1)), value)
        return mixed.flatten(3).flatten(1, 2)


class SeededDropout:
    """Dropout that draws from one generator for each seed; no global random state is touched."""

    def __init__(self, share: float, generators: Sequence[torch.Generator]) -> None:
        self.share, self.generators = share, generators

    def __call__(self, x: Tensor) -> Tensor:
        if not self.share:
            return x
        drawn = torch.stack(
            [torch.rand(x.shape[1:], generator=generator) for generator in self.generators]
        )
        return x * (drawn >= self.share) / (1 - self.share)


def train(
    networks: CircleNetworks,
    training: Training,
    *,
    skip: bool,
    seeds: Sequence[int],
    on_step: OnStep,
) -> None:
    """Train all seeds of a stack in place: the squared error of the next place, summed."""
    networks.dropout = SeededDropout(
        training.dropout, [stream(seed, "circle dropout") for seed in seeds]
    )
    read, then = training.read(skip=skip).float(), training.pairs()[1:].float()
    # Adam looks at each weight by itself, so that no seed feels the others.
    optimiser = torch.optim.Adam(networks.parameters(), lr=training.learning_rate)
    for epoch in range(training.epochs):
        for places, targets in zip(
            read.split(training.batch), then.split(training.batch), strict=True
        ):
            outputs = networks(places.expand(len(seeds), *places.shape))
            optimiser.zero_grad()
            (outputs - targets).square().sum().backward()
            optimiser.step()
        on_step((epoch + 1) / training.epochs)
    networks.dropout = SeededDropout(0.0, ())


@torch.no_grad()
def trajectories(
    networks: CircleNetworks, training: Training, times: int, *, skip: bool
) -> Float[Tensor, "seed time point 2"]:
    """What is plotted when the networks run by themselves from the first place, in float64."""
    seeds = len(networks.biases["embed"])
    networks = networks.double()
    state = training.pairs()[:1].expand(seeds, 1, 2, 2)
    plotted = [state]
    for _ in range(times):
        output = networks(state)
        plotted.append(output)
        state = state + output if skip else output
    return torch.cat(plotted, 1)


@torch.no_grad()
def step_errors(
    networks: CircleNetworks, training: Training, *, skip: bool
) -> Float[Tensor, "seed"]:
    """How far steps miss without dropout, root mean square, in lengths of a step on the circle."""
    read, then = training.read(skip=skip), training.pairs()[1:]
    outputs: Tensor = networks.double()(read.expand(len(networks.biases["embed"]), *read.shape))
    missed = (outputs - then).square().sum(-1).mean((1, 2)).sqrt()
    return missed / (2 * math.pi * RADIUS / training.points)
