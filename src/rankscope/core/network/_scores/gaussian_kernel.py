"""Gaussian kernels: a softmax of negative squared distances."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import Count, checked
from rankscope.core.checks import number
from rankscope.core.network._scores.base import Heads, Positions, Scores
from rankscope.errors import SpecError

Wider = Float[Tensor, "batch head token wider"]


@checked
@dataclass(frozen=True, kw_only=True)
class GaussianKernel:
    """Softmax of ``−scale·‖qᵢ − kⱼ‖²/(2·bandwidth²)``: keys attract by nearness, not by length.

    >>> from rankscope import Spec
    >>> from rankscope.core.network import GaussianKernel
    >>> spec = Spec(2, 2, 8, scores=GaussianKernel(bandwidth=2.0))

    Chen et al. 2021 (Skyformer), with rows normalised. ``scale`` is the spec's ``score_scale``, by
    default ``1/√head_width`` as there; so bandwidth 1 is dot-product attention less half the
    squared length of each key, and ``score_scale=1`` gives a bandwidth in the units of the queries.
    """

    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        bandwidth = number("GaussianKernel bandwidth", self.bandwidth, error=SpecError)
        if bandwidth <= 0:
            raise SpecError(f"GaussianKernel bandwidth={bandwidth:g} must be greater than zero.")
        object.__setattr__(self, "bandwidth", bandwidth)

    def build(self, heads: Count, head_width: Count) -> Scores:
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
