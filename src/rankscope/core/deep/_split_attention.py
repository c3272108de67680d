"""Attention weights as ``P = 1qᵀ + e^λ Δ``: what all queries agree on, and what each adds to it.

Derived (docs/theory.md, section 5). ``q`` is the softmax of logits that are the same for every
query; a query adds ``D`` of its own, and then

    ``P_ij − q_j = q_j (expm1 D_ij − m_i) / (1 + m_i)``,  ``m_i = Σ_j q_j expm1 D_ij``,

with no two large numbers subtracted. ``D`` may be ``e^λ`` times numbers of moderate size, with λ
far below what a float can hold; then so is ``P − 1qᵀ``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rankscope.core.deep._scaled_tensor import (
    bounded_exp,
    cancelled,
    expand_like,
    log_of_largest,
    worst,
)
from rankscope.core.shapes import PerSample

Shared = Float[Tensor, "batch head 1 key"]
Pattern = Float[Tensor, "batch head query key"]
Top = Int[Tensor, "batch head 1 1"]

_SMALL = 0.5
"""Up to here ``expm1`` of all differences is taken in units of ``e^λ``; above, as it is."""
_VANISHING = 1e-17
_NEGLIGIBLE = -200.0


@dataclass(frozen=True)
class SplitAttention:
    """``P = 1qᵀ + e^log Δ``; ``lost`` as that of a ``ScaledTensor``, for Δ."""

    shared: Shared
    own: Pattern
    log: PerSample
    lost: PerSample | float = 0.0

    def with_terms(self, terms: PerSample, lost: PerSample | float = 0.0) -> "SplitAttention":
        """The same, made of logits that are sums of terms of that size (as a logarithm).

        Errors of logits are errors of Δ times the largest q; and where logits are large, each
        weight has fewer digits by as many as they have before the point.
        """
        own = terms + log_of_largest(self.shared)
        found = self.log + log_of_largest(self.own)
        own = torch.where(found.isneginf(), found, own)  # queries that agree exactly lose nothing
        fewer = cancelled(own, found)
        return replace(self, lost=worst(lost, fewer, terms.clamp(min=0.0)))

    def only(self, chosen: Bool[Tensor, "batch"]) -> "SplitAttention":
        """Some of the samples."""
        lost = self.lost[chosen] if isinstance(self.lost, Tensor) else self.lost
        return SplitAttention(self.shared[chosen], self.own[chosen], self.log[chosen], lost)


def split_softmax(base: Shared, own: Pattern, log: PerSample) -> SplitAttention:
    """The softmax of ``base_j + e^log own_ij``, where ``base`` is minus infinity at hidden keys.

    What ``own`` adds to all keys of a query alike drops out of a softmax, but its rounding errors
    do not: the callers take it away.
    """
    size = bounded_exp(log)
    largest = own.abs().flatten(1).amax(1) * size
    log_shared = base.log_softmax(-1)
    top = log_shared.argmax(-1, keepdim=True)
    unit = _unit_beside(log_shared, top)
    # All that is to be decided, in one question.
    most, least, lowest = torch.stack([largest.amax(), largest.amin(), unit.amin()]).tolist()
    if most < _SMALL:
        own, lifted = (own, log_shared) if lowest == 0 else _beside(own, log_shared, top, unit)
        gain = _growth(own, size, largest) if most > _VANISHING else own
        return _small(log_shared, lifted, gain, size, log, unit)
    if not least < _SMALL:
        return _large(log_shared, top, own * expand_like(size, own))
    small = largest < _SMALL
    return merge(
        [(some, split_softmax(base[some], own[some], log[some])) for some in (small, ~small)]
    )


def merge(parts: Sequence[tuple[Bool[Tensor, "batch"], SplitAttention]]) -> SplitAttention:
    """One weighing out of those of some samples each."""
    chosen, first = parts[0]
    shared = first.shared.new_empty(len(chosen), *first.shared.shape[1:])
    own = first.own.new_empty(len(chosen), *first.own.shape[1:])
    log, lost = (first.log.new_empty(len(chosen)) for _ in range(2))
    for some, part in parts:
        shared[some], own[some], log[some], lost[some] = part.shared, part.own, part.log, part.lost
    return SplitAttention(shared, own, log, lost)


def _beside(own: Pattern, log_shared: Shared, top: Top, unit: PerSample) -> tuple[Pattern, Shared]:
    """Where one key draws all weight to it, what others get is all there is."""
    own = own - own.gather(-1, top.expand(*own.shape[:-1], 1))
    alone = expand_like(unit != 0, log_shared)
    return own, torch.where(alone, log_shared.scatter(-1, top, -torch.inf), log_shared)


def _growth(own: Pattern, size: PerSample, largest: PerSample) -> Pattern:
    """``expm1(tE)/t``, which is E as ``t → 0``."""
    seen = largest > _VANISHING  # below, the limit is exact, and t may be too small for a division
    t = expand_like(torch.where(seen, size, 1.0), own)
    return torch.where(expand_like(seen, own), torch.expm1(own * t) / t, own)


def _small(
    log_shared: Shared,
    lifted: Shared,
    gain: Pattern,
    size: PerSample,
    log: PerSample,
    unit: PerSample,
) -> SplitAttention:
    """Δ for small differences, in units of ``e^log``."""
    shared, lifted = log_shared.exp(), (lifted - expand_like(unit, lifted)).exp()
    mean = (gain * lifted).sum(-1, keepdim=True)
    delta = (gain * lifted - mean * shared) / (1 + expand_like(size * unit.exp(), mean) * mean)
    return SplitAttention(shared, delta, log + unit)


def _large(log_shared: Shared, top: Top, own: Pattern) -> SplitAttention:
    """The same for differences of any size, those that saturate the softmax included.

    Weights relative to the shared ones, ``w_ij = q_j e^{D_ij}``, may be beyond all floats; every
    row is divided by its largest, and ``w − q`` is what is summed, so that rows that agree to many
    digits still differ by the right amount. D is taken relative to the key with the largest q,
    whose weight then stays, so that the sum of all w is no less than it and nothing cancels.
    """
    shared = log_shared.exp()
    own = own - own.gather(-1, top.expand(*own.shape[:-1], 1))
    exponent = log_shared + own
    unit = _unit_beside(torch.maximum(exponent, log_shared), top)
    lifted = (log_shared - expand_like(unit, log_shared)).exp()
    highest = exponent.amax(-1, keepdim=True).clamp(min=0.0)
    fade = (-highest).exp()
    moderate = torch.expm1(own.clamp(max=1.0)) * lifted * fade
    strong = (exponent - highest - expand_like(unit, own)).exp() - lifted * fade
    gain = torch.where(own < 1, moderate, strong)
    gain = torch.where(log_shared.isneginf() | (own == 0), 0.0, gain)
    mean = gain.sum(-1, keepdim=True)
    delta = (gain - shared * mean) / (fade + mean * expand_like(unit.exp(), mean))
    return SplitAttention(shared, delta, unit)


def split_around_top(logits: Pattern) -> SplitAttention:
    """Any softmax as what falls on its most seen key, and what each query takes away from there.

    For queries that see different keys, and so agree on nothing else: if one key draws all of them
    to it, what is left to the others is exact, however little that is.
    """
    log = logits.log_softmax(-1)
    top = log.exp().mean(-2, keepdim=True).argmax(-1, keepdim=True)
    everywhere = top.expand(*log.shape[:-1], 1)
    unit = _unit_beside(log, top)
    own = (log - expand_like(unit, log)).exp().scatter(-1, everywhere, 0.0)
    own = own.scatter(-1, everywhere, -own.sum(-1, keepdim=True))
    shared = torch.zeros_like(log[:, :, :1]).scatter(-1, top, 1.0)
    return SplitAttention(shared, own, unit)


def _unit_beside(log: Pattern, top: Top) -> PerSample:
    """The logarithm of the largest weight beside the top key's, if it is negligible; else 0."""
    beside = log.scatter(-1, top.expand(*log.shape[:-1], 1), -torch.inf).flatten(1).amax(1)
    return torch.where((beside < _NEGLIGIBLE) & ~beside.isneginf(), beside, 0.0)
