"""One equilibrium of a step: how accurate it is, its rank, and whether it is stable."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import finite, real
from rankscope.core.metrics import numerical_rank, residual
from rankscope.core.network import Network
from rankscope.core.shapes import Hidden
from rankscope.core.theory.equilibria._stability import Stability, stability_of, step_jacobians
from rankscope.errors import ShapeError
from rankscope.numerals import plural, short
from rankscope.streams import stream

SAME = 1e-8  # relative: below it singular values, and differences of tokens, count as zero
_PROBES = 8
_PROBE_LENGTH = 1e-6
_SHORTENINGS = 12
_ZERO = 1e-20


@checked
@dataclass(frozen=True, repr=False)
class Equilibrium:
    """Tokens that one pass through a network returns unchanged.

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
    start = _check_tokens(x).unsqueeze(0)
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
    """The radius of Newton and Kantorovich; see ``Equilibrium`` for the assumptions."""
    identity = torch.eye(len(jacobian), dtype=x.dtype, device=x.device)
    inverse = torch.linalg.inv_ex(jacobian - identity).inverse
    # Rounding of F: a few units in the last place of each entry of X, carried through F'.
    size = x.abs().flatten()
    rounding = 4 * torch.finfo(x.dtype).eps * (jacobian.abs() @ size + size)
    eta = float(torch.linalg.vector_norm(inverse.abs() @ (error.abs() + rounding)))
    h = _curvature(network, x, jacobian, inverse) * eta
    if not h <= 0.5:
        return math.inf
    # The smaller root of ωr²/2 − r + η, written without its cancellation.
    return 2 * eta / (1 + math.sqrt(1 - 2 * h))


def _curvature(
    network: Network,
    x: Float[Tensor, "token feature"],
    jacobian: Float[Tensor, "output input"],
    inverse: Float[Tensor, "input output"],
) -> float:
    """An estimate of the Lipschitz constant of ``A⁻¹F'`` near x.

    The largest difference along several random directions, times √m: a random direction in m
    dimensions is expected to show 1/√m of what the worst direction would.
    """
    generator = stream(0, "probe directions")
    push = torch.randn(_PROBES, x.numel(), generator=generator, dtype=torch.float64)
    push = (push / push.norm(dim=-1, keepdim=True)).to(x.device)
    near = x + _PROBE_LENGTH * push.view(_PROBES, *x.shape)
    change = inverse @ (step_jacobians(network, near) - jacobian)
    if not bool(torch.isfinite(change).all()):
        return math.inf
    steepest = float(torch.linalg.matrix_norm(change, ord=2).max())
    return math.sqrt(x.numel()) * steepest / _PROBE_LENGTH


def _check_tokens(x: Tensor) -> Float[Tensor, "token feature"]:
    checked = real(x, name="x", axes="(token, feature)", least=2).detach().double()
    if checked.ndim == 3 and len(checked) == 1:
        checked = checked[0]
    if checked.ndim != 2:
        raise ShapeError(
            f"x has shape {tuple(x.shape)}, expected (token, feature); take one sample: x[0]."
        )
    finite(checked, name="x")
    return checked
