"""How alike the tokens' directions are."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import measurable
from rankscope.core.shapes import PerSample, TokenMask, Tokens
from rankscope.errors import InputError, KindError


@checked
def mean_cosine(
    x: Tensor, *, exclude: Sequence[int] = (), token_mask: Tensor | None = None
) -> PerSample:
    """Mean cosine over all pairs of different tokens; no diagonal, no absolute value.

    >>> import torch
    >>> from rankscope.core.metrics import mean_cosine
    >>> mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]))
    tensor(0.3333)

    ``exclude`` drops positions (0 the first token, -1 the last; padding is not counted), for
    instance a CLS or BOS token, which often has a direction of its own. A zero token has cosine 0
    with every other; a single token has cosine 1, being alike to all there is.
    """
    x, token_mask = measurable(x, token_mask)
    kept = _without(x, exclude, token_mask) if exclude else token_mask
    units = unit_rows(x, kept)
    return cosine_of_pairs(units.total.square().sum(-1), units.nonzero, units.tokens)


class UnitRows(NamedTuple):
    """The sum of the tokens' unit vectors, how many tokens there are, how many of them not zero,
    and the lengths of all of them."""

    total: Float[Tensor, "*batch feature"]
    nonzero: PerSample
    tokens: PerSample
    lengths: Float[Tensor, "*batch token"]


def unit_rows(x: Tokens, kept: TokenMask | None, *, work: Tensor | None = None) -> UnitRows:
    """The tokens that are kept, each divided by its length, added up without being formed.

    ``work`` is room for a tensor like ``x``.
    """
    # Scaling by the largest entry first keeps the squares inside the range of the dtype.
    plain = x.detach()
    largest = torch.maximum(plain.amax(-1, keepdim=True), -plain.amin(-1, keepdim=True))
    x = torch.div(x, torch.where(largest > 0, largest, torch.ones_like(largest)), out=work)
    length = torch.linalg.vector_norm(x, dim=-1)
    weight = torch.where(length > 0, 1 / torch.where(length > 0, length, 1.0), 0.0)
    nonzero = length > 0
    if kept is not None:
        weight, nonzero = weight * kept, nonzero & kept
    total = (weight.unsqueeze(-2) @ x).squeeze(-2)
    found = nonzero.sum(-1).to(x.dtype)
    count = found.new_full(found.shape, x.shape[-2]) if kept is None else kept.sum(-1).to(x.dtype)
    return UnitRows(total, found, count, largest.squeeze(-1) * length)


def cosine_of_pairs(square: PerSample, nonzero: PerSample, count: PerSample) -> PerSample:
    """The mean cosine over pairs, given ``‖Σ x/‖x‖‖²``; 1 where there is only one token."""
    pairs = count * (count - 1)
    mean = (square - nonzero) / torch.where(pairs > 0, pairs, 1)
    return torch.where(pairs > 0, mean.clamp(-1, 1), torch.ones_like(mean))


def _without(x: Tokens, exclude: Sequence[int], token_mask: TokenMask | None) -> TokenMask:
    """The valid tokens less the excluded positions, counted among the valid ones."""
    if token_mask is None:
        token_mask = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    if isinstance(exclude, str) or not all(type(index) is int for index in exclude):
        raise KindError(f"exclude={exclude!r} holds no positions; give whole numbers: [0, -1].")
    position = token_mask.cumsum(-1) - 1
    count = token_mask.sum(-1, keepdim=True)
    kept = token_mask
    for index in exclude:
        kept = kept & (position != (index if index >= 0 else count + index))
    if not bool(kept.any(-1).all()):
        raise InputError(
            f"exclude={list(exclude)} leaves no token in some sample; "
            f"the shortest has {int(count.min())} tokens."
        )
    return kept
