"""Any graph as a mask: from a boolean matrix or a list of edges of one length, or at random."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.masks._mask import (
    Allowed,
    Codes,
    LengthMask,
    Positions,
    count,
    dense,
    refuse_blind,
    token_count,
)
from rankscope.errors import KindError, ShapeError, SpecError
from rankscope.streams import stream_seed


@checked
@dataclass(frozen=True, repr=False)
class Explicit(LengthMask):
    """Any mask for sequences of one length, as a boolean matrix: ``Explicit.of(matrix)``.

    >>> import torch
    >>> from rankscope.core.masks import Explicit
    >>> print(Explicit.of(torch.tensor([[True, False], [True, True]])).picture(2))
    ■ ·
    ■ ■

    In a batch whose longest sequence has that length, shorter ones use the upper left corner.
    """

    tokens: int
    bits: bytes

    def __post_init__(self) -> None:
        expected = -(-(dense(self.tokens) ** 2) // 8)
        if len(self.bits) != expected:
            raise ShapeError(
                f"bits has {len(self.bits)} bytes, expected {expected} for {self.tokens} tokens; "
                "make the mask with Explicit.of(matrix)."
            )

    @classmethod
    def of(cls, matrix: Tensor) -> "Explicit":
        """Take a boolean ``(query, key)`` matrix; True where the query may attend to the key."""
        check_matrix(matrix)
        return cls(matrix.shape[0], np.packbits(matrix.cpu().numpy()).tobytes())

    def _unpacked(self) -> NDArray[np.uint8]:
        return np.unpackbits(np.frombuffer(self.bits, dtype=np.uint8), count=self.tokens**2)

    def allows_in(self, query: Positions, key: Positions, tokens: Positions) -> Allowed:
        _refuse_length(self.tokens, int(tokens.max()))
        matrix = torch.from_numpy(self._unpacked().view(np.bool_)).view(self.tokens, self.tokens)
        return matrix.to(query.device)[query.clamp(min=0), key.clamp(min=0)]

    def codes(self, tokens: int) -> Codes:
        """All edges at once; row by row, all bits would be unpacked for each row."""
        _refuse_length(self.tokens, tokens)
        flat = self._unpacked()
        self.refuse_many(int(np.count_nonzero(flat)), tokens)
        return np.flatnonzero(flat)

    def __repr__(self) -> str:
        """Short, and different for different matrices, since digests of specs use it."""
        return f"Explicit({self.tokens} tokens, {_fingerprint(self.bits)})"

    def __str__(self) -> str:
        return f"explicit({self.tokens} tokens)"


@checked
@dataclass(frozen=True, repr=False)
class EdgeList(LengthMask):
    """Any mask for sequences of one length, as a list of edges: ``from_edges(tokens, edges)``.

    >>> from rankscope.core.masks import from_edges
    >>> mask = from_edges(2, [(0, 0), (1, 0), (1, 1)])
    >>> type(mask).__name__, mask.edges(2).key.tolist()
    ('EdgeList', [0, 1, 1])
    """

    tokens: int
    packed: bytes

    def __post_init__(self) -> None:
        token_count(self.tokens)
        fits = len(self.packed) and len(self.packed) % 8 == 0
        codes = np.frombuffer(self.packed, dtype=np.int64) if fits else np.array([-1])
        if codes[0] < 0 or codes[-1] >= self.tokens**2 or (np.diff(codes) <= 0).any():
            raise SpecError(
                f"packed holds no ordered edges among {self.tokens} tokens; make the mask with "
                "from_edges(tokens, edges)."
            )

    def allows_in(self, query: Positions, key: Positions, tokens: Positions) -> Allowed:
        listed = torch.from_numpy(self.codes(int(tokens.max()))).to(query.device)
        asked = query.clamp(min=0) * self.tokens + key.clamp(min=0)
        index = torch.searchsorted(listed, asked).clamp(max=len(listed) - 1)
        return listed[index] == asked

    def most_edges(self, tokens: int) -> int:
        return len(self.codes(tokens))

    def codes(self, tokens: int) -> Codes:
        _refuse_length(self.tokens, tokens)
        return np.frombuffer(self.packed, dtype=np.int64).copy()

    def __repr__(self) -> str:
        """Short, and different for different edges, since digests of specs use it."""
        edges = len(self.packed) // 8
        return f"EdgeList({self.tokens} tokens, {edges} edges, {_fingerprint(self.packed)})"

    def __str__(self) -> str:
        return f"edges({self.tokens} tokens, {len(self.packed) // 8} edges)"


@checked
@dataclass(frozen=True)
class Random(LengthMask):
    """Every token attends to ``count`` different tokens, drawn uniformly.

    >>> from rankscope.core.masks import Random
    >>> Random(count=2, seed=0).matrix(5).sum(-1).tolist()
    [2, 2, 2, 2, 2]

    The draw depends only on the seed and the number of tokens. A token need not draw itself:
    ``Random(2) | window(0)`` adds the self-loops.
    """

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        count("Random count", self.count, least=1)
        whole("Random seed", self.seed, least=0, error=SpecError)

    def keys(self, tokens: int) -> Codes:
        """The keys of each query, shape (query, draw); all tokens if there are no more.

        Floyd's algorithm for a random subset: the k-th draw is from the first k, and k itself if
        taken. The raw numbers of PCG64 are the same in every version of NumPy; its distributions
        are not.
        """
        count = min(self.count, tokens)
        if count == tokens:
            return np.broadcast_to(np.arange(tokens), (tokens, tokens))
        raw = np.random.PCG64(stream_seed(self.seed, "mask", tokens))
        numbers = raw.random_raw(tokens * count).reshape(tokens, count)
        drawn = np.full((tokens, count), -1, dtype=np.int64)
        for index, top in enumerate(range(tokens - count, tokens)):
            key = (numbers[:, index] % np.uint64(top + 1)).astype(np.int64)
            taken = (drawn == key[:, None]).any(-1)
            drawn[:, index] = np.where(taken, top, key)
        return drawn

    def allows_in(self, query: Positions, key: Positions, tokens: Positions) -> Allowed:
        allowed = torch.zeros_like(query + key + tokens, dtype=torch.bool)
        for length in tokens.unique().tolist():
            if self.count >= length:
                allowed |= tokens == length
                continue
            drawn = torch.from_numpy(self.keys(length)).to(query.device)
            inside = query.clamp(min=0, max=length - 1)
            hit = torch.zeros_like(allowed)
            for column in drawn.unbind(-1):
                hit |= column[inside] == key
            allowed |= hit & (tokens == length)
        return allowed

    def most_edges(self, tokens: int) -> int:
        return tokens * min(self.count, tokens)

    def codes(self, tokens: int) -> Codes:
        self.refuse_many(self.most_edges(tokens), tokens)
        return np.asarray(np.unique(np.arange(tokens)[:, None] * tokens + self.keys(tokens)))

    def __str__(self) -> str:
        return f"random({self.count}, seed {self.seed})"


@checked
def from_edges(tokens: int, edges: Iterable[tuple[int, int]] | Tensor) -> EdgeList:
    """The mask with the given edges ``(key, query)``: information goes from key to query.

    >>> from rankscope.core.masks import from_edges
    >>> print(from_edges(3, [(0, 0), (0, 1), (1, 2)]).picture(3))
    ■ · ·
    ■ · ·
    · ■ ·

    ``(j, i)`` is the theory's ``j → i``: token i may attend to token j. Self-loops are edges like
    any other; list them. A tensor of edges has shape ``(edge, 2)``.
    """
    token_count(tokens)
    pairs = _pairs(edges)
    outside = (pairs < 0) | (pairs >= tokens)
    if outside.any():
        bad = tuple(pairs[outside.any(-1)][0].tolist())
        raise SpecError(f"edge {bad} is out of range; tokens are 0 to {tokens - 1}.")
    packed = np.unique(pairs[:, 1] * tokens + pairs[:, 0])
    mask = EdgeList(tokens, packed.tobytes())
    sees = torch.zeros(tokens, dtype=torch.bool)
    sees[torch.from_numpy(packed // tokens)] = True
    refuse_blind(sees, str(mask))
    return mask


def check_matrix(matrix: Tensor) -> Bool[Tensor, "query key"]:
    """Check that a matrix is boolean and square and that every query has a key."""
    if not isinstance(matrix, Tensor) or matrix.dtype != torch.bool:
        got = f"dtype {matrix.dtype}" if isinstance(matrix, Tensor) else type(matrix).__name__
        raise KindError(
            f"a mask is a boolean matrix, got {got}; convert: torch.as_tensor(mask).bool()."
        )
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ShapeError(f"a mask is (query, key) and square, got shape {tuple(matrix.shape)}.")
    refuse_blind(matrix.any(-1), "that was given")
    return matrix


def _fingerprint(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _pairs(edges: Iterable[tuple[int, int]] | Tensor) -> Codes:
    try:
        listed = edges.cpu().numpy() if isinstance(edges, Tensor) else np.asarray(list(edges))
    except (TypeError, ValueError, RuntimeError):
        raise KindError("edges are not a list of pairs; expected [(key, query), …].") from None
    if listed.ndim != 2 or listed.shape[1] != 2:
        raise ShapeError(
            f"edges have shape {listed.shape}, expected (edge, 2): [(key, query), …], at least one."
        )
    if not np.issubdtype(listed.dtype, np.integer):
        raise KindError(f"edges are {listed.dtype}, expected whole (key, query) positions.")
    return listed.astype(np.int64)


def _refuse_length(made_for: int, tokens: int) -> None:
    if tokens != made_for:
        raise ShapeError(
            f"the mask is for {made_for} tokens, the sequence has {tokens}; "
            "use a mask of the sequence length."
        )
