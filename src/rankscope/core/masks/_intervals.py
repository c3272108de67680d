"""Masks under which each token attends to one interval of tokens around itself."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.masks._mask import Mask, Spans, count


@checked
@dataclass(frozen=True)
class Full(Mask):
    """Every token attends to every token."""

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return torch.ones_like(query + key, dtype=torch.bool)

    def spans(self, tokens: int) -> Spans:
        return _inside(
            torch.zeros(tokens, dtype=torch.long), torch.full((tokens,), tokens - 1), tokens
        )

    def __str__(self) -> str:
        return "full"


@checked
@dataclass(frozen=True)
class Causal(Mask):
    """Every token attends to itself and to what came before."""

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return key <= query

    def spans(self, tokens: int) -> Spans:
        return _inside(torch.zeros(tokens, dtype=torch.long), torch.arange(tokens), tokens)

    def __str__(self) -> str:
        return "causal"


@checked
@dataclass(frozen=True)
class Window(Mask):
    """Every token attends to ``before`` tokens on its left, itself, and ``after`` on its right."""

    before: int
    after: int

    def __post_init__(self) -> None:
        count("Window before", self.before, least=0)
        count("Window after", self.after, least=0)

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return (key >= query - self.before) & (key <= query + self.after)

    def spans(self, tokens: int) -> Spans:
        position = torch.arange(tokens)
        return _inside(position - self.before, position + self.after, tokens)

    def __str__(self) -> str:
        return f"window(-{self.before}, +{self.after})"


@checked
@dataclass(frozen=True)
class BlockLocal(Mask):
    """Blocks of ``size`` tokens, counted from the first; every token attends to its own block."""

    size: int

    def __post_init__(self) -> None:
        count("BlockLocal size", self.size, least=1)

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return query // self.size == key // self.size

    def spans(self, tokens: int) -> Spans:
        first = torch.arange(tokens) // self.size * self.size
        return _inside(first, first + self.size - 1, tokens)

    def __str__(self) -> str:
        return f"block({self.size})"


@checked
@dataclass(frozen=True)
class Prefix(Mask):
    """Prefix language model: the first ``length`` tokens are seen by all, the rest is causal."""

    length: int

    def __post_init__(self) -> None:
        count("Prefix length", self.length, least=1)

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return (key < self.length) | (key <= query)

    def spans(self, tokens: int) -> Spans:
        last = torch.arange(tokens).clamp(min=min(self.length, tokens) - 1)
        return _inside(torch.zeros(tokens, dtype=torch.long), last, tokens)

    def __str__(self) -> str:
        return f"prefix({self.length})"


@checked
def window(reach: int) -> Window:
    """A sliding window of ``reach`` tokens to either side.

    >>> from rankscope.core.masks import window
    >>> print(window(1).picture(3))
    ■ ■ ·
    ■ ■ ■
    · ■ ■
    """
    return Window(before=reach, after=reach)


@checked
def causal_window(reach: int) -> Window:
    """A sliding window of ``reach`` tokens to the left: ``window(reach) & Causal()``."""
    return Window(before=reach, after=0)


def _inside(first: Tensor, last: Tensor, tokens: int) -> Spans:
    return Spans(first.clamp(min=0), last.clamp(max=tokens - 1))
