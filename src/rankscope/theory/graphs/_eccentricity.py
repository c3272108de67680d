"""The smallest and the largest eccentricity of a graph, exactly, from few searches.

A search from v and one to v bound every other eccentricity (Takes and Kosters 2011, for directed
graphs): ``d(w, v) ≤ ecc(w) ≤ d(w, v) + ecc(v)`` and ``ecc(w) ≥ ecc(v) − d(v, w)``. So does a search
to any node u at all: ``ecc(w) ≥ d(w, u)``. Searches go on until the bounds meet. Where all
eccentricities are small and alike, bounds never meet; there, many sources go in step as bits.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.theory.graphs._digraph import UNREACHED, Arcs, distances
from rankscope.theory.graphs._intervals import Positions

_SEARCHES = 48
"""Searches before bits take over, where they can."""
_FEW_LEVELS = 64
"""Bits advance all sources by one level at a time, so they are for graphs with few levels."""
_SOURCES = 2048
"""Sources that go in step: 256 bytes for every token."""
_EDGES_AT_ONCE = 2**12
"""Edges followed at a time, so that what is copied stays in the processor's cache: a megabyte."""


def radius_of(bounds: "Bounds") -> int:
    """The smallest eccentricity of the tokens in question."""
    while True:
        best = bounds.upper.min()
        open_ones = np.flatnonzero(bounds.lower < best)
        if not len(open_ones):
            return int(best)
        # The most promising: the least lower bound, and among those the least upper bound.
        order = np.lexsort((bounds.upper[open_ones], bounds.lower[open_ones]))
        bounds.advance(open_ones, open_ones[order[0]])


def diameter_of(bounds: "Bounds") -> int:
    """The largest eccentricity of the tokens in question: the diameter if they are all tokens."""
    while True:
        best = bounds.lower.max()
        open_ones = np.flatnonzero(bounds.upper > best)
        if not len(open_ones):
            return int(best)
        # By turns the most remote, to raise the best, and the most central, to lower the others.
        remote = np.lexsort((-bounds.lower[open_ones], -bounds.upper[open_ones]))[0]
        central = np.lexsort((bounds.upper, bounds.lower))
        unsettled = central[bounds.lower[central] < bounds.upper[central]]
        one = open_ones[remote] if bounds.searches % 2 else unsettled[0]
        bounds.advance(open_ones, int(one))


@dataclass
class Bounds:
    """What is known so far of the eccentricities of ``centers``, tokens that reach every token."""

    arcs: Arcs
    centers: Positions
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    searches: int = 0

    @classmethod
    def of(cls, arcs: Arcs, centers: Positions) -> "Bounds":
        """A token that tells all others directly has eccentricity 1, any other at least 2."""
        others = arcs.key[arcs.key != arcs.query]
        tells = np.bincount(others, minlength=arcs.tokens)[centers]
        everyone = arcs.tokens - 1
        lower = np.where(tells == everyone, float(everyone > 0), 2.0)
        bounds = cls(arcs, centers, lower, np.full(len(centers), np.inf))
        bounds.search(int(tells.argmax()))
        return bounds

    def advance(self, open_ones: Positions, one: int) -> None:
        """Learn more about the eccentricities in question: of one, or of all if that is better."""
        if self.searches > _SEARCHES and self.upper[open_ones].max() <= _FEW_LEVELS:
            found = _in_step(self.arcs, self.centers[open_ones])
            self.lower[open_ones] = self.upper[open_ones] = found
        else:
            self.search(one)

    def search(self, one: int) -> None:
        """Search from and to one center, and to the token farthest from it."""
        self.searches += 1
        center = int(self.centers[one])
        away = distances(self.arcs.told, center)
        eccentricity = int(away.max())
        back = distances(self.arcs.hears, center)[self.centers]
        self._raise(back)
        self._raise(eccentricity - away[self.centers])
        self._raise(distances(self.arcs.hears, int(away.argmax()))[self.centers])
        reached = back != UNREACHED
        self.upper[reached] = np.minimum(self.upper, back + eccentricity)[reached]
        self.lower[one] = self.upper[one] = eccentricity

    def _raise(self, lower: Positions) -> None:
        self.lower = np.maximum(self.lower, lower)


def _in_step(arcs: Arcs, sources: Positions) -> Positions:
    """The eccentricity of each source: levels until its bit is set at every token."""
    blocks = range(0, len(sources), _SOURCES)
    return np.concatenate([_block(arcs, sources[at : at + _SOURCES]) for at in blocks])


def _block(arcs: Arcs, sources: Positions) -> Positions:
    count = len(sources)
    word, bit = np.divmod(np.arange(count), 64)
    heard = np.zeros((arcs.tokens, -(-count // 64)), dtype=np.uint64)
    # Sources are different tokens, so no two of these writes meet.
    heard[sources, word] = np.uint64(1) << bit.astype(np.uint64)
    levels = np.full(count, UNREACHED, dtype=np.int64)
    level = 0
    while True:
        everywhere = np.bitwise_and.reduce(heard, axis=0)[word]
        done = (everywhere >> bit.astype(np.uint64)) & np.uint64(1) > 0
        levels[done & (levels == UNREACHED)] = level
        if done.all():
            return levels
        heard |= _told_on(arcs, heard)
        level += 1


def _told_on(arcs: Arcs, heard: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What each token hears from the tokens it attends to."""
    found = np.empty_like(heard)
    cuts = np.searchsorted(arcs.start, np.arange(0, len(arcs.key), _EDGES_AT_ONCE))
    for first, last in itertools.pairwise(np.unique([*cuts, arcs.tokens]).tolist()):
        start = arcs.start[first]
        told = heard[arcs.key[start : arcs.start[last]]]
        rows = arcs.start[first:last] - start
        np.bitwise_or.reduceat(told, rows, axis=0, out=found[first:last])
    return found
