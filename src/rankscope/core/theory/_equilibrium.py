"""One equilibrium of a step: how accurate it is, its rank, and whether it is stable."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import finite, real
from rankscope.core.metrics import numerical_rank, residual
from rankscope.core.network import Network
from rankscope.core.shapes import Hidden
from rankscope.core.tabular import Tabular, plot_along
from rankscope.errors import ShapeError
from rankscope.numerals import plural, short
from rankscope.streams import stream

if TYPE_CHECKING:
    import polars

    from rankscope.show import figures

Jacobians = Float[Tensor, "batch output input"]

MARGIN = 1e-6
_DOUBLINGS = 14
_SWEEPS = 30
_CHUNK = 2**22  # entries of the copies in one backward pass, at most


@checked
@dataclass(frozen=True)
class Stability:
    """The spectral radius of a step, and two bounds that are valid however non-normal it is.

    >>> import torch
    >>> from rankscope.core.theory import stability_of
    >>> found = stability_of(torch.diag(torch.tensor([0.5, -0.25])))
    >>> found.stable, found.unstable, round(found.radius, 3)
    (True, False, 0.5)

    ``lower`` comes from ``|tr Jᵏ| ≤ m ρᵏ``, ``upper`` from a norm in which J is a contraction, both
    with a margin for rounding. Computed eigenvalues of a matrix far from normal may be wrong by
    much more than rounding, so the bounds decide; ``radius`` is the best estimate between them.
    """

    radius: float
    lower: float
    upper: float

    @property
    def stable(self) -> bool:
        """Every small perturbation dies out."""
        return self.upper < 1 - MARGIN

    @property
    def unstable(self) -> bool:
        """Some arbitrarily small perturbation grows; if neither, nothing was decided."""
        return self.lower > 1 + MARGIN

    @property
    def margin(self) -> float:
        """How far the deciding bound is from one; nothing is decided within ``MARGIN``."""
        return max(1 - self.upper, self.lower - 1)


@checked
def stability_of(jacobian: Tensor) -> Stability:
    """The stability of a step from its ``(output, input)`` Jacobian at an equilibrium.

    >>> stability_of(torch.diag(torch.tensor([0.5, -0.25]))).stable
    True

    Post-norm steps end on a manifold (spheres, the range of LayerNorm). The restriction to its
    tangent space T needs no projection: J maps everything into T, so T is invariant, the quotient
    map is zero, and the eigenvalues of J are those on T, and zeros (derived). The bounds are about
    the J given; that at the exact equilibrium is a little different, see ``Equilibrium.distance``.
    """
    matrix = real(jacobian, name="jacobian", axes="(output, input)", least=2).detach().double()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(f"jacobian has shape {tuple(jacobian.shape)}, expected a square matrix.")
    finite(matrix, name="jacobian")
    scale = float(matrix.abs().max())
    if scale == 0:
        return Stability(0.0, 0.0, 0.0)
    if not 1e-100 < scale < 1e100:  # so that no square leaves float64's range
        inner = stability_of(matrix / scale)
        return Stability(scale * inner.radius, scale * inner.lower, scale * inner.upper)
    matrix = _balance(matrix)
    radius = float(torch.linalg.eigvals(matrix).abs().max())
    lower, upper = _lower_bound(matrix), _upper_bound(matrix, radius)
    return Stability(min(max(radius, lower), upper), lower, upper)


@checked
def step_jacobian(network: Network, x: Tensor) -> Tensor:
    """The Jacobian of one pass through a network at tokens ``(token, feature)``, flattened.

    >>> net = Network.from_matrices(torch.zeros(1, 1, 2, 2), torch.eye(2)[None, None], head_width=2)
    >>> step_jacobian(net, torch.ones(1, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    real(x, name="x", axes="(token, feature)", least=2)
    if x.ndim != 2:
        raise ShapeError(f"x has shape {tuple(x.shape)}, expected (token, feature).")
    network.check(x.unsqueeze(0))
    return step_jacobians(network, x.unsqueeze(0))[0]


def step_jacobians(network: Network, x: Hidden) -> Jacobians:
    """One Jacobian for each sample, all its rows by one backward pass.

    Samples do not interact, so a batch of ``m`` copies, each with the gradient of another output
    entry, gives the m rows at once.
    """
    size = x[0].numel()
    entries = torch.eye(size, dtype=x.dtype, device=x.device)
    rows: list[Tensor] = []
    for part in x.detach().split(max(1, _CHUNK // size**2)):
        copies = part.repeat_interleave(size, 0).requires_grad_()
        with torch.enable_grad():
            out = network(copies)
        rows += torch.autograd.grad(out, copies, entries.repeat(len(part), 1).view_as(out))
    return torch.cat(rows).view(len(x), size, size)


def _balance(matrix: Float[Tensor, "output input"]) -> Float[Tensor, "output input"]:
    """``D⁻¹JD`` with rows and columns of like size (Osborne 1960), D of powers of two: exact.

    Under a causal mask tokens act on later ones only, often strongly; that changes no eigenvalue
    but makes every norm large. Different units for different tokens make such one-way effects
    small.
    """
    a = matrix.cpu().numpy().copy()
    for _ in range(_SWEEPS):
        moved = False
        for i in range(len(a)):
            column, row = np.linalg.norm(a[:, i]), np.linalg.norm(a[i])
            exponent = round(math.log2(row / column) / 2) if row > 0 and column > 0 else 0
            if exponent:
                a[:, i] *= 2.0**exponent
                a[i] *= 2.0**-exponent
                moved = True
        if not moved:
            break
    return torch.from_numpy(a)


def _lower_bound(matrix: Float[Tensor, "output input"]) -> float:
    """A lower bound of the spectral radius from the traces of J, J², J⁴, …

    ``error`` bounds, in the Frobenius norm, the rounding in the power so far: a product doubles it
    and adds its square and its own rounding. Powers of a matrix far from normal may shrink below
    it. The scale is kept as a logarithm.
    """
    size, epsilon = matrix.shape[0], torch.finfo(matrix.dtype).eps
    power, log_scale, log_lower = matrix, 0.0, -math.inf
    error = epsilon * float(torch.linalg.matrix_norm(power))
    for doubling in range(_DOUBLINGS + 1):
        # |tr E| ≤ √m ‖E‖: a trace that could be rounding is no evidence of an eigenvalue.
        trace = (abs(float(power.diagonal().sum())) - math.sqrt(size) * error) / size
        if trace > 0:
            log_lower = max(log_lower, (log_scale + math.log(trace)) / 2**doubling)
        norm = float(torch.linalg.matrix_norm(power))
        if not norm > error:
            break
        power, error = power / norm, error / norm
        power, error = power @ power, 2 * error + error**2 + size * epsilon
        log_scale = 2 * (log_scale + math.log(norm))
    return math.exp(log_lower)


def _upper_bound(matrix: Float[Tensor, "output input"], radius: float) -> float:
    """The smallest of some candidates above the computed radius that provably bounds it."""
    norm = float(torch.linalg.matrix_norm(matrix))
    tries = [radius * (1 + part) for part in (1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0)]
    tries += [norm * 10.0**-power for power in range(1, 13)]
    tries += [1 - 2 * MARGIN]
    for bound in sorted(bound for bound in tries if radius < bound < norm):
        if _is_contraction(matrix / bound):
            return bound
    return norm


def _is_contraction(matrix: Float[Tensor, "output input"]) -> bool:
    """Whether some ``P ≻ 0`` has ``P − MᵀPM ≻ 0``, which proves that M's radius is below one.

    Stein's theorem. The candidate is ``Σ (Mᵏ)ᵀMᵏ`` by doubling; how it was found does not matter,
    because the two inequalities are checked for it, with a margin for the rounding in forming them.
    """
    size, epsilon = matrix.shape[0], torch.finfo(matrix.dtype).eps
    form, power = torch.eye(size, dtype=matrix.dtype, device=matrix.device), matrix
    for _ in range(_DOUBLINGS):
        form = form + power.mT @ form @ power
        power = power @ power
    form = (form + form.mT) / 2
    if not bool(torch.isfinite(form).all()):
        return False
    drop = form - matrix.mT @ form @ matrix
    norm = float(torch.linalg.matrix_norm(matrix))
    rounding = 4 * size * epsilon * (1 + norm) ** 2 * float(torch.linalg.matrix_norm(form))
    least = [
        float(torch.linalg.eigvalsh(symmetric)[0]) for symmetric in (form, (drop + drop.mT) / 2)
    ]
    return min(least) > rounding


SAME = 1e-8  # relative: below it singular values, and differences of tokens, count as zero
_PROBES = 8
_PROBE_LENGTH = 1e-6
_SHORTENINGS = 12
_ZERO = 1e-20


@checked
class EquilibriumTable(Tabular):
    """An answer that consists of equilibria: its table and its chart."""

    if TYPE_CHECKING:

        @property
        def equilibria(self) -> "Sequence[Equilibrium]": ...

    @property
    def table(self) -> "polars.DataFrame":
        """By equilibrium (``index``, from 1 on): rank, stability, accuracy and basin."""
        from rankscope import tables

        return tables.from_rows(("index", "metric", "value"), equilibrium_rows(self.equilibria))

    def plot(self, metric: str | None = None) -> "figures.Figure":
        """The rank, or another ``metric``, of each equilibrium."""
        return plot_along(self.table, "index", "equilibrium", metric)


@checked
@dataclass(frozen=True, repr=False)
class Equilibrium(EquilibriumTable):
    """Tokens that one pass through a network returns unchanged.

    >>> import torch
    >>> from rankscope import Network
    >>> from rankscope.core.theory import equilibrium_at
    >>> values = torch.diag(torch.tensor([2.0, 1.0]))[None, None]
    >>> net = Network.from_matrices(0 * values, values, head_width=2, norm="sphere")
    >>> found = equilibrium_at(net, torch.tensor([[1.0, 0.0]]))
    >>> found.stable, found.rank, found.residual
    (True, 1, 0.0)

    ``residual`` is ``‖F(X) − X‖_F``. ``distance`` is how far away the exact equilibrium is at most,
    by Newton and Kantorovich: with ``A = F'(X) − I``, ``η = ‖A⁻¹(F(X) − X)‖`` and a Lipschitz
    constant ω of ``A⁻¹F'`` near X, an equilibrium lies within ``(1 − √(1 − 2ωη))/ω`` whenever
    ``ωη ≤ ½``, and no other is near. The rounding in η, and ω itself (second differences in random
    directions), are estimated, so ``distance`` is an estimate, too, and no proof. It is infinite
    where the argument fails: where 1 is an eigenvalue of F', or nearly so, as on a continuum of
    equilibria.
    ``basin`` is the share of random starts whose plain iteration ended here, None if not tried.
    """

    x: Float[Tensor, "token feature"]
    rank: int
    collapsed: bool
    residual: float
    distance: float
    stability: Stability
    basin: float | None = None
    basin_error: float | None = None

    @property
    def stable(self) -> bool:
        """Every small perturbation dies out."""
        return self.stability.stable

    @property
    def equilibria(self) -> "Sequence[Equilibrium]":
        """This one."""
        return [self]

    @property
    def isolated(self) -> bool:
        """Known, as far as ``distance`` is, to have no other equilibrium arbitrarily near."""
        return math.isfinite(self.distance)

    def __repr__(self) -> str:
        tokens, features = self.x.shape
        stability = self.stability
        kind = "stable" if stability.stable else "unstable" if stability.unstable else "undecided"
        basin = "" if self.basin is None else f", basin {self.basin:.0%}"
        return (
            f"Equilibrium({plural(tokens, 'token')} × {features} features, rank {self.rank}"
            f"{', collapsed' * self.collapsed}, {kind}, spectral radius "
            f"{short(stability.radius, digits=4)}, residual {short(self.residual, digits=2)}, "
            f"distance {short(self.distance, digits=2)}{basin})"
        )


def equilibrium_rows(equilibria: Sequence[Equilibrium]) -> list[tuple[int, str, float | None]]:
    """Index, metric and value of all that is known of some equilibria, but for their tokens."""
    rows: list[tuple[int, str, float | None]] = []
    for index, equilibrium in enumerate(equilibria, start=1):
        figures = {
            "rank": equilibrium.rank,
            "collapsed": equilibrium.collapsed,
            "stable": equilibrium.stable,
            "spectral_radius": equilibrium.stability.radius,
            "fixed_point_error": equilibrium.residual,
            "distance": equilibrium.distance,
            "basin": equilibrium.basin,
        }
        rows += [(index, metric, value) for metric, value in figures.items()]
    return rows


@checked
def equilibrium_at(network: Network, x: Tensor, *, polish: bool = True) -> Equilibrium:
    """The equilibrium at ``(token, feature)`` tokens, by default refined by Newton's method.

    >>> values = torch.diag(torch.tensor([2.0, 1.0]))[None, None]
    >>> net = Network.from_matrices(0 * values, values, head_width=2, norm="sphere")
    >>> equilibrium_at(net, torch.tensor([[1.0, 0.0]])).stability.radius
    0.5

    Computed in float64 whatever the network's dtype. Check ``residual``: no error is raised if
    there is no equilibrium nearby.
    """
    start = real(x, name="x", axes="(token, feature)", least=2).detach().double()
    start = start.unsqueeze(0) if start.ndim == 2 else start
    if start.ndim != 3 or len(start) != 1:
        raise ShapeError(
            f"x has shape {tuple(x.shape)}, expected (token, feature); take one sample: x[0]."
        )
    finite(start[0], name="x")
    network = network.double()
    network.check(start)
    if polish:
        start = refine(network, start)
    return measure(network, start[0])


def measure(network: Network, x: Float[Tensor, "token feature"]) -> Equilibrium:
    """What is known of an equilibrium at exactly these tokens; the network must be in float64."""
    batch = x.detach().clone().unsqueeze(0)
    if float(batch.abs().max()) < _ZERO:
        batch.zero_()  # Newton's method leaves rounding of zero, which would have a rank
    error = _fixed_point_error(network, batch)[0]
    jacobian = step_jacobians(network, batch)[0]
    smooth = not (network.spec.norm == "sphere" and bool((batch[0] == 0).all(-1).any()))
    return Equilibrium(
        x=batch[0],
        rank=int(numerical_rank(batch[0], rtol=SAME)),
        collapsed=bool(residual(batch[0], norm="fro", relative=True) < SAME),
        residual=float(torch.linalg.vector_norm(error)),
        # At a zero token the sphere's step is discontinuous and has no derivative.
        distance=_distance(network, batch[0], jacobian, error) if smooth else math.inf,
        stability=stability_of(jacobian) if smooth else Stability(math.inf, 0.0, math.inf),
    )


def refine(network: Network, x: Hidden, *, steps: int = 40, tolerance: float = 1e-14) -> Hidden:
    """Newton's method on ``F(X) = X`` for each sample, damped so that it also finds continua.

    Levenberg and Marquardt's step with damping ``‖F(X) − X‖²``, which converges quadratically to
    regular equilibria and to continua of them alike (Yamashita and Fukushima 2001), shortened until
    it reduces the error. Samples that make no more progress stay where they stopped.
    """
    x = x.detach().clone()
    identity = torch.eye(x[0].numel(), dtype=x.dtype, device=x.device)
    moving = torch.arange(len(x))
    for _ in range(steps):
        error = _fixed_point_error(network, x[moving])
        size = error.square().sum(-1)
        a = step_jacobians(network, x[moving]) - identity
        square = a.mT @ a
        # Keeps it regular, or a sample on a continuum would move far along it.
        floor = 1e-15 * square.diagonal(dim1=-2, dim2=-1).sum(-1)
        damped = square + (size + floor)[:, None, None] * identity
        push = torch.linalg.solve_ex(damped, -(a.mT @ error.unsqueeze(-1))).result
        x[moving], better = _backtrack(network, x[moving], push.view_as(x[moving]), size)
        moving = moving[better & (size.sqrt() > tolerance)]
        if not len(moving):
            break
    return x


def _backtrack(
    network: Network, x: Hidden, push: Hidden, size: Float[Tensor, "batch"]
) -> tuple[Hidden, Tensor]:
    """The longest of the steps 1, ½, ¼, … that reduces the error; for which samples one did."""
    best, pending, length = x.clone(), torch.ones_like(size, dtype=torch.bool), 1.0
    for _ in range(_SHORTENINGS):
        tried = x + length * push
        helps = pending & (_fixed_point_error(network, tried).square().sum(-1) < size)
        best[helps] = tried[helps]
        pending &= ~helps
        length /= 2
        if not bool(pending.any()):
            break
    return best, ~pending


def _fixed_point_error(network: Network, x: Hidden) -> Float[Tensor, "batch entry"]:
    """``F(X) − X``, flattened."""
    with torch.no_grad():
        error: Tensor = network(x) - x
    return error.flatten(1)


def _distance(
    network: Network,
    x: Float[Tensor, "token feature"],
    jacobian: Float[Tensor, "output input"],
    error: Float[Tensor, "output"],
) -> float:
    """The radius of Newton and Kantorovich; see ``Equilibrium`` for the assumptions.

    The Lipschitz constant of ``A⁻¹F'`` near x is estimated by the largest difference along several
    random directions, times √m: a random direction in m dimensions is expected to show 1/√m of what
    the worst direction would.
    """
    identity = torch.eye(len(jacobian), dtype=x.dtype, device=x.device)
    inverse = torch.linalg.inv_ex(jacobian - identity).inverse
    # Rounding of F: a few units in the last place of each entry of X, carried through F'.
    size = x.abs().flatten()
    rounding = 4 * torch.finfo(x.dtype).eps * (jacobian.abs() @ size + size)
    eta = float(torch.linalg.vector_norm(inverse.abs() @ (error.abs() + rounding)))
    push = torch.randn(_PROBES, x.numel(), generator=stream(0, "probe directions"), dtype=x.dtype)
    push = (push / push.norm(dim=-1, keepdim=True)).to(x.device)
    near = x + _PROBE_LENGTH * push.view(_PROBES, *x.shape)
    change = inverse @ (step_jacobians(network, near) - jacobian)
    if not bool(torch.isfinite(change).all()):
        return math.inf
    steepest = float(torch.linalg.matrix_norm(change, ord=2).max())
    h = math.sqrt(x.numel()) * steepest / _PROBE_LENGTH * eta
    if not h <= 0.5:
        return math.inf
    # The smaller root of ωr²/2 − r + η, written without its cancellation.
    return 2 * eta / (1 + math.sqrt(1 - 2 * h))
