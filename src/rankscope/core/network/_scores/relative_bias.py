"""A bias for each bucket of distances, as in T5."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rankscope.arguments import Count, checked
from rankscope.core.checks import whole
from rankscope.core.network._scores.base import Bias, Heads, Positions, Scores
from rankscope.errors import SpecError
from rankscope.streams import stream


@checked
@dataclass(frozen=True, kw_only=True)
class RelativeBias:
    """A bias for each head and bucket of distances, as T5's, drawn from a standard normal.

    >>> from rankscope.core.network import RelativeBias
    >>> from rankscope.core.network import Spec
    >>> spec = Spec(2, 2, 8, scores=RelativeBias(buckets=32, farthest=128, seed=0))

    Raffel et al. 2020. Half of the ``buckets`` are for keys before the query, half for keys after
    it; of each half, half for single distances and half for geometric ranges up to ``farthest``.
    As in T5 all layers have the same biases.
    """

    buckets: int = 32
    farthest: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        whole("RelativeBias buckets", self.buckets, least=4, error=SpecError)
        if self.buckets % 2:
            raise SpecError(f"RelativeBias buckets={self.buckets} is odd; both sides need as many.")
        whole("RelativeBias farthest", self.farthest, least=self.buckets // 4 + 1, error=SpecError)
        whole("RelativeBias seed", self.seed, least=0, error=SpecError)

    def build(self, heads: Count, head_width: Count) -> Scores:
        del head_width
        generator = stream(self.seed, "relative bias")
        drawn = torch.randn(self.buckets, heads, generator=generator)
        table = nn.Embedding.from_pretrained(drawn, freeze=False)
        return BucketedBiasScores(table, farthest=self.farthest)

    def __str__(self) -> str:
        return f"relative bias({self.buckets} buckets to {self.farthest}, seed {self.seed})"


class BucketedBiasScores(Scores):
    """T5's learned bias for each bucket of distances: exact when near, logarithmic when far."""

    def __init__(self, table: nn.Embedding, *, farthest: int, two_sided: bool = True) -> None:
        super().__init__()
        self.table = table
        self.farthest, self.two_sided = farthest, two_sided

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias:
        del query, key
        ahead = positions[:, None, :] - positions[:, :, None]
        biases: Tensor = self.table(self._bucket(ahead).to(self.table.weight.device))
        return biases.permute(0, 3, 1, 2).to(positions.device)

    def _bucket(self, ahead: Int[Tensor, "rows query key"]) -> Int[Tensor, "rows query key"]:
        """Half of the buckets for single distances, half for geometric ranges of them."""
        buckets, first = self.table.num_embeddings, torch.zeros_like(ahead)
        if self.two_sided:
            buckets //= 2
            first = torch.where(ahead > 0, buckets, 0)
            distance = ahead.abs()
        else:
            distance = (-ahead).clamp(min=0)
        exact = buckets // 2
        scale = (buckets - exact) / math.log(self.farthest / exact)
        far = exact + (torch.log(distance.float() / exact) * scale).long()
        return first + torch.where(distance < exact, distance, far.clamp(max=buckets - 1))
