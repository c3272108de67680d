"""A model and what it reads, in one value, whatever the model comes as."""

import pytest
import torch
import transformers as hf

from rankscope import load
from rankscope.ask import model_subject
from rankscope.errors import InputError
from rankscope.models.families import BUILTIN

from ..models.families.conftest import TINY

LITTLE = {"vocab_size": 2700, "hidden_size": 24, "num_hidden_layers": 2}
MORE = {"num_attention_heads": 4, "intermediate_size": 40}


@pytest.fixture
def saved(tmp_path):
    hf.BertModel(hf.BertConfig(**LITTLE, **MORE)).save_pretrained(tmp_path / "little")
    return tmp_path / "little"


def test_a_folder_a_model_and_a_loaded_one_are_the_same_subject(saved) -> None:
    rows = [[2, 7, 8, 9, 3], [2, 11, 3]]
    model = hf.BertModel.from_pretrained(saved)
    subjects = [model_subject(each, ids=rows, length=4) for each in (saved, model, load(model))]
    for each in subjects:
        assert torch.equal(each.x, subjects[0].x)
        assert each.check.tokens == (("2", "7", "8", "9"), ("2", "11", "3"))
        assert each.check.lost == (1, 0)
        assert each.token_mask.tolist() == [[True] * 4, [True] * 3 + [False]]
    assert [each.about.get("origin") for each in subjects] == ["pretrained", None, None]
    assert "pretrained" in subjects[0].name
    assert subjects[1].name == "BertModel: BERT, 2 layers, 4 heads"


def test_at_initialisation_bundled_text_is_read(monkeypatch) -> None:
    monkeypatch.setitem(BUILTIN, "little", lambda: hf.BertConfig(**LITTLE, **MORE))
    subject = model_subject("little", at_init=True, samples=2, length=8)
    assert subject.check.lengths == (8, 8)
    assert subject.check.cut == 2
    assert "at initialisation" in subject.name
    assert subject.provenance()["input"] == "2 samples of up to 8 tokens, bundled passages"
    inner = model_subject("little", at_init=True, samples=1, length=8, special_tokens=False)
    assert inner.measured[0].tolist() == [False, *[True] * 6, False]


def test_a_model_that_sees_is_shown_noise() -> None:
    subject = model_subject(TINY["vit"](), samples=2)
    assert subject.check.origin == "noise images"
    assert len(subject.x) == 2
    with pytest.raises(InputError, match="sees images"):
        model_subject(TINY["vit"](), ["a text"])


def test_what_contradicts_itself_is_refused(saved) -> None:
    loaded = load(saved)
    wrong = [
        (lambda: model_subject(loaded, ["a"], ids=[[1]]), "two inputs"),
        (lambda: model_subject(loaded, ids=[[1]], at_init=True), "loaded already"),
        (lambda: model_subject(loaded, ids=[[1], []]), "at least one id"),
        (lambda: model_subject(loaded, ids=[[1]], special_tokens=False), "which ids are special"),
        (lambda: model_subject(loaded, ids=[[1]], length=0), "length"),
        (lambda: model_subject(loaded, ["a"]), "without a tokeniser"),
    ]
    for call, words in wrong:
        with pytest.raises((InputError, ValueError), match=words):
            call()
