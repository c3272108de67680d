"""Linformer: attention to averages of neighbouring keys and values."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import Count, checked
from rankscope.core.checks import whole
from rankscope.core.network._scores.base import Pairs, Scores
from rankscope.core.network._visibility import Visibility
from rankscope.errors import SpecError


@checked
@dataclass(frozen=True, kw_only=True)
class Linformer:
    """Attention to ``segments`` averages of neighbouring keys and values instead of all of them.

    >>> from rankscope import Spec
    >>> from rankscope.core.network import Linformer
    >>> spec = Spec(2, 2, 8, scores=Linformer(segments=4))

    Wang et al. 2020, section 4, with mean pooling for the projection: token p of n real ones falls
    into segment ``⌊p·segments/n⌋``. A sequence of n ≤ ``segments`` tokens has a segment for each,
    and this is plain attention. An average mixes what came before a token with what comes after, so
    only the full mask makes sense.
    """

    segments: int

    def __post_init__(self) -> None:
        whole("Linformer segments", self.segments, least=1, error=SpecError)

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads, head_width
        return LinformerScores(self.segments)

    def __str__(self) -> str:
        return f"linformer({self.segments} segments)"


class LinformerScores(Scores):
    """A softmax over segments, spread evenly over the tokens of each."""

    def __init__(self, segments: int) -> None:
        super().__init__()
        self.segments = segments

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        """``softmax(logits Fᵀ) F``: derived, as ``q·(Σ_j F_sj k_j) = Σ_j F_sj (q·k_j)``."""
        self.refuse_masks(visibility)
        pool = pooling(visibility, self.segments, logits.dtype)
        empty = pool.sum(-1) == 0  # rows 1 segment
        pooled = (logits @ pool.mT).masked_fill(empty.unsqueeze(-2), -math.inf)
        return pooled.softmax(-1) @ pool

    def refuse_masks(self, visibility: Visibility) -> None:
        """Raise where a mask hides some tokens from others."""
        if visibility.allowed is not None and visibility.allowed.shape[-2] != 1:
            raise SpecError(
                "Linformer pools the keys of a whole sequence, so every token must see every other "
                "one, but this mask hides some; use mask='full' (network.with_mask('full'))."
            )


def pooling(
    visibility: Visibility, segments: int, dtype: torch.dtype
) -> Float[Tensor, "rows 1 segment token"]:
    """The projection F: each row the mean over the real tokens of a segment, or zero if none."""
    positions = visibility.positions[:, None, None, :]
    real = positions >= 0 if visibility.allowed is None else visibility.allowed
    count = real.sum(-1, keepdim=True)
    each = torch.arange(segments, device=positions.device)[:, None]
    inside = (positions * segments // count == each) & real
    return inside.to(dtype) / inside.sum(-1, keepdim=True).clamp(min=1)
