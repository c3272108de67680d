"""Upper bounds on the residual after a layer of full attention, an MLP, and many layers.

Dong et al. 2021, theorems 2.2 and 2.3, corollary 3.2; docs/theory.md, section 4.

Write the tokens as ``X = 1cᵀ + eˢR`` with any center c. Up to terms that are constant along a row,
the logits are ``1aᵀ + E`` with ``E = e²ˢ R W_QK Rᵀ · scale``, so that ``P_ij ∝ q_j exp(E_ij)`` with
``q = softmax(a)``. With ``D_i`` the range of row i of E, ``e^−D_i ≤ P_ij / q_j ≤ e^D_i``. Moreover

    ``SA(X) − 1c'ᵀ = Σ_h (P_h − 1q_hᵀ) eˢR W_h``,  ``c' = b + Σ_h W_hᵀ (c + eˢRᵀq_h)``.

Every bound here is on the residual at that c' (the output of a query at c), hence also on the
residual at the best center. It is no bound on the residual at the mean: see ``log_mean_cost``.

Several heads: the composite is not a norm, ``√(Σa_h Σb_h) ≤ Σ√(a_h b_h)`` is false. So the 1-norm
and the ∞-norm of the sum of the heads are bounded separately, by the triangle inequality, and the
root is taken last. Everything is in natural logarithms, because these theorems are about residuals
of ``e^−100000`` and below.

**MLPs** (derived; section 4, MLPs). With the secant slopes of an activation in ``[m − w, m + w]``
and a skip of scale α, ``|f(X) − 1f(c)ᵀ| ≤ |X − 1cᵀ| M`` entry by entry for
``M = |αI + m W₁W₂| + w |W₁||W₂|``. So the 1-norm grows by ``‖M‖₁`` at most, the ∞-norm by ``‖M‖∞``
and the composite by ``‖M‖₁,∞``, the λ of the corollary.

**Many layers.** All chains are about the residual at the best center. A layer's bound is about its
output at a center of its own, which is no better than the best one; the next layer starts from the
best center that was found, which is worse than the true best by a known factor at most: the
``slack``. It is a logarithm, about 1e-4 or less, and zero for the first layer, where any center can
be used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rankscope.core.metrics import gamma as gamma
from rankscope.core.metrics import matrix_norm, optimal_center
from rankscope.core.network import MLP, Attention, BareMLP
from rankscope.core.network import activation as record_of
from rankscope.core.shapes import PerSample
from rankscope.errors import InputError, UnsupportedModelError

SCORE_LIMIT = 1.2564312086261697
"""Where ``eᵗ = 1 + 2t``, t > 0: the condition of Dong et al. 2021, there rounded to 1.256."""


class LogParts(NamedTuple):
    """Logarithms of a 1-norm and an ∞-norm, or of bounds on them."""

    one: PerSample
    inf: PerSample

    @property
    def composite(self) -> PerSample:
        """Of ``√(‖·‖₁ ‖·‖∞)``."""
        return (self.one + self.inf) / 2

    @classmethod
    def of(cls, matrix: Float[Tensor, "*batch row column"]) -> "LogParts":
        """Those of a matrix."""
        return cls(matrix_norm(matrix, "one").log(), matrix_norm(matrix, "inf").log())

    def times(self, matrix: Float[Tensor, "*batch feature feature"]) -> "LogParts":
        """After multiplication by a matrix from the right: both norms are submultiplicative."""
        other = LogParts.of(matrix)
        return LogParts(self.one + other.one, self.inf + other.inf)


Differences = Float[Tensor, "batch head token"]


@dataclass(frozen=True)
class HeadWeights:
    """A layer of attention as ``W_QK`` and ``W_h``, in float64; removed heads are zero."""

    query_key: Float[Tensor, "head feature feature"]
    values: Float[Tensor, "head feature feature"]
    key_bias: Float[Tensor, "head feature"]  # W_K b_Q, which every query adds
    bias: Float[Tensor, "feature"]
    scale: float


@dataclass(frozen=True)
class CenteredTokens:
    """Tokens ``1cᵀ + eˢR`` about a chosen center c; zeros at padding."""

    center: Float[Tensor, "batch feature"]
    mantissa: Float[Tensor, "batch token feature"]
    log_scale: PerSample
    token_mask: Bool[Tensor, "batch token"] | None

    @property
    def counts(self) -> Int[Tensor, "batch"]:
        """How many tokens each sample has."""
        if self.token_mask is None:
            shape, device = self.mantissa.shape, self.mantissa.device
            return torch.full(shape[:1], shape[1], device=device)
        return self.token_mask.sum(-1)

    @property
    def norms(self) -> LogParts:
        """Of the residual at this center."""
        return LogParts(*(log + self.log_scale for log in LogParts.of(self.mantissa)))


class BestCenter(NamedTuple):
    """Tokens about the best center found; no center is better by more than a factor ``e^slack``."""

    tokens: CenteredTokens
    slack: PerSample


def find_best_center(
    x: Float[Tensor, "batch feature"],
    mantissa: Float[Tensor, "batch token feature"],
    log_scale: PerSample,
    token_mask: Bool[Tensor, "batch token"] | None = None,
) -> BestCenter:
    """Move the center of ``1xᵀ + eˢR`` to where the composite norm of the residual is smallest."""
    best = optimal_center(mantissa, "composite", token_mask)
    rest = mantissa - best.center.unsqueeze(1)
    if token_mask is not None:
        rest = torch.where(token_mask.unsqueeze(-1), rest, 0.0)
    center = x + best.center * log_scale.exp().unsqueeze(-1)
    norm = matrix_norm(rest, "composite")
    slack = torch.where(norm > 0, (norm / best.lower_bound).log(), 0.0).clamp(min=0.0)
    return BestCenter(CenteredTokens(center, rest, log_scale, token_mask), slack)


def head_weights(attention: Attention) -> HeadWeights:
    """``W_QK,h = W_Q W_Kᵀ`` and ``W_h = W_V W_O`` of every head; grouped heads are repeated."""
    if attention.latent or attention.gate is not None:
        raise UnsupportedModelError(
            "heads with gates on their output or norms inside their projections are not given by "
            "two matrices each."
        )
    heads, repeats = attention.heads, attention.heads // attention.kv_heads

    def split(weight: Tensor, count: int) -> Tensor:
        apart: Tensor = weight.detach().cpu().double().unflatten(0, (count, -1))
        return apart if count == heads else apart.repeat_interleave(repeats, 0)

    query = split(attention.query.weight, heads)  # head, head_width, feature
    key = split(attention.key.weight, attention.kv_heads)
    value = split(attention.value.weight, attention.kv_heads)
    output = split(attention.output.weight.T, heads)
    if attention.removed:
        silent = torch.tensor(sorted(attention.removed))
        query, output = query.index_fill(0, silent, 0.0), output.index_fill(0, silent, 0.0)
    bias, key_bias = output.new_zeros(output.shape[-1]), key.new_zeros(heads, key.shape[-1])
    if attention.query.bias is not None:
        key_bias = (split(attention.query.bias, heads).unsqueeze(1) @ key).squeeze(1)
    if attention.value.bias is not None:
        value_bias = split(attention.value.bias, attention.kv_heads)
        bias = bias + (value_bias.unsqueeze(1) @ output).sum((0, 1))
    if attention.output.bias is not None:
        bias = bias + attention.output.bias.detach().cpu().double()
    return HeadWeights(query.mT @ key, value.mT @ output, key_bias, bias, attention.scale)


def output_center(weights: HeadWeights, tokens: CenteredTokens) -> Float[Tensor, "batch feature"]:
    """The center c' that the bounds are about: the output of a query at c for these keys."""
    rest = tokens.mantissa * tokens.log_scale.exp()[:, None, None]
    query = torch.einsum("bf,hfg->bhg", tokens.center, weights.query_key) + weights.key_bias
    logits = weights.scale * query @ rest.mT
    if tokens.token_mask is not None:
        logits = logits.masked_fill(~tokens.token_mask[:, None], -math.inf)
    mixed = tokens.center.unsqueeze(1) + logits.softmax(-1) @ rest
    return weights.bias + torch.einsum("bhf,hfg->bg", mixed, weights.values)


def log_differences(weights: HeadWeights, tokens: CenteredTokens) -> Differences:
    """``log D_i = log max_jj' |E_ij − E_ij'|`` of every head and query; −∞ at padding."""
    rest = tokens.mantissa.unsqueeze(1)
    scores = weights.scale * (rest @ weights.query_key) @ rest.mT
    ranges = _range(scores, None if tokens.token_mask is None else tokens.token_mask[:, None, None])
    return ranges.log() + 2 * tokens.log_scale[:, None, None]


def log_beta(weights: HeadWeights) -> PerSample:
    """The logarithm of ``√(Σ_h ‖W_QK,h‖₁‖W_h‖₁ · Σ_h ‖W_QK,h‖₁‖W_h‖∞)``, the weights' constant.

    Derived (docs/theory.md, section 4). For one head it is β of Dong et al. 2021. For several it
    replaces their βH (``log_paper_beta``), with which the theorem is false in general: it
    is more than βH where one head writes many features into one and another one into many.
    """
    return _over_heads(weights, matrix_norm(weights.query_key, "one").log()).composite


def log_paper_beta(weights: HeadWeights) -> PerSample:
    """The logarithm of ``βH``, ``β = max_h ‖W_QK,h‖₁‖W_h‖₁,∞`` (Dong et al. 2021, theorem 2.3).

    No bound rests on it: for several heads it can be too small (``TwoHeadLayer``); up to 125
    features it is safe. Heads that write nothing are not counted.
    """
    logs = (matrix_norm(weights.query_key, "one") * matrix_norm(weights.values, "composite")).log()
    return logs.amax() + math.log(max(1, int((~logs.isneginf()).sum())))


def a_priori_bound(
    weights: HeadWeights, tokens: CenteredTokens, *, differences: Differences | None = None
) -> PerSample:
    """``log(4 γ β · scale · ‖R‖³)``, if all ``D_i ≤ SCORE_LIMIT`` (Dong et al. 2021, theorem 2.2).

    From ``data_bound`` by ``max D ≤ 2 scale ‖W_QK‖₁‖R‖₁‖R‖∞`` and ``ΣD = γ² max D``, head by
    head, with γ the largest of the heads. ``differences`` are the ``log_differences``, if they have
    been computed already.
    """
    differences = log_differences(weights, tokens) if differences is None else differences
    most = gamma(differences).amax(-1)
    size = tokens.norms.composite
    return math.log(4) + most.log() + _log(weights.scale) + log_beta(weights) + 3 * size


def data_bound(
    weights: HeadWeights, tokens: CenteredTokens, *, differences: Differences | None = None
) -> LogParts:
    """``2√(ΣD · max D) ‖R‖ ‖W‖`` by parts, if all ``D_i ≤ SCORE_LIMIT``.

    Dong et al. 2021, proof of theorem 2.2. ``|P_ij − q_j| ≤ (e^D_i − 1) q_j ≤ 2 D_i q_j``: column
    sums of P − 1qᵀ are at most ``2ΣD``, row sums at most ``2 max D``. Several heads are treated as
    described above (derived). The condition is theirs; ``sharp_bound`` shows that the bound is true
    without it.
    """
    differences = log_differences(weights, tokens) if differences is None else differences
    sums = _over_heads(weights, differences.logsumexp(-1), differences.amax(-1))
    norms = tokens.norms
    return LogParts(math.log(2) + sums.one + norms.one, math.log(2) + sums.inf + norms.inf)


def sharp_bound(
    weights: HeadWeights, tokens: CenteredTokens, *, differences: Differences | None = None
) -> LogParts:
    """A bound without a condition, at most 0.18 times ``data_bound`` (derived).

    Two distributions whose log-ratio has range D differ by at most ``tanh(D/4)`` in total
    variation. ``P_i − q`` is that factor times the difference of two distributions over the tokens,
    so entry k of row i of ``(P − 1qᵀ)RW`` is at most ``tanh(D_i/4)`` times the range of column k of
    RW, and the row's sum at most that times the largest distance of two rows of RW. Column sums
    follow by adding the rows. A range is at most a column's sum, a distance at most twice a row's,
    and ``tanh(D/4) ≤ D/4``: hence ``√(1/8 · 1/4) < 0.18``. Some networks attain it exactly.
    """
    valid = tokens.token_mask
    differences = log_differences(weights, tokens) if differences is None else differences
    weight = _log_tanh(differences - math.log(4))  # batch head token
    moved = tokens.mantissa.unsqueeze(1) @ weights.values
    ranges = _range(moved.mT, None if valid is None else valid[:, None, None])
    apart = torch.cdist(moved, moved, p=1)
    if valid is not None:
        apart = torch.where(valid[:, None, None] & valid[:, None, :, None], apart, 0.0)
    column = (weight.logsumexp(-1, keepdim=True) + ranges.log()).logsumexp(1).amax(-1)
    row = (weight + apart.amax((-2, -1)).log().unsqueeze(-1)).logsumexp(1).amax(-1)
    return LogParts(column + tokens.log_scale, row + tokens.log_scale)


def norm_bound(weights: HeadWeights, norms: LogParts, counts: Int[Tensor, "batch"]) -> LogParts:
    """``sharp_bound`` for tokens of which only bounds on the norms of R are known (derived).

    ``D_i ≤ 2 scale ‖W_QK‖₁‖R‖₁‖R‖∞`` and n queries: column sums are at most
    ``n tanh(D/4) ‖R‖₁‖W‖₁``, row sums ``2 tanh(D/4) ‖R‖∞‖W‖∞``. There is no condition, so the
    result can be the input of the next layer's bound.
    """
    scores = _log(weights.scale) + matrix_norm(weights.query_key, "one").log()
    size = (norms.one + norms.inf).unsqueeze(-1) + scores - math.log(2)
    sums = _over_heads(weights, _log_tanh(size))
    alone = torch.where(counts > 1, counts.double().log(), -math.inf)  # one token has no residual
    return LogParts(alone + sums.one + norms.one, math.log(2) + sums.inf + norms.inf)


def log_mean_cost(counts: Int[Tensor, "batch"]) -> PerSample:
    """How much larger, at most, a residual is at the mean than at c': ``log(2 − 2/n)``.

    Derived: ``Y − 1ȳᵀ = (I − 11ᵀ/n)(Y − 1c'ᵀ)``, and both norms of that projection are ``2 − 2/n``,
    a factor that bounds both norms of the residual, hence the composite.
    """
    return (2 - 2 / counts.double()).log().clamp(min=0.0)


def _over_heads(weights: HeadWeights, columns: Tensor, rows: Tensor | None = None) -> LogParts:
    """``log Σ_h e^columns_h ‖W_h‖₁`` and ``log Σ_h e^rows_h ‖W_h‖∞``."""
    rows, (one, inf) = columns if rows is None else rows, LogParts.of(weights.values)
    return LogParts((columns + one).logsumexp(-1), (rows + inf).logsumexp(-1))


def _range(values: Float[Tensor, "*rows key"], valid: Tensor | None) -> Float[Tensor, "*rows"]:
    """Largest minus smallest along the last axis, padding left out."""
    if valid is None:
        return values.amax(-1) - values.amin(-1)
    high = torch.where(valid, values, -math.inf).amax(-1)
    return high - torch.where(valid, values, math.inf).amin(-1)


def _log_tanh(log_y: Tensor) -> Tensor:
    """``log tanh y`` from ``log y``; where y underflows, ``tanh y`` is y."""
    y = log_y.clamp(-30.0, 30.0).exp()
    return torch.where(log_y < -30.0, log_y, y.tanh().log())


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


Gain = Float[Tensor, "*batch feature feature"]


def slope_range(activation: str) -> tuple[float, float]:
    """The smallest and the largest slope of an activation, which bound all secant slopes, too."""
    slopes = record_of(activation).slopes
    if slopes is None:
        raise InputError(f"the slopes of the activation {activation!r} are unknown.")
    return slopes


def row_gain(mlp: MLP | BareMLP | None, *, width: int, skip: float = 0.0) -> Gain | None:
    """M of a plain MLP with its skip, for all inputs; None if it is gated.

    A gated MLP multiplies two functions of its input, so no M fits all inputs (``gated_gain``).
    """
    identity = torch.eye(width, dtype=torch.float64)
    if mlp is None:
        return identity
    if isinstance(mlp, BareMLP):
        # Derived: entry by entry a secant slope in [low, high], |skip + slope| at most.
        slopes = (1.0, 1.0) if mlp.activation is None else slope_range(mlp.activation)
        return max(abs(skip + slope) for slope in slopes) * identity
    if mlp.gate is not None:
        return None
    low, high = slope_range(mlp.activation)
    middle, half = (low + high) / 2, (high - low) / 2
    up, down = _matrix(mlp.up.weight), _matrix(mlp.down.weight)
    straight = skip * identity + middle * (up @ down)
    return straight.abs() + half * (up.abs() @ down.abs())


def gated_gain(
    mlp: MLP, center: Float[Tensor, "batch feature"], radius: PerSample, *, skip: float = 0.0
) -> Gain:
    """M of a gated MLP for rows within ``radius`` of ``center`` in the sum of absolute differences.

    Derived: ``φ(g)u − φ(g₀)u₀ = (φ(g) − φ(g₀)) u + φ(g₀)(u − u₀)`` for gates g and values u, where
    ``|u| ≤ U = |u₀| + radius · max|W_u|`` column by column; so
    ``M = αI + (L |W_g| diag(U) + |W_u| diag|φ(g₀)|) |W₂|``.
    """
    assert mlp.gate is not None, "a plain MLP has a gain for all inputs: row_gain"
    up, gate, down = (_matrix(part.weight) for part in (mlp.up, mlp.gate, mlp.down))
    value, opening = center @ up, center @ gate
    if mlp.up.bias is not None:
        value = value + _matrix(mlp.up.bias)
    if mlp.gate.bias is not None:
        opening = opening + _matrix(mlp.gate.bias)
    farthest = value.abs() + radius[:, None] * up.abs().amax(0)
    steepest = max(map(abs, slope_range(mlp.activation)))
    moved = steepest * gate.abs() * farthest[:, None, :]
    scaled = up.abs() * record_of(mlp.activation)(opening).abs()[:, None, :]
    identity = torch.eye(len(up), dtype=torch.float64)
    return skip * identity + (moved + scaled) @ down.abs()


def _matrix(weight: Tensor) -> Tensor:
    """A stored weight as the matrix of ``x ↦ xW``, or a bias; in float64 on the CPU."""
    plain = weight.detach().cpu().double()
    return plain.T if plain.ndim == 2 else plain


@dataclass(frozen=True)
class CubicBound:
    """One layer's bound ``residual ≤ e^log_factor · residual³``, valid where ``condition`` is."""

    log_factor: PerSample
    condition: torch.Tensor


def chain_cubic_bounds(layers: Sequence[CubicBound], log_residual: PerSample) -> list[PerSample]:
    """``log(κ^{(3^l − 1)/2} ‖res(X)‖^{3^l})`` after l = 1, 2, … layers.

    Dong et al. 2021, theorems 2.2 and 2.3. κ is the largest factor ``4γβλ·scale`` of the first l
    layers. NaN from the first layer on whose condition is not met.
    """
    bounds = []
    largest = torch.full_like(log_residual, -math.inf)
    valid = torch.ones_like(log_residual, dtype=torch.bool)
    power = 1.0
    for layer in layers:
        largest, valid = torch.maximum(largest, layer.log_factor), valid & layer.condition
        power = min(power * 3, 1e300)  # beyond that, no float could represent the exponent anyway
        # One product, because two could be infinite with opposite signs.
        value = power * (log_residual + largest / 2) - largest / 2
        value = torch.where(largest.isneginf() | log_residual.isneginf(), -math.inf, value)
        bounds.append(torch.where(valid, value, math.nan))
    return bounds


def chain_data_bounds(
    gains: Sequence[PerSample], slacks: Sequence[PerSample], log_residual: PerSample
) -> list[PerSample]:
    """Each layer's gain, from its measured score differences, on the bound of the layer before it.

    A gain is the logarithm of ``2√(ΣD · max D)‖W‖λ``; it is NaN where the condition is not met, and
    so are all bounds from there on.
    """
    factors = (gain + slack for gain, slack in zip(gains, slacks, strict=True))
    return list(accumulate(factors, initial=log_residual))[1:]


def chain_norm_bounds(
    layers: Sequence[tuple[HeadWeights, torch.Tensor]], norms: LogParts, counts: torch.Tensor
) -> list[PerSample]:
    """What follows from the norms of the input alone (derived): no condition, no slack.

    Each layer's ``norm_bound`` is the input of the next. For small residuals it is
    ``√n/√2 · β·scale·‖R‖³`` per layer, less than a fifth of the cubic bound with ``γ = √n``.
    """
    bounds = []
    for weights, gain in layers:
        norms = norm_bound(weights, norms, counts).times(gain)
        bounds.append(norms.composite)
    return bounds
