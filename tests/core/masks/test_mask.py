"""Masks as values: hand-written matrices, and what is refused."""

import pytest
import torch

from rankscope.core import masks
from rankscope.core.masks import Causal, Explicit, Full, LengthMask, Mask, Window, window
from rankscope.core.network import Spec
from rankscope.errors import InputError, KindError, ShapeError, SpecError

MATRICES = {
    "full": (Full(), ["111", "111", "111"]),
    "causal": (Causal(), ["100", "110", "111"]),
    "window-1-0": (Window(before=1, after=0), ["100", "110", "011"]),
    "window-0-1": (Window(before=0, after=1), ["110", "011", "001"]),
    "window-0-0": (Window(before=0, after=0), ["100", "010", "001"]),
    "window-2-0": (Window(before=2, after=0), ["100", "110", "111"]),
    "window-9-9": (Window(before=9, after=9), ["111", "111", "111"]),
    "explicit": (
        Explicit.of(torch.tensor([[0, 1, 0], [1, 0, 1], [0, 0, 1]]).bool()),
        ["010", "101", "001"],
    ),
}


def matrix(rows):
    return torch.tensor([[digit == "1" for digit in row] for row in rows])


@pytest.mark.parametrize("name", MATRICES)
def test_matrix_by_hand(name):
    mask, rows = MATRICES[name]
    assert torch.equal(mask.matrix(3), matrix(rows))


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 8, 9, 17])
def test_explicit_keeps_every_bit(tokens):
    """Lengths around multiples of eight: the mask is stored as packed bits."""
    generator = torch.Generator().manual_seed(tokens)
    wanted = torch.rand(tokens, tokens, generator=generator) < 0.5
    wanted |= torch.eye(tokens).bool()
    assert torch.equal(Explicit.of(wanted).matrix(tokens), wanted)


def test_explicit_does_not_follow_its_source():
    source = torch.eye(3).bool()
    mask = Explicit.of(source)
    source[0, 2] = True
    assert not mask.matrix(3)[0, 2]


@pytest.mark.parametrize(
    ("matrix", "error", "words"),
    [
        (torch.ones(2, 3).bool(), ShapeError, r"square, got shape \(2, 3\)"),
        (torch.ones(3).bool(), ShapeError, r"\(3,\)"),
        (torch.ones(1, 2, 2).bool(), ShapeError, r"\(1, 2, 2\)"),
        (torch.ones(0, 0).bool(), ShapeError, r"\(0, 0\)"),
        (torch.ones(2, 2), KindError, "boolean matrix, got dtype torch.float32"),
        (torch.ones(2, 2).long(), KindError, "torch.int64"),
        (
            torch.tensor([[True, False], [False, False]]),
            SpecError,
            "token 1 has no key to attend to",
        ),
        ([[True]], KindError, "list"),
    ],
    ids=["oblong", "vector", "batched", "empty", "float", "integer", "blind", "list"],
)
def test_explicit_refuses(matrix, error, words):
    with pytest.raises(error, match=words):
        Explicit.of(matrix)


@pytest.mark.parametrize("tokens", [2, 4])
def test_explicit_is_for_one_length(tokens):
    with pytest.raises(ShapeError, match=f"for 3 tokens, the sequence has {tokens}"):
        Explicit.of(torch.eye(3).bool()).matrix(tokens)


@pytest.mark.parametrize(
    "arguments", [(-1, 0), (0, -1), (1.5, 0), ("1", 0), (0, None), (True, 0)], ids=str
)
def test_window_refuses(arguments):
    with pytest.raises((SpecError, KindError), match=r"Window|before|after"):
        Window(*arguments)


def test_masks_are_values():
    eye, other = torch.eye(3).bool(), torch.ones(3, 3).tril().bool()
    assert Full() == Full()
    assert Window(before=1, after=2) == Window(before=1, after=2)
    assert Window(before=1, after=2) != Window(before=2, after=1)
    assert Explicit.of(eye) == Explicit.of(eye.clone())
    assert Explicit.of(eye) != Explicit.of(other)
    assert len({Full(), Causal(), Explicit.of(eye), Explicit.of(eye), Explicit.of(other)}) == 4


@pytest.mark.parametrize(
    ("written", "mask"),
    [
        ("full", Full()),
        ("causal", Causal()),
        (torch.eye(2).bool(), Explicit.of(torch.eye(2).bool())),
        (Window(before=1, after=0), Window(before=1, after=0)),
    ],
    ids=["full", "causal", "matrix", "mask"],
)
def test_ways_to_write_a_mask(written, mask):
    assert Spec(1, 1, 2, mask=written).mask == mask


def test_a_mask_of_ones_own(lively, tokens):
    """Any subclass works: here, tokens of equal parity see one another."""

    class Parity(Mask):
        def allows(self, query, key):
            return (query - key) % 2 == 0

    x = tokens(1, 4, 6)
    theirs = lively(Spec(2, 2, 6, mask=Parity()))(x)
    explicit = Explicit.of(matrix(["1010", "0101", "1010", "0101"]))
    assert torch.equal(theirs, lively(Spec(2, 2, 6, mask=explicit))(x))
    assert not torch.allclose(theirs, lively(Spec(2, 2, 6))(x))


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (Full(), "full"),
        (Causal(), "causal"),
        (Window(before=2, after=1), "window(-2, +1)"),
        (Explicit.of(torch.eye(3).bool()), "explicit(3 tokens)"),
    ],
    ids=["full", "causal", "window", "explicit"],
)
def test_masks_print_short(mask, text):
    assert str(mask) == text


def test_a_rule_about_keys_alone_holds_for_every_query(tokens, lively):
    class First(Mask):
        def allows(self, query, key):  # noqa: ARG002
            return key == 0

    class Last(LengthMask):
        def allows_in(self, query, key, tokens):  # noqa: ARG002
            return key == tokens - 1

    assert torch.equal(First().matrix(3), matrix(["100", "100", "100"]))
    assert torch.equal(Last().matrix(3), matrix(["001", "001", "001"]))
    assert [each.tolist() for each in First().edges(3)] == [[0, 1, 2], [0, 0, 0]]
    assert First().missing_self_loops(3) == (1, 2)
    x, padding = tokens(2, 3, 6), torch.tensor([[True, True, True], [True, True, False]])
    explicit = Explicit.of(First().matrix(3))
    theirs = lively(Spec(2, 2, 6, mask=First()))(x, token_mask=padding)
    assert torch.equal(theirs, lively(Spec(2, 2, 6, mask=explicit))(x, token_mask=padding))


def test_a_mask_of_ones_own_has_edges_loops_and_partners():
    class Others(Mask):
        def allows(self, query, key):
            return query != key

    assert Others().missing_self_loops(3) == (0, 1, 2)
    assert [each.tolist() for each in Others().edges(2)] == [[0, 1], [1, 0]]
    both = (Others() & window(1)) | Window(before=0, after=0) & Others()
    assert torch.equal(both.matrix(3), matrix(["010", "101", "010"]))


def test_a_token_that_sees_nothing_is_an_error():
    class Past(Mask):
        def allows(self, query, key):
            return key < query

        def __str__(self):
            return "past"

    for ask in (Past().matrix, Past().edges, (Past() & window(9)).edges):
        with pytest.raises(SpecError, match=r"past.* token 0 has no key to attend to"):
            ask(3)


@pytest.mark.parametrize("tokens", [0, -1, 2.0, True, "3"], ids=str)
def test_lengths_that_are_none(tokens):
    for ask in (Full().matrix, Full().edges, Full().missing_self_loops, Full().picture):
        with pytest.raises((SpecError, KindError), match="tokens="):
            ask(tokens)


@pytest.mark.parametrize("packed", [b"", b"abc", b"a" * 8, bytes(16)])
def test_edges_that_are_none_are_refused(packed):
    with pytest.raises(SpecError, match="holds no ordered edges among 2 tokens"):
        masks.EdgeList(2, packed)


def test_bits_must_be_as_many_as_there_are_pairs():
    with pytest.raises(ShapeError, match="has 1 bytes, expected 2 for 3 tokens"):
        masks.Explicit(3, b"a")


def test_more_tokens_than_fit_are_refused():
    for ask in (masks.Causal().missing_self_loops, masks.Causal().edges, masks.Causal().matrix):
        with pytest.raises(SpecError, match="tokens=2147483647 is out of range"):
            ask(2**31 - 1)
    with pytest.raises(InputError, match="pairs of a query and a key"):
        masks.Causal().matrix(2**20)
