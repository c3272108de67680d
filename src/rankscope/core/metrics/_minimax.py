"""The smallest largest row sum: ``min max_i Σ_j |X_ij − x_j|`` for x in a box, with a certificate.

Why a box: "no column sum exceeds A" confines each ``x_j`` to an interval of its own, so that the
composite norm needs no other solver than this one (see ``centers.py``).

Everything here is float64, with one batch axis and no padding. Tokens come *normalised*: column
medians 0 and mean row sum 1 (or 0, where all tokens are equal). No x has a smaller mean row sum
than the medians, so the answer is at least 1 and tolerances are relative ones.

The method (derived). Round ``|r|`` to ``√(r² + ε²)`` and follow the central path of
``min top  s.t.  S_i(x) ≤ top,  lower ≤ x ≤ upper`` while one number, the level, goes to zero: the
barrier weight with it, ε with its root, because a rounded corner costs only its square as long as
it is wider than the spacing of the data. A Newton step is a few passes over X and a Cholesky factor
of the size of the smaller axis. Corners are where Newton's method fails, so, after Chan, Golub and
Mulet (SIAM J. Sci. Comput. 20, 1999), the sign of each residual is a dual variable of its own and
curvature is measured against it. No claim rests on convergence: a center is judged by its true
row sums, and a weighting of the tokens by the exact bound it proves.
"""

from typing import Any, NamedTuple, Self, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rankscope.core.shapes import Hidden

PerToken = Float[Tensor, "batch token"]
PerFeature = Float[Tensor, "batch feature"]
Scalars = Float[Tensor, " batch"]
Samples = TypeVar("Samples", bound=tuple[Any, ...])

_FINEST = 1e-7  # asking for more only costs steps: float64 is spent
_MAX_STEPS = 100  # 10 to 25 are usual
_SHRINK = 0.1  # factor on the level once the equations hold well enough
_LAST_LEVEL = 1e-12  # slacks below this would drown in rounding
_CORNER = 0.5  # ε at level 1, in mean deviations of the column
_CERTIFY_BELOW = 100.0  # at more tolerances than this, a level is too high to end on
_NARROWEST = 1e-3  # half-width under which an interval counts as a point, in tolerances per feature
_KEEP = 0.05  # share of a slack that a step must leave


class Box(NamedTuple):
    """Where each coordinate of the center may be."""

    lower: PerFeature
    upper: PerFeature

    def clip(self, center: PerFeature) -> PerFeature:
        return torch.minimum(torch.maximum(center, self.lower), self.upper)


class SortedColumns(NamedTuple):
    """The tokens, and every column sorted: sorted once, used often."""

    tokens: Hidden
    ascending: Hidden
    order: Int[Tensor, "batch token feature"]

    @classmethod
    def of(cls, tokens: Hidden) -> Self:
        return cls(tokens, *tokens.sort(dim=-2))

    def largest_row_sum(self, center: PerFeature) -> Scalars:
        return (self.tokens - center[:, None]).abs().sum(-1).amax(-1)

    def mass_left(self, weights: PerToken) -> Hidden:
        """Weight of the tokens up to and including each position of the sorted columns."""
        return weights[:, :, None].expand_as(self.order).gather(-2, self.order).cumsum(-2)

    def weighted_median(self, weights: PerToken) -> PerFeature:
        mass = self.mass_left(weights)
        index = (mass < 0.5 * mass[:, -1:]).sum(-2, keepdim=True)
        return self.ascending.gather(-2, index).squeeze(-2)

    def row_bound(self, weights: PerToken, box: Box) -> Scalars:
        """What ``weights`` prove: no x in the box has a largest row sum below this.

        derived: a maximum is at least any weighted mean, and ``Σ_j Σ_i w_i |X_ij − x_j|``, convex
        in each x_j alone, is least over the box at the weighted medians moved into it.
        """
        point = box.clip(self.weighted_median(weights))
        sums = (self.tokens - point[:, None]).abs().sum(-1)
        return (weights * sums).sum(-1) / weights.sum(-1)


class RowOptimum(NamedTuple):
    """A center, its largest row sum, a lower bound, and the token weights that prove it."""

    center: PerFeature
    value: Scalars
    bound: Scalars
    weights: PerToken


def pick(samples: Samples, which: Tensor) -> Samples:
    """The samples of a named tuple of tensors at an index or under a boolean mask."""
    parts = (pick(part, which) if isinstance(part, tuple) else part[which] for part in samples)
    return type(samples)(*parts)


def least_row_sum(columns: SortedColumns, box: Box, *, tolerance: float) -> RowOptimum:
    """The center in ``box`` with the least largest row sum, to a relative ``tolerance``.

    A sample is dropped once it is certified, so that none depends on its companions.
    """
    tolerance = max(tolerance, _FINEST)
    # Every search starts at center 0 and equal weights, which prove the mean row sum.
    batch, tokens, features = columns.tokens.shape
    center = columns.tokens.new_zeros(batch, features)
    weights = columns.tokens.new_full((batch, tokens), 1 / tokens)
    value = columns.largest_row_sum(center)
    best = RowOptimum(center, value, columns.row_bound(weights, box), weights)
    active = (best.value > (1 + tolerance) * best.bound).nonzero().squeeze(-1)
    path = _start(pick(columns, active), pick(box, active), tolerance)
    for _ in range(_MAX_STEPS):
        if len(active) == 0:
            break
        path = _advance(path)
        better = _judge(path, pick(best, active), tolerance)
        for target, part in zip(best, better, strict=True):
            target[active] = part
        # Not finite: the factorisation failed, and what was found until then stands.
        going = (better.value > (1 + tolerance) * better.bound) & path.center.isfinite().all(-1)
        if not bool(going.all()):
            active, path = active[going], pick(path, going)
    return best


class _Path(NamedTuple):
    """A point near the central path of every sample."""

    columns: SortedColumns
    box: Box
    widened: Box  # the box, widened where its interior is empty
    spread: PerFeature  # mean deviation of each column
    center: PerFeature
    top: Scalars
    slack: PerToken  # on the path: top less the rounded row sum
    weights: PerToken  # multipliers of the row sums, adding up to 1
    press: Box  # multipliers of the two sides of the widened box
    sign: Hidden  # on the path: residual over rounded residual
    level: Scalars
    damping: Scalars  # 0: the curvature of Chan, Golub and Mulet; 1: one that majorises
    error: Scalars  # of the equations, when this level was last looked at


class _Equations(NamedTuple):
    """The central path's equations at a point, linearised."""

    pull: Hidden  # ∂(rounded row sum)/∂x
    curvature: Hidden
    excess: PerToken  # rounded row sum + slack − top
    drift: PerFeature  # ∂(weighted row sums)/∂x
    inside: Box  # distances to the sides of the widened box
    target: Float[Tensor, "batch 1"]  # what every product slack × multiplier should be


def _start(columns: SortedColumns, box: Box, tolerance: float) -> _Path:
    """A point inside the widened box with all products equal."""
    middle, half = (box.lower + box.upper) / 2, (box.upper - box.lower) / 2
    half = half.clamp(min=_NARROWEST * tolerance / middle.shape[-1])
    widened = Box(middle - half, middle + half)
    center = Box(middle - 0.9 * half, middle + 0.9 * half).clip(torch.zeros_like(middle))
    spread = columns.tokens.abs().mean(-2).clamp(min=1e-12)
    level = torch.ones_like(spread[:, 0])
    sign, size = _round_residuals(columns, center, spread, level)
    sums = size.sum(-1)
    top = 2 * sums.amax(-1) - sums.mean(-1) + 0.01
    slack = top[:, None] - sums
    product = 1 / slack.reciprocal().sum(-1, keepdim=True)
    press = Box(product / (center - widened.lower), product / (widened.upper - center))
    return _Path(
        columns, box, widened, spread, center, top, slack, product / slack, press, sign,
        level, damping=torch.zeros_like(level), error=torch.full_like(level, torch.inf),
    )  # fmt: skip


def _round_residuals(
    columns: SortedColumns, center: PerFeature, spread: PerFeature, level: Scalars
) -> tuple[Hidden, Hidden]:
    """Each residual over its rounded size, and that size ``√(r² + ε²)``."""
    residual = center[:, None] - columns.tokens
    corner = _CORNER * level.sqrt()[:, None] * spread
    size = residual.square().add_(corner.square()[:, None]).sqrt_()
    return residual.div_(size), size


def _advance(path: _Path) -> _Path:
    """One Newton step, kept inside all inequalities, then the next level if the last one is met."""
    at = _linearise(path)
    step = _direction(path, at)
    gaps = zip(at.inside, (step.center, -step.center), strict=True)
    primal = _length(*gaps, (path.slack, step.slack))
    presses = zip(path.press, step.press, strict=True)
    dual = _length(*presses, (path.weights, step.weights))
    path = _schedule(path, at)
    return path._replace(
        center=path.center + primal * step.center,
        top=path.top + primal[:, 0] * step.top,
        slack=path.slack + primal * step.slack,
        weights=path.weights + dual * step.weights,
        press=Box(*(side + dual * by for side, by in zip(path.press, step.press, strict=True))),
        sign=(path.sign + dual[:, None] * step.sign).clamp_(-1, 1),
    )


def _linearise(path: _Path) -> _Equations:
    n, d = path.columns.tokens.shape[-2:]
    pull, size = _round_residuals(path.columns, path.center, path.spread, path.level)
    trust = (1 - path.damping)[:, None, None]
    return _Equations(
        pull,
        curvature=(1 - trust * path.sign * pull).div_(size),
        excess=size.sum(-1) + path.slack - path.top[:, None],
        drift=_weigh(path.weights, pull),
        inside=Box(path.center - path.widened.lower, path.widened.upper - path.center),
        target=path.level[:, None] / (n + 2 * d),
    )


class _Step(NamedTuple):
    center: PerFeature
    top: Scalars
    slack: PerToken
    weights: PerToken
    press: Box
    sign: Hidden


def _direction(path: _Path, at: _Equations) -> _Step:
    """Newton's direction: slacks, signs and presses follow from center, weights and top."""
    lower, upper = (at.target / gap for gap in at.inside)
    firm = Box(path.press.lower / at.inside.lower, path.press.upper / at.inside.upper)
    stiffness = _weigh(path.weights, at.curvature) + firm.lower + firm.upper
    ratio = path.slack / path.weights
    lack = at.target / path.weights - path.slack
    force = lower - upper - at.drift
    center, weights, top = _newton(at.pull, stiffness, ratio, force, at.excess + lack)
    down = lower - path.press.lower - firm.lower * center
    press = Box(down, upper - path.press.upper + firm.upper * center)
    sign = at.pull - path.sign + at.curvature * center[:, None]
    return _Step(center, top, lack - ratio * weights, weights, press, sign)


def _newton(
    pull: Hidden, stiffness: PerFeature, ratio: PerToken, force: PerFeature, excess: PerToken
) -> tuple[PerFeature, PerToken, Scalars]:
    """Solve ``D dx + Aᵀ dw = force``, ``A dx − K dw − dtop = −excess``, ``Σ dw = 0``.

    Here A = ``pull`` and D, K are the diagonals ``stiffness``, ``ratio``. Either unknown can be
    eliminated; the smaller system is factored.
    """
    n, d = pull.shape[-2:]
    if n <= d:  # (A D⁻¹ Aᵀ + K) dw + dtop = excess + A D⁻¹ force
        scaled = pull * stiffness.rsqrt()[:, None]
        wanted = excess + _apply(pull, force / stiffness)
        answer, ones = _solve(scaled @ scaled.mT, ratio, wanted, torch.ones_like(excess))
        top = answer.sum(-1) / ones.sum(-1)
        weights = answer - top[:, None] * ones
        return (force - _weigh(weights, pull)) / stiffness, weights, top
    # (D + Aᵀ K⁻¹ A) dx = force − Aᵀ K⁻¹ (excess − dtop)
    scaled = pull * ratio.rsqrt()[:, :, None]
    even = _weigh(1 / ratio, pull)
    answer, ones = _solve(scaled.mT @ scaled, stiffness, force - _weigh(excess / ratio, pull), even)
    rest = (excess + _apply(pull, answer)) / ratio
    top = rest.sum(-1) / ((1 - _apply(pull, ones)) / ratio).sum(-1)
    center = answer + top[:, None] * ones
    return center, (_apply(pull, center) + excess - top[:, None]) / ratio, top


def _solve(gram: Tensor, diagonal: Tensor, *sides: Tensor) -> tuple[Tensor, ...]:
    """Solve ``(gram + diagonal) y = side`` for each side; not finite where the factor fails."""
    gram.diagonal(dim1=-2, dim2=-1).add_(diagonal)
    factor, _ = torch.linalg.cholesky_ex(gram)
    return torch.cholesky_solve(torch.stack(sides, dim=-1), factor).unbind(-1)


def _weigh(weights: PerToken, m: Hidden) -> PerFeature:
    return (weights[:, None] @ m).squeeze(1)


def _apply(m: Hidden, vector: PerFeature) -> PerToken:
    return (m @ vector[:, :, None]).squeeze(-1)


def _length(*moves: tuple[Tensor, Tensor]) -> Float[Tensor, "batch 1"]:
    """The longest step up to 1 that leaves each positive value a share of itself."""
    worst = torch.cat([-step / value for value, step in moves], dim=-1).amax(-1, keepdim=True)
    return (1 - _KEEP) / worst.clamp(min=1 - _KEEP)


def _schedule(path: _Path, at: _Equations) -> _Path:
    """Lower the level where its equations hold well enough; damp where they get no better.

    Every number here was chosen by trying. Drift is held against the root of the level because it
    lives on the scale of the corners.
    """
    drift = at.drift - path.press.lower + path.press.upper
    drift_error = (drift.abs() * path.spread).sum(-1) / (0.1 * path.level.sqrt())
    error = torch.maximum(drift_error, at.excess.abs().amax(-1) / path.level)
    met = error < 1
    better = met | (error < 0.8 * path.error)
    return path._replace(
        level=torch.where(met, _SHRINK * path.level, path.level).clamp(min=_LAST_LEVEL),
        damping=torch.where(better, path.damping / 4, (4 * path.damping).clamp(0.05, 1)),
        error=torch.where(met, torch.inf, error),
    )


def _judge(path: _Path, best: RowOptimum, tolerance: float) -> RowOptimum:
    """The better of what is known and what this point of the path gives."""
    center = path.box.clip(path.center)
    value = path.columns.largest_row_sum(center)
    better = value < best.value
    best = best._replace(
        center=torch.where(better[:, None], center, best.center),
        value=torch.where(better, value, best.value),
    )
    low = path.level <= _CERTIFY_BELOW * tolerance
    if not bool(low.any()):
        return best
    bound = path.columns.row_bound(path.weights, path.box)
    better = low & (bound > best.bound)  # each by its own level: see least_row_sum on companions
    return best._replace(
        bound=torch.where(better, bound, best.bound),
        weights=torch.where(better[:, None], path.weights, best.weights),
    )
