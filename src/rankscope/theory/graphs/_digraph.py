"""A graph by its edges, as SciPy takes it: components, distances, periods."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.theory.graphs._intervals import Positions, Stretches

UNREACHED = -1


@dataclass(frozen=True)
class Arcs:
    """Edges ``key → query``, ordered by query; ``start[i]`` is where those into i begin.

    ``hears`` is SciPy's matrix of (query, key), ``told`` that of (key, query): rows of the first
    lead against the flow of information, rows of the second along it.
    """

    tokens: int
    query: Positions
    key: Positions
    start: Positions
    hears: Any
    told: Any

    @classmethod
    def of(cls, query: Positions, key: Positions, tokens: int) -> "Arcs":
        """From all pairs once, ordered by query, then by key; every query has one."""
        from scipy.sparse import csr_array  # type: ignore[import-untyped]

        start = np.searchsorted(query, np.arange(tokens + 1))
        # SciPy's traversals want floats, and would copy anything else at every call.
        hears = csr_array((np.ones(len(key)), key, start), shape=(tokens, tokens))
        return cls(tokens, query, key, start, hears, hears.T.tocsr())

    def stretches(self) -> Stretches | None:
        """The same as stretches, if every token attends to one stretch that holds itself."""
        first, last = self.key[self.start[:-1]], self.key[self.start[1:] - 1]
        position = np.arange(self.tokens)
        whole = last - first + 1 == np.diff(self.start)
        if not (whole & (first <= position) & (position <= last)).all():
            return None
        return Stretches(first.astype(np.int64), last.astype(np.int64))


def closed_classes(arcs: Arcs) -> list[Positions]:
    """The strongly connected components whose tokens attend to nothing outside."""
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    count, labels = connected_components(arcs.hears, directed=True, connection="strong")
    listener, source = labels[arcs.query], labels[arcs.key]
    is_open = np.zeros(count, dtype=bool)
    is_open[listener[listener != source]] = True
    members = np.flatnonzero(~is_open[labels])
    members = members[np.argsort(labels[members], kind="stable")]
    bounds = np.flatnonzero(np.diff(labels[members])) + 1
    return sorted(np.split(members, bounds), key=lambda each: int(each[0]))


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


def period(arcs: Arcs, members: Positions) -> int:
    """The greatest common divisor of the cycle lengths of a closed class.

    Along every arc the level rises by one, modulo the period: the misses are its multiples, and
    their divisor is the period (Denardo 1977).
    """
    level = distances(arcs.hears, int(members[0]))
    inside = level[arcs.query] != UNREACHED
    query, key = arcs.query[inside], arcs.key[inside]
    return int(np.gcd.reduce(level[query] + 1 - level[key]))
