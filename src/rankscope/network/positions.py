"""Scores in which positions take part: rotary, relative bias, XLNet's.

All of them depend on the pair of positions, so they turn the doubly exponential collapse of plain
attention into an exponential one (theory section 5).
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rankscope.network.linear import Projection
from rankscope.network.scores import Heads, Positions, Scores

Bias = Float[Tensor, "#batch #head query key"]


class Rotary(Scores):
    """Rotary embeddings: coordinates of queries and keys, in pairs, turn with the position.

    The first ``2·len(frequencies)`` coordinates turn, the rest stay. Angles are computed in
    float32, as in every published model, so that they are the same constants in every dtype.
    """

    def __init__(self, frequencies: Float[Tensor, "pair"], *, scaling: float = 1.0) -> None:
        super().__init__()
        # Not a buffer: casting a network to half precision must not round the angles.
        self.frequencies = frequencies.detach().float().clone()
        self.scaling = scaling

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        frequencies = self.frequencies.to(query.device)
        angles = positions[:, None, :, None].float() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        cos = (angles.cos() * self.scaling).to(query.dtype)
        sin = (angles.sin() * self.scaling).to(query.dtype)
        return _turn(query, cos, sin), _turn(key, cos, sin)


def _turn(x: Heads, cos: Tensor, sin: Tensor) -> Heads:
    turning, still = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, still), dim=-1) if still.shape[-1] else turned


class NormedHeads(Scores):
    """Queries and keys normalised head by head before another score sees them (Qwen3)."""

    def __init__(self, query_norm: nn.Module, key_norm: nn.Module, then: Scores) -> None:
        super().__init__()
        self.query_norm, self.key_norm, self.then = query_norm, key_norm, then

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        return self.then.prepare(self.query_norm(query), self.key_norm(key), positions)

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias | None:
        return self.then.bias(query, key, positions)


class BucketedBias(Scores):
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


class SinusoidKeys(Scores):
    """XLNet: logits ``scale · ((q + u)·k + (q + v)·R s(i−j))`` with sinusoids s of the distance."""

    def __init__(
        self,
        *,
        content_bias: Float[Tensor, "head head_width"],
        position_bias: Float[Tensor, "head head_width"],
        project: Projection,
        width: int,
        scale: float,
        farthest: int | None = None,
    ) -> None:
        super().__init__()
        self.content_bias, self.position_bias = content_bias, position_bias
        self.project = project
        self.width, self.scale, self.farthest = width, scale, farthest

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        del positions
        return query + self.content_bias[:, None, :], key

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias:
        del key
        asking = query + (self.position_bias - self.content_bias)[:, None, :]
        reach = query.shape[-2]
        distances = torch.arange(-reach, reach + 1, device=query.device)
        keys: Tensor = self.project(self._sinusoids(distances).to(query.dtype))
        keys = keys.unflatten(-1, (query.shape[1], -1)).transpose(0, 1)  # head, distance, width
        every: Tensor = (asking @ keys.mT) * self.scale
        apart = positions[:, :, None] - positions[:, None, :] + reach
        index = apart[:, None].expand(*every.shape[:3], apart.shape[-1])
        return every.gather(-1, index)

    def _sinusoids(self, distances: Int[Tensor, "distance"]) -> Float[Tensor, "distance feature"]:
        """In float32, as the original computes them in every dtype."""
        if self.farthest is not None:
            distances = distances.clamp(-self.farthest, self.farthest)
        steps = torch.arange(0, self.width, 2.0, device=distances.device)
        angles = distances.float()[:, None] * (1 / torch.pow(10000, steps / self.width))
        return torch.cat((angles.sin(), angles.cos()), dim=-1)
