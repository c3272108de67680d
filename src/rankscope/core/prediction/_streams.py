"""Normal numbers for many networks at once, each from a stream of its own."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rankscope.streams import stream


class Streams:
    """One generator for each network drawn, so that none depends on how many others there are."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._generators = tuple(generators)

    @classmethod
    def of(cls, seed: int, networks: Sequence[tuple[int, int]], use: str = "tokens") -> "Streams":
        """For each ``(draw, sample)``; two samples of one draw are as independent as two draws."""
        return cls([stream(seed, "prediction", use, draw, sample) for draw, sample in networks])

    def __len__(self) -> int:
        return len(self._generators)

    def select(self, chosen: Sequence[int]) -> "Streams":
        """The streams of some of the networks, which go on where they are."""
        return Streams([self._generators[index] for index in chosen])

    def normal(self, *shape: int) -> Float[Tensor, "batch *shape"]:
        """Standard normal numbers, a tensor of this shape for each network."""
        out = torch.empty(len(self), *shape, dtype=torch.float32)
        for part, generator in zip(out, self._generators, strict=True):
            part.normal_(generator=generator)
        return out

    def chi(self, freedom: Int[Tensor, "row"]) -> Float[Tensor, "batch row"]:
        """Lengths of standard normal vectors of ``freedom`` entries."""
        half = freedom.double() / 2
        drawn = [torch._standard_gamma(half, generator=each) for each in self._generators]
        return (2 * torch.stack(drawn)).sqrt()
