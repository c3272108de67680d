"""How well the paths of one length alone do what a model has learnt."""

from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from rankscope.core.paths import count_paths, path_lengths, path_outputs, sample_paths
from rankscope.experiments.learning import Lesson
from rankscope.models.training import SequenceModel
from rankscope.streams import stream

ALL, RESCALED, UNTRAINED = "all paths", "all paths, rescaled", "untrained network"
WHOLE, CHANCE = "whole network", "best constant guess"


def few_paths(count: int) -> str:
    """The variant in which so many random paths of a length are taken together."""
    return f"{count} random paths"


def accuracies_by_length(
    model: SequenceModel,
    own: Lesson,
    *,
    seed: int,
    device: str,
    drawn: Sequence[int],
    repeats: int,
) -> dict[str, list[float]]:
    """By variant and length; the whole network and the guess are the same at every length."""
    own = own.to(device)
    model, token_mask = model.double().to(device), own.evaluate.token_mask
    x = _embed(model, own)
    lengths = model.network.spec.layers + 1
    fresh = own.model
    return {
        **exactly(model, x, token_mask, own),
        **sampled(model, x, token_mask, own, seed=seed, drawn=drawn, repeats=repeats),
        UNTRAINED: exactly(fresh, _embed(fresh, own), token_mask, own)[ALL],
        WHOLE: [own.accuracy(model.readout(model.network(x, token_mask)))] * lengths,
        CHANCE: [own.chance()] * lengths,
    }


def _embed(model: SequenceModel, own: Lesson) -> Tensor:
    """What the network of a model in float64 reads."""
    inputs = own.evaluate.inputs
    return model.embed(inputs.double() if inputs.is_floating_point() else inputs)


def exactly(
    model: SequenceModel, x: Tensor, token_mask: Tensor | None, own: Lesson
) -> dict[str, list[float]]:
    """By length, with all its paths, and these rescaled."""
    found = path_lengths(model.network, x, token_mask=token_mask)
    size = torch.linalg.vector_norm(found.contributions.sum(0), dim=-1, keepdim=True)
    accuracies: dict[str, list[float]] = {ALL: [], RESCALED: []}
    for one in found.contributions:
        own_size = torch.linalg.vector_norm(one, dim=-1, keepdim=True)
        scaled = one * torch.where(own_size > 0, size / own_size, 0.0)
        for variant, paths in ((ALL, one), (RESCALED, scaled)):
            accuracies[variant].append(own.accuracy(model.readout(paths + found.bias)))
    return accuracies


def sampled(
    model: SequenceModel,
    x: Tensor,
    token_mask: Tensor | None,
    own: Lesson,
    *,
    seed: int,
    drawn: Sequence[int],
    repeats: int,
) -> dict[str, list[float]]:
    """By length, with some of its paths; the mean over several draws.

    An estimate of ``exactly``: the mean of the paths drawn, times how many there are of the length,
    each with attention and norms of the whole network. The code of Dong et al. 2021 instead lets a
    path run through the network as its only state, attention and LayerNorm computed anew from it,
    and adds up the states that paths end in before a last LayerNorm.
    """
    network = model.network
    spec = network.spec
    bias = path_lengths(network, x, max_length=0, token_mask=token_mask).bias
    counts = count_paths(spec.layers, spec.heads).counts
    most = max(drawn)
    accuracies: dict[str, list[float]] = {few_paths(few): [] for few in drawn}
    for length in range(spec.layers + 1):
        paths = sample_paths(
            spec.layers,
            spec.heads,
            length=length,
            count=most * repeats,
            generator=stream(seed, "paths", length),
        )
        outputs = path_outputs(network, x, paths, token_mask=token_mask) * counts[length]
        for few in drawn:
            means = outputs.split(few)[: most * repeats // few]
            accuracies[few_paths(few)].append(
                fmean(own.accuracy(model.readout(some.mean(0) + bias)) for some in means)
            )
    return accuracies
