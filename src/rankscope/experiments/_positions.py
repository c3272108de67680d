"""Scores by relative position for networks drawn at random."""

from dataclasses import dataclass

import torch
from torch import nn

from rankscope.network import BucketedBiasScores, RotaryScores, Scores
from rankscope.streams import stream


@dataclass(frozen=True)
class Turning:
    """Rotary positions with the usual frequencies, for a network drawn at random."""

    base: float = 10000.0

    def build(self, heads: int, head_width: int) -> Scores:
        del heads
        return RotaryScores(self.base ** -(torch.arange(0, head_width, 2) / head_width))


@dataclass(frozen=True)
class Buckets:
    """A relative bias by distance, as T5's, drawn at random."""

    seed: int = 0

    def build(self, heads: int, head_width: int) -> Scores:
        del head_width
        table = nn.Embedding(32, heads)
        generator = stream(self.seed, "relative bias")
        with torch.no_grad():
            table.weight.copy_(torch.randn(32, heads, generator=generator))
        return BucketedBiasScores(table, farthest=128)
