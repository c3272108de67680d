"""Embeddings on the unit sphere: how evenly they lie, and how near positive pairs are.

Wang and Isola 2020 (docs/theory.md, section 8). An embedding is a row, as a token is elsewhere.
"""

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import measurable, valid_counts
from rankscope.core.shapes import PerSample, Tokens
from rankscope.errors import InputError, ShapeError


@checked
def uniformity(x: Tensor, *, t: float = 2.0, token_mask: Tensor | None = None) -> PerSample:
    """``log mean exp(−t‖u − v‖²)`` over all pairs of different rows, at length 1.

    >>> uniformity(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor(-4.)

    Wang and Isola 2020, with their ``t`` of 2. 0 if all rows have one direction; −2t
    for orthogonal rows; random rows in d features tend to −2t + 2t²/d. ``x`` is
    ``(..., token, feature)``. As in ``mean_cosine``, a row of zeros has cosine 0 with every other;
    a single row has uniformity 0.
    """
    if not t > 0:
        raise InputError(f"t={t} is out of range; expected t > 0.")
    x, token_mask = measurable(x, token_mask)
    units = _units(x)
    exponents = 2 * t * ((units @ units.mT).clamp(-1, 1) - 1)  # ‖u − v‖² = 2 − 2 cos(u, v)
    pairs = ~torch.eye(x.shape[-2], dtype=torch.bool, device=x.device).expand_as(exponents)
    if token_mask is not None:
        pairs = pairs & token_mask.unsqueeze(-1) & token_mask.unsqueeze(-2)
    count = valid_counts(x, token_mask)
    several = count > 1
    pairs = torch.where(several[..., None, None], pairs, torch.ones_like(pairs))  # not −∞, dropped
    total = torch.where(pairs, exponents, -torch.inf).flatten(-2).logsumexp(-1)
    number = torch.where(several, count * (count - 1), 1.0)
    return torch.where(several, total - number.log(), torch.zeros_like(total))


@checked
def alignment(
    x: Tensor, y: Tensor, *, alpha: float = 2.0, token_mask: Tensor | None = None
) -> PerSample:
    """Mean of ``‖u − v‖^α`` over positive pairs: row i of ``x`` and row i of ``y``, at length 1.

    >>> alignment(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]]))
    tensor(2.)

    Wang and Isola 2020, with their ``alpha`` of 2. 0 if the two of each pair have the
    same direction, 2 if they are unrelated, 4 at most (for ``alpha=2``). ``x`` and ``y`` are
    ``(..., token, feature)``; a row of zeros counts as unrelated to its partner.
    """
    if not alpha > 0:
        raise InputError(f"alpha={alpha} is out of range; expected alpha > 0.")
    if x.shape != y.shape:
        raise ShapeError(
            f"x has shape {tuple(x.shape)}, y {tuple(y.shape)}; pairs need the same shape."
        )
    (x, mask), (y, _) = measurable(x, token_mask), measurable(y, token_mask)
    # Directly, not through cosines, in which the digits of small distances are lost.
    u, v = _units(x), _units(y)
    square = (u - v).square().sum(-1)
    unknown = (u.detach().abs().amax(-1) == 0) | (v.detach().abs().amax(-1) == 0)
    distances = torch.where(unknown, torch.full_like(square, 2.0), square) ** (alpha / 2)
    if mask is not None:
        distances = torch.where(mask, distances, distances.new_zeros(()))
    return distances.sum(-1) / valid_counts(x, mask)


def _units(x: Tokens) -> Tokens:
    """Rows at length 1; a row of zeros stays zero."""
    # Scaling by the largest entry first keeps the squares inside the range of the dtype.
    largest = x.detach().abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, torch.ones_like(largest))
    # Rows of zeros take no part in the division, so that their gradient is not NaN.
    zero = (largest == 0).expand_as(x)
    length = torch.linalg.vector_norm(torch.where(zero, 1.0, x), dim=-1, keepdim=True)
    units: Tokens = x / length
    return units
