"""Sparsemax: projection on the simplex instead of a softmax."""

from dataclasses import dataclass

import torch

from rankscope.arguments import Count, checked
from rankscope.core.network._scores.base import Pairs, Scores, hide
from rankscope.core.network._visibility import Visibility


@checked
@dataclass(frozen=True)
class Sparsemax:
    """The nearest point of the simplex to the logits instead of their softmax: many exact zeros.

    >>> from rankscope import Spec
    >>> from rankscope.core.network import Sparsemax
    >>> spec = Spec(2, 2, 8, scores=Sparsemax())

    Martins and Astudillo 2016.
    """

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads, head_width
        return SparsemaxScores()

    def __str__(self) -> str:
        return "sparsemax"


class SparsemaxScores(Scores):
    """The softmax replaced; logits as ever."""

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        return sparsemax(hide(logits, visibility))


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
