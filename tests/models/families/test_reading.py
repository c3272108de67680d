"""What a loaded model reads, token by token."""

from pathlib import Path

import pytest
import torch
import transformers as hf

from rankscope import load
from rankscope.errors import InputError, KindError
from rankscope.models.families import Loaded

from .conftest import TINY


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Loaded:
    """A tiny BERT that knows six words."""
    folder = tmp_path_factory.mktemp("reader")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    return load(TINY["bert"](), tokenizer=hf.BertTokenizer(str(folder / "vocab.txt")))


def test_texts_are_told_as_the_model_saw_them(reader: Loaded) -> None:
    block, check = reader.read(["a b x d e", "c"], length=6)
    assert check.origin == "text"
    assert check.tokens == (("[CLS]", "a", "b", "[UNK]", "d", "[SEP]"), ("[CLS]", "c", "[SEP]"))
    assert check.special == ((0, 5), (0, 2))
    assert check.unknown == ((3,), ())
    assert check.lost == (1, 0)
    assert block.token_mask.sum(-1).tolist() == list(check.lengths)
    assert torch.equal(block.x, reader.inputs(["a b x d e", "c"], length=6).x)
    # A word the tokeniser does not know is a word: it counts among the tokens that are measured.
    assert block.special_mask[0].tolist() == [True, False, False, False, False, True]


def test_text_that_does_not_fit_is_read_but_not_taken_for_input(reader: Loaded) -> None:
    strange = ["x y z a"]
    _, check = reader.read(strange)
    assert not check.fits
    for refusing in (reader.inputs, reader.arguments):
        with pytest.raises(InputError, match="3 of 4 tokens are unknown"):
            refusing(strange)


def test_ids_embeddings_and_images_are_named_by_what_is_known(reader: Loaded) -> None:
    ids = torch.tensor([[2, 5, 6, 3]])
    assert reader.read(ids)[1].tokens == (("[CLS]", "a", "b", "[SEP]"),)
    mute = load(TINY["bert"]())
    assert mute.read(ids)[1].tokens == (("2", "5", "6", "3"),)
    assert mute.read(ids)[1].origin == "ids"
    check = mute.read(torch.zeros(1, 2, 24))[1]
    assert (check.origin, check.tokens) == ("embeddings", (("token 0", "token 1"),))
    sees = load(TINY["vit"]())
    check = sees.read(sees.noise_images(2))[1]
    assert check.origin == "images"
    assert check.special == ((0,), (0,))
    assert check.lengths == (17, 17)
    assert check.tokens[0][:2] == ("class", "patch 1")


def test_padding_on_the_left_is_no_token(reader: Loaded) -> None:
    ids = torch.tensor([[0, 0, 5, 6]])
    _, check = reader.read(ids, token_mask=ids > 0)
    assert check.tokens == (("a", "b"),)


def test_an_end_mark_is_not_unknown(tmp_path: Path) -> None:
    """Byte-level tokenisers call their end mark unknown, too, and know everything."""
    (tmp_path / "vocab.json").write_text(
        '{"<|endoftext|>": 0, "a": 1, "b": 2, "\u0120": 3, "\u0120a": 4}'
    )
    (tmp_path / "merges.txt").write_text("#version: 0.2\n\u0120 a\n")
    tokenizer = hf.GPT2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    loaded = load(TINY["gpt2"](), tokenizer=tokenizer)
    assert tokenizer.pad_token is None  # the caller's own stays as it is
    check = loaded.read(["b a<|endoftext|>", "b"])[1]
    assert check.tokens == (("b", "▁a", "<|endoftext|>"), ("b",))
    assert check.unknown_count == 0
    assert check.special == ((2,), ())


def test_what_is_no_tokeniser_is_refused() -> None:
    with pytest.raises(KindError, match="expected a folder, a Hub id or a tokeniser"):
        load(TINY["bert"](), tokenizer=3)
