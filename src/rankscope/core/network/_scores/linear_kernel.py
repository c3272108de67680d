"""Linear attention: products of positive features instead of a softmax."""

from dataclasses import dataclass

import torch

from rankscope.arguments import Count, checked
from rankscope.core.network._scores.base import Heads, Pairs, Positions, Scores, hide
from rankscope.core.network._visibility import Visibility


@checked
@dataclass(frozen=True)
class LinearKernel:
    """Linear attention: ``P_ij = φ(qᵢ)·φ(kⱼ) / Σ_l φ(qᵢ)·φ(k_l)`` with ``φ = elu + 1``.

    >>> from rankscope import Spec
    >>> from rankscope.core.network import LinearKernel
    >>> spec = Spec(2, 2, 8, scores=LinearKernel())

    Katharopoulos et al. 2020, eq. 4 and 7. The score scale cancels.
    """

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads, head_width
        return LinearKernelScores()

    def __str__(self) -> str:
        return "linear kernel"


class LinearKernelScores(Scores):
    """Products of positive features, divided by their sum."""

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        del positions
        # A factor of the query alone cancels, so no query's features need all underflow.
        logs = log_positive_feature(query)
        return (logs - logs.amax(-1, keepdim=True)).exp(), positive_feature(key)

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        products = hide(logits, visibility).clamp(min=0)  # hidden pairs: from −∞ to zero
        # Where every product underflows, or the scale is zero, no key is preferred to another.
        vanished = products.sum(-1, keepdim=True) == 0
        alike = hide(torch.ones_like(logits), visibility).clamp(min=0)
        products = torch.where(vanished, alike, products)
        return products / products.sum(-1, keepdim=True)


def positive_feature(x: Heads) -> Heads:
    """``elu(x) + 1``, written so that ``e^x`` keeps its digits where it is small."""
    return x.clamp(max=0).exp() + x.relu()


def log_positive_feature(x: Heads) -> Heads:
    """The logarithm of ``positive_feature``, which has one however small that is."""
    return torch.where(x > 0, x.relu().log1p(), x)
