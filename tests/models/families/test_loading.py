"""Loading: from names, folders, objects; from text, ids, images, embeddings; and its refusals."""

import json
import os
import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from rankscope import residual, trace
from rankscope.errors import InputError, KindError, RankscopeError, SourceError
from rankscope.models.checkpoints import _files
from rankscope.models.families import BUILTIN, Verification, _sources, load
from rankscope.models.text import passages

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
    first, again, other = (load(folder, at_init=True, seed=seed) for seed in (1, 1, 2))
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
        ("models/nope", "there is no folder models/nope"),  # in a folder that there is
        ("gpt-2", "Did you mean gpt2"),
        ("gpt2", "'gpt2' is built in: its architecture needs no weights"),
    ],
)
def test_what_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(_sources, "hub_is_reachable", lambda: False)
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
    from rankscope.models.families import FAMILIES

    known = {kind for family in FAMILIES for kind in family.model_types}
    assert {config().model_type for config in BUILTIN.values()} <= known
    assert len(BUILTIN) >= 12


def test_a_builtin_reads_text_offline() -> None:
    loaded = load("distilbert", at_init=True)
    x, token_mask, special = loaded.inputs(passages()[:2], length=20)
    assert x.shape == (2, 20, 768)
    assert token_mask.all()
    assert special.sum(-1).tolist() == [2, 2]
    assert 0.9 < residual(x, relative=True).mean() < 1.01


def test_length_cuts_texts_and_nothing_else() -> None:
    loaded = load("distilbert", at_init=True)
    for length in (3, 7):
        assert loaded.inputs(passages()[:2], length=length).x.shape == (2, length, 768)
        assert loaded.arguments(passages()[:2], length=length)["input_ids"].shape == (2, length)
    ids = torch.ones(1, 9, dtype=torch.long)
    assert loaded.inputs(ids).x.shape == (1, 9, 768)
    for given in (ids, torch.zeros(1, 9, 768)):
        with pytest.raises(InputError, match=r"length=5 cuts texts.*ids\[:, :length\]"):
            loaded.inputs(given, length=5)
    seeing = load(lively("vit"))
    with pytest.raises(InputError, match=r"length=5 cuts texts.*Images have one length"):
        seeing.inputs(seeing.noise_images(1), length=5)
    for length in (0, -1):
        with pytest.raises(InputError, match=f"length={length} is out of range"):
            loaded.inputs(["A text."], length=length)


def test_what_was_loaded_prints_in_a_line() -> None:
    for loaded in (load("distilbert", at_init=True), load(lively("vit"))):
        assert len(repr(loaded)) < 600
        assert loaded.name in repr(loaded)
        assert loaded.network.spec.describe()[:100] in repr(loaded)


def test_what_was_loaded_shows_itself_in_notebooks() -> None:
    loaded = replace(load(lively("vit")), name="<script>")
    loaded = replace(loaded, verification=Verification("ViT", (0.0, 1.25e-7), 1e-4))
    html = loaded._repr_html_()
    assert html.startswith("<div")
    assert "<b>Loaded &lt;script&gt;</b>" in html
    assert "reads images; equal to the original to 1.2e−7<" in html
    exact = replace(loaded, verification=Verification("ViT", (0.0,), 1e-4))
    assert "equal to the original to 0)" in repr(exact)


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
    from rankscope.core.metrics import mean_cosine

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


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("lost", ["encoder.layer.1.output.dense.weight", "embeddings.word"])
def test_a_checkpoint_that_lacks_weights_is_refused(folder: Path, lost: str) -> None:
    kept = {name: each for name, each in tensors(folder).items() if not name.startswith(lost)}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SourceError, match=lost):
        load(folder)


def test_a_checkpoint_without_its_pooler_is_whole(folder: Path) -> None:
    kept = {name: each for name, each in tensors(folder).items() if "pooler" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    assert load(folder).verification.worst < 1e-5


class Evil:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple:
        return (os.mkdir, ("evil-was-here",))


def test_a_malicious_pickle_is_never_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    for pickled in (False, True):
        with pytest.raises(SourceError):
            load(folder, pickled=pickled)
    assert not (tmp_path / "evil-was-here").exists()


def test_code_in_a_checkpoint_is_never_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "mystery",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.M"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('evil ran')")
    with pytest.raises(SourceError, match="could not be loaded"):
        load(folder)


@pytest.mark.parametrize(
    "content", ["null", "{", '{"model_type": "bert", "num_attention_heads": 0}']
)
def test_broken_configurations_are_one_sentence(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises((SourceError, InputError)) as caught:
        load(folder)
    assert len(str(caught.value).splitlines()) == 1


def test_a_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load("~/model").verification.worst < 1e-5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": torch.int8}, "dtype=torch.int8"),
        ({"dtype": "float32"}, "dtype='float32'"),
        ({"device": "nowhere"}, "device 'nowhere'"),
        ({"revision": "main"}, "revision"),
        ({"device_map": "auto"}, "device_map"),
    ],
)
def test_options_that_cannot_be_met(options: dict, says: str) -> None:
    with pytest.raises(RankscopeError, match=says):
        load(lively("bert"), **options)


def test_a_source_of_the_wrong_kind() -> None:
    with pytest.raises(KindError, match="Loaded"):
        load(load(lively("bert")))


def test_a_dtype_leaves_the_callers_model_as_it_is() -> None:
    model = lively("bert")
    assert load(model, dtype=torch.float64).network.blocks[0].mlp.up.weight.dtype == torch.float64
    assert next(model.parameters()).dtype == torch.float32


def test_a_model_at_initialisation() -> None:
    model = lively("bert")
    fresh = load(model, at_init=True, seed=3)
    assert fresh.network.seed == 3
    assert not torch.equal(next(fresh.original.parameters()), next(model.parameters()))


def test_half_precision_does_not_bend_the_angles() -> None:
    loaded = load(lively("llama"), dtype=torch.bfloat16)
    exact = lively("llama").model.rotary_emb.inv_freq
    assert torch.equal(loaded.original.model.rotary_emb.inv_freq, exact)
    assert torch.equal(loaded.network.blocks[0].attention.scores.frequencies, exact)
    assert torch.equal(
        loaded.network.double().to(torch.bfloat16).blocks[0].attention.scores.frequencies, exact
    )


def test_dropout_never_runs() -> None:
    loaded = load(lively("bert").train())
    ids = torch.tensor([[5, 17, 42]])
    assert torch.equal(loaded.inputs(ids).x, loaded.inputs(ids).x)
    assert loaded.original.training


@pytest.mark.parametrize("fill", [0, 1, 50])
def test_roberta_counts_positions_whatever_the_padding_is(fill: int) -> None:
    loaded = load(lively("roberta"), dtype=torch.float64)
    alone = loaded.inputs(torch.tensor([[5, 17, 42]])).x
    ids = torch.tensor([[fill, fill, 5, 17, 42]])
    mask = torch.tensor([[False, False, True, True, True]])
    assert torch.allclose(loaded.inputs(ids, token_mask=mask).x[:, 2:], alone)


def test_bundled_ids_keep_clear_of_a_models_own() -> None:
    loaded = load("roberta-base", at_init=True)
    ids = loaded.arguments(["A text."])["input_ids"]
    assert int(ids.min()) > 2


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("bert", torch.zeros(1, 3, 7), "width 7"),
        ("bert", torch.zeros(1, 3, 24, dtype=torch.float64), "float64"),
        ("bert", torch.zeros(1, 3, 8, 8), "embeddings"),
        ("bert", torch.zeros(1, 70, dtype=torch.int64), "more than the 64 positions"),
        ("vit", torch.zeros(1, 3, dtype=torch.int64), "sees images"),
        ("vit", ["a text"], "sees images"),
        ("bert", "a bare text", "in a list"),
    ],
)
def test_inputs_of_the_wrong_kind(name: str, given, says: str) -> None:
    with pytest.raises(RankscopeError, match=says):
        load(lively(name)).inputs(given)


def test_an_index_cannot_point_outside_its_folder(tmp_path) -> None:
    folder = tmp_path / "model"
    lively("bert").save_pretrained(folder, max_shard_size="4KB")
    index = folder / "model.safetensors.index.json"
    found = json.loads(index.read_text())
    assert load(folder).verification.worst < 1e-5
    for outside in ("../secret.safetensors", "/etc/secret", "a/../../secret"):
        name = next(iter(found["weight_map"]))
        found["weight_map"][name] = outside
        index.write_text(json.dumps(found))
        with pytest.raises(SourceError, match="points outside its folder"):
            load(folder)
    for strange in ([], {"weight_map": ["a"]}, {"weight_map": {"a": 1}}):
        index.write_text(json.dumps(strange))
        with pytest.raises(SourceError, match="which weights are in which file"):
            load(folder)


def test_a_config_that_names_no_architecture_says_so(tmp_path) -> None:
    lively("bert").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    for options in ({}, {"at_init": True}):
        with pytest.raises(SourceError, match="names no model_type"):
            load(tmp_path, **options)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SourceError, match="cannot be read as JSON"):
        load(tmp_path)


def test_a_pickle_of_more_than_weights_is_not_advised_to_be_pickled(tmp_path) -> None:
    lively("bert").config.save_pretrained(tmp_path)
    torch.save({"weights": print}, tmp_path / "pytorch_model.bin")
    with pytest.raises(SourceError, match="save the model as safetensors") as error:
        load(tmp_path, pickled=True)
    assert "pickled=True" not in str(error.value)


def test_a_head_that_was_not_read_is_written_again(tmp_path):
    config = hf.BertConfig(
        vocab_size=97, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=40, num_labels=3,
    )  # fmt: skip
    theirs = hf.BertForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path / "whole")
    loaded = load(tmp_path / "whole")
    with torch.no_grad():
        loaded.network.blocks[1].attention.query.weight.mul_(2.0)
    loaded.save(tmp_path / "mended")
    mended = hf.BertForSequenceClassification.from_pretrained(tmp_path / "mended")
    expected = theirs.state_dict()
    expected["bert.encoder.layer.1.attention.self.query.weight"] *= 2.0
    written = mended.state_dict()
    assert written.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(written[name], weight), name


@pytest.mark.parametrize("through", ["index", "config"])
def test_what_names_a_pickle_does_not_let_it_in(tmp_path, monkeypatch, through: str) -> None:
    lively("bert").save_pretrained(tmp_path, max_shard_size="4KB")
    index = tmp_path / "model.safetensors.index.json"
    named = json.loads(index.read_text())
    if through == "index":
        weight, file = next(iter(named["weight_map"].items()))
        torch.save({weight: load_file(tmp_path / file)[weight]}, tmp_path / "w.bin")
        named["weight_map"][weight] = "w.bin"
        index.write_text(json.dumps(named))
    else:
        torch.save({}, tmp_path / "adapter_model.bin")
        config = json.loads((tmp_path / "config.json").read_text())
        config["transformers_weights"] = "adapter_model.bin"
        (tmp_path / "config.json").write_text(json.dumps(config))
    opened: list[object] = []
    monkeypatch.setattr(torch, "load", lambda *a, **_: opened.append(a) or {})
    with pytest.raises(SourceError, match=r"no safetensors file; pickle files need pickled=True"):
        load(tmp_path)
    assert opened == []


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("num_hidden_layers", 10**8, "more than the 2,000 that are tried"),
        ("num_hidden_layers", 10**30, "more than the 2,000 that are tried"),
        ("num_labels", 10**9, "more than the 10,000,000 that are tried"),
        ("vocab_size", 10**10, "describes a model of|takes about"),
        ("intermediate_size", 10**10, "describes a model of|takes about"),
        ("hidden_size", 10**12, "could not be loaded"),
    ],
)
def test_a_configuration_cannot_ask_for_more_than_its_weights(
    folder: Path, key: str, value: int, says: str, init: bool
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    start = time.perf_counter()
    with pytest.raises(SourceError, match=says):
        load(folder, at_init=init)
    assert time.perf_counter() - start < 20


def test_a_model_larger_than_the_memory_is_not_built(monkeypatch) -> None:
    monkeypatch.setattr(_files, "available_memory", lambda: 2**20)
    with pytest.raises(SourceError, match=r"takes about 0.41 GiB of memory, and .* are there"):
        load("bert-base", at_init=True)
