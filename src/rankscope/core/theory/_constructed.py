"""Networks built by hand, each for one property (docs/theory.md, section 4).

``residual_preserving_network`` and ``expanding_network`` have skips and provably never collapse
(Dong et al. 2021, claim 3.1; the proofs are in section 4, Skips). ``TwoHeadLayer`` exceeds the 2021
theorem's constant for two heads (claim N2), ``worst_departure_layer`` attains the factor of its
lemma (claim D11).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.arguments import Finite, Positive, Range, Seed, checked
from rankscope.core.checks import whole
from rankscope.core.network import Network
from rankscope.core.theory._layer_bounds import HeadWeights
from rankscope.errors import InputError
from rankscope.streams import stream

_MOST_NUMBERS = 10**9
_Size = Annotated[int, Range(1, 2**31)]


@checked
def residual_preserving_network(
    layers: _Size,
    width: _Size,
    *,
    kept: int,
    heads: _Size = 1,
    strength: Finite = 1.0,
    values: Finite = 1.0,
    seed: Seed = 0,
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
    if layers * heads * width**2 > _MOST_NUMBERS:
        shape = f"{layers} layers of {heads} heads and {width} features"
        raise InputError(f"{shape} have more than {_MOST_NUMBERS:,} weights; use fewer.")
    whole("kept", kept, least=0, most=width)

    def draw(name: str, layer: int) -> Tensor:
        # The stream keeps its first name, so that a seed keeps its network.
        generator = stream(seed, "keeping", layer, name)
        drawn = torch.randn(heads, width, width, generator=generator, dtype=torch.float64)
        return drawn / math.sqrt(width)

    query_key, written = (
        torch.stack([draw(name, layer) for layer in range(layers)])
        for name in ("query-key", "value")
    )
    written[..., :kept] = 0.0
    matrices = strength * query_key, values * written
    return Network.from_matrices(*matrices, head_width=width, skip=True)


@checked
def expanding_network(
    layers: _Size, width: _Size, *, beta: Positive, strength: Positive = 1.0, seed: Seed = 0
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
    shape = (2, layers, width)
    drawn = torch.rand(shape, generator=stream(seed, "expanding"), dtype=torch.float64)
    parts = (0.5 + 0.5 * drawn) * torch.tensor([strength, beta / strength])[:, None, None]
    query_key, values = torch.diag_embed(torch.diag_embed(parts))
    return Network.from_matrices(query_key, values, head_width=1, skip=True)


_HEADS, _HEAD_WIDTH = 2, 2
_SCALE = 1 / math.sqrt(_HEAD_WIDTH)
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


@checked
@dataclass(frozen=True)
class TwoHeadLayer:
    """Two heads whose residual exceeds the 2021 theorem's constant βH (claim N2, derived).

    >>> small, large = TwoHeadLayer(125, 1500), TwoHeadLayer(20_000, 1500)
    >>> small.residual < small.paper_bound, large.residual > large.paper_bound
    (True, True)

    One layer, two heads, d_qk = 2. Of d features one is called F, one C, one A, and the other b = d
    − 3 are B. Every token has the same large F; token 1 has A = 2 and B = +1, token 2 has B = −1,
    both have a tiny C, and everything else is zero. With κ a number,

        ``W_QK = κ(e_A 1_Bᵀ + e_F e_Cᵀ)`` for both heads, ``W₁ = 1_B e_oᵀ``, ``W₂ = 1_B 1ᵀ/√d``,

    where o is one of B. Tokens 1 and 2 share all weight that the common query gives, and only token
    1's own scores differ: γ = 1. The first head writes one tall column, the second flat rows, and
    the composite norm of their sum is larger than the sum of their composite norms.

    **Only groups matter.** Tokens 3 … n are alike, so are the features of B without o. A matrix
    that is constant on groups of rows and of columns has norms that are weighted sums over groups,
    and the product of two such matrices is one, so a layer of any size is computed from a few
    numbers. The best center, too, may be taken constant on groups of columns: exchanging two equal
    columns of X exchanges two entries of the center and changes neither norm; both norms are convex
    in the center, so the mean of a center over all such exchanges has norms no larger.

    **The input's best center** has the common F and zeros elsewhere if n > 4 (up to the tiny C):
    there ``f₁ = 2`` and ``f∞ = b + 2``. No center has f₁ < 2 (B has a +1 and a −1) or f∞ < b + 1
    (tokens 1 and 2 are 2b + 2 apart). Lowering f∞ by ε needs ``c_A + Σ_B c_k ≥ ε``, hence an entry
    of at least ``ε/(b + 1)``, which raises the sum of its column by n − 2 times as much. So the
    product is at least ``(2 + (n − 2)ε/(b + 1))(b + 2 − ε)``, a concave function of ε that on [0,
    1] is least at an end: ``2b + 4`` or ``2b + n``.
    """

    width: Annotated[int, Range(5, 2**31)]
    tokens: Annotated[int, Range(5, 2**31)]
    score_difference: float = 0.05

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
        return self.query_key._replace(entries=tall), self.query_key._replace(entries=flat)

    @cached_property
    def output(self) -> Grouped:
        """``Σ_h (P_h − 1qᵀ) R W_h``: the output about the center that a query at x would get."""
        per_key = self.features[:, None] * self.rest.entries.T
        shared = _SCALE * self.input.entries[-1] @ (self.query_key.entries @ per_key)
        differences = _SCALE * self.rest.times(self.query_key).entries @ per_key
        common = (shared + self.rest.rows.log()).softmax(0)
        weights = (shared + differences + self.rest.rows.log()).softmax(1)
        mixed = Grouped((weights - common) @ self.rest.entries, self.rest.rows, self.features)
        parts = [mixed.times(values).entries for values in self.values]
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
        per_key = self.features[:, None] * self.rest.entries.T
        scores = self.rest.times(self.query_key).entries @ per_key
        spread = scores.amax(1) - scores.amin(1)
        return math.sqrt(float(self.rest.rows @ spread / spread.max()))

    @property
    def paper_bound(self) -> float:
        """``4γβH‖res(X)‖³/√d_qk`` with ``β = max ‖W_QK‖₁‖W_h‖₁,∞`` (Dong et al. 2021)."""
        beta = max(values.composite for values in self.values) * self.query_key.one
        return self._cubic(_HEADS * beta)

    @property
    def proved_bound(self) -> float:
        """The same with ``√(Σ‖W_QK‖₁‖W_h‖₁ · Σ‖W_QK‖₁‖W_h‖∞)`` instead of βH."""
        one, inf = (sum(getattr(w, norm) for w in self.values) for norm in ("one", "inf"))
        return self._cubic(self.query_key.one * math.sqrt(one * inf))

    def _cubic(self, constant: float) -> float:
        return 4 * self.gamma * constant * self.rest.composite**3 * _SCALE

    def dense(self) -> tuple[Network, Tensor]:
        """The layer and its input ``(1, token, feature)`` as they are; for small sizes."""
        query_key = self.query_key.dense().expand(1, _HEADS, -1, -1)
        values = torch.stack([values.dense() for values in self.values])[None]
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
    reachable = torch.minimum(v, (corners[:, None] - v) / (tokens - 2)) @ counts
    budgets, sums = corners.tolist(), reachable.tolist()
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
    scores = weights.scale * rest @ weights.query_key @ rest.T
    query = center @ weights.query_key + weights.key_bias
    logits = (weights.scale * query @ rest.T).unsqueeze(1).expand_as(scores)
    shared = logits.masked_fill(~seen, -math.inf).softmax(-1)
    mean = torch.log1p((shared * scores.expm1()).sum(-1, keepdim=True))
    relative = torch.where(seen, (scores - mean).expm1(), 0.0)
    high = torch.where(seen, scores, -math.inf).amax(-1)
    low = torch.where(seen, scores, math.inf).amin(-1)
    return Departure(relative, high - low, shared)


def worst_departure_layer(
    spread: float, preference: float
) -> tuple[HeadWeights, Float[Tensor, "token feature"], Float[Tensor, "feature"]]:
    """One query scores one key by D above all others, and no other query attends to that key.

    Then ``P/q = e^D/(1 + q(e^D − 1))`` there, which tends to ``e^D`` as q → 0: no factor below
    ``(e^D − 1)/D`` can replace 2 in the lemma.
    """
    rest = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    query_key = torch.tensor([[[0.0, spread], [0.0, 0.0]]], dtype=torch.float64)
    key_bias = torch.tensor([[0.0, -preference]], dtype=torch.float64)
    zeros = torch.zeros(2, dtype=torch.float64)
    return HeadWeights(query_key, torch.zeros_like(query_key), key_bias, zeros, 1.0), rest, zeros
