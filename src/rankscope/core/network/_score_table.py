"""Scores of loaded models, and the table of all scores."""

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rankscope.arguments import Count, checked
from rankscope.core.network._content_scores import CONTENT_SCORES
from rankscope.core.network._parts import Projection
from rankscope.core.network._position_scores import POSITION_SCORES
from rankscope.core.network._scores import Heads, Positions, ScoreEntry, Scores
from rankscope.core.network._visibility import Bias
from rankscope.errors import SpecError


@checked
@dataclass(frozen=True)
class Described:
    """The score of a loaded model: named in its spec, but not built from it."""

    name: str

    def build(self, heads: Count, head_width: Count) -> Scores:
        raise SpecError(
            f"a score {self.name!r} of {heads} heads of width {head_width} belongs to a loaded "
            "model and cannot be initialised at random."
        )

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Lent:
    """The score of a loaded model, used for random networks of the same shape."""

    name: str
    scores: Scores

    def build(self, heads: int, head_width: int) -> Scores:
        del heads, head_width
        return copy.deepcopy(self.scores)

    def __str__(self) -> str:
        return self.name


class NormedHeads(Scores):
    """Queries and keys normalised per head before another score is applied (Qwen3)."""

    def __init__(self, query_norm: nn.Module, key_norm: nn.Module, then: Scores) -> None:
        super().__init__()
        if not then.fused:
            raise SpecError(
                f"normalised heads need a score with softmax weights; {type(then).__name__} has "
                "others."
            )
        self.query_norm, self.key_norm, self.then = query_norm, key_norm, then

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        return self.then.prepare(self.query_norm(query), self.key_norm(key), positions)

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias | None:
        return self.then.bias(query, key, positions)


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
        """Sinusoids in float32, as the original computes them in every dtype."""
        if self.farthest is not None:
            distances = distances.clamp(-self.farthest, self.farthest)
        steps = torch.arange(0, self.width, 2.0, device=distances.device)
        angles = distances.float()[:, None] * (1 / torch.pow(10000, steps / self.width))
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


SCORES: dict[type[Scores], ScoreEntry] = {
    entry.module: entry
    for entry in (
        ScoreEntry("dot product", Scores, "dot", rule="products", bounds=True),
        *POSITION_SCORES,
        *CONTENT_SCORES,
        ScoreEntry("normalised heads", NormedHeads),
        ScoreEntry("sinusoids of distances", SinusoidKeys),
    )
}


def score_entry(scores: Scores) -> ScoreEntry:
    """The entry of a score, by its exact class: a subclass may compute something else.

    A user's score has no entry. It runs, and paths use its weights; scaled arithmetic uses its
    logits in plain numbers if its weights are a softmax; no bound covers it.
    """
    kind = type(scores)
    return SCORES.get(kind, ScoreEntry(kind.__name__, kind))
