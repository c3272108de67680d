"""Rotary embeddings: queries and keys are rotated by their positions."""

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.network._scores.base import Heads, Positions, Scores


class RotaryScores(Scores):
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
