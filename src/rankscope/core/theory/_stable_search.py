"""Equilibria of every rank, and a search for stable ones of rank above one.

Both are designed: ``W = X⁻¹A⁻¹diag(c)X`` makes any X an equilibrium. That stable ones of rank two
exist is proved for two tokens (docs/theory.md, section 7, Stability). For more there is only the
search: it finds stable equilibria of full rank, though rarely at random, and closer and closer to
instability the more tokens there are.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.arguments import Count, Range, checked
from rankscope.core.masks import as_mask
from rankscope.core.network import Network
from rankscope.core.tabular import Tabular
from rankscope.core.theory import _equilibrium as fixed_points
from rankscope.core.theory._equilibrium import Equilibrium, EquilibriumTable
from rankscope.errors import InputError
from rankscope.numerals import plural, short, span_of
from rankscope.streams import stream

if TYPE_CHECKING:
    import polars

    from rankscope.show import figures

AttentionKind = Literal["uniform", "content"]

# Uniform attention under a full mask makes all tokens equal in one step, so it is left out.
_FAMILIES: tuple[tuple[str, AttentionKind], ...] = (
    ("causal", "uniform"),
    ("causal", "content"),
    ("full", "content"),
)
_SQUARINGS = 7
_MOST_TOKENS = 24  # the Jacobian has n⁴ entries, and there is one for each rank


@checked
@dataclass(frozen=True, repr=False)
class Designs:
    """Designed equilibria of full rank for one mask, kind of attention and number of tokens.

    >>> from rankscope.core.theory import stable_search
    >>> search = stable_search(tokens=(2,), draws=20, descents=1, steps=5)
    >>> [design.drawn for design in search.designs]
    [20, 20, 20]

    Of ``drawn`` random ones ``drawn_stable`` were stable; ``descended`` of them (those with the
    smallest spectral radius) were improved by gradient descent on it, ``descended_stable`` of
    which became stable; ``radius`` is the smallest of all, and ``best`` its equilibrium, under the
    matrices ``query_key`` and ``values``.
    """

    mask: str
    attention: AttentionKind
    tokens: int
    drawn: int
    drawn_stable: int
    descended: int
    descended_stable: int
    radius: float
    query_key: Float[Tensor, "token token"]
    values: Float[Tensor, "token token"]
    best: Equilibrium

    @property
    def network(self) -> Network:
        """The layer whose equilibrium ``best`` is."""
        return _sphere_layer(self.query_key, self.values, head_width=1, mask=self.mask)

    def __repr__(self) -> str:
        return (
            f"Designs({self.tokens} tokens, {self.mask} mask, {self.attention} attention; stable: "
            f"{self.drawn_stable} of {self.drawn} drawn, {self.descended_stable} of "
            f"{self.descended} after descent; best has rank {self.best.rank} and spectral radius "
            f"{short(self.radius, digits=4)}, {'stable' if self.best.stable else 'not stable'})"
        )


@checked
@dataclass(frozen=True, repr=False)
class StableSearch(Tabular):
    """The result of a search for stable equilibria of rank above one.

    >>> from rankscope.core.theory import stable_search
    >>> search = stable_search(tokens=(2,), draws=20, descents=1, steps=5)
    >>> search.best.best.rank, search.best.tokens
    (2, 2)
    """

    designs: tuple[Designs, ...]

    @property
    def table(self) -> "polars.DataFrame":
        """Rank, stability and accuracy of the best design by mask, attention and token count."""
        from rankscope import tables

        rows = (
            (f"{design.mask} mask, {design.attention} attention", "tokens", design.tokens, *row)
            for design in self.designs
            for _, *row in fixed_points.equilibrium_rows([design.best])
        )
        return tables.from_rows(("variant", "parameter", "setting", "metric", "value"), rows)

    def plot(self, metric: str | None = None) -> "figures.Figure":
        """The spectral radius, or another ``metric``, against the number of tokens."""
        from rankscope import tables
        from rankscope.show import figures

        return figures.by_setting(tables.summary(self.table), metric=metric or "spectral_radius")

    @property
    def best(self) -> Designs | None:
        """The stable design of largest rank and, among those, smallest radius; None if none is."""
        stable = [design for design in self.designs if design.best.stable]
        return max(stable, key=lambda design: (design.best.rank, -design.radius), default=None)

    def __repr__(self) -> str:
        count = len(self.designs)
        stable = sum(design.best.stable for design in self.designs)
        tokens = sorted({design.tokens for design in self.designs})
        radii = [design.radius for design in self.designs]
        best = f"best: {self.best}" if self.best is not None else "none stable"
        return (
            f"StableSearch({count} designs for {tokens[0]} to {tokens[-1]} tokens, {stable} "
            f"stable, spectral radius {span_of(min(radii), max(radii))}; {best})"
        )


class _Candidates(NamedTuple):
    """Tokens, scales and query-key matrices of a batch of designs."""

    x: Float[Tensor, "batch token token"]
    log_c: Float[Tensor, "batch token"]
    query_key: Float[Tensor, "batch token token"]


@checked
def stable_search(
    *,
    tokens: tuple[int, ...] = (2, 3, 4, 5, 6),
    draws: Count = 200,
    descents: Count = 4,
    steps: Annotated[int, Range(0, 1_000_000)] = 300,
    seed: int = 0,
) -> StableSearch:
    """Look for stable equilibria of full rank among steps ``X ↦ normalise(A X W)``.

    >>> stable_search(tokens=(2,), draws=20, descents=1, steps=5).best.best.rank
    2

    For each mask and kind of attention: random tokens, scales c and query-key matrices, the value
    matrix designed for them (``W = X⁻¹A⁻¹diag(c)X``, as many features as tokens), then gradient
    descent from the best few. Each result is built as a ``Network`` and measured there. Finding
    none proves nothing.
    """
    if not tokens or min(tokens) < 2 or max(tokens) > _MOST_TOKENS:
        raise InputError(f"tokens={tokens} is out of range; expected some of 2 to {_MOST_TOKENS}.")
    sizes = draws, min(descents, draws), steps, seed
    cases = ((*family, count) for family in _FAMILIES for count in tokens)
    return StableSearch(tuple(_search(*case, *sizes) for case in cases))


def design_step(
    x: Float[Tensor, "batch token token"],
    c: Float[Tensor, "batch token"],
    query_key: Float[Tensor, "batch token token"],
    allowed: Bool[Tensor, "token token"],
) -> tuple[Tensor, Tensor]:
    """The designed W and the Jacobian of its step at ``x``, differentiable in everything (derived).

    With ``v = XW``, ``y = Av = diag(c)X`` and logits ``ℓ_ij = x_i W_QK x_jᵀ``:
    ``δy_i = Σ_j A_ij (δx_j W + δℓ_ij (v_j − y_i))``, then ``δx_i' = δy_i (I − x_iᵀx_i)/c_i``.
    """
    identity = torch.eye(x.shape[-1], dtype=x.dtype)
    logits = (x @ query_key @ x.mT).masked_fill(~allowed, -torch.inf)
    attention = logits.softmax(-1)
    y = c.unsqueeze(-1) * x
    v = torch.linalg.solve_ex(attention, y).result
    w = torch.linalg.solve_ex(x, v).result
    # Indices: z sample, i output token, j input token, a input feature, b feature of y.
    lever = attention.unsqueeze(-1) * (v.unsqueeze(1) - y.unsqueeze(2))
    by_key = torch.einsum("zijb,zia->zibja", lever, x @ query_key)
    by_query = torch.einsum("zijb,zja,ik->zibka", lever, x @ query_key.mT, identity)
    by_value = torch.einsum("zij,zab->zibja", attention, w)
    tangent = (identity - x.unsqueeze(-1) * x.unsqueeze(-2)) / c[..., None, None]
    jacobian = torch.einsum("zibc,zibja->zicja", tangent, by_key + by_query + by_value)
    return w, jacobian.flatten(3).flatten(1, 2)


def _search(mask: str, attention: AttentionKind, tokens: int, *sizes: int) -> Designs:
    draws, descents, steps, seed = sizes
    allowed = as_mask(mask).matrix(tokens)
    drawn = _draw(tokens, draws, attention, stream(seed, "designs", mask, attention, tokens))
    radii = _spectral_radii(design_step(drawn.x, drawn.log_c.exp(), drawn.query_key, allowed)[1])
    chosen = radii.argsort()[:descents]
    start = _Candidates(*(part[chosen] for part in drawn))
    end, reached = _descend(start, allowed, steps, learn_attention=attention == "content")
    x, log_c, query_key = (part[[int(reached.argmin())]] for part in end)
    values, _ = design_step(x, log_c.exp(), query_key, allowed)
    network = _sphere_layer(query_key[0], values[0], head_width=1, mask=mask)
    best = fixed_points.equilibrium_at(network, x[0])
    return Designs(
        mask=mask,
        attention=attention,
        tokens=tokens,
        drawn=draws,
        drawn_stable=int((radii < 1).sum()),
        descended=descents,
        descended_stable=int((reached < 1).sum()),
        radius=best.stability.radius,
        query_key=query_key[0],
        values=values[0],
        best=best,
    )


def _sphere_layer(query_key: Tensor, values: Tensor, *, head_width: int, mask: str) -> Network:
    """One head and the projection onto the sphere, from ``(feature, feature)`` matrices."""
    matrices = query_key[None, None], values[None, None]
    return Network.from_matrices(*matrices, head_width=head_width, norm="sphere", mask=mask)


def _draw(
    tokens: int, draws: int, attention: AttentionKind, generator: torch.Generator
) -> _Candidates:
    def normal(*shape: int) -> Tensor:
        return torch.randn(draws, *shape, generator=generator, dtype=torch.float64)

    x = normal(tokens, tokens)
    # The scale that gives eigenvalues of about one under uniform causal attention.
    usual = torch.arange(1, tokens + 1, dtype=torch.float64).log()
    return _Candidates(
        x / x.norm(dim=-1, keepdim=True),
        0.5 * normal(tokens) - usual,
        normal(tokens, tokens) * (attention == "content"),
    )


def _descend(
    start: _Candidates, allowed: Bool[Tensor, "token token"], steps: int, *, learn_attention: bool
) -> tuple[_Candidates, Float[Tensor, "batch"]]:
    """Adam on ``log ‖Jᵏ‖^(1/k)``, a smooth bound on the radius; the best point of each run."""
    x, log_c, query_key = (part.clone() for part in start)
    learned = [x, log_c, query_key] if learn_attention else [x, log_c]
    for part in learned:
        part.requires_grad_()
    optimiser = torch.optim.Adam(learned, lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    best = [part.detach().clone() for part in (x, log_c, query_key)]
    least = x.new_full((len(x),), torch.inf)
    for step in range(steps + 1):
        unit = x / x.norm(dim=-1, keepdim=True)
        _, jacobian = design_step(unit, log_c.exp(), query_key, allowed)
        if step % 5 == 0 or step == steps:
            radii = _spectral_radii(jacobian.detach())
            better = radii < least
            least = torch.where(better, radii, least)
            for target, part in zip(best, (unit, log_c, query_key), strict=True):
                target[better] = part.detach()[better]
        optimiser.zero_grad()
        _log_power_norm(jacobian).sum().backward()
        optimiser.step()
        schedule.step()
    return _Candidates(*best), least


def _log_power_norm(jacobian: Float[Tensor, "batch size size"]) -> Float[Tensor, "batch"]:
    """``log ‖Jᵏ‖^(1/k)`` for ``k = 2^squarings``, at least the logarithm of the radius."""
    power, total = jacobian, jacobian.new_zeros(len(jacobian))
    for _ in range(_SQUARINGS):
        norm = torch.linalg.matrix_norm(power)
        total = 2 * (total + norm.log())
        power = power / norm[:, None, None]
        power = power @ power
    last: Tensor = torch.linalg.matrix_norm(power)
    mean: Tensor = (total + last.log()) / 2**_SQUARINGS
    return mean


def _spectral_radii(jacobian: Float[Tensor, "batch size size"]) -> Float[Tensor, "batch"]:
    """Spectral radii; infinite where a design broke down (tokens or attention singular)."""
    broken = ~torch.isfinite(jacobian).flatten(1).all(-1)
    safe = torch.where(broken[:, None, None], torch.zeros_like(jacobian), jacobian)
    radii = torch.linalg.eigvals(safe).abs().amax(-1)
    return torch.where(broken, torch.full_like(radii, torch.inf), radii)


@checked
@dataclass(frozen=True, repr=False)
class EveryRank(EquilibriumTable):
    """A network of one layer and, for k = 1 … n, an equilibrium of it of rank k.

    >>> from rankscope.core.theory import every_rank
    >>> found = every_rank(3)
    >>> [equilibrium.rank for equilibrium in found.equilibria], found.network.spec.layers
    ([1, 2, 3], 1)
    """

    eigenvalues: Float[Tensor, "feature"]
    equilibria: tuple[Equilibrium, ...]

    @property
    def network(self) -> Network:
        """The layer with values ``diag(eigenvalues)``, uniform attention and a causal mask."""
        values = torch.diag(self.eigenvalues)
        return _sphere_layer(0 * values, values, head_width=len(values), mask="causal")

    def __repr__(self) -> str:
        radii = [equilibrium.stability.radius for equilibrium in self.equilibria]
        stable = sum(equilibrium.stable for equilibrium in self.equilibria)
        return (
            f"EveryRank({plural(len(radii), 'token')}; equilibria of rank 1 to {len(radii)}, "
            f"{stable} stable, spectral radius {span_of(min(radii), max(radii))})"
        )


@checked
def every_rank(
    tokens: Annotated[int, Range(1, _MOST_TOKENS)], *, growth: Annotated[float, Range(4, 16)] = 4.0
) -> EveryRank:
    """Equilibria of rank 1, 2, … n of one step ``X ↦ normalise(A X W)`` on n tokens.

    >>> [e.rank for e in every_rank(3).equilibria]
    [1, 2, 3]

    Causal mask, uniform attention, ``W = diag(λ₁ < λ₂ < …)`` with ``λ_k ∝ growth^k``; from 4 on,
    each token provably can add a direction. They show that equilibria of every rank exist, not that
    they are reached: token 1 is the eigenvector of the smallest eigenvalue, so a perturbation of it
    towards the largest grows by ``growth^(n − 1)`` in each step, and all of them are unstable
    (derived). For stable ones see ``stable_search``.
    """
    # The sphere ignores the scale of W; the largest eigenvalue is set to one.
    eigenvalues = growth ** torch.arange(1 - tokens, 1, dtype=torch.float64)
    network = EveryRank(eigenvalues, ()).network
    configurations = (_configuration_of_rank(rank, eigenvalues) for rank in range(1, tokens + 1))
    return EveryRank(eigenvalues, tuple(fixed_points.measure(network, x) for x in configurations))


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
