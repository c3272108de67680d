"""Which samples can be judged, and the same network on other inputs."""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from rankscope.core.batches import Batch
from rankscope.core.metrics import deviations
from rankscope.errors import InputError, RankscopeError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis._measure import counted_tokens, last_token, real_tokens
from rankscope.numerals import plural


def first_samples(subject: kit.Subject, count: int) -> kit.Subject:
    """The same question on a few samples."""
    batch = replace(subject, batch_size=count, check=None).batches()[0]
    return replace(
        subject,
        x=batch.x,
        token_mask=batch.token_mask,
        measured=batch.measured,
        check=None,
    )


def usable(subject: kit.Subject) -> tuple[kit.Subject, tuple[str, ...]]:
    """The samples with two tokens or more that count, and a warning about the others."""
    batch = Batch(0, subject.x, subject.token_mask, subject.measured)
    real, counted = real_tokens(batch), counted_tokens(batch)
    kept = counted.sum(-1) >= 2
    if bool(kept.all()):
        return subject, ()
    if not bool(kept.any()):
        raise InputError(
            "no sample has two tokens that count, so that there is nothing to tell apart; give "
            "longer texts (or count special tokens)."
        )
    check = subject.check
    some = replace(
        subject,
        x=subject.x[kept],
        token_mask=real[kept],
        measured=None if subject.measured is None else counted[kept],
        check=None if check is None else check.of_samples(torch.nonzero(kept).flatten().tolist()),
    )
    left = int((~kept).sum())
    return some, (
        f"Left out: {left:,} of {plural(len(kept), 'sample')}, with fewer than two tokens that "
        "count.",
    )


CONTEXTS: Final = (0.125, 0.25, 0.5, 1.0)
"""Parts of each text, from its start, that are read."""
LEAST_TOKENS: Final = 32
"""Tokens of a text below which an eighth of it says nothing."""
NOISE: Final = 1e-5
"""Relative dispersion below which float32 shows little but its own rounding."""


@torch.no_grad()
def dispersion_by_context(subject: kit.Subject, on_step: kit.OnStep) -> tuple[Tensor, Tensor]:
    """How many tokens were read, and the relative dispersion after the last layer.

    Both are (context, sample).
    """
    lengths, found = [], []
    for batch, _ in kit.tracked(subject.batches(), on_step):
        real, counted = real_tokens(batch), counted_tokens(batch)
        place, whole = real.cumsum(-1), real.sum(-1, keepdim=True)
        for_parts = [real & (place <= (part * whole).ceil()) for part in CONTEXTS]
        lengths.append(torch.stack([(mask & counted).sum(-1) for mask in for_parts]))
        out = [subject.network(batch.x, mask) for mask in for_parts]
        sizes = [
            _dispersion(x, (mask & counted).to(x.device))
            for x, mask in zip(out, for_parts, strict=True)
        ]
        found.append(torch.stack(sizes))
    return torch.cat(lengths, -1).cpu(), torch.cat(found, -1)


def _dispersion(x: Tensor, counted: Tensor) -> Tensor:
    """NaN where no token counts."""
    some = counted.any(-1)
    safe = counted | ~some.unsqueeze(-1)
    size = deviations(x, token_mask=safe).relative_dispersion().double()
    return torch.where(some, size, torch.nan).cpu()


def width_exponents(lengths: Tensor, dispersion: Tensor) -> Tensor:
    """By sample, the power of the number of tokens with which the dispersion goes.

    NaN for texts too short to tell, and where the tokens are alike up to rounding.
    """
    x, y = lengths.double().clamp_min(1).log(), dispersion.clamp_min(NOISE).log()
    x = x - x.mean(0)
    slope = (x * (y - y.mean(0))).sum(0) / x.square().sum(0).clamp_min(1e-12)
    known = (lengths[-1] >= LEAST_TOKENS) & (dispersion >= NOISE).all(0)
    return torch.where(known, slope, torch.nan)


@torch.no_grad()
def repeated_last(subject: kit.Subject) -> Tensor | None:
    """How much the last token's state changes if that token is there twice (by sample).

    Relative to its length. Small is what Barbero et al. 2024 call representational collapse; None
    if the network takes no more tokens.
    """
    changes: list[Tensor] = []
    try:
        for batch in subject.batches():
            changes.append(_repeat(subject, batch.x, real_tokens(batch)))
    except RankscopeError:
        return None
    return torch.cat(changes)


def _repeat(subject: kit.Subject, x: Tensor, real: Tensor) -> Tensor:
    rows, place = torch.arange(len(x), device=x.device), last_token(real)
    longer = torch.cat([x, torch.zeros_like(x[:, :1])], 1)
    mask = torch.cat([real, torch.zeros_like(real[:, :1])], 1)
    longer[rows, place + 1], mask[rows, place + 1] = x[rows, place], True
    once = subject.network(x, real)
    twice = subject.network(longer, mask)
    rows, place = rows.to(once.device), place.to(once.device)
    before, after = once[rows, place].double(), twice[rows, place + 1].double()
    change: Tensor = (after - before).norm(dim=-1) / before.norm(dim=-1).clamp_min(1e-300)
    return change.cpu()
