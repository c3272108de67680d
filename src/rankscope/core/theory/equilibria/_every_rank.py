"""One value matrix with equilibria of every rank from one to full.

Wu et al. 2024 state that they exist; the construction is derived here.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.network import Network
from rankscope.core.theory.equilibria._equilibrium import Equilibrium, measure
from rankscope.errors import InputError
from rankscope.numerals import plural, span_of

_MOST_TOKENS = 24  # the Jacobian has n⁴ entries, and there is one for each rank


@checked
@dataclass(frozen=True, repr=False)
class EveryRank:
    """A network of one layer and, for k = 1 … n, an equilibrium of it of rank k."""

    network: Network
    equilibria: tuple[Equilibrium, ...]

    def __repr__(self) -> str:
        radii = [each.stability.radius for each in self.equilibria]
        stable = sum(each.stable for each in self.equilibria)
        return (
            f"EveryRank({plural(len(radii), 'token')}; equilibria of rank 1 to {len(radii)}, "
            f"{stable} stable, spectral radius {span_of(min(radii), max(radii))})"
        )


@checked
def every_rank(tokens: int, *, growth: float = 4.0) -> EveryRank:
    """Equilibria of rank 1, 2, … n of one step ``X ↦ normalise(A X W)`` on n tokens.

    >>> [e.rank for e in every_rank(3).equilibria]
    [1, 2, 3]

    Causal mask, uniform attention, ``W = diag(λ₁ < λ₂ < …)`` with ``λ_k ∝ growth^k``. They answer
    whether equilibria of every rank exist, not whether they are reached: token 1 is the eigenvector
    of the smallest eigenvalue, so a perturbation of it towards the largest grows by
    ``growth^(n − 1)`` in each step, and all of them are unstable (derived). For stable ones see
    ``stable_search``.
    """
    whole("tokens", tokens, least=1, most=_MOST_TOKENS)
    if not 4.0 <= growth <= 16.0:
        raise InputError(
            f"growth={growth} is out of range; expected 4 to 16: from 4 on, every token provably "
            "has room for a direction of its own."
        )
    # The sphere ignores the scale of W; the largest eigenvalue is set to one.
    eigenvalues = growth ** torch.arange(1 - tokens, 1, dtype=torch.float64)
    values = torch.diag(eigenvalues)[None, None]
    network = Network.from_matrices(
        torch.zeros_like(values), values, head_width=tokens, norm="sphere", mask="causal"
    )
    configurations = (_configuration_of_rank(rank, eigenvalues) for rank in range(1, tokens + 1))
    return EveryRank(network, tuple(measure(network, x) for x in configurations))


def _configuration_of_rank(
    rank: int, eigenvalues: Float[Tensor, "feature"]
) -> Float[Tensor, "token feature"]:
    """The first ``rank`` tokens add a direction each, the others stay in their span.

    Token i is fixed when ``x_i (i c_i − W) = s W`` with s the sum of the tokens before it. With
    ``i c_i = λ_i`` the part along older directions is ``s_j λ_j/(λ_i − λ_j)``, shorter than one
    (its j-th entry is below 1.5 · 4^(j − i)), and entry i, which the equation leaves free, is set
    so that the length is one. With any larger value the length falls from infinity to zero as the
    value grows, so exactly one value gives length one.
    """
    tokens = len(eigenvalues)
    x = torch.zeros(tokens, tokens, dtype=torch.float64)
    for token in range(tokens):
        pull = x[:token].sum(0) * eigenvalues
        if token < rank:
            used = slice(0, token)
            x[token, used] = pull[used] / (eigenvalues[token] - eigenvalues[used])
            x[token, token] = (1 - x[token, used].square().sum()).sqrt()
        else:
            used = slice(0, rank)
            x[token, used] = _solve_for_unit_length(pull[used], eigenvalues[used])
    return x


def _solve_for_unit_length(
    pull: Float[Tensor, "feature"], eigenvalues: Float[Tensor, "feature"]
) -> Float[Tensor, "feature"]:
    """``pull/(t − λ)`` for the one t above all λ that gives it length one, by bisection.

    The search is for ``t − λ_max``, in which nothing cancels: no entry is off by more than
    rounding. At ``t − λ_max = pull_max`` the length is at least one, at ``‖pull‖`` at most one.
    """
    gaps = eigenvalues[-1] - eigenvalues
    low, high = pull[-1], torch.linalg.vector_norm(pull)
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if torch.linalg.vector_norm(pull / (middle + gaps)) > 1:
            low = middle
        else:
            high = middle
    x: Tensor = pull / (high + gaps)
    length: Tensor = torch.linalg.vector_norm(x)
    return x / length
