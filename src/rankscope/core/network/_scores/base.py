"""How queries and keys become attention matrices: the seam for rotary, sparse and other scores.

Logits are ``scale · q'ᵢ · k'ⱼ + biasᵢⱼ``: a score changes queries and keys before the product
(rotary embeddings, Gaussian kernels), adds a bias after it (relative biases, ALiBi, sinks, XLNet),
or both. A softmax makes weights of logits, and then all of it runs on the fused attention kernel;
a score that makes them in another way (sparsemax, linear attention) overrides ``weights``. Whatever
the score, each row of weights is nonnegative and sums to one.
"""

import copy
import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rankscope.arguments import Count, checked
from rankscope.core.network._visibility import Visibility
from rankscope.errors import SpecError

Heads = Float[Tensor, "batch head token head_width"]
Positions = Int[Tensor, "rows token"]
Bias = Float[Tensor, "#batch #head #query key"]
Pairs = Float[Tensor, "batch head query key"]


class Scores(nn.Module):
    """The plain dot product; other scores override one method or more.

    ``fused`` says that ``prepare``, ``bias`` and a softmax are all there is; a score with
    ``weights`` of its own never is, or the fused kernel would pass them by.
    """

    fused: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.weights is not Scores.weights:
            cls.fused = False

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        """Queries and keys as they enter the product."""
        del positions
        return query, key

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias | None:
        """What is added to the logits after scaling; None for nothing."""
        del query, key, positions
        return None

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        """The attention matrices: rows that sum to one, zero where a token may not look."""
        return hide(logits, visibility).softmax(-1)


def hide(logits: Bias, visibility: Visibility) -> Bias:
    """Set the logits of pairs that may not attend to minus infinity."""
    if visibility.allowed is None:
        return logits
    return torch.where(visibility.allowed, logits, logits.new_full((), -math.inf))


@checked
@dataclass(frozen=True)
class Described:
    """A score that came with a loaded model: named in its spec, not to be built from it."""

    name: str

    def build(self, heads: Count, head_width: Count) -> Scores:
        raise SpecError(
            f"a score {self.name!r} of {heads} heads of width {head_width} comes with a loaded "
            "model and cannot be drawn at random."
        )

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Lent:
    """The score of a loaded model as it is, lent to random networks of the model's shape."""

    name: str
    scores: Scores

    def build(self, heads: int, head_width: int) -> Scores:
        del heads, head_width
        return copy.deepcopy(self.scores)

    def __str__(self) -> str:
        return self.name


@runtime_checkable
class ScoreKind(Protocol):
    """A frozen, hashable description of a score, as held by a ``Spec``."""

    def build(self, heads: Count, head_width: Count) -> Scores:
        """A fresh module for one layer."""
        ...
