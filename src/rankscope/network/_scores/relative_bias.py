"""A bias for each bucket of distances, as in T5."""

import math

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rankscope.network._scores.base import Bias, Heads, Positions, Scores


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
