"""Other attention patterns, as scores: each a frozen description and the module it builds.

All are row-stochastic, so whatever asks for no more than that (paths, metrics of attention) holds
for them; bounds that start from the softmax of plain products do not. Tokens are known by their
positions, which count real tokens, so padding changes nothing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.errors import KindError, SpecError
from rankscope.network.scores import Bias, Heads, Pairs, Positions, Scores, hide
from rankscope.network.sight import Sight

Wider = Float[Tensor, "batch head token wider"]


@dataclass(frozen=True)
class LinearKernel:
    """Linear attention: ``P_ij = φ(qᵢ)·φ(kⱼ) / Σ_l φ(qᵢ)·φ(k_l)`` with ``φ = elu + 1``.

    >>> spec = Spec(2, 2, 8, scores=LinearKernel())

    Katharopoulos et al. 2020, eq. 4 and 7. The score scale cancels.
    """

    def build(self, heads: int, head_width: int) -> Scores:
        del heads, head_width
        return LinearKernelScores()

    def __str__(self) -> str:
        return "linear kernel"


class LinearKernelScores(Scores):
    """Products of positive features, divided by their sum."""

    fused = False

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        del positions
        return positive_feature(query), positive_feature(key)

    def weights(self, logits: Pairs, sight: Sight) -> Pairs:
        products = hide(logits, sight).clamp(min=0)  # hidden pairs: from minus infinity to zero
        # Where every product underflows, or the scale is zero, no key is preferred to another.
        vanished = products.sum(-1, keepdim=True) == 0
        alike = hide(torch.ones_like(logits), sight).clamp(min=0)
        products = torch.where(vanished, alike, products)
        return products / products.sum(-1, keepdim=True)


def positive_feature(x: Heads) -> Heads:
    """``elu(x) + 1``, written so that ``e^x`` keeps its digits where it is small."""
    return x.clamp(max=0).exp() + x.relu()


@dataclass(frozen=True, kw_only=True)
class Linformer:
    """Attention to ``segments`` averages of neighbouring keys and values instead of all of them.

    >>> spec = Spec(2, 2, 8, scores=Linformer(segments=4))

    Wang et al. 2020, section 4, with mean pooling for the projection: token p of n real ones falls
    into segment ``⌊p·segments/n⌋``. A sequence of n ≤ ``segments`` tokens has a segment for each,
    and this is plain attention. An average mixes what came before a token with what comes after, so
    only the full mask makes sense.
    """

    segments: int

    def __post_init__(self) -> None:
        _whole("Linformer segments", self.segments)

    def build(self, heads: int, head_width: int) -> Scores:
        del heads, head_width
        return LinformerScores(self.segments)

    def __str__(self) -> str:
        return f"linformer({self.segments} segments)"


class LinformerScores(Scores):
    """A softmax over segments, spread evenly over the tokens of each."""

    fused = False

    def __init__(self, segments: int) -> None:
        super().__init__()
        self.segments = segments

    def weights(self, logits: Pairs, sight: Sight) -> Pairs:
        """``softmax(logits Fᵀ) F``: derived, as ``q·(Σ_j F_sj k_j) = Σ_j F_sj (q·k_j)``."""
        self.check(sight)
        pool = pooling(sight, self.segments, logits.dtype)
        empty = pool.sum(-1) == 0  # rows 1 segment
        pooled = (logits @ pool.mT).masked_fill(empty.unsqueeze(-2), -math.inf)
        return pooled.softmax(-1) @ pool

    def check(self, sight: Sight) -> None:
        """Raise where a mask hides some tokens from others."""
        if sight.allowed is not None and sight.allowed.shape[-2] != 1:
            raise SpecError(
                "Linformer pools the keys of a whole sequence, so every token must see every other "
                "one, but this mask hides some; use mask='full' (network.with_mask('full'))."
            )


def pooling(
    sight: Sight, segments: int, dtype: torch.dtype
) -> Float[Tensor, "rows 1 segment token"]:
    """The projection F: each row the mean over the real tokens of a segment, or zero if none."""
    positions = sight.positions[:, None, None, :]
    real = positions >= 0 if sight.allowed is None else sight.allowed
    count = real.sum(-1, keepdim=True)
    each = torch.arange(segments, device=positions.device)[:, None]
    inside = (positions * segments // count == each) & real
    return inside.to(dtype) / inside.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class GaussianKernel:
    """Softmax of ``−scale·‖qᵢ − kⱼ‖²/(2·bandwidth²)``: keys attract by nearness, not by length.

    >>> spec = Spec(2, 2, 8, scores=GaussianKernel(bandwidth=2.0))

    Chen et al. 2021 (Skyformer), with rows normalised. ``scale`` is the spec's ``score_scale``, by
    default ``1/√head_width`` as there; so bandwidth 1 is dot-product attention less half the
    squared length of each key, and ``score_scale=1`` gives a bandwidth in the units of the queries.
    """

    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        bandwidth = _number("GaussianKernel bandwidth", self.bandwidth)
        if bandwidth <= 0:
            raise SpecError(f"GaussianKernel bandwidth={bandwidth:g} must be greater than zero.")
        object.__setattr__(self, "bandwidth", bandwidth)

    def build(self, heads: int, head_width: int) -> Scores:
        del heads, head_width
        return GaussianKernelScores(self.bandwidth)

    def __str__(self) -> str:
        return f"gaussian kernel(bandwidth {self.bandwidth:g})"


class GaussianKernelScores(Scores):
    """Queries and keys with one more coordinate, which makes products of distances."""

    def __init__(self, bandwidth: float) -> None:
        super().__init__()
        self.bandwidth = bandwidth

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Wider, Wider]:
        """Derived: ``−‖q − k‖²/2 = (q, 1)·(k, −‖k‖²/2) − ‖q‖²/2``; the softmax drops the last.

        The bias of a key rides in the product, so that the scale applies to it too.
        """
        del positions
        query, key = query / self.bandwidth, key / self.bandwidth
        one = torch.ones_like(query[..., :1])
        half_length = key.square().sum(-1, keepdim=True) / 2
        return torch.cat((query, one), -1), torch.cat((key, -half_length), -1)


@dataclass(frozen=True)
class Sparsemax:
    """The nearest point of the simplex to the logits instead of their softmax: many exact zeros.

    >>> spec = Spec(2, 2, 8, scores=Sparsemax())

    Martins and Astudillo 2016.
    """

    def build(self, heads: int, head_width: int) -> Scores:
        del heads, head_width
        return SparsemaxScores()

    def __str__(self) -> str:
        return "sparsemax"


class SparsemaxScores(Scores):
    """The softmax replaced; logits as ever."""

    fused = False

    def weights(self, logits: Pairs, sight: Sight) -> Pairs:
        return sparsemax(hide(logits, sight))


def sparsemax(logits: Pairs) -> Pairs:
    """``argmin_p ‖p − z‖²`` over probability vectors p, row by row; minus infinity stays at zero.

    Martins and Astudillo 2016, algorithm 1: ``p = max(z − τ, 0)`` where the k largest entries are
    the support, k being the last with ``1 + k z_(k) > Σ_{i≤k} z_(i)``, and τ makes them sum to one.
    """
    # Half precision has too few digits for sums; a shift changes nothing and keeps them near zero.
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    z = z - z.detach().amax(-1, keepdim=True)
    largest = z.sort(-1, descending=True).values
    sums = largest.cumsum(-1)
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device)
    size = (1 + rank * largest > sums).sum(-1, keepdim=True).clamp(min=1)  # NaN has no support
    threshold = (sums.gather(-1, size - 1) - 1) / size
    return (z - threshold).clamp(min=0).to(logits.dtype)


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Attention sinks: logits to the first ``tokens`` tokens are raised by ``strength``.

    >>> spec = Spec(2, 2, 8, scores=Sink(tokens=1, strength=4.0), mask="causal")

    After Xiao et al. 2024, who find such tokens in trained models. A bias of keys alone: once the
    tokens agree, so do the rows of P.
    """

    tokens: int = 1
    strength: float = 4.0

    def __post_init__(self) -> None:
        _whole("Sink tokens", self.tokens)
        object.__setattr__(self, "strength", _number("Sink strength", self.strength))

    def build(self, heads: int, head_width: int) -> Scores:
        del heads, head_width
        return SinkScores(self.tokens, self.strength)

    def __str__(self) -> str:
        return f"sink(first {self.tokens}, {self.strength:+g})"


class SinkScores(Scores):
    """A bias of the first keys."""

    def __init__(self, tokens: int, strength: float) -> None:
        super().__init__()
        self.tokens, self.strength = tokens, strength

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias:
        del key
        first = positions < self.tokens
        return (first.to(query.dtype) * self.strength)[:, None, None, :]


@dataclass(frozen=True, kw_only=True)
class ALiBi:
    """A penalty of distance, ``−slope_h·|i − j|``, under whatever mask.

    >>> spec = Spec(2, 8, 64, scores=ALiBi(), mask="causal")

    Press et al. 2022: without ``slopes``, head h of H (from 1) has ``2^(−8h/H)`` if H is a power of
    two. Otherwise, as in their code and in BLOOM: the slopes of the next smaller power of two, then
    every other slope of the next greater one.
    """

    slopes: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.slopes is None:
            return
        if not isinstance(self.slopes, Iterable) or isinstance(self.slopes, str):
            raise KindError(f"ALiBi slopes={self.slopes!r}: expected a number for each head.")
        slopes = tuple(_number("ALiBi slope", slope) for slope in self.slopes)
        object.__setattr__(self, "slopes", slopes)

    def build(self, heads: int, head_width: int) -> Scores:
        del head_width
        slopes = alibi_slopes(heads) if self.slopes is None else self.slopes
        if len(slopes) != heads:
            raise SpecError(
                f"ALiBi has {len(slopes)} slopes for {heads} heads; give one for each head, or "
                "none for the published ones."
            )
        return ALiBiScores(slopes)

    def __str__(self) -> str:
        own = "" if self.slopes is None else ", ".join(f"{slope:g}" for slope in self.slopes)
        return f"alibi({own})" if own else "alibi"


class ALiBiScores(Scores):
    """A bias of distances, with a slope for each head."""

    def __init__(self, slopes: tuple[float, ...]) -> None:
        super().__init__()
        # Not a buffer: slopes are constants, and casting a network must not round them for good.
        self.slopes = slopes

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias:
        del key
        apart = (positions[:, None, :, None] - positions[:, None, None, :]).abs()
        slopes = torch.tensor(self.slopes, dtype=query.dtype, device=query.device)
        return -slopes[:, None, None] * apart.to(query.dtype)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The published slopes of ALiBi (Press et al. 2022, and their code where no power of two).

    >>> alibi_slopes(2)
    (0.0625, 0.00390625)
    """
    power = 2 ** (heads.bit_length() - 1)
    whole = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2 ** (-8 * (head - 0.5) / power) for head in range(1, power + 1)]
    return tuple(whole + between[: heads - power])


def _whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError(f"{name}={value!r} is a {type(value).__name__}, expected a whole number.")
    if value < 1:
        raise SpecError(f"{name}={value} is out of range; expected 1 or more.")


def _number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise KindError(f"{name}={value!r} is a {type(value).__name__}, expected a number.")
    if not math.isfinite(value):
        raise SpecError(f"{name}={value} is out of range; expected a finite number.")
    return float(value)
