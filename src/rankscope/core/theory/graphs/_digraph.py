"""A directed graph given by its edges, as SciPy takes it: components, distances, periods."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.core.theory.graphs._intervals import Intervals, Positions

UNREACHED = -1


@dataclass(frozen=True)
class Digraph:
    """Edges ``key → query``, sorted by query; those into token i begin at ``start[i]``.

    ``attends_to`` is SciPy's matrix of (query, key), ``attended_by`` that of (key, query): searches
    along the rows of the first run against the flow of information, along the rows of the second
    with it.
    """

    tokens: int
    query: Positions
    key: Positions
    start: Positions
    attends_to: Any
    attended_by: Any

    @classmethod
    def from_pairs(cls, query: Positions, key: Positions, tokens: int) -> "Digraph":
        """From all pairs once, sorted by query, then by key; every query has at least one."""
        from scipy.sparse import csr_array  # type: ignore[import-untyped]

        start = np.searchsorted(query, np.arange(tokens + 1))
        # SciPy's traversals want floats, and would copy anything else at every call.
        attends_to = csr_array((np.ones(len(key)), key, start), shape=(tokens, tokens))
        return cls(tokens, query, key, start, attends_to, attends_to.T.tocsr())

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
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    count, labels = connected_components(graph.attends_to, directed=True, connection="strong")
    of_query, of_key = labels[graph.query], labels[graph.key]
    is_open = np.zeros(count, dtype=bool)
    is_open[of_query[of_query != of_key]] = True
    members = np.flatnonzero(~is_open[labels])
    members = members[np.argsort(labels[members], kind="stable")]
    cuts = np.flatnonzero(np.diff(labels[members])) + 1
    return sorted(np.split(members, cuts), key=lambda each: int(each[0]))


def distances(graph: Any, source: int) -> NDArray[np.int64]:
    """Steps from one node to every node along the rows of a SciPy graph; ``UNREACHED`` if none.

    SciPy's breadth-first order lists the nodes level by level, and the parents of a level's nodes
    are the level before; so each level ends where its parents do.
    """
    from scipy.sparse.csgraph import breadth_first_order

    order, parents = breadth_first_order(graph, source, directed=True)
    place = np.empty(graph.shape[0], dtype=np.int64)
    place[order] = np.arange(len(order))
    parent_places = place[parents[order[1:]]]
    ends = [0, 1]
    while ends[-1] < len(order):
        ends.append(1 + int(np.searchsorted(parent_places, ends[-1])))
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
