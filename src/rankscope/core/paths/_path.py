"""Paths through the heads of a network: one choice per layer, a head or the way around it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, exp, lgamma, log

import torch

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.errors import InputError, KindError
from rankscope.streams import stream

_MOST = 10_000
"""Layers and heads of a network whose paths are counted, one number a length."""
_MOST_DRAWN = 1_000_000


@checked
@dataclass(frozen=True)
class Path:
    """One choice per layer: a head, counted from 0, or None for the skip.

    >>> from rankscope import Path
    >>> print(Path((2, None, 0)))
    h2 → skip → h0
    >>> Path((2, None, 0)).length
    2
    """

    choices: tuple[int | None, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))
        for choice in self.choices:
            if choice is not None:
                whole("a head on a path", choice, least=0)

    @classmethod
    def of(cls, *choices: int | None) -> "Path":
        """``Path.of(2, None, 0)``."""
        return cls(tuple(choices))

    @property
    def length(self) -> int:
        """How many layers the path does not skip."""
        return sum(choice is not None for choice in self.choices)

    def __str__(self) -> str:
        return " → ".join("skip" if each is None else f"h{each}" for each in self.choices)

    def check(self, layers: int, heads: int) -> None:
        """Raise unless the path fits a network of this shape."""
        if len(self.choices) != layers:
            raise InputError(
                f"the path {self} has {len(self.choices)} choices, the network {layers} layers; "
                "give one choice for each."
            )
        wrong = [each for each in self.choices if each is not None and each >= heads]
        if wrong:
            raise InputError(
                f"the path {self} asks for head {wrong[0]}, but heads are 0 to {heads - 1}."
            )


@checked
def enumerate_paths(layers: int, heads: int, *, length: int | None = None) -> Iterator[Path]:
    """All paths in order, or all of one length; there are ``(heads + 1) ** layers`` of them.

    >>> from rankscope import enumerate_paths
    >>> [str(path) for path in enumerate_paths(2, 1)]
    ['skip → skip', 'skip → h0', 'h0 → skip', 'h0 → h0']
    """
    _shape(layers, heads)
    if length is None:
        for choices in product((None, *range(heads)), repeat=layers):
            yield Path(choices)
        return
    _length(length, layers)
    for kept in combinations(range(layers), length):
        for chosen in product(range(heads), repeat=length):
            picked = dict(zip(kept, chosen, strict=True))
            yield Path(tuple(picked.get(layer) for layer in range(layers)))


@checked
def sample_paths(
    layers: int, heads: int, *, length: int, count: int, generator: torch.Generator | None = None
) -> list[Path]:
    """Paths of one length, drawn uniformly and independently.

    Figure 4 of Dong et al. 2021 is made of such paths. Without a ``generator`` that of seed 0 is
    used; no global random state is touched.
    """
    _shape(layers, heads)
    _length(length, layers)
    whole("count", count, least=0, most=_MOST_DRAWN)
    generator = generator or stream(0, "paths")
    drawn = []
    for _ in range(count):
        kept = torch.randperm(layers, generator=generator)[:length].tolist()
        chosen = torch.randint(heads, (length,), generator=generator).tolist()
        picked = dict(zip(kept, chosen, strict=True))
        drawn.append(Path(tuple(picked.get(layer) for layer in range(layers))))
    return drawn


@checked
@dataclass(frozen=True)
class PathCounts:
    """How many paths of each length there are, and what part of all they make."""

    layers: int
    heads: int

    def __post_init__(self) -> None:
        _shape(self.layers, self.heads)

    @property
    def counts(self) -> tuple[int, ...]:
        """``C(L, k) H^k`` for k = 0 … L, exactly."""
        return tuple(comb(self.layers, k) * self.heads**k for k in range(self.layers + 1))

    @property
    def total(self) -> int:
        """``(H + 1)^L``, exactly."""
        total: int = (self.heads + 1) ** self.layers
        return total

    @property
    def proportions(self) -> tuple[float, ...]:
        """Each length's part of all paths, by logarithms, so that no size overflows."""
        whole = self.layers * log(self.heads + 1)
        return tuple(
            exp(_log_comb(self.layers, k) + k * log(self.heads) - whole)
            for k in range(self.layers + 1)
        )


@checked
def count_paths(layers: int, heads: int) -> PathCounts:
    """How many paths of each length a network has.

    >>> from rankscope import count_paths
    >>> count_paths(2, 3).counts
    (1, 6, 9)
    """
    return PathCounts(layers, heads)


def check_all(paths: Sequence[Path], layers: int, heads: int) -> None:
    """Raise unless every path fits a network of this shape."""
    for path in paths:
        if not isinstance(path, Path):
            raise KindError(f"got {path!r} for a path; write Path.of(2, None, 0).")
        path.check(layers, heads)


def _log_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _shape(layers: int, heads: int) -> None:
    whole("layers", layers, least=1, most=_MOST)
    whole("heads", heads, least=1, most=_MOST)


def _length(length: int, layers: int) -> None:
    whole("length", length, least=0, most=layers)
