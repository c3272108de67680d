"""Centers: the row x subtracted from every token before a norm is taken.

See docs/theory.md, section 2. The mean is best for every unitarily invariant norm, Frobenius and
spectral among them, because ``X − 1x̄ᵀ = (I − 11ᵀ/n)(X − 1xᵀ)`` for any x, and a projection
increases none of them. The median is best for ``‖·‖₁``, column by column. ``‖·‖∞`` and the
composite norm need a search, which also gives a lower bound that is valid for every x.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.metrics._minimax import (
    Box,
    PerFeature,
    PerToken,
    Scalars,
    SortedColumns,
    least_row_sum,
    pick,
)  # fmt: skip
from rankscope.core.metrics._spectrum import Norm, matrix_norm
from rankscope.core.shapes import Hidden, PerSample, TokenMask, Tokens

Center = Float[Tensor, "*batch feature"]

_CHUNK = 2**18  # numbers solved at once: what a processor's cache holds; accelerators take more
_MAX_ROUNDS = 16  # budgets tried for one sample; one to four are usual


class Optimum(NamedTuple):
    """The best center found, and a lower bound on the norm for any center."""

    center: Center
    lower_bound: PerSample


def mean_center(x: Tokens, token_mask: TokenMask | None, *, work: Tensor | None = None) -> Center:
    """The mean of the valid tokens.

    Computed from differences to one token, so that the mean of equal tokens is exact and a large
    common offset costs no digits. ``work`` is a buffer for the differences.
    """
    if token_mask is None:
        anchor = x[..., :1, :].detach()
        return anchor.squeeze(-2) + torch.sub(x, anchor, out=work).mean(-2)
    first = token_mask.to(torch.uint8).argmax(-1)[..., None, None]
    anchor = x.detach().gather(-2, first.expand(*x.shape[:-2], 1, x.shape[-1]))
    offset = torch.where(token_mask[..., None], x - anchor, x.new_zeros(()))
    return anchor.squeeze(-2) + offset.sum(-2) / token_mask.sum(-1, keepdim=True)


def median_center(x: Tokens, token_mask: TokenMask | None) -> Center:
    """The median of the valid tokens: for an even number, halfway between the two middle values."""
    if token_mask is None:
        count = torch.full((*x.shape[:-2], 1, 1), x.shape[-2], device=x.device)
    else:
        count = token_mask.sum(-1)[..., None, None]
        x = torch.where(token_mask[..., None], x, x.new_full((), torch.inf))  # sorted to the end
    ascending = x.sort(dim=-2).values
    indices = torch.cat([(count - 1) // 2, count // 2], dim=-2)
    low, high = ascending.gather(-2, indices.expand(*x.shape[:-2], 2, x.shape[-1])).unbind(-2)
    # Neither form overflows where it is used, and the second gives equal values back exactly.
    return torch.where((low < 0) & (high > 0), (low + high) / 2, low + (high - low) / 2)


@checked
@torch.no_grad()
def optimal_center(
    x: Tokens, norm: Norm, token_mask: TokenMask | None, *, tolerance: float = 1e-4
) -> Optimum:
    """The center that minimises ``norm`` of the residual, up to a relative ``tolerance``.

    >>> optimal_center(torch.tensor([[0.0], [1.0], [5.0]]), "one", None)
    Optimum(center=tensor([1.]), lower_bound=tensor(5.))

    ``norm`` is ``one``, ``inf``, ``composite``, ``fro`` or ``spectral``. In the dtype of ``x``
    the center is never worse than the mean, the median or zero. ``lower_bound`` always holds; if
    the tolerance is not reached, the two are further apart.
    """
    if token_mask is None:
        token_mask = x.new_ones(x.shape[:-1], dtype=torch.bool)
    samples = math.prod(x.shape[:-2])
    mask = token_mask.expand(x.shape[:-1]).reshape(samples, x.shape[-2])
    flat = x.reshape(samples, *x.shape[-2:])
    flat = torch.where(mask[:, :, None], flat, flat.new_zeros(()))
    # A power of two near each sample's spread: dividing by it loses no digit.
    safe = torch.where(flat.abs().amax((-2, -1)) > 1, 2.0, 1.0).to(flat.dtype)
    spread = _residual(flat, mask, safe, median_center(flat, mask)).abs().amax((-2, -1))
    unit = torch.where(spread > 0, spread / (2 * torch.frexp(spread).mantissa), 1.0)
    center, bound = _solve(flat, mask, unit, norm, tolerance)
    center, value = _best(flat, mask, unit, norm, center)
    rounded = bound.to(x.dtype)
    below = torch.nextafter(rounded, torch.zeros_like(rounded))
    rounded = torch.where(rounded.double() > bound, below, rounded)  # never up
    bound = torch.minimum(rounded, value) * unit
    bound = bound.clamp(max=torch.finfo(x.dtype).max)
    return Optimum(center.reshape(*x.shape[:-2], x.shape[-1]), bound.reshape(x.shape[:-2]))


def _residual(flat: Hidden, mask: TokenMask, unit: Scalars, center: PerFeature) -> Hidden:
    """What is left of the valid tokens, in units."""
    # Large numbers are halved first, for a difference can be twice the largest number there is.
    half = torch.where(unit > 1, 0.5, 1.0).to(flat.dtype)[:, None, None]
    left = (flat * half - center[:, None] * half) / (unit[:, None, None] * half)
    return torch.where(mask[:, :, None], left, left.new_zeros(()))


def _best(
    flat: Hidden, mask: TokenMask, unit: Scalars, norm: Norm, center: PerFeature
) -> tuple[PerFeature, Scalars]:
    """The best of the solver's center, mean, median and zero, and its norm in units."""
    # Near the largest number there is, sums may overflow: then another candidate stands in.
    center = torch.nan_to_num(center.to(flat.dtype), nan=0.0, posinf=0.0, neginf=0.0)
    mean = mean_center(flat, mask)
    mean = torch.where(mean.isfinite(), mean, center)
    plain = (median_center(flat, mask), mean, torch.zeros_like(mean))
    candidates = (mean,) if norm in _MEAN_IS_BEST else (center, *plain)
    values = torch.stack([matrix_norm(_residual(flat, mask, unit, c), norm) for c in candidates])
    value, winner = values.min(dim=0)
    return torch.stack(candidates)[winner, torch.arange(len(winner), device=winner.device)], value


def _solve(
    flat: Hidden, mask: TokenMask, unit: Scalars, norm: Norm, tolerance: float
) -> tuple[PerFeature, Scalars]:
    """Center and lower bound in float64, the bound in units."""
    exact, scale = flat.double(), unit.double()
    center = median_center(exact, mask)
    tokens = _residual(exact, mask, scale, center)
    if norm in _MEAN_IS_BEST:
        mean = mean_center(tokens, mask)
        least = matrix_norm(_residual(tokens, mask, torch.ones_like(scale), mean), norm)
        return center + mean * scale[:, None], least
    bound = torch.zeros_like(scale)
    for rows, count in _batches(mask, exact.shape[-1]):
        part = tokens[rows][mask[rows]].reshape(len(rows), count, -1)
        size = part.abs().sum(-1).mean(-1)
        size = torch.where(size > 0, size, 1.0)  # normalised as minimax.py asks
        shift, least = _SOLVERS[norm](SortedColumns.of(part / size[:, None, None]), tolerance)
        center[rows] += size[:, None] * shift * scale[rows, None]
        bound[rows] = size * least
    return center, bound


def _batches(mask: TokenMask, features: int) -> Iterator[tuple[Tensor, int]]:
    """Samples with equally many tokens, some at a time: so that padding never meets the solver."""
    counts = mask.sum(-1)
    chunk = _CHUNK if mask.device.type == "cpu" else 64 * _CHUNK
    for count in counts.unique().tolist():
        rows = (counts == count).nonzero().squeeze(-1)
        for some in rows.split(max(1, chunk // (count * features))):
            yield some, count


def _least_one(columns: SortedColumns, tolerance: float) -> tuple[PerFeature, Scalars]:  # noqa: ARG001
    """The medians, which are 0 here: exact."""
    return torch.zeros_like(columns.tokens[:, 0]), matrix_norm(columns.tokens, "one")


def _least_inf(columns: SortedColumns, tolerance: float) -> tuple[PerFeature, Scalars]:
    optimum = least_row_sum(columns, _range(columns), tolerance=tolerance)
    return optimum.center, optimum.bound


def _least_composite(columns: SortedColumns, tolerance: float) -> tuple[PerFeature, Scalars]:
    """Center and bound for ``√(f₁ f∞)``.

    derived: let φ(a) be the least f∞ among all x with ``f₁ ≤ a``. It is convex and falls, and the
    square of the answer is the least of ``a φ(a)``. A solved budget gives a point on φ and, by its
    weights, two lines below all of φ. Between the lines' corners ``a × line`` is concave, so its
    least value is at a corner: a bound. The lowest corner is the next budget. The first is the
    smallest there is, that of the medians, where the answer mostly lies.
    """
    least = matrix_norm(columns.tokens, "one")
    center = torch.zeros_like(columns.tokens[:, 0])
    value = matrix_norm(columns.tokens, "composite")
    bound, budget = least.sqrt(), least.clone()  # rows: at least their mean, which is 1 or 0
    lines = columns.tokens.new_zeros(len(least), 2 * _MAX_ROUNDS, 2)  # φ(a) ≥ 0 says nothing
    for k in range(_MAX_ROUNDS):
        active = (value > (1 + tolerance) * bound).nonzero().squeeze(-1)
        if len(active) == 0:
            break
        part = pick(columns, active)
        optimum = least_row_sum(part, _box_within(part, budget[active]), tolerance=tolerance / 2)
        better = matrix_norm(part.tokens - optimum.center[:, None], "composite")
        improved = better < value[active]
        center[active] = torch.where(improved[:, None], optimum.center, center[active])
        value[active] = torch.where(improved, better, value[active])
        lines[active, 2 * k : 2 * k + 2] = _lines_below(part, optimum.weights, budget[active])
        product, corner = _lowest_corner(lines[active], least[active])
        bound[active] = torch.maximum(bound[active], product.sqrt())
        budget[active] = corner
    return center, bound


def _range(columns: SortedColumns) -> Box:
    """Nothing is lost by staying here: an x_j past all the data only adds to every sum."""
    return Box(columns.ascending[:, 0], columns.ascending[:, -1])


def _crossings(columns: SortedColumns, budget: Scalars) -> tuple[Tensor, Tensor, Tensor]:
    """Where a column's lines reach the budget: the falling ones, the rising ones; and all slopes.

    derived: ``Σ_i |X_ij − x|`` is the largest of the n + 1 lines ``(2k − n) x + total − 2 left_k``,
    one for each number k of tokens taken to lie left of x, where ``left_k`` is the sum of those.
    """
    n = columns.tokens.shape[-2]
    left = columns.ascending.cumsum(-2)
    left = torch.cat([torch.zeros_like(left[:, :1]), left], dim=-2)
    across = budget[:, None, None] - left[:, -1:] + 2 * left
    slope = 2 * torch.arange(n + 1, dtype=left.dtype, device=left.device) - n
    falling, rising = slice(0, (n + 1) // 2), slice(n // 2 + 1, n + 1)
    return across[:, falling] / slope[falling, None], across[:, rising] / slope[rising, None], slope


def _box_within(columns: SortedColumns, budget: Scalars) -> Box:
    """All x with column sums of at most ``budget``: an interval around the median 0 for each."""
    falling, rising, _ = _crossings(columns, budget)
    low, high = _range(columns)
    # 0 stays inside whatever the rounding.
    lower, upper = torch.maximum(falling.amax(-2), low), torch.minimum(rising.amin(-2), high)
    return Box(lower.clamp(max=0), upper.clamp(min=0))


def _lines_below(
    columns: SortedColumns, weights: PerToken, budget: Scalars
) -> Float[Tensor, "batch 2 2"]:
    """Two lines (height at 0, slope) under φ: what ``weights`` prove near ``budget`` and anywhere.

    derived: a column whose weighted median lies outside its interval has its least weighted sum at
    the end of it. That end moves by 1/(2k − n) per unit of budget along the line k that ends there,
    and the weighted sum changes by 2 mass_k − 1 per unit of x. Both functions are maxima of such
    lines, so the product is a slope that holds for every budget, not only for nearby ones.
    """
    n = columns.tokens.shape[-2]
    weights = weights / weights.sum(-1, keepdim=True)
    median, box = columns.weighted_median(weights), _box_within(columns, budget)
    falling, rising, rise = _crossings(columns, budget)
    line = torch.where(median < box.lower, falling.argmax(-2), rising.argmin(-2) + n // 2 + 1)
    mass = columns.mass_left(weights).gather(-2, (line - 1).clamp(min=0)[:, None]).squeeze(-2)
    gain = (2 * torch.where(line > 0, mass, 0.0) - 1) / rise[line]
    slope = torch.where(box.clip(median) == median, 0.0, gain.clamp(max=0)).sum(-1)
    near = torch.stack([columns.row_bound(weights, box) - slope * budget, slope], dim=-1)
    flat = columns.row_bound(weights, _range(columns))
    return torch.stack([near, torch.stack([flat, torch.zeros_like(flat)], dim=-1)], dim=-2)


def _lowest_corner(lines: Float[Tensor, "batch _ 2"], least: Scalars) -> tuple[Scalars, Scalars]:
    """The least ``a × (highest line at a)`` over ``a ≥ least``, and that a."""
    height, slope = lines.unbind(-1)
    crossing = (height[:, :, None] - height[:, None]) / (slope[:, None] - slope[:, :, None])
    # Lines that are parallel, or cross too far left, leave the corner at ``least``.
    real = crossing.isfinite() & (crossing > least[:, None, None])
    corners = torch.where(real, crossing, least[:, None, None]).flatten(1)
    highest = (height[:, None] + slope[:, None] * corners[:, :, None]).amax(-1)
    product, which = (corners * highest).min(dim=-1)
    return product, corners.gather(-1, which[:, None]).squeeze(-1)


_MEAN_IS_BEST = ("fro", "spectral")
_SOLVERS = {"one": _least_one, "inf": _least_inf, "composite": _least_composite}
