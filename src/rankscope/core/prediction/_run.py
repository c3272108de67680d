"""Random networks with weights of their own in every layer, followed in groups side by side."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankscope.core.network import Spec
from rankscope.core.prediction._backward import predicted_gradients
from rankscope.core.prediction._coordinates import Coordinates
from rankscope.core.prediction._ensemble import Ensemble
from rankscope.core.prediction._measure import Course
from rankscope.core.prediction._streams import Streams
from rankscope.process.threads import one_thread

Networks = Sequence[tuple[int, int]]
"""(draw, sample) pairs: a random network each."""

_AT_ONCE = 2**25
"""Numbers of the largest tensor of a group."""
_SMALL = 2**21
"""Numbers that all layers of all networks make, below which threads are not worth their start."""


_DIGITS = 10 * math.log(10)
"""Of sixteen digits of scaled arithmetic, how many may be lost before a figure is in doubt."""


class Found(NamedTuple):
    """Figures by layer and network, and how many of the networks are in doubt."""

    course: Course
    doubtful: int


@dataclass(frozen=True)
class Task:
    """What is to be found out of every network."""

    spec: Spec
    tokens: Coordinates
    token_mask: Tensor | None
    seed: int
    gradients: bool
    limit: bool

    @torch.no_grad()  # which each thread says for itself
    def run(self, networks: Networks) -> "Found":
        """Every figure by layer and network."""
        index = torch.tensor([sample for _, sample in networks])
        x = self.tokens[index]
        mask = None if self.token_mask is None else self.token_mask[index]
        streams = Streams.of(self.seed, networks)
        ensemble = Ensemble(self.spec, x, mask, streams, limit=self.limit)
        found = [ensemble.figures()]
        entropies = [torch.full_like(next(iter(found[0].values())), math.nan)]
        for layer in range(self.spec.layers):
            entropies.append(ensemble.advance(layer))
            found.append(ensemble.figures())
        doubtful = ensemble.lost() > _DIGITS
        by_layer = {name: torch.stack([each[name] for each in found]) for name in found[0]}
        by_layer["attention_entropy"] = torch.stack(entropies)
        if self.gradients:
            again = Streams.of(self.seed, networks, "gradients")
            by_layer |= predicted_gradients(self.spec, x, mask, again)
        return Found(by_layer, int(doubtful.sum()))

    @property
    def numbers(self) -> int:
        """About how many numbers the widest part of a layer has, for one network."""
        spec, tokens = self.spec, self.tokens.shape[1]
        heads = spec.heads * max(tokens, spec.head_width)
        return (tokens + 1) * max((1 + spec.gated) * spec.mlp_width, heads, 2 * tokens)


def side_by_side(task: Task, networks: Networks) -> list["Found"]:
    """All networks, in groups that fit into memory, one thread each.

    Half of the work are decompositions and random numbers, in which PyTorch takes one thread.
    """
    with one_thread() as threads, ThreadPoolExecutor(threads) as pool:
        groups = _groups(task, networks, threads)
        return list(pool.map(task.run, groups))


def _groups(task: Task, networks: Networks, threads: int) -> list[Networks]:
    """As many networks at once as memory is meant for; gradients keep what all layers made."""
    spec, tokens = task.spec, task.tokens.shape[1]
    kept = task.numbers
    if task.gradients:
        kept = 4 * spec.layers * (kept + (tokens + 1) * spec.width)
    size = max(1, _AT_ONCE // kept)
    if task.numbers * len(networks) * spec.layers > _SMALL:
        size = min(size, math.ceil(len(networks) / threads))
    return [networks[at : at + size] for at in range(0, len(networks), size)]
