"""How queries and keys become attention logits: the seam for rotary, relative and other scores.

Every score here is ``scale · q'ᵢ · k'ⱼ + biasᵢⱼ``: a score changes queries and keys before the
product, adds a bias after it, or both. That form covers rotary embeddings (change q and k),
relative biases and ALiBi (a bias of positions), XLNet (a bias of queries and positions) and
Gaussian kernels (a bias of keys), and it lets all of them use the fused attention kernel.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from rankscope.errors import SpecError

Heads = Float[Tensor, "batch head token head_width"]
Positions = Int[Tensor, "rows token"]


class Scores(nn.Module):
    """The plain dot product; other scores override one method or both."""

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        """Queries and keys as they enter the product."""
        del positions
        return query, key

    def bias(
        self, query: Heads, key: Heads, positions: Positions
    ) -> Float[Tensor, "#batch #head query key"] | None:
        """What is added to the logits after scaling; None for nothing."""
        del query, key, positions
        return None


@dataclass(frozen=True)
class Described:
    """A score that came with a loaded model: named in its spec, not to be built from it."""

    name: str

    def build(self, heads: int, head_width: int) -> Scores:
        raise SpecError(
            f"a score {self.name!r} of {heads} heads of width {head_width} comes with a loaded "
            "model and cannot be drawn at random."
        )


@runtime_checkable
class ScoreKind(Protocol):
    """A frozen, hashable description of a score, as held by a ``Spec``."""

    def build(self, heads: int, head_width: int) -> Scores:
        """A fresh module for one layer."""
        ...
