"""Sorting: predict the sorted sequence, token by token (Dong et al. 2021, figure 4)."""

from dataclasses import dataclass

import torch

from rankscope.arguments import Count, checked
from rankscope.models.training._task import Examples
from rankscope.streams import stream


@checked
@dataclass(frozen=True)
class Sorting:
    """Sequences of symbols, drawn independently, so that some come twice."""

    symbols: Count = 10
    tokens: Count = 8

    def draw(self, count: Count, seed: int, purpose: str) -> Examples:
        """So many sequences; each purpose, such as training, has its own."""
        shape = (count, self.tokens)
        ids = torch.randint(self.symbols, shape, generator=stream(seed, "sorting", purpose))
        return Examples(ids, ids.sort(-1).values)
