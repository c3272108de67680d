"""A mask as a graph: who hears from whom in the end, and after how many layers.

Edge ``j → i`` when token i may attend to token j (theory section 6), so information flows along
edges, while the Markov chain whose transition matrix is the attention matrix walks against them.
A *center* reaches every token along edges. Every walk of the chain ends in a *closed class*, a set
of tokens that attend to one another only; hence a token that all walks can reach exists if and
only if there is one closed class, and the centers are its members.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankscope.errors import KindError, ShapeError, SpecError
from rankscope.masks import Mask, as_mask
from rankscope.masks.explicit import checked_matrix
from rankscope.masks.mask import whole
from rankscope.theory.graphs._digraph import Arcs, closed_classes, period
from rankscope.theory.graphs._eccentricity import Bounds, diameter_of, radius_of
from rankscope.theory.graphs._intervals import (
    Stretches,
    stretch_classes,
    stretch_diameter,
    stretch_radius,
)


@dataclass(frozen=True)
class GraphFacts:
    """What the graph of a mask says about collapse; every number is exact.

    ``closed_classes`` are the sets of tokens that attend to one another only, ``periods`` the
    greatest common divisor of each one's cycle lengths. ``radius`` is the smallest eccentricity of
    a center and ``diameter`` the largest distance, both in layers and infinite where they do not
    exist. ``contracts_after`` is the smallest eccentricity of a center that attends to itself: only
    such a center can wait, so only then must r layers fill its column with at least ε^r. It is the
    radius unless centers lack self-loops.
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

        One closed class, and no clock in it: then, and only then, by Perron and Frobenius.
        """
        return self.periods == (1,)

    def __str__(self) -> str:
        size = f"{self.tokens} tokens, {self.edges} edges"
        if not self.quasi_strongly_connected:
            return f"{size}; no center: {len(self.closed_classes)} closed classes go their own ways"
        centers = "every token is a center" if self.strongly_connected else _counted(self.centers)
        clock = "" if self.collapses else f"; period {self.periods[0]}"
        loops = len(self.missing_self_loops)
        missing = f"; {loops} without self-loop" if loops else ""
        return (
            f"{size}; {centers}, radius {self.radius:g}, diameter {self.diameter:g}{clock}{missing}"
        )


def graph_facts(mask: "str | Mask | Tensor | Any", tokens: int | None = None) -> GraphFacts:
    """The graph of a mask, of a boolean ``(query, key)`` matrix, or of a sparse one of SciPy's.

    >>> graph_facts("window:2", 16).radius
    4.0

    ``tokens`` is needed unless the matrix says it. Tens of thousands of tokens are fine where the
    mask is sparse, or where each token attends to one stretch of tokens around itself.
    """
    if hasattr(mask, "tocsr"):
        return _facts_of_arcs(_sparse_arcs(mask, tokens))
    if isinstance(mask, np.ndarray):
        mask = torch.from_numpy(mask)
    if isinstance(mask, Tensor):
        matrix = checked_matrix(mask)
        _same_length(matrix.shape[0], tokens)
        query, key = matrix.cpu().nonzero().T.contiguous().numpy()
        return _facts_of_arcs(Arcs.of(query, key, matrix.shape[0]))
    mask = as_mask(mask)
    tokens = getattr(mask, "tokens", None) if tokens is None else tokens
    if tokens is None:
        raise SpecError(f"the mask {mask} does not say how many tokens; give graph_facts(mask, n).")
    whole("a graph's number of tokens", tokens, least=1)
    spans = mask.spans(tokens)
    if spans is not None:
        return _facts_of_stretches(Stretches(spans.first.numpy(), spans.last.numpy()))
    edges = mask.edges(tokens)
    return _facts_of_arcs(Arcs.of(edges.query.numpy(), edges.key.numpy(), tokens))


def _facts_of_stretches(stretches: Stretches) -> GraphFacts:
    """All tokens attend to themselves here, so no class has a clock."""
    classes = stretch_classes(stretches)
    radius = stretch_radius(stretches) if len(classes) == 1 else math.inf
    whole = len(classes) == 1 and len(classes[0]) == stretches.tokens
    return GraphFacts(
        tokens=stretches.tokens,
        edges=int((stretches.last - stretches.first + 1).sum()),
        missing_self_loops=(),
        closed_classes=tuple(tuple(each) for each in classes),
        periods=(1,) * len(classes),
        radius=float(radius),
        diameter=float(stretch_diameter(stretches)) if whole else math.inf,
        contracts_after=float(radius),
    )


def _facts_of_arcs(arcs: Arcs) -> GraphFacts:
    stretches = arcs.stretches()
    if stretches is not None:
        return _facts_of_stretches(stretches)
    classes = closed_classes(arcs)
    looped = np.zeros(arcs.tokens, dtype=bool)
    looped[arcs.query[arcs.query == arcs.key]] = True
    radius = diameter = contracts_after = math.inf
    if len(classes) == 1:
        centers = classes[0]
        bounds = Bounds.of(arcs, centers)
        radius = contracts_after = radius_of(bounds)
        if not looped[centers].all():
            waiting = centers[looped[centers]]
            contracts_after = radius_of(Bounds.of(arcs, waiting)) if len(waiting) else math.inf
        if len(centers) == arcs.tokens:
            diameter = diameter_of(bounds)
    return GraphFacts(
        tokens=arcs.tokens,
        edges=len(arcs.query),
        missing_self_loops=tuple(np.flatnonzero(~looped).tolist()),
        closed_classes=tuple(tuple(each.tolist()) for each in classes),
        periods=tuple(1 if looped[each].any() else period(arcs, each) for each in classes),
        radius=float(radius),
        diameter=float(diameter),
        contracts_after=float(contracts_after),
    )


def _sparse_arcs(matrix: Any, tokens: int | None) -> Arcs:
    if matrix.dtype != np.bool_:
        raise KindError(
            f"a mask is a boolean matrix, got a sparse one of {matrix.dtype}; "
            "say which entries count: matrix != 0."
        )
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ShapeError(f"a mask is (query, key) and square, got shape {matrix.shape}.")
    _same_length(matrix.shape[0], tokens)
    query, key = matrix.tocsr().nonzero()  # leaves stored zeros out
    blind = np.setdiff1d(np.arange(matrix.shape[0]), query)
    if len(blind):
        raise SpecError(f"token {blind[0]} may attend to nothing; give every row an entry.")
    return Arcs.of(query, key, matrix.shape[0])


def _same_length(found: int, tokens: int | None) -> None:
    if tokens is not None and tokens != found:
        raise ShapeError(f"the matrix is for {found} tokens, not for {tokens}; leave tokens out.")


def _counted(centers: Sequence[int]) -> str:
    if len(centers) == 1:
        return f"token {centers[0]} is the only center"
    return f"{len(centers)} tokens are centers"
