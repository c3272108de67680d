"""Scores of loaded models with random numbers in them, for specs that want them."""

from dataclasses import dataclass

import torch
from torch import nn

from rankscope.core.network import (
    BucketedBiasScores,
    DisentangledScores,
    NormedHeads,
    RotaryScores,
    RotaryTable,
    SinusoidKeys,
    make_linear,
)


def drawn(*shape, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def normed(norm):
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * drawn(*norm.weight.shape))
    return norm


def linear(inputs, outputs, *, seed=3):
    return make_linear(drawn(outputs, inputs, seed=seed))


class Table(nn.Module):
    """Embeddings of distances."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(rows)

    def forward(self):
        return self.rows


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
            case "rotary, interleaved":
                return RotaryScores(frequencies, interleaved=True, start=1)
            case "grid":  # of three tokens; those before them are not rotated
                angles = drawn(3, head_width // 2)
                return RotaryTable(angles.cos(), angles.sin())
            case "normed last":
                query = normed(nn.LayerNorm(head_width, dtype=torch.float64))
                key = normed(nn.RMSNorm(head_width, eps=0.1, dtype=torch.float64))
                return NormedHeads(query, key, RotaryScores(frequencies), last=True)
            case "normed side by side":  # half as many key heads
                query = normed(nn.RMSNorm(heads * head_width, eps=0.1, dtype=torch.float64))
                key = normed(nn.RMSNorm(heads // 2 * head_width, dtype=torch.float64))
                return NormedHeads(query, key, RotaryScores(frequencies))
            case "disentangled" | "disentangled, buckets":
                few = self.name == "disentangled"
                return DisentangledScores(
                    Table(drawn(8, 4)),
                    key=linear(4, heads * head_width, seed=4),
                    query=None if few else linear(4, heads * head_width, seed=5),
                    scale=0.4,
                    span=2 if few else 4,
                    buckets=0 if few else 4,
                    farthest=5,
                )
            case "normed":
                query = normed(nn.RMSNorm(head_width, dtype=torch.float64))  # eps=None
                key = normed(nn.LayerNorm(head_width, eps=0.1, dtype=torch.float64))
                return NormedHeads(query, key, RotaryScores(frequencies))
            case "buckets" | "buckets, one side":
                table = nn.Embedding(8, heads, dtype=torch.float64, _weight=drawn(8, heads))
                return BucketedBiasScores(table, farthest=6, two_sided=self.name == "buckets")
        project = linear(6, heads * head_width)
        return SinusoidKeys(
            content_bias=drawn(heads, head_width, seed=4),
            position_bias=drawn(heads, head_width, seed=5),
            project=project,
            width=6,
            scale=0.4,
            farthest=2 if self.name == "sinusoids, clamped" else None,
        )
