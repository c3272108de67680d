"""The losses that designs reach: every network trained alike, those of one shape at once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import torch

from rankscope.core.network import Block, Init, Network, Spec
from rankscope.experiments.kit import OnStep, tracked
from rankscope.experiments.learning import SORTING, Lesson, Plan, learn, lesson
from rankscope.models.training import Classify, SequenceModel

Losses = list[list[float]]
"""By rate and by network."""


def reached_losses(
    specs: Mapping[int, Spec],
    plan: Plan,
    rates: Sequence[float],
    on_step: OnStep,
    *,
    most: float,
) -> Losses:
    """The loss on new examples of a network for each seed, at each rate, ``most`` at the most.

    The specs differ in nothing but the scale of their weights, so that all networks are trained as
    one stack; each seed has weights, examples and batches of its own.
    """
    seeds = list(specs)
    lessons = [lesson(SORTING, plan, seed, spec=spec) for seed, spec in specs.items()]
    shape = replace(specs[seeds[0]], init=Init("lecun"))
    alike = [replace(each, model=_as(shape, each.model)) for each in lessons]
    losses = []
    for rate, on_rate in tracked(rates, on_step):
        own = replace(plan, recipe=replace(plan.recipe, learning_rate=rate))
        trained = learn(alike, own, seeds, "cpu", on_rate)
        losses.append(
            [_loss(one.model, each, most=most) for one, each in zip(trained, lessons, strict=True)]
        )
    return losses


def guess_loss(symbols: int, tokens: int) -> float:
    """The cross-entropy of the best guess that does not look at the sequence to be sorted.

    That is the mean entropy of order statistics: the k-th least of n even draws is at most s if at
    least k of them are.
    """
    total = 0.0
    for least in range(1, tokens + 1):
        up_to = [
            sum(
                math.comb(tokens, n) * (s / symbols) ** n * (1 - s / symbols) ** (tokens - n)
                for n in range(least, tokens + 1)
            )
            for s in range(symbols + 1)
        ]
        shares = [high - low for low, high in pairwise(up_to)]
        total -= sum(share * math.log(share) for share in shares if share > 0)
    return total / tokens


def _as(spec: Spec, model: SequenceModel) -> SequenceModel:
    """A model under a spec that says nothing of how its weights were drawn."""
    network = Network(spec, [cast(Block, block) for block in model.network.blocks])
    return SequenceModel(model.encoder, model.positions, network, model.readout)


@torch.no_grad()
def _loss(model: SequenceModel, own: Lesson, *, most: float) -> float:
    """The loss on new examples; one that has diverged counts as a guess."""
    outputs = model(own.evaluate.inputs)
    loss = float(Classify().loss(outputs.unsqueeze(0), own.evaluate.targets.unsqueeze(0)))
    return min(loss, most) if math.isfinite(loss) else most
