"""XLNet's scores: sinusoids of the distance as further keys."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rankscope.core.network._linear import Projection
from rankscope.core.network._scores.base import Bias, Heads, Positions, Scores


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
