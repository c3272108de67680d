"""The bundled text, its tokeniser and its embedding."""

import pytest
import torch

from rankscope.errors import InputError, KindError
from rankscope.models.text import Tokenizer, embed, passages


def test_there_are_enough_passages_and_each_fills_a_window() -> None:
    tokenizer = Tokenizer.bundled()
    lengths = [len(tokenizer(text)) for text in passages()]
    assert len(lengths) >= 32
    assert min(lengths) >= 128
    assert len(set(passages())) == len(passages())


def test_bundled_text_needs_no_spelling_out() -> None:
    tokenizer = Tokenizer.bundled()
    ids = {index for text in passages() for index in tokenizer(text)}
    assert not ids & set(range(3, 259)), "a byte token in text the vocabulary was made from"
    assert len(tokenizer.vocabulary) == len(set(tokenizer.vocabulary))


def test_words_and_bytes_by_hand() -> None:
    tokenizer = Tokenizer(("a", "rose"))
    assert tokenizer.pieces("A rose, é") == ["[CLS]", "a", "rose", "<2c>", "<c3>", "<a9>", "[SEP]"]
    assert tokenizer("a rose a") == [1, 259, 260, 259, 2]
    assert tokenizer("a rose a", length=4) == [1, 259, 260, 2]


def test_different_texts_never_collide() -> None:
    tokenizer = Tokenizer.bundled()
    assert tokenizer("zyzzyva") != tokenizer("zyzzyvb")


@pytest.mark.parametrize("text", ["", "   \n"])
def test_empty_text_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="no word"):
        Tokenizer.bundled()(text)


def test_too_short_a_length_is_an_error() -> None:
    with pytest.raises(InputError, match="CLS and SEP"):
        Tokenizer.bundled()("one", length=2)


def test_embedding_is_normalised_padded_and_seeded() -> None:
    state = torch.random.get_rng_state()
    x, mask = embed(["a long life in science", "music"], 16, length=6, seed=3)
    assert x.shape == (2, 6, 16)
    assert mask.tolist() == [[True] * 6, [True] * 3 + [False] * 3]
    assert torch.allclose(x.mean(-1), torch.zeros(2, 6), atol=1e-6)
    assert torch.allclose(x.var(-1, unbiased=False), torch.ones(2, 6), atol=1e-4)
    again, _ = embed(["a long life in science", "music"], 16, length=6, seed=3)
    other, _ = embed(["a long life in science", "music"], 16, length=6, seed=4)
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert torch.equal(state, torch.random.get_rng_state())


def test_position_enters_the_embedding() -> None:
    x, _ = embed(["rose rose"], 16, length=6)
    assert not torch.allclose(x[0, 1], x[0, 2])


@pytest.mark.parametrize(("texts", "error"), [([], InputError), ("a bare string", KindError)])
def test_embed_wants_a_list(texts, error) -> None:
    with pytest.raises(error, match="list"):
        embed(texts, 8)
