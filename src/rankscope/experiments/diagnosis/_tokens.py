"""Distances and angles between the tokens of a sample, and which tokens are very long."""

from typing import Final

import torch
from torch import Tensor

from rankscope.core import metrics
from rankscope.core.theory import thresholds

_TINY: Final = 1e-300


def token_distances(x: Tensor, counted: Tensor, *, most: int) -> Tensor:
    """How far tokens are from the center, in root mean squares of all tokens' lengths.

    (token, sample): the first ``most`` that count, in order, NaN where a sample has fewer; on the
    CPU. The mean square over all tokens is the square of the relative dispersion.
    """
    x = x.double()
    center = metrics.mean_center(x, counted).unsqueeze(-2)
    squares = torch.where(counted, x.square().sum(-1), 0.0)
    size = (squares.sum(-1) / counted.sum(-1)).sqrt().clamp_min(_TINY).unsqueeze(-1)
    apart = torch.where(counted, (x - center).norm(dim=-1) / size, torch.nan)
    order = torch.argsort(~counted, dim=-1, stable=True)
    return apart.gather(-1, order)[:, :most].mT.cpu()


def _unit(x: Tensor) -> Tensor:
    """Tokens at length one, in float64; a token of zeros stays as it is."""
    unit: Tensor = x.double() / x.double().norm(dim=-1, keepdim=True).clamp_min(_TINY)
    return unit


def cosines(x: Tensor) -> Tensor:
    """Between all pairs of the tokens of one sample (token, feature)."""
    return (_unit(x) @ _unit(x).mT).clamp(-1.0, 1.0).cpu()


def turn(before: Tensor, after: Tensor, counted: Tensor) -> Tensor:
    """By which angle tokens are turned, in radians: the median over the tokens of each sample.

    Token by token, because one that is much longer than the others would dominate a mean.
    """
    a, b = (_unit(x.to(after.device)) for x in (before, after))
    # Not from the cosine: near one it has lost the digits of a small angle.
    angle = 2 * ((a - b).norm(dim=-1) / 2).clamp(max=1.0).asin()
    return torch.where(counted, angle, torch.nan).nanquantile(0.5, dim=-1).cpu()


def nearest(x: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """For each token the relative distance to its nearest neighbour, and which that is.

    (sample, token), infinite where a token does not count, on the CPU. Distances are in lengths of
    the longer of the two.
    """
    x = x.double()
    # Directly: through products the digits of small distances are lost.
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    pairs = counted.unsqueeze(-1) & counted.unsqueeze(-2)
    pairs &= ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
    lengths = x.norm(dim=-1)
    return _least(apart, lengths.unsqueeze(-1), lengths.unsqueeze(-2), pairs)


def nearest_to_last(x: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """The same for the last token of each sample alone: (sample,)."""
    x = x.double()
    rows, index = torch.arange(len(x), device=x.device), last_token(counted)
    last = x[rows, index]
    pairs = counted.clone()
    pairs[rows, index] = False
    apart = (x - last.unsqueeze(1)).norm(dim=-1)
    return _least(apart, last.norm(dim=-1, keepdim=True), x.norm(dim=-1), pairs)


def _least(apart: Tensor, lengths: Tensor, others: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    relative = apart / torch.maximum(lengths, others).clamp_min(_TINY)
    distance, neighbour = torch.where(pairs, relative, torch.inf).min(-1)
    return distance.cpu(), neighbour.cpu()


def last_token(counted: Tensor) -> Tensor:
    """Where the last token of each sample stands that counts."""
    places = torch.arange(counted.shape[1], device=counted.device).expand_as(counted)
    return torch.where(counted, places, -1).amax(-1)


def common_tokens(x: Tensor, counted: Tensor) -> Tensor:
    """The tokens that count and are not many times as long as the median one."""
    lengths = torch.where(counted, x.double().norm(dim=-1), torch.nan)
    typical = lengths.nanquantile(0.5, dim=-1, keepdim=True)
    return counted & ~(lengths > thresholds.GIANT_NORM * typical)
