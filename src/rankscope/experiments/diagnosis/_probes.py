"""The same network on other inputs: less of every text, and the last token twice."""

from typing import Final

import torch
from torch import Tensor

from rankscope.errors import RankscopeError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis._measure import counted_tokens
from rankscope.experiments.diagnosis._tokens import last_token
from rankscope.metrics import deviations

CONTEXTS: Final = (0.125, 0.25, 0.5, 1.0)
"""Parts of each text, from its start, that are read."""
LEAST_TOKENS: Final = 32
"""Tokens of a text below which an eighth of it says nothing."""
_NOISE: Final = 1e-5


@torch.no_grad()
def dispersion_by_context(
    subject: kit.Subject, on_step: kit.OnStep
) -> tuple[Tensor, Tensor] | None:
    """How many tokens were read, and the relative dispersion after the last layer.

    Both are (context, sample); None if any text is too short.
    """
    lengths, found = [], []
    for batch, _ in kit.tracked(subject.batches(), on_step):
        counted = counted_tokens(batch)
        if int(counted.sum(-1).min()) < LEAST_TOKENS:
            return None
        place = counted.cumsum(-1)
        whole = counted.sum(-1, keepdim=True)
        kept = [counted & (place <= (part * whole).floor()) for part in CONTEXTS]
        lengths.append(torch.stack([mask.sum(-1) for mask in kept]))
        out = [subject.network(batch.x, mask) for mask in kept]
        sizes = [
            deviations(x, token_mask=mask.to(x.device)).relative_dispersion()
            for x, mask in zip(out, kept, strict=True)
        ]
        found.append(torch.stack([size.double().cpu() for size in sizes]))
    return torch.cat(lengths, -1).cpu(), torch.cat(found, -1)


def width_exponents(lengths: Tensor, dispersion: Tensor) -> Tensor | None:
    """By sample, the power of T with which the dispersion goes; None where it is rounding."""
    if float(dispersion.min()) < _NOISE:
        return None
    x, y = lengths.double().log(), dispersion.log()
    x = x - x.mean(0)
    return (x * (y - y.mean(0))).sum(0) / x.square().sum(0)


@torch.no_grad()
def repeated_last(subject: kit.Subject) -> Tensor | None:
    """How much the last token's state changes if that token is there twice (by sample).

    Relative to its length. Small is what Barbero et al. 2024 call representational collapse; None
    if the network takes no more tokens or the samples are padded on different sides.
    """
    changes: list[Tensor] = []
    try:
        for batch in subject.batches():
            changes.append(_repeat(subject, batch.x, counted_tokens(batch)))
    except RankscopeError:
        return None
    return torch.cat(changes)


def _repeat(subject: kit.Subject, x: Tensor, counted: Tensor) -> Tensor:
    rows, place = torch.arange(len(x), device=x.device), last_token(counted)
    longer = torch.cat([x, torch.zeros_like(x[:, :1])], 1)
    mask = torch.cat([counted, torch.zeros_like(counted[:, :1])], 1)
    longer[rows, place + 1], mask[rows, place + 1] = x[rows, place], True
    once = subject.network(x, counted)
    twice = subject.network(longer, mask)
    rows, place = rows.to(once.device), place.to(once.device)
    before, after = once[rows, place].double(), twice[rows, place + 1].double()
    change: Tensor = (after - before).norm(dim=-1) / before.norm(dim=-1)
    return change.cpu()
