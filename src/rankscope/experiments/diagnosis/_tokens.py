"""Single tokens: how far each is from the center, and which of them have become one."""

from typing import Final

import torch
from torch import Tensor

from rankscope.core.metrics import mean_center
from rankscope.core.theory import thresholds

_TINY: Final = 1e-300


def token_distances(x: Tensor, counted: Tensor, *, most: int) -> Tensor:
    """How far tokens are from the center, in root mean squares of all tokens' lengths.

    (token, sample): the first ``most`` that count, in order, NaN where a sample has fewer; on the
    CPU. The mean square over all tokens is the square of the relative dispersion.
    """
    x = x.double()
    center = mean_center(x, counted).unsqueeze(-2)
    squares = torch.where(counted, x.square().sum(-1), 0.0)
    size = (squares.sum(-1) / counted.sum(-1)).sqrt().clamp_min(_TINY).unsqueeze(-1)
    apart = torch.where(counted, (x - center).norm(dim=-1) / size, torch.nan)
    order = torch.argsort(~counted, dim=-1, stable=True)
    return apart.gather(-1, order)[:, :most].mT.cpu()


def unit(x: Tensor) -> Tensor:
    """Tokens at length one, in float64; a token of zeros stays as it is."""
    found: Tensor = x.double() / x.double().norm(dim=-1, keepdim=True).clamp_min(_TINY)
    return found


def cosines(x: Tensor) -> Tensor:
    """Between all pairs of the tokens of one sample (token, feature)."""
    found: Tensor = (unit(x) @ unit(x).mT).clamp(-1.0, 1.0)
    return found.cpu()


def without_giants(x: Tensor, counted: Tensor) -> Tensor:
    """The tokens that count, less those many times as long as the median one.

    A few such tokens ("massive activations") make up nearly all of a state's norm, and whatever
    becomes of the others does not show in it.
    """
    lengths = torch.where(counted, x.double().norm(dim=-1), torch.nan)
    typical = lengths.nanquantile(0.5, dim=-1, keepdim=True)
    return counted & ~(lengths > thresholds.GIANT_NORM * typical)


def nearest(x: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """For each token the relative distance to its nearest fellow, and which that is.

    (sample, token), infinite where a token does not count, on the CPU. Distances are in lengths of
    the longer of the two.
    """
    x = x.double()
    # Directly: through products the digits of small distances are lost.
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    pairs = counted.unsqueeze(-1) & counted.unsqueeze(-2)
    pairs &= ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
    return _least(apart, x.norm(dim=-1).unsqueeze(-1), x, pairs)


def nearest_to_last(x: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """The same for the last token of each sample alone: (sample,)."""
    x = x.double()
    place = last_token(counted)
    rows = torch.arange(len(x), device=x.device)
    last = x[rows, place]
    pairs = counted.clone()
    pairs[rows, place] = False
    apart = (x - last.unsqueeze(1)).norm(dim=-1)
    return _least(apart, last.norm(dim=-1, keepdim=True), x, pairs)


def last_token(counted: Tensor) -> Tensor:
    """Where the last token of each sample stands that counts."""
    places = torch.arange(counted.shape[1], device=counted.device).expand_as(counted)
    return torch.where(counted, places, -1).amax(-1)


def _least(apart: Tensor, own: Tensor, x: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    lengths = x.norm(dim=-1)
    others = lengths.unsqueeze(-2) if apart.ndim == 3 else lengths
    relative = apart / torch.maximum(own, others).clamp_min(_TINY)
    distance, fellow = torch.where(pairs, relative, torch.inf).min(-1)
    return distance.cpu(), fellow.cpu()
