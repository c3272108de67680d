"""A mask as a graph: which tokens reach which in the end, and after how many layers.

Edge ``j → i`` when token i may attend to token j (docs/theory.md, section 6), so information flows
along edges, while the Markov chain whose transition matrix is the attention matrix walks against
them. A *center* reaches every token along edges. Every walk of the chain ends in a *closed class*,
a set of tokens that attend to one another only; hence a token that all walks can reach exists if
and only if there is one closed class, and the centers are its members.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import whole
from rankscope.core.masks import Mask, as_mask, check_matrix
from rankscope.core.tabular import Tabular, plot_along
from rankscope.core.theory import _graph_search as search
from rankscope.core.theory._graph_search import Digraph, Intervals
from rankscope.errors import KindError, ShapeError, SpecError

if TYPE_CHECKING:
    import polars

    from rankscope.show import figures


@checked
@dataclass(frozen=True, repr=False)
class GraphFacts(Tabular):
    """What the graph of a mask says about collapse; every number is exact.

    >>> from rankscope.core.theory import graph_facts
    >>> facts = graph_facts("causal", 8)
    >>> facts.radius, facts.closed_classes, facts.strongly_connected
    (1.0, ((0,),), False)

    ``closed_classes`` are the sets of tokens that attend to one another only, ``periods`` the
    greatest common divisor of each one's cycle lengths. ``radius`` is the smallest eccentricity of
    a center and ``diameter`` the largest distance, both in layers and infinite where they do not
    exist. ``contracts_after`` is the smallest eccentricity of a center that attends to itself: only
    such a center still holds its own information some layers later, so only then does every product
    of r attention matrices have weights of at least ε^r in its whole column. It equals the radius
    unless centers lack self-loops.
    """

    tokens: int
    edges: int
    missing_self_loops: tuple[int, ...]
    closed_classes: tuple[tuple[int, ...], ...]
    periods: tuple[int, ...]
    radius: float
    diameter: float
    contracts_after: float

    @property
    def strongly_connected(self) -> bool:
        """Whether every token reaches every token."""
        return len(self.closed_classes) == 1 and len(self.closed_classes[0]) == self.tokens

    @property
    def quasi_strongly_connected(self) -> bool:
        """Whether some token, a center, reaches every token."""
        return len(self.closed_classes) == 1

    @property
    def centers(self) -> tuple[int, ...]:
        """The tokens that reach every token; none if there is more than one closed class."""
        return self.closed_classes[0] if self.quasi_strongly_connected else ()

    @property
    def collapses(self) -> bool:
        """Whether powers of one attention matrix with these edges tend to rank one.

        By Perron and Frobenius they do if and only if there is one closed class and its period
        is 1.
        """
        return self.periods == (1,)

    @property
    def table(self) -> "polars.DataFrame":
        """The figures, and by closed class (``index``, from 1 on) its ``class_size`` and period."""
        from rankscope import tables

        classes = list(zip(self.closed_classes, self.periods, strict=True))
        rows: list[tuple[int | None, str, float]] = [
            (index, metric, value)
            for index, (tokens, period) in enumerate(classes, start=1)
            for metric, value in (("class_size", len(tokens)), ("period", period))
        ]
        facts = ("tokens", "edges", "radius", "diameter", "contracts_after", "collapses")
        rows += [(None, fact, float(getattr(self, fact))) for fact in facts]
        rows.append((None, "missing_self_loops", len(self.missing_self_loops)))
        return tables.from_rows(("index", "metric", "value"), rows)

    def plot(self, metric: str | None = None) -> "figures.Figure":
        """The size, or the ``period``, of each closed class."""
        return plot_along(self.table, "index", "closed class", metric)

    def __str__(self) -> str:
        from rankscope.show import words

        return words.describe_graph(self)

    def __repr__(self) -> str:
        return f"GraphFacts({self})"

    def _repr_html_(self) -> str:
        from rankscope.show import words

        return words.graph_html(self)


@checked
def graph_facts(mask: "str | Mask | Tensor | Any", tokens: int | None = None) -> GraphFacts:
    """The graph of a mask, of a boolean ``(query, key)`` matrix, dense or of SciPy's sparse kind.

    >>> graph_facts("window:2", 16)
    GraphFacts(16 tokens, 74 edges; every token is a center, radius 4, diameter 8)

    ``tokens`` is needed unless ``mask`` is a matrix. Tens of thousands of tokens are fine where the
    mask is sparse, or where each token attends to one interval of tokens around itself.
    """
    if hasattr(mask, "tocsr"):
        return _digraph_facts(_digraph_from_sparse(mask, tokens))
    if isinstance(mask, np.ndarray):
        if mask.dtype != bool:
            raise KindError(f"mask has dtype {mask.dtype}, expected bool: mask.astype(bool).")
        mask = torch.from_numpy(mask)
    if isinstance(mask, Tensor):
        matrix = check_matrix(mask)
        _check_length(matrix.shape[0], tokens)
        query, key = matrix.cpu().nonzero().T.contiguous().numpy()
        return _digraph_facts(Digraph.from_pairs(query, key, matrix.shape[0]))
    mask = as_mask(mask)
    tokens = getattr(mask, "tokens", None) if tokens is None else tokens
    if tokens is None:
        raise SpecError(f"the mask {mask} has no fixed sequence length; use graph_facts(mask, n).")
    whole("tokens", tokens, least=1, most=2**31 - 1, error=SpecError)
    spans = mask.spans(tokens)
    if spans is not None:
        return _interval_facts(Intervals(spans.first.numpy(), spans.last.numpy()))
    edges = mask.edges(tokens)
    return _digraph_facts(Digraph.from_pairs(edges.query.numpy(), edges.key.numpy(), tokens))


def _interval_facts(intervals: Intervals) -> GraphFacts:
    """Every token attends to itself here, so every closed class has period 1."""
    classes = search.interval_classes(intervals)
    radius = search.interval_radius(intervals) if len(classes) == 1 else math.inf
    connected = len(classes) == 1 and len(classes[0]) == intervals.tokens
    return GraphFacts(
        tokens=intervals.tokens,
        edges=int((intervals.last - intervals.first + 1).sum()),
        missing_self_loops=(),
        closed_classes=tuple(map(tuple, classes)),
        periods=(1,) * len(classes),
        radius=float(radius),
        diameter=float(search.interval_diameter(intervals)) if connected else math.inf,
        contracts_after=float(radius),
    )


def _digraph_facts(graph: Digraph) -> GraphFacts:
    intervals = graph.to_intervals()
    if intervals is not None:
        return _interval_facts(intervals)
    classes = search.closed_classes(graph)
    looped = np.zeros(graph.tokens, dtype=bool)
    looped[graph.query[graph.query == graph.key]] = True
    radius = diameter = contracts_after = math.inf
    if len(classes) == 1:
        centers = classes[0]
        known = search.EccentricityBounds.start(graph, centers)
        radius = contracts_after = search.radius_of(known)
        if not looped[centers].all():
            contracts_after = math.inf
            if looped[centers].any():
                waiting = search.EccentricityBounds.start(graph, centers[looped[centers]])
                contracts_after = search.radius_of(waiting)
        if len(centers) == graph.tokens:
            diameter = search.diameter_of(known)
    return GraphFacts(
        tokens=graph.tokens,
        edges=len(graph.query),
        missing_self_loops=tuple(np.flatnonzero(~looped).tolist()),
        closed_classes=tuple(tuple(members.tolist()) for members in classes),
        periods=tuple(1 if looped[at].any() else search.period(graph, at) for at in classes),
        radius=float(radius),
        diameter=float(diameter),
        contracts_after=float(contracts_after),
    )


def _digraph_from_sparse(matrix: Any, tokens: int | None) -> Digraph:
    if matrix.dtype != np.bool_:
        raise KindError(f"mask has dtype {matrix.dtype}, expected bool: mask != 0.")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ShapeError(f"a mask is (query, key) and square, got shape {matrix.shape}.")
    _check_length(matrix.shape[0], tokens)
    query, key = matrix.tocsr().nonzero()  # leaves stored zeros out
    blind = np.setdiff1d(np.arange(matrix.shape[0]), query)
    if len(blind):
        raise SpecError(f"token {blind[0]} has no key to attend to; every row needs an entry.")
    return Digraph.from_pairs(query, key, matrix.shape[0])


def _check_length(size: int, tokens: int | None) -> None:
    if tokens is not None and tokens != size:
        raise ShapeError(f"the matrix is for {size} tokens, not for {tokens}; omit tokens.")
