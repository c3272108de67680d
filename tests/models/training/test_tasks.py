"""The tasks: their labels against another way to find them, and sentences out of files."""

import pytest
import torch

from rankscope.errors import InputError
from rankscope.models.training import IGNORED, Hull, Memorisation, Sorting, read_sentences
from rankscope.models.training import split_sentences as split
from rankscope.models.training._tasks import on_hull


def test_sorting_has_the_same_symbols_in_order():
    data = Sorting(symbols=5, tokens=6).draw(40, 0, "training")
    for given, wanted in zip(data.inputs.tolist(), data.targets.tolist(), strict=True):
        assert sorted(given) == wanted
    assert set(data.inputs.flatten().tolist()) == set(range(5))
    other = Sorting(symbols=5, tokens=6).draw(40, 0, "evaluation")
    assert not torch.equal(data.inputs, other.inputs)


def test_corners_of_a_hull_are_the_points_that_some_line_leaves_alone():
    """A point is a corner if it is farthest in some direction: many directions are tried."""
    data = Hull(points=8).draw(30, 1, "training")
    angles = torch.linspace(0, 2 * torch.pi, 20_000)[:-1]
    directions = torch.stack([angles.cos(), angles.sin()])
    farthest = (data.inputs @ directions).argmax(1)
    for own, found in zip(data.targets, farthest, strict=True):
        assert own.nonzero().flatten().tolist() == found.unique().tolist()
    assert 0.4 < data.targets.double().mean() < 0.9


def test_a_point_in_the_middle_of_a_square_is_not_on_the_hull():
    square = torch.tensor([[[0, 0], [1, 0], [0.5, 0.4], [0, 1], [1, 1]]]).double()
    assert on_hull(square).tolist() == [[1, 1, 0, 1, 1]]


def test_every_token_of_a_sentence_has_a_random_label_and_padding_none():
    data = Memorisation(("a rose is a flower", "one"), tokens=6, labels=3).draw(0)
    assert data.inputs.shape == (2, 6)
    assert torch.equal(data.token_mask, data.inputs != 0)
    assert torch.equal(data.targets == IGNORED, ~data.token_mask)
    many = Memorisation(("a rose is a flower",) * 200, labels=3).draw(0).targets
    assert many.unique().tolist() == [0, 1, 2]
    assert not torch.equal(
        many, Memorisation(("a rose is a flower",) * 200, labels=3).draw(1).targets
    )
    with pytest.raises(InputError, match="no sentence to memorise"):
        Memorisation(()).draw(0)


def test_texts_are_split_into_sentences():
    assert split(["One two. Three? Four", "Five!"]) == ["One two.", "Three?", "Four", "Five!"]


def test_columns_of_sentences_are_read_row_by_row(tmp_path):
    path = tmp_path / "rte.tsv"
    path.write_text("index\tsentence1\tSentence2\tlabel\n0\ta b\tc\tx\n\n1\tdé\tf\ty\n", "utf-8")
    assert read_sentences(path) == ("a b", "c", "dé", "f")
    path.write_text("sentence\r\na\u2028b\x0cc\r\nd\r\n", "utf-8")  # one sentence a row
    assert read_sentences(path) == ("a\u2028b\x0cc", "d")


def test_plain_text_is_read_line_by_line(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\ufeffone\ttwo\n\n  three \n", "utf-8")
    assert read_sentences(str(path)) == ("one\ttwo", "three")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b" \n", "contains no sentence"),
        ("header.tsv", b"sentence\n", "no row below its header"),
        ("nothing.tsv", b"", "no column whose name begins with 'sentence'"),
        ("headless.tsv", b"0\ta b c\n1\td e\n", "name the columns to read in its first row"),
        ("ragged.tsv", b"a\tsentence\n1\n", "row 2: 1 columns where the header has 2"),
        ("latin.txt", b"caf\xe9\n", "not in UTF-8"),
        ("missing.txt", None, "cannot be read: No such file"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_sentences(path)
