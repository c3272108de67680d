"""Does a small perturbation of an equilibrium die out? The step's Jacobian and its radius."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import finite, real
from rankscope.core.network import Network
from rankscope.core.shapes import Hidden
from rankscope.errors import ShapeError

Jacobians = Float[Tensor, "batch output input"]

MARGIN = 1e-6
_DOUBLINGS = 14
_SWEEPS = 30
_CHUNK = 2**22  # entries of the copies in one backward pass, at most


@checked
@dataclass(frozen=True)
class Stability:
    """The spectral radius of a step, and two bounds that are valid however non-normal it is.

    ``lower`` comes from ``|tr Jᵏ| ≤ m ρᵏ``, ``upper`` from a norm in which J is a contraction, both
    with room for rounding. Computed eigenvalues of a matrix that is far from normal may be wrong by
    much more than rounding, so the verdict follows from the bounds, and ``radius`` is only the best
    estimate between them.
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
    chunk = max(1, _CHUNK // size**2)
    return torch.cat([_jacobians(network, part) for part in x.detach().split(chunk)])


def _jacobians(network: Network, x: Hidden) -> Jacobians:
    batch, tokens, features = x.shape
    size = tokens * features
    copies = x.repeat_interleave(size, 0).requires_grad_()
    entries = torch.eye(size, dtype=x.dtype, device=x.device).repeat(batch, 1)
    with torch.enable_grad():
        out = network(copies)
    (rows,) = torch.autograd.grad(out, copies, entries.view_as(out))
    return rows.view(batch, size, size)


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
    because the two inequalities are checked for it, with room for the rounding in forming them.
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
    least = [float(torch.linalg.eigvalsh(each)[0]) for each in (form, (drop + drop.mT) / 2)]
    return min(least) > rounding
