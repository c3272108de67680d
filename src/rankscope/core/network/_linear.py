"""Linear maps that live inside somebody else's weights: a slice, a transpose, a view.

Checkpoints store projections in many ways: queries, keys and values in one matrix, transposed, or
as tensors with a head axis. A ``View`` reads its matrix out of the original parameter each time it
runs, so that weights are shared with the original and nothing is copied or folded.
"""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear


class Pick(Protocol):
    """How to read an ``(output, input)`` matrix and its bias out of stored parameters."""

    def weight(self, stored: Tensor) -> Tensor: ...
    def bias(self, stored: Tensor) -> Tensor: ...


class View(nn.Module):
    """``x ↦ x Wᵀ + b`` with W and b read out of a module's parameters by a ``Pick``."""

    def __init__(self, source: nn.Module, pick: Pick, *, weight: str = "weight") -> None:
        super().__init__()
        self.source = source
        self.pick = pick
        self.name = weight

    @property
    def weight(self) -> Tensor:
        """The matrix, as ``nn.Linear`` would store it."""
        return self.pick.weight(getattr(self.source, self.name))

    @property
    def bias(self) -> Tensor | None:
        """The bias; None where the original has none."""
        stored = getattr(self.source, "bias", None)
        return None if stored is None else self.pick.bias(stored)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Stack(nn.Module):
    """A matrix of its own for every sample of a batch: many networks run as one."""

    bias: None = None

    def __init__(self, weight: Float[Tensor, "batch output input"]) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Float[Tensor, "batch token input"]) -> Float[Tensor, "batch token output"]:
        return x @ self.weight.mT


Projection = nn.Linear | View | Stack


@dataclass(frozen=True)
class ColumnSlice:
    """Columns ``start:stop`` of a matrix stored as ``(input, output)``, as GPT-2 does."""

    start: int = 0
    stop: int | None = None

    def weight(self, stored: Tensor) -> Tensor:
        return stored[:, self.start : self.stop].T

    def bias(self, stored: Tensor) -> Tensor:
        return stored[self.start : self.stop]


@dataclass(frozen=True)
class Interleaved:
    """Part ``index`` of ``parts`` that alternate head by head, as in GPT-NeoX's fused matrix."""

    heads: int
    index: int
    parts: int = 3

    def weight(self, stored: Tensor) -> Tensor:
        return self.bias(stored)

    def bias(self, stored: Tensor) -> Tensor:
        apart = stored.view(self.heads, self.parts, -1, *stored.shape[1:])
        return apart[:, self.index].flatten(0, 1)


@dataclass(frozen=True)
class HeadAxis:
    """A tensor ``(feature, head, head_width)`` as a map into heads or out of them, as in XLNet."""

    out_of_heads: bool = False

    def weight(self, stored: Tensor) -> Tensor:
        return stored.flatten(1) if self.out_of_heads else stored.flatten(1).T

    def bias(self, stored: Tensor) -> Tensor:
        return stored
