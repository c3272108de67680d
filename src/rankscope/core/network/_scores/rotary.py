"""Rotary embeddings: queries and keys are rotated by their positions."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import Count, checked
from rankscope.core.checks import number
from rankscope.core.network._scores.base import Heads, Positions, Scores
from rankscope.errors import SpecError


@checked
@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary embeddings with the usual frequencies, ``base^(−2i/head_width)`` for pair i.

    >>> from rankscope.core.network import Rotary
    >>> from rankscope.core.network import Spec
    >>> spec = Spec(2, 2, 8, scores=Rotary(base=10000.0))

    Su et al. 2021 (RoFormer), with the coordinates paired as in GPT-NeoX and Llama: i with
    i + head_width/2.
    """

    base: float = 10000.0

    def __post_init__(self) -> None:
        base = number("Rotary base", self.base, error=SpecError)
        if base <= 0:
            raise SpecError(f"Rotary base={base:g} must be greater than zero.")
        object.__setattr__(self, "base", base)

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads
        if head_width % 2:
            raise SpecError(
                f"Rotary rotates coordinates in pairs, but head_width={head_width} is odd; use an "
                "even one."
            )
        return RotaryScores(self.base ** -(torch.arange(0, head_width, 2) / head_width))

    def __str__(self) -> str:
        return "rotary" if self.base == 10000.0 else f"rotary(base {self.base:g})"


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
