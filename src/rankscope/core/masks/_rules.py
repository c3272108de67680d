"""Masks by a rule: intervals around each token, sparse patterns, and named unions."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from rankscope.arguments import checked
from rankscope.core.checks import flag, whole
from rankscope.core.masks._explicit import Random
from rankscope.core.masks._mask import (
    Allowed,
    AnyOf,
    Codes,
    Mask,
    Positions,
    Spans,
    count,
    merge_codes,
)
from rankscope.errors import SpecError


@checked
class _Interval(Mask):
    """A mask by the first and the last key of each query; no position is below -1."""

    @abstractmethod
    def _ends(self, query: Positions) -> tuple[Positions, Positions]: ...

    def allows(self, query: Positions, key: Positions) -> Allowed:
        first, last = self._ends(query)
        return (key >= first) & (key <= last)

    def spans(self, tokens: int) -> Spans:
        first, last = self._ends(torch.arange(tokens))
        return Spans(first.clamp(min=0), last.clamp(max=tokens - 1))


@checked
@dataclass(frozen=True)
class Full(_Interval):
    """Every token attends to every token.

    >>> from rankscope.core.masks import Full
    >>> int(Full().matrix(3).sum())
    9
    """

    def _ends(self, query: Positions) -> tuple[Positions, Positions]:
        return torch.full_like(query, -1), torch.full_like(query, torch.iinfo(query.dtype).max)

    def __str__(self) -> str:
        return "full"


@checked
@dataclass(frozen=True)
class Causal(_Interval):
    """Every token attends to itself and to earlier tokens.

    >>> from rankscope.core.masks import Causal
    >>> print(Causal().picture(3))
    ■ · ·
    ■ ■ ·
    ■ ■ ■
    """

    def _ends(self, query: Positions) -> tuple[Positions, Positions]:
        return torch.full_like(query, -1), query

    def __str__(self) -> str:
        return "causal"


@checked
@dataclass(frozen=True)
class Window(_Interval):
    """Every token attends to ``before`` tokens on its left, itself, and ``after`` on its right.

    >>> from rankscope.core.masks import Window
    >>> print(Window(before=1, after=0).picture(3))
    ■ · ·
    ■ ■ ·
    · ■ ■
    """

    before: int
    after: int

    def __post_init__(self) -> None:
        count("Window before", self.before, least=0)
        count("Window after", self.after, least=0)

    def _ends(self, query: Positions) -> tuple[Positions, Positions]:
        return query - self.before, query + self.after

    def __str__(self) -> str:
        return f"window(-{self.before}, +{self.after})"


@checked
@dataclass(frozen=True)
class BlockLocal(_Interval):
    """Blocks of ``size`` tokens, counted from the first; every token attends to its own block.

    >>> from rankscope.core.masks import BlockLocal
    >>> print(BlockLocal(2).picture(4))
    ■ ■ · ·
    ■ ■ · ·
    · · ■ ■
    · · ■ ■
    """

    size: int

    def __post_init__(self) -> None:
        count("BlockLocal size", self.size, least=1)

    def _ends(self, query: Positions) -> tuple[Positions, Positions]:
        first = query // self.size * self.size
        return first, first + self.size - 1

    def __str__(self) -> str:
        return f"block({self.size})"


@checked
@dataclass(frozen=True)
class Prefix(_Interval):
    """Prefix language model: all tokens see the first ``length`` tokens, the rest is causal.

    >>> from rankscope.core.masks import Prefix
    >>> print(Prefix(length=2).picture(4))
    ■ ■ · ·
    ■ ■ · ·
    ■ ■ ■ ·
    ■ ■ ■ ■
    """

    length: int

    def __post_init__(self) -> None:
        count("Prefix length", self.length, least=1)

    def _ends(self, query: Positions) -> tuple[Positions, Positions]:
        return torch.full_like(query, -1), query.clamp(min=self.length - 1)

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
    """A sliding window of ``reach`` tokens to the left: ``window(reach) & Causal()``.

    >>> from rankscope.core.masks import causal_window
    >>> print(causal_window(1).picture(3))
    ■ · ·
    ■ ■ ·
    · ■ ■
    """
    return Window(before=reach, after=0)


@checked
class OffsetMask(Mask):
    """A mask that depends only on ``key − query``: it defines ``allows_offset``.

    >>> from rankscope.core.masks import OffsetMask
    >>> class Next(OffsetMask):
    ...     def allows_offset(self, offset):
    ...         return (offset == 0) | (offset == 1)
    >>> print(Next().picture(3))
    ■ ■ ·
    · ■ ■
    · · ■
    """

    @abstractmethod
    def allows_offset(self, offset: Positions) -> Allowed:
        """True where a token may attend to the one ``offset`` places to its right."""

    def allows(self, query: Positions, key: Positions) -> Allowed:
        return self.allows_offset(key - query)

    def most_edges(self, tokens: int) -> int:
        return int((tokens - np.abs(self._offsets(tokens))).sum())

    def codes(self, tokens: int) -> Codes:
        self.refuse_many(self.most_edges(tokens), tokens)
        query = np.arange(tokens)[:, None]
        key = query + self._offsets(tokens)
        inside = (key >= 0) & (key < tokens)
        return np.asarray((query * tokens + key)[inside])

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

    def allows_offset(self, offset: Positions) -> Allowed:
        last = 0 if self.causal else self.reach
        return (offset >= -self.reach) & (offset <= last) & (offset % self.step == 0)

    def __str__(self) -> str:
        return f"{'causal-' * self.causal}dilated({self.reach}, every {self.step})"


@checked
@dataclass(frozen=True)
class Strided(OffsetMask):
    """The ``stride`` nearest tokens to either side, and every ``stride``-th token from there on.

    >>> from rankscope.core.masks import Strided
    >>> print(Strided(stride=2, causal=True).picture(5))
    ■ · · · ·
    ■ ■ · · ·
    ■ ■ ■ · ·
    · ■ ■ ■ ·
    ■ · ■ ■ ■

    The strided pattern of the Sparse Transformer (Child et al. 2019) with its two heads in one;
    theirs is ``causal``.
    """

    stride: int
    causal: bool = False

    def __post_init__(self) -> None:
        count("Strided stride", self.stride, least=1)
        flag("Strided causal", self.causal)

    def allows_offset(self, offset: Positions) -> Allowed:
        near = (offset.abs() <= self.stride) | (offset % self.stride == 0)
        return near & (offset <= 0) if self.causal else near

    def __str__(self) -> str:
        return f"{'causal-' * self.causal}strided({self.stride})"


@checked
@dataclass(frozen=True)
class GlobalColumns(Mask):
    """Every token attends to itself and to the last of each ``stride`` tokens.

    >>> from rankscope.core.masks import GlobalColumns
    >>> print(GlobalColumns(stride=2).picture(4))
    ■ ■ · ■
    · ■ · ■
    · ■ ■ ■
    · ■ · ■
    """

    stride: int

    def __post_init__(self) -> None:
        count("GlobalColumns stride", self.stride, least=1)

    def allows(self, query: Positions, key: Positions) -> Allowed:
        return (query == key) | (key % self.stride == self.stride - 1)

    def most_edges(self, tokens: int) -> int:
        return tokens * (tokens // self.stride + 1)

    def codes(self, tokens: int) -> Codes:
        self.refuse_many(self.most_edges(tokens), tokens)
        columns = np.arange(self.stride - 1, tokens, self.stride)
        every = np.arange(tokens)[:, None] * tokens + columns
        return merge_codes([every.ravel(), np.arange(tokens) * (tokens + 1)])

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
        if not isinstance(self.hubs, tuple):
            count("Star hubs", self.hubs, least=1)
            return
        positions = {count("Star hub", position, least=0) for position in self.hubs}
        if not positions:
            raise SpecError("Star's hubs are (); name one or more positions.")
        # One form for each star, so that equal stars compare equal.
        is_start = positions == set(range(len(positions)))
        object.__setattr__(self, "hubs", len(positions) if is_start else tuple(sorted(positions)))

    def allows(self, query: Positions, key: Positions) -> Allowed:
        return (query == key) | self._is_hub(query) | self._is_hub(key)

    def most_edges(self, tokens: int) -> int:
        hubs = self.hubs if isinstance(self.hubs, int) else len(self.hubs)
        return min(tokens * (2 * hubs + 1), tokens**2)

    def codes(self, tokens: int) -> Codes:
        self.refuse_many(self.most_edges(tokens), tokens)
        positions = range(min(self.hubs, tokens)) if isinstance(self.hubs, int) else self.hubs
        hubs = np.array([position for position in positions if position < tokens], dtype=np.int64)
        seen = np.arange(tokens)[:, None] * tokens + hubs
        seeing = hubs[:, None] * tokens + np.arange(tokens)
        return merge_codes([seen.ravel(), seeing.ravel(), np.arange(tokens) * (tokens + 1)])

    def _is_hub(self, position: Positions) -> Allowed:
        if isinstance(self.hubs, int):
            return position < self.hubs
        return torch.isin(position, torch.tensor(self.hubs, device=position.device))

    def __str__(self) -> str:
        return f"star({self.hubs})" if isinstance(self.hubs, int) else f"star(at {self.hubs})"


@checked
@dataclass(frozen=True)
class Fixed(AnyOf):
    """A token's own block of ``stride`` tokens, and the last token of every block.

    >>> from rankscope.core.masks import Fixed
    >>> print(Fixed(stride=2).picture(4))
    ■ ■ · ■
    ■ ■ · ■
    · ■ ■ ■
    · ■ ■ ■

    The fixed pattern of the Sparse Transformer (Child et al. 2019) with its two heads in one;
    theirs is ``Fixed(stride) & Causal()``.
    """

    stride: int

    def __post_init__(self) -> None:
        count("Fixed stride", self.stride, least=1)

    def masks(self) -> tuple[Mask, ...]:
        return (BlockLocal(self.stride), GlobalColumns(self.stride))

    def __str__(self) -> str:
        return f"fixed({self.stride})"


@checked
@dataclass(frozen=True)
class BigBird(AnyOf):
    """Window, global tokens and random keys (Zaheer et al. 2020), all by tokens, not by blocks.

    >>> from rankscope.core.masks import BigBird
    >>> print(BigBird(window=0, hubs=1, random=0).picture(3))
    ■ ■ ■
    ■ ■ ·
    ■ · ■

    Every token sees ``window`` tokens to either side and ``random`` keys drawn as ``Random`` draws
    them; the first ``hubs`` tokens see all and are seen by all. 0 leaves hubs or draws out.
    """

    window: int
    hubs: int
    random: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole("BigBird seed", self.seed, least=0, error=SpecError)
        for name in ("window", "hubs", "random"):
            count(f"BigBird {name}", getattr(self, name), least=0)

    def masks(self) -> tuple[Mask, ...]:
        hubs = (Star(self.hubs),) if self.hubs else ()
        draws = (Random(self.random, self.seed),) if self.random else ()
        return (window(self.window), *hubs, *draws)

    def __str__(self) -> str:
        return (
            f"bigbird(window {self.window}, hubs {self.hubs}, "
            f"random {self.random}, seed {self.seed})"
        )
