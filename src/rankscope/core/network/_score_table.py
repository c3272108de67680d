"""Scores of loaded models, and the table of all scores."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rankscope.arguments import Count, checked
from rankscope.core.network._content_scores import CONTENT_SCORES
from rankscope.core.network._parts import Projection
from rankscope.core.network._position_scores import POSITION_SCORES
from rankscope.core.network._scores import Heads, Pairs, Positions, ScoreEntry, Scores
from rankscope.core.network._visibility import Bias, Visibility
from rankscope.errors import SpecError


@checked
@dataclass(frozen=True)
class Described:
    """The score of a loaded model: named in its spec, but not built from it.

    >>> from rankscope.core.network import Described
    >>> str(Described("disentangled"))
    'disentangled'
    """

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


class Composed(Scores):
    """A score that changes one thing about another, ``then``, and leaves the rest to it.

    Sinks may stand around a cap; everything else needs a score with softmax weights.
    """

    def __init__(self, then: Scores) -> None:
        super().__init__()
        if not then.fused and not isinstance(then, CappedScores):
            raise SpecError(
                f"{type(self).__name__} needs a score with softmax weights; {type(then).__name__} "
                "has others."
            )
        self.then = then

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        return self.then.prepare(query, key, positions)

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias | None:
        return self.then.bias(query, key, positions)


class NormedHeads(Composed):
    """Queries and keys normalised before another score is applied, or after it (``last``).

    A norm as wide as a head acts on each head (Qwen3); a wider one on all heads side by side
    (OLMo 2).
    """

    def __init__(
        self, query_norm: nn.Module, key_norm: nn.Module, then: Scores, *, last: bool = False
    ) -> None:
        super().__init__(then)
        self.query_norm, self.key_norm, self.last = query_norm, key_norm, last

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        if self.last:
            query, key = self.then.prepare(query, key, positions)
        query, key = _normed(self.query_norm, query), _normed(self.key_norm, key)
        return (query, key) if self.last else self.then.prepare(query, key, positions)


def _normed(norm: nn.Module, heads: Heads) -> Heads:
    """A norm of each head, or of all heads side by side; repeated heads count once."""
    gain = getattr(norm, "weight", None)
    width = heads.shape[-1] if gain is None else gain.shape[-1]
    if width == heads.shape[-1]:
        out: Heads = norm(heads)
        return out
    copies = heads.shape[1] * heads.shape[-1] // width
    side_by_side = heads[:, ::copies].transpose(1, 2).flatten(2)
    apart: Heads = norm(side_by_side).unflatten(-1, (-1, heads.shape[-1])).transpose(1, 2)
    return apart if copies == 1 else apart.repeat_interleave(copies, 1)


class CappedScores(Composed):
    """Logits bounded smoothly, ``c·tanh(logit/c)``, before the mask and the softmax (Gemma 2)."""

    def __init__(self, cap: float, then: Scores) -> None:
        super().__init__(then)
        self.cap = cap

    def capped(self, logits: Pairs) -> Pairs:
        """The logits, bounded."""
        return (logits / self.cap).tanh() * self.cap

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        return self.then.weights(self.capped(logits), visibility)


class LearnedSinks(Composed):
    """A learned logit per head that joins the softmax and is dropped (gpt-oss, Flint).

    Each row of weights sums to less than one: the sink takes the rest and has no value. Results
    that need rows that sum to one, such as the theorems on collapse, do not cover it.
    """

    def __init__(self, sinks: Float[Tensor, "head"], then: Scores) -> None:
        super().__init__(then)
        self.sinks = sinks

    def weights(self, logits: Pairs, visibility: Visibility) -> Pairs:
        if isinstance(self.then, CappedScores):
            logits = self.then.capped(logits)
        hidden = visibility.hide(logits)
        sinks = self.sinks.to(logits)[:, None, None].expand(*hidden.shape[:-1], 1)
        return torch.cat((hidden, sinks), -1).softmax(-1)[..., :-1]


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


class DisentangledScores(Scores):
    """DeBERTa: queries also score the distance's key, keys the distance's query.

    Logits are ``scale · (qᵢ·kⱼ + qᵢ·K r(i−j) + kⱼ·Q r(i−j))`` with an embedding r of the distance:
    exact up to half of ``buckets``, logarithmic up to ``farthest``. ``embeddings`` gives all of
    them, ``2·span`` rows; a projection that is None leaves its term out.
    """

    def __init__(
        self,
        embeddings: Callable[[], Float[Tensor, "distance feature"]],
        *,
        key: Projection | None,
        query: Projection | None,
        scale: float,
        span: int,
        buckets: int,
        farthest: int,
    ) -> None:
        super().__init__()
        self.embeddings, self.key, self.query = embeddings, key, query
        self.scale, self.span = scale, span
        self.buckets, self.farthest = buckets, farthest

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias:
        table = self.embeddings()[: 2 * self.span].to(query)
        ahead = positions[:, :, None] - positions[:, None, :]
        index = (self._bucket(ahead) + self.span).clamp(0, 2 * self.span - 1)[:, None]
        index = index.expand(len(query), query.shape[1], -1, -1)
        total = query.new_zeros(())
        if self.key is not None:
            rows = self.key(table).unflatten(-1, (query.shape[1], -1)).transpose(0, 1)
            total = total + (query @ rows.mT).gather(-1, index)
        if self.query is not None:
            rows = self.query(table).unflatten(-1, (query.shape[1], -1)).transpose(0, 1)
            total = total + (key @ rows.mT).gather(-1, index.mT).mT
        return total * self.scale

    def _bucket(self, ahead: Int[Tensor, "rows query key"]) -> Int[Tensor, "rows query key"]:
        """Distances, those beyond half of the buckets on a logarithmic scale."""
        middle = self.buckets // 2
        if self.buckets <= 0:
            return ahead
        near = ahead.abs() < middle
        size = torch.where(near, middle - 1, ahead.abs()).float()
        top = math.log((self.farthest - 1) / middle)
        far = torch.ceil(torch.log(size / middle) / top * (middle - 1)) + middle
        return torch.where(near, ahead, (far * ahead.sign()).long())


SCORES: dict[type[Scores], ScoreEntry] = {
    entry.module: entry
    for entry in (
        ScoreEntry("dot product", Scores, "dot", rule="products", bounds=True),
        *POSITION_SCORES,
        *CONTENT_SCORES,
        ScoreEntry("normalised heads", NormedHeads),
        ScoreEntry("capped logits", CappedScores),
        ScoreEntry("learned sinks", LearnedSinks),
        ScoreEntry("sinusoids of distances", SinusoidKeys),
        ScoreEntry("disentangled positions", DisentangledScores),
    )
}


def score_entry(scores: Scores) -> ScoreEntry:
    """The entry of a score, by its exact class: a subclass may compute something else.

    A user's score has no entry. It runs, and paths use its weights; scaled arithmetic uses its
    logits in plain numbers if its weights are a softmax; no bound covers it.
    """
    kind = type(scores)
    return SCORES.get(kind, ScoreEntry(kind.__name__, kind))
