"""Masks as graphs: facts worked out by hand, and against Floyd and Warshall on small graphs."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from rankscope.core.masks import Dilated, Explicit, Random, Star, as_mask, from_edges, window
from rankscope.core.theory import _graph_search, graph_facts
from rankscope.errors import KindError, ShapeError, SpecError

INF = math.inf


def brute(matrix):
    """All facts of a boolean (query, key) matrix, from all distances and all walks."""
    n = len(matrix)
    steps = np.where(matrix.T, 1.0, INF)  # steps[j, i]: from key j to query i
    np.fill_diagonal(steps, 0)
    for middle in range(n):
        steps = np.minimum(steps, steps[:, [middle]] + steps[[middle], :])
    reached = np.isfinite(steps)
    centers = np.flatnonzero(reached.all(1))
    away = steps.max(1)
    together = reached & reached.T
    classes = {tuple(np.flatnonzero(row).tolist()) for row in together}
    closed = sorted(c for c in classes if not np.delete(reached[:, list(c)], c, axis=0).any())
    looped = [c for c in centers if matrix[c, c]]
    return {
        "tokens": n,
        "edges": int(matrix.sum()),
        "missing_self_loops": tuple(np.flatnonzero(~matrix.diagonal()).tolist()),
        "closed_classes": tuple(closed),
        "periods": tuple(brute_period(matrix[np.ix_(c, c)]) for c in closed),
        "radius": min(away[centers], default=INF),
        "diameter": steps.max(),
        "contracts_after": min(away[looped], default=INF),
        "centers": tuple(centers.tolist()),
        "strongly_connected": bool(reached.all()),
        "quasi_strongly_connected": len(centers) > 0,
    }


def brute_period(matrix):
    """The divisor of the lengths of all closed walks up to twice the number of nodes."""
    walks, lengths = np.eye(len(matrix), dtype=bool), []
    for length in range(1, 2 * len(matrix) + 1):
        walks = (walks.astype(int) @ matrix.astype(int)) > 0
        if walks.diagonal().any():
            lengths.append(length)
    return math.gcd(*lengths)


def check(facts, matrix):
    for name, wanted in brute(matrix).items():
        assert getattr(facts, name) == wanted, (name, matrix.astype(int))


def random_graph(generator, *, loops):
    """Every token attends to someone; sparse and dense, ordered and not, with loops or without."""
    n = int(generator.integers(1, 13))
    matrix = generator.random((n, n)) < generator.choice([0.08, 0.2, 0.5, 0.9])
    if generator.random() < 0.3:
        matrix &= np.tri(n, k=int(generator.integers(0, 3)), dtype=bool)
    if loops:
        np.fill_diagonal(matrix, True)
    blind = np.flatnonzero(~matrix.any(1))
    matrix[blind, generator.integers(0, n, len(blind))] = True
    return matrix


@pytest.mark.parametrize("loops", [True, False], ids=["loops", "no-loops"])
def test_hundreds_of_random_graphs(loops):
    generator = np.random.default_rng(int(loops))
    seen = []
    for _ in range(300):
        matrix = random_graph(generator, loops=loops)
        facts = graph_facts(torch.from_numpy(matrix))
        check(facts, matrix)
        check(graph_facts(sparse.csr_array(matrix)), matrix)
        seen.append(facts)
    # So that every kind was really there.
    assert {len(facts.closed_classes) for facts in seen} >= {1, 2, 3}
    assert {facts.diameter for facts in seen} >= {1, 2, 3, 4, INF}
    assert any(not f.strongly_connected and f.radius > 2 for f in seen if f.centers)
    if not loops:
        assert {period for facts in seen for period in facts.periods} >= {1, 2, 3}
        assert any(f.radius < f.contracts_after < INF for f in seen)


@pytest.mark.parametrize("loops", [True, False], ids=["loops", "no-loops"])
def test_bits_agree_with_searches(monkeypatch, loops):
    """The way for graphs whose bounds never meet, taken at once, with small blocks."""
    asked = []
    real = _graph_search._eccentricities_by_bits
    monkeypatch.setattr(_graph_search, "_SEARCHES", 0)
    monkeypatch.setattr(_graph_search, "_SOURCES", 70)
    monkeypatch.setattr(_graph_search, "_EDGES_AT_ONCE", 5)
    monkeypatch.setattr(
        _graph_search, "_eccentricities_by_bits", lambda *given: asked.append(1) or real(*given)
    )
    generator = np.random.default_rng(7)
    for _ in range(150):
        matrix = random_graph(generator, loops=loops)
        check(graph_facts(torch.from_numpy(matrix)), matrix)
    big = (Random(2, seed=5) | window(1)).matrix(150).numpy()
    check(graph_facts(torch.from_numpy(big)), big)
    assert len(asked) > 20


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 14).flatmap(
        lambda n: st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=n, max_size=n)
    )
)
def test_intervals_of_every_shape(reaches):
    """Each token reaches as far to the left and to the right as it likes."""
    n = len(reaches)
    matrix = np.array(
        [[i - left <= j <= i + right for j in range(n)] for i, (left, right) in enumerate(reaches)]
    )
    check(graph_facts(torch.from_numpy(matrix)), matrix)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_edge_lists_of_every_shape(data):
    n = data.draw(st.integers(1, 9))
    node = st.integers(0, n - 1)
    first = [(data.draw(node), query) for query in range(n)]  # someone to hear from
    edges = first + data.draw(st.lists(st.tuples(node, node), max_size=2 * n))
    mask = from_edges(n, edges)
    check(graph_facts(mask, n), mask.matrix(n).numpy())


@pytest.mark.parametrize("tokens", [1, 2, 7, 33])
@pytest.mark.parametrize(
    "name",
    [
        "full", "causal", "window:1", "window:2", "window:3:1", "causal-window:2", "dilated:4:2",
        "dilated:6:3|window:1", "strided:4", "causal-strided:3", "fixed:4", "fixed:4&causal",
        "block:5", "star:2", "random:2", "bigbird:2:1:2", "bigbird:1:0:1", "prefix:3",
        "causal|star:1",
    ],
)  # fmt: skip
def test_families_against_brute_force(name, tokens):
    mask = as_mask(name)
    check(graph_facts(mask, tokens), mask.matrix(tokens).numpy())


def facts_of(name, tokens):
    facts = graph_facts(name, tokens)
    return facts.radius, facts.diameter, len(facts.centers), len(facts.closed_classes)


def test_by_hand():
    """Radius, diameter, centers, closed classes."""
    assert facts_of("full", 16) == (1, 1, 16, 1)
    assert facts_of("full", 1) == (0, 0, 1, 1)
    assert facts_of("causal", 16) == (1, INF, 1, 1)
    assert facts_of("window:2", 16) == (4, 8, 16, 1)  # 15 steps by twos; from the middle, 8 by twos
    assert facts_of("window:1", 16) == (8, 15, 16, 1)
    assert facts_of("causal-window:2", 16) == (8, INF, 1, 1)
    assert facts_of("prefix:4", 16) == (1, INF, 4, 1)
    assert facts_of("block:4", 16) == (INF, INF, 0, 4)
    assert facts_of("dilated:4:2", 16) == (INF, INF, 0, 2)  # even and odd tokens never meet
    assert facts_of("star:1", 16) == (1, 2, 16, 1)
    assert facts_of("fixed:4", 14) == (1, INF, 12, 1)  # tokens 12 and 13 are heard by no block
    assert facts_of("fixed:4", 16) == (1, 2, 16, 1)


def test_direction():
    """Token 0 reaches all and attends to itself alone: it is the center and the closed class."""
    chain = from_edges(3, [(0, 0), (0, 1), (1, 2)])
    facts = graph_facts(chain, 3)
    assert facts.centers == (0,)
    assert facts.closed_classes == ((0,),)
    assert (facts.radius, facts.diameter) == (2, INF)
    assert facts.missing_self_loops == (1, 2)
    backwards = from_edges(3, [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)])
    assert graph_facts(backwards, 3).centers == (2,)


def test_clocks():
    """A ring of three without loops has period 3; one loop stops the clock."""
    ring = [(0, 1), (1, 2), (2, 0)]
    facts = graph_facts(from_edges(3, ring), 3)
    assert facts.periods == (3,)
    assert not facts.collapses
    assert (facts.radius, facts.diameter, facts.contracts_after) == (2, 2, INF)
    looped = graph_facts(from_edges(3, [*ring, (1, 1)]), 3)
    assert looped.periods == (1,)
    assert looped.collapses
    assert looped.contracts_after == 2
    two_clocks = from_edges(5, [*ring, (3, 4), (4, 3)])
    assert graph_facts(two_clocks, 5).periods == (3, 2)
    assert not graph_facts("block:2", 4).collapses


def test_words():
    assert str(graph_facts("window:2", 16)) == (
        "16 tokens, 74 edges; every token is a center, radius 4, diameter 8"
    )
    assert "token 0 is the only center" in str(graph_facts("causal", 4))
    assert "4 tokens are centers" in str(graph_facts("prefix:4", 8))
    assert "no center: 2 closed classes" in str(graph_facts("block:2", 4))
    ring = graph_facts(from_edges(2, [(0, 1), (1, 0)]), 2)
    assert str(ring).endswith("period 2; 2 without self-loop")


def test_a_short_repr_and_a_table_for_notebooks():
    facts = graph_facts("dilated:4:2", 4096)
    assert repr(facts) == (
        "GraphFacts(4096 tokens, 20468 edges; no center: 2 closed classes that stay independent)"
    )
    for name in ("full", "causal", "block:2", "random:2", "dilated:4:2"):
        found = graph_facts(name, 4096)
        assert len(repr(found)) < 200
        html = found._repr_html_()
        assert len(html) < 3000
        assert html.count("<tr>") == html.count("</tr>") == 11
        assert "http" not in html
    small = graph_facts(from_edges(4, [(0, 1), (1, 0), (1, 2), (3, 3)]), 4)._repr_html_()
    cells = dict(re.findall(r"<tr><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td></tr>", small))
    assert cells["closed classes"] == "0–1; 3"
    assert cells["periods"] == "1, 2"
    assert cells["without self-loop"] == "0–2"
    assert cells["radius"] == "infinite"


def test_every_way_to_give_a_graph():
    mask = Dilated(reach=4, step=2) | Star(1)
    matrix = mask.matrix(9)
    wanted = graph_facts(mask, 9)
    for given_graph in (matrix, Explicit.of(matrix), sparse.csr_array(matrix.numpy()),
                        sparse.coo_matrix(matrix.numpy())):  # fmt: skip
        assert graph_facts(given_graph, 9) == wanted
    stored = sparse.csr_array(matrix.numpy())
    stored.data[3] = False  # a stored zero is no edge
    assert graph_facts(stored).edges == wanted.edges - 1


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda: graph_facts("full"), SpecError, "has no fixed sequence length"),
        (lambda: graph_facts("full", 0), SpecError, "tokens=0"),
        (lambda: graph_facts("full", 2.0), KindError, "whole number"),
        (lambda: graph_facts("fool", 2), SpecError, "unknown"),
        (lambda: graph_facts(torch.eye(2), 2), KindError, "boolean"),
        (lambda: graph_facts(torch.eye(2).bool(), 3), ShapeError, "for 2 tokens, not for 3"),
        (
            lambda: graph_facts(torch.zeros(2, 2).bool()),
            SpecError,
            "token 0 has no key to attend to",
        ),
        (lambda: graph_facts(sparse.eye_array(2)), KindError, "mask != 0"),
        (lambda: graph_facts(sparse.eye_array(2, dtype=bool), 3), ShapeError, "for 2 tokens"),
        (lambda: graph_facts(sparse.csr_array(np.ones((2, 3), bool))), ShapeError, r"\(2, 3\)"),
        (lambda: graph_facts(sparse.csr_array(np.tri(2, k=-1, dtype=bool))), SpecError, "token 0"),
        (lambda: graph_facts([[True]], 1), KindError, "list"),
    ],
)
def test_what_is_no_graph(ask, error, words):
    with pytest.raises(error, match=words):
        ask()


def test_tens_of_thousands_of_tokens(monkeypatch):
    """By hand: a path has its middle; hubs make everything one or two steps. Few searches do."""
    n = 32768
    searches = []
    real = _graph_search.distances
    monkeypatch.setattr(
        _graph_search, "distances", lambda *given: searches.append(1) or real(*given)
    )
    path = graph_facts("window:1", n)
    assert (path.radius, path.diameter) == (n // 2, n - 1)
    assert graph_facts("window:256", n).radius == 64  # 16,384 tokens by 256
    bird = graph_facts("bigbird:3:1:2", n)
    assert (bird.radius, bird.diameter, len(bird.centers)) == (1, 2, n)
    assert graph_facts("full", n).edges == n * n
    wide = graph_facts("dilated:8:2|window:1", n)
    assert wide.strongly_connected
    assert wide.radius == n / 2 / 8 + 1  # and one step to change parity
    assert 0 < len(searches) < 60  # one for each token would be 32,768
