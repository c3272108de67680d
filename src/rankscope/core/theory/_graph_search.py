"""Classes, radius and diameter of graphs: by intervals where these will do, else by few searches.

**Intervals** (derived): each token attends to one interval of tokens that contains itself. After t
layers token i has received information from a set ``R_t(i)``, where ``R_1(i)`` is the interval it
attends to. If ``R_s(i)`` is an interval, then so is ``R_{s+t}(i) = ∪_{j ∈ R_s(i)} R_t(j)``, because
each ``R_t(j)`` contains j and the j are neighbours; its ends are the smallest first and the largest
last position among them. So a whole layer is two arrays, layers compose by range minima, and the
number of layers after which a property is true is found by doubling, in ``O(n log² n)`` for all
tokens at once, without listing edges.

**Searches.** A search from v and one to v bound every other eccentricity (Takes and Kosters 2011,
for directed graphs): ``d(w, v) ≤ ecc(w) ≤ d(w, v) + ecc(v)`` and ``ecc(w) ≥ ecc(v) − d(v, w)``. So
does a search to any node u at all: ``ecc(w) ≥ d(w, u)``. Searches go on until the bounds meet.
Where all eccentricities are small and similar, the bounds never meet; there, many sources advance
together, one bit each.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.process import require

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """Where each token's information comes from: all tokens from ``first[i]`` to ``last[i]``."""

    first: Positions
    last: Positions

    @property
    def tokens(self) -> int:
        return len(self.first)

    def compose(self, earlier: "Intervals") -> "Intervals":
        """These layers applied after ``earlier`` ones."""
        return Intervals(
            _range_minima(earlier.first, self.first, self.last),
            -_range_minima(-earlier.last, self.first, self.last),
        )


def interval_classes(intervals: Intervals) -> list[range]:
    """The closed classes: intervals whose members all end up depending on exactly them."""
    final = _powers(intervals)[-1]
    least_last = _range_minima(final.last, final.first, final.last)
    most_first = -_range_minima(-final.first, final.first, final.last)
    closed = (most_first == final.first) & (least_last == final.last)
    firsts, indices = np.unique(final.first[closed], return_index=True)
    ends = final.last[closed][indices] + 1
    return [range(*bounds) for bounds in zip(firsts.tolist(), ends.tolist(), strict=True)]


def interval_radius(intervals: Intervals) -> int:
    """Layers until some token has reached all tokens; there must be a center.

    Token c has reached all tokens when it lies in every interval: not left of the largest first
    position, not right of the smallest last one.
    """
    return _layers_until(intervals, lambda seen: bool(seen.first.max() <= seen.last.min()))


def interval_diameter(intervals: Intervals) -> int:
    """Layers until all tokens have reached all tokens; every token must be a center."""
    end = intervals.tokens - 1
    return _layers_until(
        intervals, lambda seen: bool(seen.first.max() == 0 and seen.last.min() == end)
    )


def _layers_until(intervals: Intervals, is_true: Callable[[Intervals], bool]) -> int:
    """The fewest layers after which a property is true that, once true, stays true."""
    position = np.arange(intervals.tokens)
    seen = Intervals(position, position)
    if is_true(seen):
        return 0
    powers = _powers(intervals)
    assert is_true(powers[-1])
    layers = 0
    for exponent in reversed(range(len(powers))):
        further = seen.compose(powers[exponent])
        if not is_true(further):
            seen, layers = further, layers + 2**exponent
    return layers + 1


def _powers(intervals: Intervals) -> list[Intervals]:
    """1, 2, 4, … layers, until more layers change nothing."""
    powers = [intervals]
    while True:
        twice = powers[-1].compose(powers[-1])
        if (twice.first == powers[-1].first).all() and (twice.last == powers[-1].last).all():
            return powers
        powers.append(twice)


def _range_minima(values: Positions, first: Positions, last: Positions) -> Positions:
    """``min(values[first[i] … last[i]])`` for every i, from minima over powers of two."""
    widths = last - first + 1
    exponents = np.frexp(widths.astype(float))[1] - 1  # ⌊log₂ width⌋, exactly
    range_minima = np.empty_like(values)
    minima, exponent = values, 0
    while True:
        here = exponents == exponent
        range_minima[here] = np.minimum(minima[first[here]], minima[last[here] - 2**exponent + 1])
        if exponent == exponents.max():
            return range_minima
        minima = np.minimum(minima[: -(2**exponent)], minima[2**exponent :])
        exponent += 1


UNREACHED = -1


@dataclass(frozen=True)
class Digraph:
    """Edges ``key → query``, sorted by query; those into token i begin at ``start[i]``.

    Searches along the rows of ``attends_to`` run against the flow of information, along the rows
    of ``attended_by`` with it.
    """

    tokens: int
    query: Positions
    key: Positions
    start: Positions

    @classmethod
    def from_pairs(cls, query: Positions, key: Positions, tokens: int) -> "Digraph":
        """From all pairs once, sorted by query, then by key; every query has at least one."""
        return cls(tokens, query, key, np.searchsorted(query, np.arange(tokens + 1)))

    @cached_property
    def attends_to(self) -> Any:
        """SciPy's matrix of (query, key)."""
        # SciPy's traversals want floats, and would copy anything else at every call.
        weights, shape = np.ones(len(self.key)), (self.tokens, self.tokens)
        return require("scipy.sparse").csr_array((weights, self.key, self.start), shape=shape)

    @cached_property
    def attended_by(self) -> Any:
        """SciPy's matrix of (key, query)."""
        return self.attends_to.T.tocsr()

    def to_intervals(self) -> Intervals | None:
        """The same as intervals, if every token attends to one interval that contains itself."""
        first, last = self.key[self.start[:-1]], self.key[self.start[1:] - 1]
        position = np.arange(self.tokens)
        gapless = last - first + 1 == np.diff(self.start)
        if not (gapless & (first <= position) & (position <= last)).all():
            return None
        return Intervals(first.astype(np.int64), last.astype(np.int64))


def closed_classes(graph: Digraph) -> list[Positions]:
    """The strongly connected components whose tokens attend to nothing outside."""
    connected_components = require("scipy.sparse.csgraph").connected_components
    count, labels = connected_components(graph.attends_to, directed=True, connection="strong")
    of_query, of_key = labels[graph.query], labels[graph.key]
    is_open = np.zeros(count, dtype=bool)
    is_open[of_query[of_query != of_key]] = True
    members = np.flatnonzero(~is_open[labels])
    members = members[np.argsort(labels[members], kind="stable")]
    cuts = np.flatnonzero(np.diff(labels[members])) + 1
    return sorted(np.split(members, cuts), key=lambda members: int(members[0]))


def distances(graph: Any, source: int) -> NDArray[np.int64]:
    """Steps from one node to every node along the rows of a SciPy graph; ``UNREACHED`` if none.

    SciPy's breadth-first order lists the nodes level by level, and the parents of a level's nodes
    are the level before; so each level ends where its parents do.
    """
    breadth_first_order = require("scipy.sparse.csgraph").breadth_first_order
    order, parents = breadth_first_order(graph, source, directed=True)
    rank = np.empty(graph.shape[0], dtype=np.int64)
    rank[order] = np.arange(len(order))
    parent_ranks = rank[parents[order[1:]]]
    ends = [0, 1]
    while ends[-1] < len(order):
        ends.append(1 + int(np.searchsorted(parent_ranks, ends[-1])))
    steps = np.full(graph.shape[0], UNREACHED, dtype=np.int64)
    steps[order] = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    return steps


def period(graph: Digraph, members: Positions) -> int:
    """The greatest common divisor of the cycle lengths of a closed class.

    Along every edge the breadth-first level rises by one, modulo the period: the deviations from
    that are multiples of the period, and their greatest common divisor is the period (Denardo
    1977).
    """
    level = distances(graph.attends_to, int(members[0]))
    inside = level[graph.query] != UNREACHED
    query, key = graph.query[inside], graph.key[inside]
    return int(np.gcd.reduce(level[query] + 1 - level[key]))


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
        known.improve(undecided, int(undecided[remote] if known.searches % 2 else unsettled[0]))


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

    def improve(self, undecided: Positions, index: int) -> None:
        """Tighten the bounds: search from one center, or settle all undecided ones if cheaper."""
        if self.searches > _SEARCHES and self.upper[undecided].max() <= _FEW_LEVELS:
            eccentricities = _eccentricities_by_bits(self.graph, self.centers[undecided])
            self.lower[undecided] = self.upper[undecided] = eccentricities
        else:
            self.search(index)

    def search(self, index: int) -> None:
        """Search from and to one center, and to the token farthest from it."""
        self.searches += 1
        center = int(self.centers[index])
        away = distances(self.graph.attended_by, center)
        eccentricity = int(away.max())
        back = distances(self.graph.attends_to, center)[self.centers]
        farthest = distances(self.graph.attends_to, int(away.argmax()))[self.centers]
        for lower in (back, eccentricity - away[self.centers], farthest):
            self.lower = np.maximum(self.lower, lower)
        reached = back != UNREACHED
        self.upper[reached] = np.minimum(self.upper, back + eccentricity)[reached]
        self.lower[index] = self.upper[index] = eccentricity


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
    received = np.empty_like(reached)
    cuts = np.searchsorted(graph.start, np.arange(0, len(graph.key), _EDGES_AT_ONCE))
    for first, last in itertools.pairwise(np.unique([*cuts, graph.tokens]).tolist()):
        start = graph.start[first]
        sources = reached[graph.key[start : graph.start[last]]]
        rows = graph.start[first:last] - start
        np.bitwise_or.reduceat(sources, rows, axis=0, out=received[first:last])
    return received
