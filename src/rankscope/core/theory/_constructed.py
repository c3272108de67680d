"""Networks with skips whose tokens provably never collapse (Dong et al. 2021, claim 3.1).

The construction is derived here. Let ``X ↦ X + Σ_h P_h X W_h`` and let no ``W_h`` write to the
first k features: their columns in it are zero. Then those columns of X are the same in every layer,
whatever the attention matrices are, and for every center c

    ``‖X⁽ᴸ⁾ − 1cᵀ‖ ≥ ‖(X⁽ᴸ⁾ − 1cᵀ)_{1..k}‖ = ‖(X⁽⁰⁾ − 1cᵀ)_{1..k}‖``

in every norm that cannot grow when columns are left out: ``‖·‖₁``, ``‖·‖∞``, their composite,
Frobenius, spectral. So the residual of X⁽ᴸ⁾, at its mean or at its best center, is at no depth
below that of the first k features of the input; nor below that of the whole input if its other
features, those that are written to, are the same for all tokens. All ``W_QK``, and all of each
``W_h`` except those columns, are free.

With ``W_QK = 0`` more is true: all queries attend alike, each layer adds the same row to all
tokens, and the residual of all features, for every input, stays exactly what it was, whatever the
``W_h``.

A third family keeps the residual of *every* input with attention that depends on the tokens. Let
each head h look at one feature f and write to it alone: ``W_QK = κ e_f e_fᵀ`` and
``W_h = w e_f e_fᵀ`` with κ, w ≥ 0. Column f of X becomes ``t ↦ t + w m(t)``, entry by entry, where
``m(t) = Σ_j x_j e^{κ't x_j} / Σ_j e^{κ't x_j}`` is the derivative of a convex function, so that it
does not fall with t. Hence the column keeps its order and no two of its entries come closer: an
expansion. For every center c' of the new column there is a center c of the old one with
``|x_i − c| ≤ |x'_i − c'|`` for all i. (Let ``g = x' − x``, which does not fall along the order, let
a be the last entry with ``a' ≤ c'`` and b the next. Then ``c' − g(b) ≤ b`` and ``c' − g(a) ≥ a``,
so the interval from ``c' − g(b)`` to ``c' − g(a)`` meets that from a to b; any c in both will do.)
So no layer lowers the residual at the best center, in any norm that grows with the absolute
entries: ‖·‖₁, ‖·‖∞, composite, Frobenius. Nor at the medians, which stay those of the same tokens.

All families have continuous parameters: the "infinitely many parameterisations" of the claim. In
each, ``‖W_QK‖₁‖W_h‖`` may be as small as one likes.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.network import Network
from rankscope.core.theory._layer_bounds import HeadWeights
from rankscope.errors import InputError
from rankscope.streams import stream

_MOST_NUMBERS = 10**9


@checked
def residual_preserving_network(
    layers: int,
    width: int,
    *,
    kept: int,
    heads: int = 1,
    strength: float = 1.0,
    values: float = 1.0,
    seed: int = 0,
) -> Network:
    """A random network with skips that never writes to its first ``kept`` features.

    >>> from rankscope.core.metrics import residual
    >>> net = residual_preserving_network(50, 4, kept=2)
    >>> x = torch.randn(1, 6, 4, dtype=torch.float64)
    >>> bool(residual(net(x)) >= residual(x[..., :2]))
    True

    ``strength`` multiplies the logits (0: uniform attention, and no residual changes at all),
    ``values`` what is written; the guarantee is independent of both and of the seed.
    """
    for name, count in {"layers": layers, "width": width, "heads": heads}.items():
        whole(name, count, least=1, most=2**31)
    if layers * heads * width**2 > _MOST_NUMBERS:
        raise InputError(
            f"{layers} layers of {heads} heads and {width} features have more than "
            f"{_MOST_NUMBERS:,} weights; ask for fewer."
        )
    whole("kept", kept, least=0, most=width)
    whole("seed", seed, least=0, most=2**63 - 1)
    for name, size in {"strength": strength, "values": values}.items():
        if not isinstance(size, int | float) or not math.isfinite(size):
            raise InputError(f"{name}={size} is out of range; expected a finite number.")
    query_key, written = (
        torch.stack([_draw_matrices(seed, layer, name, heads, width) for layer in range(layers)])
        for name in ("query-key", "value")
    )
    written[..., :kept] = 0.0
    return Network.from_matrices(
        strength * query_key, values * written, head_width=width, skip=True
    )


def expanding_network(
    layers: int, width: int, *, beta: float, strength: float = 1.0, seed: int = 0
) -> Network:
    """A random network with skips in which every head expands one feature, for every input.

    >>> from rankscope.core.metrics import residual
    >>> net = expanding_network(20, 4, beta=1e-3)
    >>> x = torch.randn(1, 6, 4, dtype=torch.float64)
    >>> bool(residual(net(x), center="median") >= residual(x, center="median"))
    True

    As many heads as features, d_qk = 1. ``strength`` is the largest ``‖W_QK‖₁``, ``beta`` the
    largest ``‖W_QK‖₁‖W_h‖₁,∞``; each head has its own, at least half of that.
    """
    for name, count in {"layers": layers, "width": width}.items():
        whole(name, count, least=1, most=2**31)
    for name, size in {"beta": beta, "strength": strength}.items():
        if not isinstance(size, int | float) or not 0 < size < math.inf:
            raise InputError(f"{name}={size} is out of range; expected a finite number above 0.")
    shape = (2, layers, width)
    drawn = torch.rand(shape, generator=stream(seed, "expanding"), dtype=torch.float64)
    parts = (0.5 + 0.5 * drawn) * torch.tensor([strength, beta / strength])[:, None, None]
    query_key, values = torch.diag_embed(torch.diag_embed(parts))
    return Network.from_matrices(query_key, values, head_width=1, skip=True)


def _draw_matrices(seed: int, layer: int, name: str, heads: int, width: int) -> Tensor:
    # The stream keeps its first name, so that a seed keeps its network.
    generator = stream(seed, "keeping", layer, name)
    shape = (heads, width, width)
    return torch.randn(shape, generator=generator, dtype=torch.float64) / math.sqrt(width)


_HEADS, _HEAD_WIDTH = 2, 2
_SCALE = 1 / math.sqrt(_HEAD_WIDTH)
_FEWEST_TOKENS, _FEWEST_FEATURES = 5, 5
_TINY = 1e-9
"""The feature C of tokens 1 and 2."""
_PREFERENCE = 60.0
"""By how much the common query scores tokens 1 and 2 above the others."""
_NAMED = 3
"""F, C and A; o follows, then the rest of B."""

Counts = Float[Tensor, "group"]


class Grouped(NamedTuple):
    """A matrix that is constant on groups of rows and of columns: an entry for each two groups."""

    entries: Float[Tensor, "row column"]
    rows: Counts
    columns: Counts

    @property
    def one(self) -> float:
        """``‖·‖₁``, the largest column sum."""
        return float((self.rows @ self.entries.abs()).max())

    @property
    def inf(self) -> float:
        """``‖·‖∞``, the largest row sum."""
        return float((self.entries.abs() @ self.columns).max())

    @property
    def composite(self) -> float:
        """``√(‖·‖₁ ‖·‖∞)``."""
        return math.sqrt(self.one * self.inf)

    def times(self, other: "Grouped") -> "Grouped":
        """The product, whose inner sums run over whole groups."""
        return Grouped((self.entries * self.columns) @ other.entries, self.rows, other.columns)

    def dense(self) -> Tensor:
        """The matrix itself."""
        rows, columns = self.rows.long(), self.columns.long()
        return self.entries.repeat_interleave(rows, 0).repeat_interleave(columns, 1)


@dataclass(frozen=True)
class TwoHeadLayer:
    """The layer for so many features and tokens, with ``score_difference`` D its only spread.

    >>> small, large = TwoHeadLayer(125, 1500), TwoHeadLayer(20_000, 1500)
    >>> small.residual < small.paper_bound, large.residual > large.paper_bound
    (True, True)
    """

    width: int
    tokens: int
    score_difference: float = 0.05

    def __post_init__(self) -> None:
        whole("width", self.width, least=_FEWEST_FEATURES, most=2**31)
        whole("tokens", self.tokens, least=_FEWEST_TOKENS, most=2**31)

    @property
    def block(self) -> int:
        """How many features B has."""
        return self.width - _NAMED

    @property
    def kappa(self) -> float:
        """κ for which the scores of token 1, ``±2κb·scale``, differ by D."""
        return self.score_difference / (4 * self.block * _SCALE)

    @cached_property
    def features(self) -> Counts:
        """How many features each group has: F, C, A, o, the rest of B."""
        return torch.tensor([1.0, 1.0, 1.0, 1.0, self.block - 1.0], dtype=torch.float64)

    @cached_property
    def input(self) -> Grouped:
        """The tokens: 1, 2, the others."""
        common = _PREFERENCE / (self.kappa * _SCALE * _TINY)
        rows = [[common, _TINY, 2.0, 1.0, 1.0], [common, _TINY, 0.0, -1.0, -1.0]]
        counts = torch.tensor([1.0, 1.0, self.tokens - 2.0], dtype=torch.float64)
        entries = torch.tensor([*rows, [common, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
        return Grouped(entries, counts, self.features)

    @cached_property
    def rest(self) -> Grouped:
        """The tokens about their best center, R."""
        return self.input._replace(entries=self.input.entries - self.input.entries[-1])

    @cached_property
    def query_key(self) -> Grouped:
        """``W_QK``, the same for both heads."""
        entries = torch.zeros(5, 5, dtype=torch.float64)
        entries[2, 3:] = self.kappa
        entries[0, 1] = self.kappa
        return Grouped(entries, self.features, self.features)

    @cached_property
    def values(self) -> tuple[Grouped, Grouped]:
        """``W₁``, tall, and ``W₂``, flat."""
        tall, flat = torch.zeros(2, 5, 5, dtype=torch.float64)
        tall[3:, 3] = 1.0
        flat[3:, :] = 1 / math.sqrt(self.width)
        return (
            Grouped(tall, self.features, self.features),
            Grouped(flat, self.features, self.features),
        )

    @cached_property
    def output(self) -> Grouped:
        """``Σ_h (P_h − 1qᵀ) R W_h``: the output about the center that a query at x would get."""
        keys = self.rest.entries.T
        per_key = self.features[:, None] * keys
        shared = _SCALE * self.input.entries[-1] @ (self.query_key.entries @ per_key)
        own = _SCALE * self.rest.times(self.query_key).entries @ per_key
        common = (shared + self.rest.rows.log()).softmax(0)
        weights = (shared + own + self.rest.rows.log()).softmax(1)
        mixed = Grouped((weights - common) @ self.rest.entries, self.rest.rows, self.features)
        parts = [mixed.times(each).entries for each in self.values]
        return mixed._replace(entries=parts[0] + parts[1])

    @cached_property
    def residual(self) -> float:
        """The output's residual at its best center, in the composite norm: exact but for rounding.

        Token 1's row of the output differs from the others, which are equal.
        """
        rows = self.output.entries
        assert bool((rows[1:] == rows[-1]).all()), "only the first token's scores differ"
        return least_residual(rows[0] - rows[-1], self.features, self.tokens)

    @cached_property
    def gamma(self) -> float:
        """``γ = √(Σ D_i / max D_i)``."""
        scores = self.rest.times(self.query_key).entries @ (
            self.features[:, None] * self.rest.entries.T
        )
        spread = scores.amax(1) - scores.amin(1)
        return math.sqrt(float(self.rest.rows @ spread / spread.max()))

    @property
    def paper_bound(self) -> float:
        """``4γβH‖res(X)‖³/√d_qk`` with ``β = max ‖W_QK‖₁‖W_h‖₁,∞`` (Dong et al. 2021)."""
        beta = max(each.composite for each in self.values) * self.query_key.one
        return self._cubic(_HEADS * beta)

    @property
    def proved_bound(self) -> float:
        """The same with ``√(Σ‖W_QK‖₁‖W_h‖₁ · Σ‖W_QK‖₁‖W_h‖∞)`` in the place of βH."""
        one, inf = (sum(getattr(each, norm) for each in self.values) for norm in ("one", "inf"))
        return self._cubic(self.query_key.one * math.sqrt(one * inf))

    def _cubic(self, constant: float) -> float:
        return 4 * self.gamma * constant * self.rest.composite**3 * _SCALE

    def dense(self) -> tuple[Network, Tensor]:
        """The layer and its input ``(1, token, feature)`` as they are; for small sizes."""
        query_key = self.query_key.dense().expand(1, _HEADS, -1, -1)
        values = torch.stack([each.dense() for each in self.values])[None]
        network = Network.from_matrices(query_key, values, head_width=_HEAD_WIDTH)
        return network, self.input.dense()[None]


def least_residual(row: Counts, counts: Counts, tokens: int) -> float:
    """The best-center composite residual of one token ``v`` among equal ones at 0, exactly.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> round(least_residual(one, one, 3), 3)  # about ½: column sum 1½, row sums ½
    0.866

    ``row`` holds v once for each group of equal features. Derived: signs of columns do not matter,
    so let v ≥ 0; a center outside ``[0, v]`` is no better than its nearest point there. Column k
    then sums to ``v_k + (n − 2)c_k``, the rows to ``‖v‖₁ − s`` and s with ``s = Σc_k``. So under
    ``f₁ ≤ a`` the sum s can be all of ``[0, S(a)]``, ``S(a) = Σ min(v_k, (a − v_k)/(n − 2))``, and
    the least f∞ is ``φ(a) = ‖v‖₁ − min(S(a), ‖v‖₁/2)``. Between its corners φ is a falling line and
    ``a φ(a)`` concave, hence least at a corner; once φ is constant, ``a φ(a)`` grows.
    """
    v = row.abs()
    size = float(counts @ v)
    corners = torch.cat((v.amax()[None], (tokens - 1) * v)).clamp(min=float(v.amax())).sort().values
    room = torch.minimum(v, (corners[:, None] - v) / (tokens - 2)) @ counts
    budgets, sums = corners.tolist(), room.tolist()
    products = [a * (size - min(s, size / 2)) for a, s in zip(budgets, sums, strict=True)]
    for (a, s), (later, most) in pairwise(zip(budgets, sums, strict=True)):
        if s < size / 2 < most:
            products.append((a + (size / 2 - s) / (most - s) * (later - a)) * size / 2)
    return math.sqrt(min(products))


class Departure(NamedTuple):
    """By how much attention departs from what all queries share, for every pair that is allowed."""

    relative: Float[Tensor, "head query key"]
    """``P_ij/q_j − 1``; zero where nothing is seen."""
    spread: Float[Tensor, "head query"]
    """``D_i``."""
    shared: Float[Tensor, "head #query key"]
    """``q_j``, over what each query sees."""


def departure(
    weights: HeadWeights,
    rest: Float[Tensor, "token feature"],
    center: Float[Tensor, "feature"],
    visible: Bool[Tensor, "query key"] | None = None,
) -> Departure:
    """``P_ij/q_j − 1`` of tokens ``1cᵀ + R`` without cancellation.

    ``P_ij = q_j e^{E_ij} / Σ_k q_k e^{E_ik}``, so the ratio less one is ``expm1(E_ij − m_i)`` with
    ``m_i = log1p(Σ_k q_k expm1(E_ik))``: exact to rounding however close P and q are. Under a mask
    q is taken over the keys that query i sees, hence is the same for all queries that see the same.
    """
    seen = torch.ones((), dtype=torch.bool) if visible is None else visible
    own = weights.scale * rest @ weights.query_key @ rest.T
    query = center @ weights.query_key + weights.key_bias
    logits = (weights.scale * query @ rest.T).unsqueeze(1).expand_as(own)
    shared = logits.masked_fill(~seen, -math.inf).softmax(-1)
    mean = torch.log1p((shared * own.expm1()).sum(-1, keepdim=True))
    relative = torch.where(seen, (own - mean).expm1(), 0.0)
    high = torch.where(seen, own, -math.inf).amax(-1)
    low = torch.where(seen, own, math.inf).amin(-1)
    return Departure(relative, high - low, shared)


def worst_departure_layer(
    spread: float, preference: float
) -> tuple[HeadWeights, Float[Tensor, "token feature"], Float[Tensor, "feature"]]:
    """One query scores one key by D above all others, and nobody else looks at that key.

    Then ``P/q = e^D/(1 + q(e^D − 1))`` there, which tends to ``e^D`` as q → 0: no factor below
    ``(e^D − 1)/D`` can take the place of 2 in the lemma.
    """
    rest = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    query_key = torch.tensor([[[0.0, spread], [0.0, 0.0]]], dtype=torch.float64)
    key_bias = torch.tensor([[0.0, -preference]], dtype=torch.float64)
    nothing = torch.zeros(2, dtype=torch.float64)
    return (
        HeadWeights(query_key, torch.zeros_like(query_key), key_bias, nothing, 1.0),
        rest,
        nothing,
    )
