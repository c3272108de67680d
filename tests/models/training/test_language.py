"""The small language model: it learns, reads any text, and is the same for a seed."""

import pytest
import torch

from rankscope.errors import KindError
from rankscope.models.text import Tokenizer
from rankscope.models.training import LanguageConfig, Recipe, small_language_model
from rankscope.models.training import _language as language

TINY = LanguageConfig(
    layers=1,
    heads=2,
    width=16,
    length=12,
    copies=8,
    recipe=Recipe(60, 8, warmup=5, learning_rate=0.01),
)


@pytest.fixture(autouse=True)
def few_passages(monkeypatch):
    """So little to read that it is learnt at once."""
    texts = ["A rose is a rose, and a flower.", "One and one is two; two and two are four."]
    monkeypatch.setattr(language, "passages", lambda: texts)
    language._TRAINED.clear()
    yield
    language._TRAINED.clear()


def test_it_learns_and_reads_texts():
    seen: list[float] = []
    found = small_language_model(3, config=TINY, on_step=seen.append)
    assert found.accuracy > 2 * found.chance
    assert seen[-1] == 1.0
    network, x, token_mask = found.read(["a rose is a flower", "one"], length=6)
    assert x.shape == (2, 6, 16)
    assert token_mask.tolist() == [[True] * 6, [True, True, True, False, False, False]]
    ids = torch.tensor([Tokenizer.bundled()("a rose is a flower", length=6)])
    expected = found.model.encoder.weight[ids[0]] + found.model.positions[:6]
    assert torch.equal(x[0], expected)
    assert network(x, token_mask).shape == x.shape
    assert found.read(["one two three " * 9])[1].shape == (1, 12, 16)
    with pytest.raises(KindError, match=r"put it in a list: \[texts\]"):
        found.read("one")


def test_a_seed_is_one_model():
    first = small_language_model(3, config=TINY)
    assert small_language_model(3, config=TINY) is first
    language._TRAINED.clear()
    again = small_language_model(3, config=TINY)
    other = small_language_model(4, config=TINY)
    weight = first.model.readout.weight
    assert torch.equal(weight, again.model.readout.weight)
    assert not torch.equal(weight, other.model.readout.weight)


def test_what_is_masked_is_asked_for_and_nothing_else():
    mask_id = len(Tokenizer.bundled().vocabulary)
    data = language._masked(0, TINY, mask_id)
    asked = data.targets >= 0
    assert torch.equal(asked, data.inputs == mask_id)
    assert bool(asked.any(1).all())
    assert bool((data.targets[asked] > 2).all())  # never CLS, SEP or padding
    assert torch.equal(data.token_mask, data.inputs != 0)
    whole = torch.where(asked, data.targets, data.inputs).chunk(TINY.copies)
    assert torch.equal(whole[0], whole[1])
    words = [each for row in whole[0].tolist() for each in row if each > 2]
    expected = [each for text in language.passages() for each in Tokenizer.bundled()(text)[1:-1]]
    assert words == expected
