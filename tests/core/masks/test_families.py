"""Families of masks: matrices written by hand, edges against matrices, padding, refusals."""

import numpy as np
import pytest
import torch

from rankscope.core.masks import (
    BigBird,
    BlockLocal,
    Causal,
    Dilated,
    Explicit,
    Fixed,
    Full,
    GlobalColumns,
    Mask,
    Prefix,
    Random,
    Star,
    Strided,
    Window,
    causal_window,
    from_edges,
    window,
)
from rankscope.core.network import Spec, Visibility
from rankscope.errors import InputError, KindError, ShapeError, SpecError

MATRICES = {
    "window": (window(1), ["11000", "11100", "01110", "00111", "00011"]),
    "causal-window": (causal_window(1), ["10000", "11000", "01100", "00110", "00011"]),
    "dilated": (Dilated(reach=3, step=2), ["10100", "01010", "10101", "01010", "00101"]),
    "dilated-causal": (
        Dilated(reach=2, step=2, causal=True),
        ["10000", "01000", "10100", "01010", "00101"],
    ),
    "strided": (Strided(2), ["11101", "11110", "11111", "01111", "10111"]),
    "strided-causal": (
        Strided(2, causal=True),
        ["10000", "11000", "11100", "01110", "10111"],
    ),
    "columns": (GlobalColumns(2), ["11010", "01010", "01110", "01010", "01011"]),
    "fixed": (Fixed(2), ["11010", "11010", "01110", "01110", "01011"]),
    "block": (BlockLocal(2), ["11000", "11000", "00110", "00110", "00001"]),
    "star": (Star(1), ["11111", "11000", "10100", "10010", "10001"]),
    "star-at": (Star((3,)), ["10010", "01010", "00110", "11111", "00011"]),
    "star-two": (Star(2), ["11111", "11111", "11100", "11010", "11001"]),
    "prefix": (Prefix(3), ["11100", "11100", "11100", "11110", "11111"]),
    "prefix-one": (Prefix(1), ["10000", "11000", "11100", "11110", "11111"]),
    "prefix-long": (Prefix(9), ["11111"] * 5),
    "bigbird-bare": (BigBird(1, 1, 0), ["11111", "11100", "11110", "10111", "10011"]),
    "edges": (
        from_edges(5, [(0, 0), (0, 1), (4, 2), (2, 3), (3, 3), (1, 4), (0, 1)]),
        ["10000", "10000", "00001", "00110", "01000"],
    ),
    "union": (Causal() | Star(1), ["11111", "11000", "11100", "11110", "11111"]),
    "intersection": (Causal() & Fixed(2), ["10000", "11000", "01100", "01110", "01011"]),
    "mixed": (causal_window(1) | Causal() & Star(1), ["10000", "11000", "11100", "10110", "10011"]),
    "spans": (
        Causal() & window(1) | Window(before=0, after=1),
        ["11000", "11100", "01110", "00111", "00011"],
    ),
}
RANDOM = {"random": Random(2, seed=3), "bigbird": BigBird(1, 1, 2, seed=3)}
EVERY = {name: mask for name, (mask, _) in MATRICES.items()} | RANDOM
EVERY |= {"full": Full(), "causal": Causal(), "explicit": Explicit.of(torch.eye(5).bool().flip(0))}


@pytest.mark.parametrize("name", MATRICES)
def test_matrix_by_hand(name):
    mask, rows = MATRICES[name]
    assert ["".join(map(str, row)) for row in mask.matrix(5).int().tolist()] == rows


@pytest.mark.parametrize("tokens", [1, 2, 5, 23])
@pytest.mark.parametrize("name", EVERY)
def test_edges_and_spans_say_what_the_matrix_says(name, tokens):
    mask = EVERY[name]
    if tokens != 5 and name in ("edges", "explicit"):
        with pytest.raises(ShapeError, match=f"for 5 tokens, the sequence has {tokens}"):
            mask.edges(tokens)
        return
    matrix, edges, spans = mask.matrix(tokens), mask.edges(tokens), mask.spans(tokens)
    assert torch.equal(torch.stack(edges), matrix.nonzero().T)
    assert mask.most_edges(tokens) >= len(edges.query)
    loops = matrix.diagonal()
    assert mask.missing_self_loops(tokens) == tuple((~loops).nonzero().flatten().tolist())
    if spans is not None:
        position = torch.arange(tokens)
        inside = (position >= spans.first[:, None]) & (position <= spans.last[:, None])
        assert torch.equal(inside, matrix)
        assert loops.all()


def test_which_masks_have_spans():
    intervals = {name for name, mask in EVERY.items() if mask.spans(5) is not None}
    assert intervals == {
        "full", "causal", "window", "causal-window", "block", "prefix", "prefix-one",
        "prefix-long", "spans",
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("edges", "explicit")])
def test_padding_changes_no_mask(name):
    """Three lengths in a batch, each padded in another way; every block as if it were alone."""
    rows = [[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0], [1, 0, 1, 0, 1, 1, 0]]
    token_mask = torch.tensor(rows).bool()
    allowed = Visibility.of(EVERY[name], 7, token_mask, torch.device("cpu")).allowed
    for sample, real in enumerate(token_mask):
        seen = torch.ones(7, 7).bool() if allowed is None else allowed[sample, 0].expand(7, 7)
        assert torch.equal(seen[real][:, real], EVERY[name].matrix(int(real.sum())))


def test_a_listed_graph_is_for_the_longest_sequence():
    token_mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]).bool()
    loops = from_edges(5, [(i, i) for i in range(5)])
    allowed = Visibility.of(loops, 5, token_mask, torch.device("cpu")).allowed
    assert torch.equal(allowed[1, 0], torch.eye(5).bool())
    with pytest.raises(ShapeError, match="for 5 tokens, the sequence has 4"):
        Visibility.of(loops, 5, token_mask[1:], torch.device("cpu"))


@pytest.mark.parametrize("tokens", [1, 2, 3, 40])
def test_random_keys_are_as_many_as_asked_for_and_different(tokens):
    for count in (1, 2, 5):
        assert (Random(count).matrix(tokens).sum(-1) == min(count, tokens)).all()


def test_random_keys_are_drawn_evenly():
    """20,000 rows of 3 of 5 keys: each key 3/5, each of the ten subsets 1/10, within 5σ."""
    rows = torch.cat([Random(3, seed=seed).matrix(5) for seed in range(4000)]).numpy()
    assert np.abs(rows.mean(0) - 0.6).max() < 5 * np.sqrt(0.24 / len(rows))
    subsets = rows @ (1 << np.arange(5))
    _, counts = np.unique(subsets, return_counts=True)
    assert len(counts) == 10
    assert np.abs(counts / len(rows) - 0.1).max() < 5 * np.sqrt(0.09 / len(rows))


def test_random_keys_depend_on_seed_and_length_alone():
    assert Random(2, seed=1) == Random(2, seed=1)
    assert torch.equal(Random(2, seed=1).matrix(30), Random(2, seed=1).matrix(30))
    assert not torch.equal(Random(2, seed=1).matrix(30), Random(2, seed=2).matrix(30))
    assert not torch.equal(Random(2).matrix(30), Random(2).matrix(31)[:30, :30])
    # Written down once: a seed must mean the same keys for ever.
    assert Random(2, seed=3).keys(6).tolist() == [[3, 5], [0, 4], [4, 5], [0, 1], [4, 5], [1, 4]]


def test_thirty_thousand_tokens_need_no_dense_matrix():
    """A dense matrix would be a gigabyte; the edges are counted by hand."""
    n = 32768
    assert len(window(2).edges(n).query) == 5 * n - 6
    assert len(Star(2).edges(n).query) == (n - 2) * 3 + 2 * n
    assert len(Dilated(reach=4, step=2).edges(n).query) == 5 * n - 2 * (2 + 4)
    assert len((Causal() & Star(1)).edges(n).query) == 2 * n - 1  # half of all pairs are causal
    bird = BigBird(2, 1, 2).edges(n)
    assert 8 * n - 40 < len(bird.query) < 9 * n
    with pytest.raises(InputError, match=r"mask full of 32768 tokens has 1.07e9 edges"):
        Full().edges(n)
    with pytest.raises(InputError, match=r"strided\(2\) of 32768"):
        Strided(2).edges(n)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: window(-1), "before=-1 is out of range"),
        (lambda: causal_window(2**31), "expected 0 to 2147483647"),
        (lambda: Dilated(4, 0), "step=0 is out of range; expected 1 to"),
        (lambda: Dilated(-4, 1), "reach=-4 is out of range"),
        (lambda: Dilated(4, 1, causal=1), "causal=1 is a int, expected a bool"),
        (lambda: Strided(0), "stride=0 is out of range"),
        (lambda: Fixed(0), "stride=0 is out of range"),
        (lambda: GlobalColumns(0), "stride=0 is out of range"),
        (lambda: BlockLocal(0), "size=0 is out of range"),
        (lambda: Star(0), "hubs=0 is out of range"),
        (lambda: Star(()), r"hubs are \(\)"),
        (lambda: Star((1, -1)), "Star hub=-1 is out of range"),
        (lambda: Star((1, 1.5)), r"hubs\[1\]=1.5 is a float"),
        (lambda: Random(0), "count=0 is out of range"),
        (lambda: Random(1, seed=-1), "seed=-1 is out of range"),
        (lambda: BigBird(1, -1, 1), "hubs=-1 is out of range"),
        (lambda: Prefix(0), "length=0 is out of range"),
        (lambda: Prefix(None), "length=None is a NoneType"),
        (lambda: from_edges(2, [(0, 0)]), "token 1 has no key to attend to"),
        (lambda: from_edges(2, [(0, 0), (0, 2)]), r"edge \(0, 2\) is out of range"),
        (lambda: from_edges(2, [(0, 0), (-1, 1)]), r"edge \(-1, 1\)"),
        (lambda: from_edges(0, []), "tokens=0 is out of range"),
        (lambda: from_edges(2, []), r"expected \(edge, 2\)"),
        (lambda: from_edges(2, [0, 1]), r"edges\[0\]=0 is a int"),
        (lambda: from_edges(2, [(0.0, 1.0)]), r"edges\[0\]\[0\]=0.0 is a float"),
        (lambda: from_edges(2, torch.ones(2, 2)), "float32"),
    ],
)
def test_masks_that_make_no_sense(make, words):
    with pytest.raises((SpecError, KindError, ShapeError), match=words):
        make()


def test_equal_masks_are_equal_however_they_were_written():
    assert Star((1, 0, 1)) == Star(2) != Star((0, 2))
    assert from_edges(2, [(0, 0), (0, 1)]) == from_edges(2, torch.tensor([[0, 1], [0, 0], [0, 1]]))
    assert from_edges(2, [(0, 0), (0, 1)]) != from_edges(2, [(0, 0), (1, 1)])
    assert BigBird(1, 1, 1) == BigBird(1, 1, 1, seed=0) != BigBird(1, 1, 1, seed=1)
    a, b, c = Causal(), Star(1), window(2)
    assert a | b | c == c | (b | a) | a
    assert a & b & c == c & (b & a) & b
    assert a | a == a == a & a
    assert a | b != a & b
    assert (a | b) & c != a | (b & c)
    assert hash(a | b) == hash(b | a)
    assert Spec(1, 1, 2, mask=a | b).digest() == Spec(1, 1, 2, mask=b | a).digest()


def test_only_masks_join_masks():
    with pytest.raises(TypeError):
        Causal() | "full"
    with pytest.raises(TypeError):
        Causal() & None


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (Dilated(8, 2), "dilated(8, every 2)"),
        (Dilated(8, 2, causal=True), "causal-dilated(8, every 2)"),
        (Strided(8), "strided(8)"),
        (Strided(8, causal=True), "causal-strided(8)"),
        (Fixed(8), "fixed(8)"),
        (GlobalColumns(8), "columns(8)"),
        (BlockLocal(4), "block(4)"),
        (Star(2), "star(2)"),
        (Star((1, 3)), "star(at (1, 3))"),
        (Random(2), "random(2, seed 0)"),
        (BigBird(3, 1, 2), "bigbird(window 3, hubs 1, random 2, seed 0)"),
        (Prefix(4), "prefix(4)"),
        (from_edges(2, [(0, 0), (0, 1)]), "edges(2 tokens, 2 edges)"),
        (window(1) & Causal() | Star(1), "causal & window(-1, +1) | star(1)"),
        ((window(1) | Star(1)) & Causal(), "causal & (star(1) | window(-1, +1))"),
    ],
)
def test_masks_print_short(mask, text):
    assert str(mask) == text


def test_picture():
    assert (window(0) | Window(before=1, after=0)).picture(3) == "■ · ·\n■ ■ ·\n· ■ ■"
    assert Full().picture().count("■") == 256


def test_networks_take_every_mask(lively, tokens):
    x = tokens(1, 5, 6)
    for mask in EVERY.values():
        theirs = lively(Spec(1, 2, 6, mask=mask))(x)
        same = lively(Spec(1, 2, 6, mask=Explicit.of(mask.matrix(5))))(x)
        torch.testing.assert_close(theirs, same, rtol=0, atol=1e-14)
        assert isinstance(mask, Mask)
