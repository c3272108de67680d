"""A network in training mode: dropout of attention weights and of what each part puts out, as BERT.

Our networks have no dropout: it is no part of what they compute. This is a plain forward pass of
one of them with dropout, for the one claim that asks what dropout does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from rankscope.core.network import Attention, Block, Branch, Network, Step, Visibility


@dataclass(frozen=True)
class Dropout:
    """The shares that are dropped, of attention weights and of every part's output (BERT: 0.1)."""

    attention: float = 0.1
    hidden: float = 0.1

    def floor(self, tokens: int, width: int) -> float:
        """Below which μ of normalised tokens does not stay under hidden dropout of p (derived).

        >>> round(Dropout(hidden=0.1).floor(64, 768), 1)
        69.6

        Tokens that agree, y, become different all the same: each keeps its own features, of which
        a mean of y and squares of ``y²/(1 − p)`` are left. Normalised to the length √width, their
        mean row has the square ``width·(1 − p + p/n)``, and ``μ² = n·width·p·(1 − 1/n)``.
        """
        return float((width * self.hidden * (tokens - 1)) ** 0.5)


@torch.no_grad()
def states_with_dropout(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None,
    dropout: Dropout,
    generator: torch.Generator,
) -> Iterator[Tensor]:
    """The output of each block in turn, in training mode; draws come from ``generator``."""
    x, token_mask = network.prepare(x, token_mask)
    for mask, block in zip(network.spec.masks, network.blocks, strict=True):
        seen = Visibility.of(mask, x.shape[1], token_mask, x.device)
        for step in cast(Block, block).steps:
            x = _step(step, x, seen, dropout, generator)
        yield x


def drop(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Zero a share of the entries at random and scale up the others, which keeps the mean."""
    kept = torch.rand(x.shape, generator=generator) >= share
    return x * kept / (1 - share)


def _step(
    step: Step, x: Tensor, seen: Visibility, dropout: Dropout, generator: torch.Generator
) -> Tensor:
    total = step.skip * x
    for branch in step.branches:
        inner = branch.before(x)
        out = _part(branch, inner, seen, dropout, generator)
        total = total + branch.inside(drop(out, dropout.hidden, generator))
    after: Tensor = step.after(total)
    return after


def _part(
    branch: Branch, x: Tensor, seen: Visibility, dropout: Dropout, generator: torch.Generator
) -> Tensor:
    part = branch.part
    if not isinstance(part, Attention):
        out: Tensor = part(x, seen)
    else:
        weights = drop(part.pattern(x, seen), dropout.attention, generator)
        mixed = weights @ part.split(part.value(x), part.kv_heads)
        out = part.output(mixed.transpose(1, 2).flatten(2))
    return out
