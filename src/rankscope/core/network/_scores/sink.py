"""Attention sinks: a bias of the first keys."""

from dataclasses import dataclass

from rankscope.arguments import Count, checked
from rankscope.core.checks import number, whole
from rankscope.core.network._scores.base import Bias, Heads, Positions, Scores
from rankscope.errors import SpecError


@checked
@dataclass(frozen=True, kw_only=True)
class Sink:
    """Attention sinks: logits to the first ``tokens`` tokens are raised by ``strength``.

    >>> from rankscope import Spec
    >>> from rankscope.core.network import Sink
    >>> spec = Spec(2, 2, 8, scores=Sink(tokens=1, strength=4.0), mask="causal")

    After Xiao et al. 2024, who find such tokens in trained models. A bias of keys alone: once the
    tokens agree, so do the rows of P.
    """

    tokens: int = 1
    strength: float = 4.0

    def __post_init__(self) -> None:
        whole("Sink tokens", self.tokens, least=1, error=SpecError)
        strength = number("Sink strength", self.strength, error=SpecError)
        object.__setattr__(self, "strength", strength)

    def build(self, heads: Count, head_width: Count) -> Scores:
        del heads, head_width
        return SinkScores(self.tokens, self.strength)

    def __str__(self) -> str:
        return f"sink(first {self.tokens}, {self.strength:+g})"


class SinkScores(Scores):
    """A bias of the first keys."""

    def __init__(self, tokens: int, strength: float) -> None:
        super().__init__()
        self.tokens, self.strength = tokens, strength

    def bias(self, query: Heads, key: Heads, positions: Positions) -> Bias:
        del key
        first = positions < self.tokens
        return (first.to(query.dtype) * self.strength)[:, None, None, :]
