"""Masks under which each token attends to few tokens, near and far."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import flag
from rankscope.core.masks._codes import Codes, merge, offset_codes
from rankscope.core.masks._mask import Mask, count
from rankscope.errors import SpecError


@checked
class OffsetMask(Mask):
    """A mask that depends on ``key − query`` alone: it defines ``allows_offset``."""

    @abstractmethod
    def allows_offset(self, offset: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """True where a token may attend to the one ``offset`` places to its right."""

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return self.allows_offset(key - query)

    def most_edges(self, tokens: int) -> int:
        return int((tokens - np.abs(self._offsets(tokens))).sum())

    def codes(self, tokens: int) -> Codes:
        self.refuse_many(self.most_edges(tokens), tokens)
        return offset_codes(self._offsets(tokens), tokens)

    def _offsets(self, tokens: int) -> Codes:
        every = torch.arange(1 - tokens, tokens)
        return np.asarray(every[self.allows_offset(every)].numpy())


@checked
@dataclass(frozen=True)
class Dilated(OffsetMask):
    """Every ``step``-th token up to ``reach`` tokens away, to both sides or to the left alone.

    >>> from rankscope.core.masks import Dilated
    >>> print(Dilated(reach=2, step=2).picture(4))
    ■ · ■ ·
    · ■ · ■
    ■ · ■ ·
    · ■ · ■
    """

    reach: int
    step: int
    causal: bool = False

    def __post_init__(self) -> None:
        count("Dilated reach", self.reach, least=0)
        count("Dilated step", self.step, least=1)
        flag("Dilated causal", self.causal)

    def allows_offset(self, offset: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        last = 0 if self.causal else self.reach
        return (offset >= -self.reach) & (offset <= last) & (offset % self.step == 0)

    def __str__(self) -> str:
        return f"{'causal-' * self.causal}dilated({self.reach}, every {self.step})"


@checked
@dataclass(frozen=True)
class Strided(OffsetMask):
    """The ``stride`` nearest tokens to either side, and every ``stride``-th token from there on.

    The strided pattern of the Sparse Transformer (Child et al. 2019) with its two heads in one;
    theirs is ``causal``.
    """

    stride: int
    causal: bool = False

    def __post_init__(self) -> None:
        count("Strided stride", self.stride, least=1)
        flag("Strided causal", self.causal)

    def allows_offset(self, offset: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        near = (offset.abs() <= self.stride) | (offset % self.stride == 0)
        return near & (offset <= 0) if self.causal else near

    def __str__(self) -> str:
        return f"{'causal-' * self.causal}strided({self.stride})"


@checked
@dataclass(frozen=True)
class Columns(Mask):
    """Every token attends to itself and to the last of each ``stride`` tokens."""

    stride: int

    def __post_init__(self) -> None:
        count("Columns stride", self.stride, least=1)

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return (query == key) | (key % self.stride == self.stride - 1)

    def most_edges(self, tokens: int) -> int:
        return tokens * (tokens // self.stride + 1)

    def codes(self, tokens: int) -> Codes:
        self.refuse_many(self.most_edges(tokens), tokens)
        columns = np.arange(self.stride - 1, tokens, self.stride)
        every = np.arange(tokens)[:, None] * tokens + columns
        return merge([every.ravel(), _itself(tokens)])

    def __str__(self) -> str:
        return f"columns({self.stride})"


@checked
@dataclass(frozen=True)
class Star(Mask):
    """Global tokens: hubs see all tokens and are seen by all; the others see hubs and themselves.

    >>> from rankscope.core.masks import Star
    >>> print(Star(hubs=1).picture(3))
    ■ ■ ■
    ■ ■ ·
    ■ · ■

    ``hubs`` is how many tokens from the first on, or their positions. A sequence too short to
    have a hub goes without it.
    """

    hubs: int | tuple[int, ...] = 1

    def __post_init__(self) -> None:
        hubs = self.hubs
        if isinstance(hubs, tuple):
            places = {count("Star hub", place, least=0) for place in hubs}
        else:
            count("Star hubs", hubs, least=1)
            return
        if not places:
            raise SpecError("Star's hubs are (); name one or more positions.")
        # One spelling for each star, so that equal ones are equal.
        is_start = places == set(range(len(places)))
        object.__setattr__(self, "hubs", len(places) if is_start else tuple(sorted(places)))

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return (query == key) | self._is_hub(query) | self._is_hub(key)

    def most_edges(self, tokens: int) -> int:
        hubs = self.hubs if isinstance(self.hubs, int) else len(self.hubs)
        return min(tokens * (2 * hubs + 1), tokens**2)

    def codes(self, tokens: int) -> Codes:
        self.refuse_many(self.most_edges(tokens), tokens)
        places = range(min(self.hubs, tokens)) if isinstance(self.hubs, int) else self.hubs
        hubs = np.array([place for place in places if place < tokens], dtype=np.int64)
        seen = np.arange(tokens)[:, None] * tokens + hubs
        seeing = hubs[:, None] * tokens + np.arange(tokens)
        return merge([seen.ravel(), seeing.ravel(), _itself(tokens)])

    def _is_hub(self, position: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        if isinstance(self.hubs, int):
            return position < self.hubs
        return torch.isin(position, torch.tensor(self.hubs, device=position.device))

    def __str__(self) -> str:
        return f"star({self.hubs})" if isinstance(self.hubs, int) else f"star(at {self.hubs})"


def _itself(tokens: int) -> Codes:
    return np.arange(tokens) * (tokens + 1)
