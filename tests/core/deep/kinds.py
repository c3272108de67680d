"""Scores of loaded models with random numbers in them, for specs that want them."""

from dataclasses import dataclass

import torch
from torch import nn

from rankscope.core.network import BucketedBiasScores, NormedHeads, RotaryScores, SinusoidKeys


def drawn(*shape, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def normed(norm):
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * drawn(*norm.weight.shape))
    return norm


@dataclass(frozen=True)
class Kind:
    """The scores of loaded models, at random."""

    name: str

    def build(self, heads, head_width):
        frequencies = torch.tensor([1.0, 0.37])[: max(head_width // 2, 1)]
        match self.name:
            case "rotary":
                return RotaryScores(frequencies, scaling=1.1)
            case "rotary in part":
                return RotaryScores(frequencies[:1])
            case "normed":
                query = normed(nn.RMSNorm(head_width, dtype=torch.float64))  # eps=None
                key = normed(nn.LayerNorm(head_width, eps=0.1, dtype=torch.float64))
                return NormedHeads(query, key, RotaryScores(frequencies))
            case "buckets" | "buckets, one side":
                table = nn.Embedding(8, heads, dtype=torch.float64, _weight=drawn(8, heads))
                return BucketedBiasScores(table, farthest=6, two_sided=self.name == "buckets")
        project = nn.Linear(6, heads * head_width, dtype=torch.float64, bias=False)
        with torch.no_grad():
            project.weight.copy_(drawn(heads * head_width, 6))
        return SinusoidKeys(
            content_bias=drawn(heads, head_width, seed=4),
            position_bias=drawn(heads, head_width, seed=5),
            project=project,
            width=6,
            scale=0.4,
            farthest=2 if self.name == "sinusoids, clamped" else None,
        )
