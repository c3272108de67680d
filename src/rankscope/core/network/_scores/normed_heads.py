"""Queries and keys normalised head by head, as in Qwen3."""

from torch import nn

from rankscope.core.network._scores.base import Bias, Heads, Positions, Scores
from rankscope.errors import SpecError


class NormedHeads(Scores):
    """Queries and keys normalised head by head before another score sees them (Qwen3)."""

    def __init__(self, query_norm: nn.Module, key_norm: nn.Module, then: Scores) -> None:
        super().__init__()
        if not then.fused:
            raise SpecError(
                f"normalised heads go before a score whose weights are a softmax, and those of "
                f"{type(then).__name__} are not."
            )
        self.query_norm, self.key_norm, self.then = query_norm, key_norm, then

    def prepare(self, query: Heads, key: Heads, positions: Positions) -> tuple[Heads, Heads]:
        return self.then.prepare(self.query_norm(query), self.key_norm(key), positions)

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias | None:
        return self.then.bias(query, key, positions)
