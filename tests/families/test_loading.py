"""Loading: from names, folders, objects; from text, ids, images, embeddings; and its refusals."""

from pathlib import Path

import pytest
import torch

from rankscope import residual, trace
from rankscope.errors import InputError, KindError, SourceError
from rankscope.families import BUILTIN, load, sources
from rankscope.text import passages

from .conftest import lively


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lively("bert").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_without_tokeniser(folder: Path) -> None:
    loaded = load(folder)
    expected = lively("bert").encoder.layer[0].output.dense.weight
    assert torch.equal(loaded.original.encoder.layer[0].output.dense.weight, expected)
    with pytest.raises(SourceError, match="without a tokeniser"):
        loaded.inputs(["some text"])


def test_a_folder_at_initialisation_differs_and_is_seeded(folder: Path) -> None:
    state = torch.random.get_rng_state()
    first, again, other = (load(folder, init=True, seed=seed) for seed in (1, 1, 2))
    weights = [next(each.network.parameters()) for each in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(state, torch.random.get_rng_state())


def test_device_map_and_dtype(folder: Path) -> None:
    loaded = load(folder, device_map={"": "cpu"}, dtype=torch.bfloat16)
    assert next(loaded.original.parameters()).dtype == torch.bfloat16


def test_pickled_weights_only_when_asked_for(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(lively("bert").state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(SourceError, match="pickled=True"):
        load(folder)
    assert load(folder, pickled=True).verification.worst < 1e-5


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("./nowhere", "there is no folder ./nowhere"),
        ("/nowhere/at/all", "there is no folder"),
        ("some/model", "some/model could not be loaded"),
        ("gpt2", "'gpt2' is built in: init=True"),
    ],
)
def test_what_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "_hub_is_reachable", lambda: False)
    with pytest.raises(SourceError, match=says) as caught:
        load(source)
    assert len(str(caught.value).splitlines()) == 1


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no config\.json"):
        load(tmp_path)


def test_broken_weights_are_one_sentence(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(SourceError, match="could not be loaded"):
        load(folder)


def test_every_builtin_name_has_a_family() -> None:
    from rankscope.families import FAMILIES

    known = {kind for family in FAMILIES for kind in family.model_types}
    assert {config().model_type for config in BUILTIN.values()} <= known
    assert len(BUILTIN) >= 12


def test_a_builtin_reads_text_offline() -> None:
    loaded = load("distilbert", init=True)
    x, token_mask, special = loaded.inputs(passages()[:2], length=20)
    assert x.shape == (2, 20, 768)
    assert token_mask.all()
    assert special.sum(-1).tolist() == [2, 2]
    assert 0.9 < residual(x, relative=True).mean() < 1.01


def test_images_and_noise() -> None:
    loaded = load(lively("vit"))
    noise = loaded.noise_images(2)
    x, token_mask, special = loaded.inputs(noise)
    assert x.shape == (2, 17, 24)
    assert token_mask.all()
    assert special[:, 0].all()
    assert not special[:, 1:].any()
    with pytest.raises(KindError, match="image processor"):
        loaded.inputs([object()])


def test_embeddings_take_the_place_of_word_embeddings() -> None:
    loaded = load(lively("bert"))
    ids = torch.tensor([[5, 17, 42]])
    words = loaded.body.embeddings.word_embeddings(ids)
    by_ids, by_words = loaded.inputs(ids), loaded.inputs(words.detach())
    assert torch.allclose(by_ids.x, by_words.x)


def test_special_tokens_can_be_left_out_of_the_figures(minilm: Path) -> None:
    loaded = load(minilm)
    x, token_mask, special = loaded.inputs(["A short text.", "Another, somewhat longer, text."])
    assert special.sum(-1).tolist() == [2, 2]
    measured = token_mask & ~special
    whole = trace(loaded.network, x, metrics=["mean_cosine"], token_mask=token_mask)
    inner = trace(
        loaded.network, x, metrics=["mean_cosine"], token_mask=token_mask, measured=measured
    )
    assert whole.columns["value"] != inner.columns["value"]
    states = list(loaded.network.states(x, token_mask))
    from rankscope.metrics import mean_cosine

    last = mean_cosine(states[-1].detach(), token_mask=measured)
    assert inner.table.filter(layer=6)["value"].to_list() == pytest.approx(last.tolist(), rel=1e-5)


class TestMiniLM:
    """A real pretrained model."""

    def test_every_layer_equals_the_original(self, minilm: Path) -> None:
        assert load(minilm, dtype=torch.float64).verification.worst < 1e-10

    def test_hidden_states_of_texts(self, minilm: Path) -> None:
        loaded = load(minilm, dtype=torch.float64)
        texts = [passages()[0], "A much shorter one."]
        x, token_mask, _ = loaded.inputs(texts, length=64)
        encoded = loaded.tokenizer(
            texts, padding=True, truncation=True, max_length=64, return_tensors="pt"
        )
        with torch.no_grad():
            theirs = loaded.original(**encoded, output_hidden_states=True).hidden_states
            ours = [x, *loaded.network.states(x, token_mask)]
        for mine, other in zip(ours, theirs, strict=True):
            error = (mine - other)[token_mask].norm() / other[token_mask].norm()
            assert error < 1e-10

    def test_attention_alone_collapses_and_the_model_does_not(self, minilm: Path) -> None:
        loaded = load(minilm)
        x, token_mask, _ = loaded.inputs(passages()[:2], length=64)
        with torch.no_grad():
            san = loaded.network.without("skip", "mlp")(x, token_mask)
            whole = loaded.network(x, token_mask)
        assert residual(san, relative=True, token_mask=token_mask).max() < 1e-5
        assert residual(whole, relative=True, token_mask=token_mask).min() > 0.3


def test_wrong_ids_and_masks_are_named() -> None:
    loaded = load(lively("bert"))
    with pytest.raises(InputError, match="token_mask"):
        loaded.inputs(torch.tensor([[1, 2, 3]]), token_mask=torch.ones(1, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="97"):
        loaded.inputs(torch.tensor([[1, 2, 300]]))
    with pytest.raises(InputError, match=r"\(batch, token\)"):
        loaded.inputs(torch.tensor([1, 2, 3]))
    with pytest.raises(InputError, match="at least one"):
        loaded.inputs([])
