"""Masks: which keys each query may attend to, as a function of positions; unions, intersections.

A mask is evaluated at positions, not tensor indices, and positions count only real tokens. So
padding does not change how a sequence is masked. Edges are listed as sorted numbers ``query ·
tokens + key``, built from the structure of a mask and merged, never from a dense matrix.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.errors import InputError, ShapeError, SpecError
from rankscope.numerals import cut, short

Codes = NDArray[np.int64]
Positions = Int[Tensor, "..."]
Allowed = Bool[Tensor, "..."]

MOST_EDGES = 2**26
"""More edges than this are not listed: sixty-seven million are a gigabyte already."""
MOST_PAIRS = 2**32
"""More pairs than this are not held in a dense matrix: four gigabytes of them."""
_PAIRS_AT_ONCE = 2**22
"""Pairs evaluated at a time if a mask has no structure: 32 MiB of positions."""


class Edges(NamedTuple):
    """Every allowed pair once, ordered by query, then by key.

    >>> from rankscope.core.masks import Causal
    >>> query, key = Causal().edges(2)
    >>> list(zip(query.tolist(), key.tolist(), strict=True))
    [(0, 0), (1, 0), (1, 1)]
    """

    query: Int[Tensor, "edge"]
    key: Int[Tensor, "edge"]


class Spans(NamedTuple):
    """For every query the first and the last key of the one interval it attends to.

    >>> from rankscope.core.masks import window
    >>> first, last = window(1).spans(4)
    >>> first.tolist(), last.tolist()
    ([0, 0, 1, 2], [1, 2, 3, 3])
    """

    first: Int[Tensor, "query"]
    last: Int[Tensor, "query"]


def _broadcasting(allows: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Check that positions are whole numbers with shapes that broadcast; the answer has all axes.

    A rule about keys alone gives one row, which is that of every query.
    """

    @wraps(allows)
    def checked_allows(self: "Mask", *args: Tensor, **named: Tensor) -> Tensor:
        shapes = [tuple(positions.shape) for positions in (*args, *named.values())]
        try:
            torch.broadcast_shapes(*shapes)
        except RuntimeError:
            listed = " and ".join(map(str, shapes))
            raise ShapeError(f"positions of shapes {listed} cannot be broadcast.") from None
        allowed = allows(self, *args, **named)
        return allowed.expand(torch.broadcast_shapes(allowed.shape, *shapes[:2]))

    return checked(checked_allows)


@checked
class Mask(ABC):
    """Which keys each query may attend to; frozen, hashable, independent of any network.

    >>> from rankscope.core.masks import Mask
    >>> class EvenKeys(Mask):
    ...     def allows(self, query, key):
    ...         return (key % 2 == 0) | (key == query)
    >>> print(EvenKeys().picture(4))
    ■ · ■ ·
    ■ ■ ■ ·
    ■ · ■ ·
    ■ · ■ ■

    A user's mask needs only ``allows``. ``a | b`` is the union, ``a & b`` the intersection.
    """

    def __init_subclass__(cls) -> None:
        for name in ("allows", "allows_in", "allows_offset"):
            if name in vars(cls):
                setattr(cls, name, _broadcasting(vars(cls)[name]))

    @abstractmethod
    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True where the token at position ``query`` may attend to the one at ``key``.

        The last two axes are query and key, the axes before them are sequences. Padding on the left
        has position -1; the caller ignores its rows and columns.
        """

    def allows_in(self, query: Positions, key: Positions, tokens: Positions) -> Allowed:
        """``allows`` in sequences of ``tokens`` tokens, for masks that depend on the length."""
        del tokens
        return self.allows(query, key)

    def spans(self, tokens: int) -> Spans | None:
        """The keys of each query as one interval that contains the query; None if they are not.

        If there are spans, no list of edges is needed.
        """
        del tokens
        return None

    def matrix(self, tokens: int) -> Bool[Tensor, "query key"]:
        """The mask of a sequence without padding."""
        position = torch.arange(dense(tokens))
        matrix = self.allows_in(position[:, None], position[None, :], torch.tensor(tokens))
        refuse_blind(matrix.any(-1), str(self))
        return matrix

    def edges(self, tokens: int) -> Edges:
        """The allowed pairs of a sequence without padding, listed without a dense matrix."""
        query, key = np.divmod(self.codes(token_count(tokens)), tokens)
        seen = torch.zeros(tokens, dtype=torch.bool)
        seen[torch.from_numpy(query)] = True
        refuse_blind(seen, str(self))
        return Edges(torch.from_numpy(query), torch.from_numpy(key))

    def missing_self_loops(self, tokens: int) -> tuple[int, ...]:
        """The tokens that may not attend to themselves; the theory of masks assumes none."""
        position = torch.arange(token_count(tokens))
        loops = self.allows_in(position[:, None], position[:, None], torch.tensor(tokens))
        return tuple(position[~loops.squeeze(-1)].tolist())

    def picture(self, tokens: int = 16) -> str:
        """A row of squares for each query, one for each key, filled where it may attend.

        >>> from rankscope.core.masks import Causal
        >>> print(Causal().picture(3))
        ■ · ·
        ■ ■ ·
        ■ ■ ■
        """
        rows = self.matrix(tokens).tolist()
        return "\n".join(" ".join("■" if allowed else "·" for allowed in row) for row in rows)

    def _repr_html_(self) -> str:
        """A picture of 16 tokens, or of at most 32 tokens if the mask is for a fixed length."""
        from rankscope.show.display import card, grid, paragraph

        made_for = getattr(self, "tokens", None)
        tokens = made_for if isinstance(made_for, int) else 16
        shown = torch.arange(min(tokens, 32))
        try:
            allowed = self.allows_in(shown[:, None], shown[None, :], torch.tensor(tokens))
        except InputError:  # a part of it is for another length
            return card(cut(f"{self} mask"))
        rows = allowed.expand(len(shown), len(shown)).tolist()
        label = f"mask {self}: the keys (columns) that each query (row) may attend to"
        words = f"{len(shown)} of {tokens} tokens; rows are queries, columns keys"
        return card(cut(f"{self} mask"), paragraph(words), grid(rows, cut(label)))

    def most_edges(self, tokens: int) -> int:
        """An upper bound on the number of edges, checked before they are listed."""
        spans = self.spans(tokens)
        return tokens**2 if spans is None else int((spans.last - spans.first + 1).sum())

    def codes(self, tokens: int) -> Codes:
        """The edges as sorted numbers ``query · tokens + key``, which can be merged."""
        spans = self.spans(tokens)
        if spans is not None:
            self.refuse_many(self.most_edges(tokens), tokens)
            first, last = spans.first.numpy(), spans.last.numpy()
            widths = last - first + 1
            starts = np.arange(tokens) * tokens + first
            before = np.cumsum(widths) - widths
            return np.repeat(starts - before, widths) + np.arange(widths.sum())
        listed, position = list[Codes](), torch.arange(tokens)
        for query in position.split(max(1, _PAIRS_AT_ONCE // tokens)):
            allowed = self.allows_in(query[:, None], position[None, :], torch.tensor(tokens))
            rows = allowed.expand(len(query), tokens).numpy()
            listed.append(np.flatnonzero(rows) + int(query[0]) * tokens)
            self.refuse_many(sum(map(len, listed)), tokens)
        return np.concatenate(listed)

    def refuse_many(self, edges: int, tokens: int) -> None:
        """Raise before a list of edges exceeds memory."""
        if edges > MOST_EDGES:
            raise InputError(
                f"the mask {self} of {tokens} tokens has {short(float(edges))} edges or more; at "
                f"most {short(float(MOST_EDGES))} can be listed. Use fewer tokens or a sparser "
                "mask."
            )

    def __or__(self, other: object) -> "Mask":
        return union(self, other) if isinstance(other, Mask) else NotImplemented

    def __and__(self, other: object) -> "Mask":
        return intersection(self, other) if isinstance(other, Mask) else NotImplemented


@checked
class LengthMask(Mask):
    """A mask that depends on the sequence length: it defines ``allows_in``.

    >>> from rankscope.core.masks import LengthMask
    >>> class LastToken(LengthMask):
    ...     def allows_in(self, query, key, tokens):
    ...         return (key == query) | (key == tokens - 1)
    >>> print(LastToken().picture(3))
    ■ · ■
    · ■ ■
    · · ■
    """

    def allows(self, query: Positions, key: Positions) -> Allowed:
        return self.allows_in(query, key, lengths(query, key))

    @abstractmethod
    def allows_in(self, query: Positions, key: Positions, tokens: Positions) -> Allowed: ...


@checked
class AnyOf(LengthMask):
    """The union of some ``masks``, named or not."""

    @abstractmethod
    def masks(self) -> tuple[Mask, ...]: ...

    def allows_in(self, query: Positions, key: Positions, tokens: Positions) -> Allowed:
        return reduce(torch.logical_or, (m.allows_in(query, key, tokens) for m in self.masks()))

    def spans(self, tokens: int) -> Spans | None:
        """Intervals that share a token (the query) are joined."""
        ends = _all_spans(self.masks(), tokens)
        return None if ends is None else Spans(ends[0].amin(0), ends[1].amax(0))

    def most_edges(self, tokens: int) -> int:
        return min(tokens**2, sum(mask.most_edges(tokens) for mask in self.masks()))

    def codes(self, tokens: int) -> Codes:
        if self.spans(tokens) is not None:
            return super().codes(tokens)
        return merge_codes([mask.codes(tokens) for mask in self.masks()])


@checked
@dataclass(frozen=True)
class Union(AnyOf):
    """The union of its parts; written ``a | b``.

    >>> from rankscope.core.masks import Causal, Star
    >>> print((Causal() | Star(hubs=1)).picture(3))
    ■ ■ ■
    ■ ■ ·
    ■ ■ ■
    """

    parts: tuple[Mask, ...]

    def masks(self) -> tuple[Mask, ...]:
        return self.parts

    def __str__(self) -> str:
        return " | ".join(map(str, self.parts))


@checked
@dataclass(frozen=True)
class Intersection(LengthMask):
    """The intersection of its parts; written ``a & b``.

    >>> from rankscope.core.masks import Causal, window
    >>> print((window(1) & Causal()).picture(3))
    ■ · ·
    ■ ■ ·
    · ■ ■
    """

    parts: tuple[Mask, ...]

    def allows_in(self, query: Positions, key: Positions, tokens: Positions) -> Allowed:
        return reduce(torch.logical_and, (p.allows_in(query, key, tokens) for p in self.parts))

    def spans(self, tokens: int) -> Spans | None:
        ends = _all_spans(self.parts, tokens)
        return None if ends is None else Spans(ends[0].amax(0), ends[1].amin(0))

    def most_edges(self, tokens: int) -> int:
        return min(part.most_edges(tokens) for part in self.parts)

    def codes(self, tokens: int) -> Codes:
        """The edges of the sparsest part without those that another part forbids."""
        if self.spans(tokens) is not None:
            return super().codes(tokens)
        sparsest = min(self.parts, key=lambda part: part.most_edges(tokens))
        codes = sparsest.codes(tokens)
        query, key = map(torch.from_numpy, np.divmod(codes, tokens))
        allowed = self.allows_in(query[:, None], key[:, None], torch.tensor(tokens))
        return np.asarray(codes[allowed.squeeze(-1).numpy()])

    def __str__(self) -> str:
        return " & ".join(f"({p})" if isinstance(p, Union) else str(p) for p in self.parts)


@checked
def union(*masks: Mask) -> Mask:
    """The union of masks; order and repetitions make no difference.

    >>> from rankscope.core.masks import Causal, Window, union
    >>> str(union(Causal(), Window(before=0, after=1)))
    'causal | window(-0, +1)'
    """
    parts = _parts(Union, masks)
    return parts[0] if len(parts) == 1 else Union(parts)


@checked
def intersection(*masks: Mask) -> Mask:
    """The intersection of masks; order and repetitions make no difference.

    >>> from rankscope.core.masks import Causal, intersection, window
    >>> str(intersection(window(2), Causal()))
    'causal & window(-2, +2)'
    """
    parts = _parts(Intersection, masks)
    return parts[0] if len(parts) == 1 else Intersection(parts)


def _parts(kind: type[Union] | type[Intersection], masks: Iterable[Mask]) -> tuple[Mask, ...]:
    flat = [part for mask in masks for part in (mask.parts if isinstance(mask, kind) else (mask,))]
    if not flat:
        raise SpecError("no masks were given; expected at least one.")
    return tuple(sorted(dict.fromkeys(flat), key=lambda part: (str(part), repr(part))))


def _all_spans(
    parts: tuple[Mask, ...], tokens: int
) -> tuple[Int[Tensor, "part query"], Int[Tensor, "part query"]] | None:
    """The first and the last keys under each of the parts; None unless all have spans."""
    spans = [span for part in parts if (span := part.spans(tokens)) is not None]
    if len(spans) < len(parts):
        return None
    return torch.stack([span.first for span in spans]), torch.stack([span.last for span in spans])


def merge_codes(parts: Sequence[Codes]) -> Codes:
    """The union of sorted codes; a stable sort merges sorted runs in linear time."""
    every = np.sort(np.concatenate(parts), kind="stable")
    return np.asarray(every[np.diff(every, prepend=-1) > 0])


def lengths(query: Positions, key: Positions) -> Positions:
    """The number of real tokens of each sequence, from the largest position."""
    last = [at.amax(tuple(range(at.ndim))[-2:], keepdim=True) for at in (query, key)]
    return torch.maximum(*last) + 1


def count(name: str, value: object, *, least: int) -> int:
    """Check that a number is a valid count of positions."""
    return whole(name, value, least=least, most=2**31 - 1, error=SpecError)


def token_count(tokens: object) -> int:
    """A number of tokens whose edges can be listed, one for each at the least, or an error."""
    return whole("tokens", tokens, least=1, most=MOST_EDGES, error=SpecError)


def dense(tokens: object, sequences: int = 1) -> int:
    """A number of tokens whose pairs fit into a matrix, or an error."""
    length = token_count(tokens)
    if sequences * length**2 > MOST_PAIRS:
        raise InputError(
            f"tokens={length} make {short(float(sequences * length**2))} pairs of a query and a "
            f"key, of which at most {short(float(MOST_PAIRS))} are held at once; ask for fewer."
        )
    return length


def refuse_blind(sees: Bool[Tensor, "query"], name: str) -> None:
    """Raise if a token has no key: its attention weights would be 0/0."""
    if not bool(sees.all()):
        raise SpecError(
            f"under the mask {name} token {int((~sees).nonzero()[0])} has no key to attend to; "
            "every token needs at least one key (usually itself)."
        )
