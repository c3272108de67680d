"""The smallest and the largest eccentricity of a graph, exactly, from few searches.

A search from v and one to v bound every other eccentricity (Takes and Kosters 2011, for directed
graphs): ``d(w, v) ≤ ecc(w) ≤ d(w, v) + ecc(v)`` and ``ecc(w) ≥ ecc(v) − d(v, w)``. So does a search
to any node u at all: ``ecc(w) ≥ d(w, u)``. Searches go on until the bounds meet. Where all
eccentricities are small and similar, the bounds never meet; there, many sources advance together,
one bit each.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.core.theory.graphs._digraph import UNREACHED, Digraph, distances
from rankscope.core.theory.graphs._intervals import Positions

_SEARCHES = 48
"""Searches before the bitwise method takes over, where it can."""
_FEW_LEVELS = 64
"""The bitwise method advances all sources one level at a time: for graphs with few levels."""
_SOURCES = 2048
"""Sources that advance together: 256 bytes for every token."""
_EDGES_AT_ONCE = 2**12
"""Edges followed at a time, so that what is copied stays in the processor's cache: a megabyte."""


def radius_of(known: "EccentricityBounds") -> int:
    """The smallest eccentricity of the tokens in question."""
    while True:
        best = known.upper.min()
        undecided = np.flatnonzero(known.lower < best)
        if not len(undecided):
            return int(best)
        # The most promising: the least lower bound, and among those the least upper bound.
        order = np.lexsort((known.upper[undecided], known.lower[undecided]))
        known.improve(undecided, undecided[order[0]])


def diameter_of(known: "EccentricityBounds") -> int:
    """The largest eccentricity of the tokens in question: the diameter if they are all tokens."""
    while True:
        best = known.lower.max()
        undecided = np.flatnonzero(known.upper > best)
        if not len(undecided):
            return int(best)
        # By turns the most remote, to raise the best, and the most central, to lower the others.
        remote = np.lexsort((-known.lower[undecided], -known.upper[undecided]))[0]
        central = np.lexsort((known.upper, known.lower))
        unsettled = central[known.lower[central] < known.upper[central]]
        one = undecided[remote] if known.searches % 2 else unsettled[0]
        known.improve(undecided, int(one))


@dataclass
class EccentricityBounds:
    """What is known so far of the eccentricities of ``centers``, tokens that reach every token."""

    graph: Digraph
    centers: Positions
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    searches: int = 0

    @classmethod
    def start(cls, graph: Digraph, centers: Positions) -> "EccentricityBounds":
        """A token that all others attend to has eccentricity 1, any other at least 2."""
        others = graph.key[graph.key != graph.query]
        readers = np.bincount(others, minlength=graph.tokens)[centers]
        everyone = graph.tokens - 1
        lower = np.where(readers == everyone, float(everyone > 0), 2.0)
        known = cls(graph, centers, lower, np.full(len(centers), np.inf))
        known.search(int(readers.argmax()))
        return known

    def improve(self, undecided: Positions, one: int) -> None:
        """Tighten the bounds: search from one center, or settle all undecided ones if cheaper."""
        if self.searches > _SEARCHES and self.upper[undecided].max() <= _FEW_LEVELS:
            found = _eccentricities_by_bits(self.graph, self.centers[undecided])
            self.lower[undecided] = self.upper[undecided] = found
        else:
            self.search(one)

    def search(self, one: int) -> None:
        """Search from and to one center, and to the token farthest from it."""
        self.searches += 1
        center = int(self.centers[one])
        away = distances(self.graph.attended_by, center)
        eccentricity = int(away.max())
        back = distances(self.graph.attends_to, center)[self.centers]
        self._raise_lower(back)
        self._raise_lower(eccentricity - away[self.centers])
        self._raise_lower(distances(self.graph.attends_to, int(away.argmax()))[self.centers])
        reached = back != UNREACHED
        self.upper[reached] = np.minimum(self.upper, back + eccentricity)[reached]
        self.lower[one] = self.upper[one] = eccentricity

    def _raise_lower(self, lower: Positions) -> None:
        self.lower = np.maximum(self.lower, lower)


def _eccentricities_by_bits(graph: Digraph, sources: Positions) -> Positions:
    """The eccentricity of each source: levels until its bit is set at every token."""
    blocks = range(0, len(sources), _SOURCES)
    return np.concatenate(
        [_eccentricities_of_block(graph, sources[at : at + _SOURCES]) for at in blocks]
    )


def _eccentricities_of_block(graph: Digraph, sources: Positions) -> Positions:
    count = len(sources)
    word, bit = np.divmod(np.arange(count), 64)
    reached = np.zeros((graph.tokens, -(-count // 64)), dtype=np.uint64)
    # Sources are different tokens, so no two of these writes meet.
    reached[sources, word] = np.uint64(1) << bit.astype(np.uint64)
    levels = np.full(count, UNREACHED, dtype=np.int64)
    level = 0
    while True:
        everywhere = np.bitwise_and.reduce(reached, axis=0)[word]
        done = (everywhere >> bit.astype(np.uint64)) & np.uint64(1) > 0
        levels[done & (levels == UNREACHED)] = level
        if done.all():
            return levels
        reached |= _propagate(graph, reached)
        level += 1


def _propagate(graph: Digraph, reached: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """For each token, the bits set at the tokens it attends to."""
    found = np.empty_like(reached)
    cuts = np.searchsorted(graph.start, np.arange(0, len(graph.key), _EDGES_AT_ONCE))
    for first, last in itertools.pairwise(np.unique([*cuts, graph.tokens]).tolist()):
        start = graph.start[first]
        sources = reached[graph.key[start : graph.start[last]]]
        rows = graph.start[first:last] - start
        np.bitwise_or.reduceat(sources, rows, axis=0, out=found[first:last])
    return found
