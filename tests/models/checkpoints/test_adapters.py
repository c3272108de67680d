"""LoRA adapters: merged as the formula says, and everything else refused in a sentence."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from rankscope.ask import Model
from rankscope.errors import SourceError, UnsupportedModelError
from rankscope.models.families import load

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none"}
QUERY = "model.layers.0.self_attn.q_proj"
RANK = 3


def factors(columns: int, rows: int, rank: int = RANK) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(columns + rows)
    return (
        torch.randn(rank, columns, generator=source),
        torch.randn(rows, rank, generator=source),
    )


def save_adapter(folder: Path, base: object, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir()
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    content = {**CONFIG, "base_model_name_or_path": str(base), **config}
    (folder / "adapter_config.json").write_text(json.dumps(content))
    return folder


def lora(name: str, columns: int, rows: int, rank: int = RANK) -> dict[str, Tensor]:
    down, up = factors(columns, rows, rank)
    return {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}


@pytest.fixture
def adapter(llama_folder: Path, tmp_path: Path) -> Path:
    return save_adapter(tmp_path / "adapter", llama_folder, lora(QUERY, 24, 24))


def test_a_merged_adapter_computes_what_the_branch_beside_the_layer_does(
    adapter: Path, make
) -> None:
    """W x + (α / r) B (A x), by a hook on the model."""
    loaded = load(adapter, dtype=torch.float64)
    model, (down, up) = make("llama").double(), factors(24, 24)

    def branch(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output + 2.0 * (inputs[0] @ down.double().T @ up.double().T)

    model.get_submodule(QUERY).register_forward_hook(branch)
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        expected = model.model(ids).last_hidden_state
        unmerged = make("llama").double().model(ids).last_hidden_state
        found = loaded.original(ids).last_hidden_state
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found, unmerged, rtol=1e-3)
    assert loaded.name == str(adapter)
    assert loaded.verification.worst < 1e-10


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 2.0),
        ({"lora_alpha": 3}, 1.0),
        ({"use_rslora": True}, 6 / RANK**0.5),
        ({"alpha_pattern": {"q_proj": 12}}, 4.0),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 12, "q_proj": 1}}, 4.0),
        ({"alpha_pattern": {"v_proj": 12, "proj": 1}}, 2.0),
        ({"r": 64, "rank_pattern": {"q_proj": RANK}}, 2.0),
    ],
)
def test_the_scale(llama_folder: Path, tmp_path: Path, make, config: dict, scale: float) -> None:
    folder = save_adapter(tmp_path / "adapter", llama_folder, lora(QUERY, 24, 24), **config)
    down, up = factors(24, 24)
    before = make("llama").state_dict()
    for name, weight in load(folder).original.state_dict().items():
        expected = before[f"model.{name}"]
        if f"model.{name}" == f"{QUERY}.weight":
            expected = expected + scale * up @ down
        assert torch.allclose(weight, expected, rtol=1e-6, atol=1e-6), name


def test_layers_that_are_stored_the_other_way_round(make, tmp_path: Path) -> None:
    """GPT-2 multiplies by (input, output) matrices; an embedding is (token, feature)."""
    make("gpt2").save_pretrained(tmp_path / "base")
    (down, up), (token, feature) = factors(24, 72), factors(97, 24)
    tensors = lora("transformer.h.1.attn.c_attn", 24, 72)
    tensors |= {
        "transformer.wte.lora_embedding_A": token,
        "transformer.wte.lora_embedding_B": feature,
    }
    folder = save_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    found, before = load(folder).original, make("gpt2").transformer
    fused = before.h[1].attn.c_attn.weight + 2 * (up @ down).T
    assert torch.allclose(found.h[1].attn.c_attn.weight, fused, atol=1e-6)
    assert torch.allclose(found.wte.weight, before.wte.weight + 2 * (feature @ token).T, atol=1e-5)


@pytest.mark.parametrize("key", ["lora_magnitude_vector", "lora_magnitude_vector.weight"])
def test_magnitudes_are_the_lengths_of_rows(
    llama_folder: Path, tmp_path: Path, make, key: str
) -> None:
    lengths, (down, up) = torch.linspace(1.0, 2.0, 24), factors(24, 24)
    tensors = {**lora(QUERY, 24, 24), f"{QUERY}.{key}": lengths}
    folder = save_adapter(tmp_path / "adapter", llama_folder, tensors, use_dora=True)
    found = load(folder).original.layers[0].self_attn.q_proj.weight
    assert torch.allclose(found.norm(dim=1), lengths)
    direction = make("llama").get_submodule(QUERY).weight + 2 * up @ down
    assert torch.allclose(torch.cosine_similarity(found, direction), torch.ones(24))


def test_magnitudes_of_an_embedding_are_refused(llama_folder: Path, tmp_path: Path) -> None:
    down, up = factors(97, 24)
    name = "model.embed_tokens"
    tensors = {f"{name}.lora_embedding_A": down, f"{name}.lora_embedding_B": up}
    tensors[f"{name}.lora_magnitude_vector"] = torch.ones(24)
    folder = save_adapter(tmp_path / "adapter", llama_folder, tensors, use_dora=True)
    with pytest.raises(SourceError, match=r"unexpected DoRA magnitudes for model\.embed_tokens"):
        load(folder)


def test_heads_are_left_out_and_whole_weights_replaced(llama_folder: Path, tmp_path: Path) -> None:
    gain = torch.linspace(0.1, 0.2, 24)
    whole = {"model.norm.weight": gain, "lm_head.weight": torch.zeros(97, 24)}
    tensors = {**lora(QUERY, 24, 24), **lora("lm_head", 24, 97), **whole}
    folder = save_adapter(tmp_path / "adapter", llama_folder, tensors, modules_to_save=["norm"])
    loaded = load(folder)
    assert torch.equal(loaded.original.norm.weight, gain)
    loaded.save(tmp_path / "saved")  # without the head, which was not merged
    assert json.loads((tmp_path / "saved/config.json").read_text())["architectures"] == [
        "LlamaModel"
    ]
    assert torch.equal(load(tmp_path / "saved").original.norm.weight, gain)


def test_half_precision_is_merged_in_single(adapter: Path, make) -> None:
    down, up = factors(24, 24)
    weight = make("llama").get_submodule(QUERY).weight.bfloat16()
    found = load(adapter, dtype=torch.bfloat16).original.layers[0].self_attn.q_proj.weight
    assert torch.equal(found, (weight.float() + 2 * (up @ down)).bfloat16())


def test_the_base_may_lie_beside_the_adapter(adapter: Path, monkeypatch, tmp_path: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    monkeypatch.chdir(tmp_path)
    for base in ("llama", "../llama"):
        config["base_model_name_or_path"] = base
        (adapter / "adapter_config.json").write_text(json.dumps(config))
        assert load(adapter).verification.worst < 1e-5
    assert load(adapter, at_init=True).network.seed == 0


def test_another_base_is_another_model(adapter: Path, llama_folder: Path, make) -> None:
    before = Model(str(adapter)).describe()
    make("llama", seed=1).save_pretrained(llama_folder)
    assert Model(str(adapter)).describe() != before


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "IA3"}, "is a IA3 adapter; only LoRA is merged: merge it with PEFT"),
        ({"peft_type": ["LORA"]}, "only LoRA is merged"),
        ({"init_lora_weights": "pissa"}, "was initialised by pissa"),
        ({"init_lora_weights": {"a": 1}}, "was initialised by"),
        ({"layer_replication": [[0, 2]]}, "uses layer_replication, which is not known here"),
        ({"target_parameters": ["experts"]}, "uses target_parameters"),
        ({"alora_invocation_tokens": [1]}, "uses alora_invocation_tokens"),
        ({"lora_alpha": "6"}, "lora_alpha=6, which is not a usable number"),
        ({"lora_alpha": float("inf")}, "not a usable number"),
        ({"lora_alpha": 10**400}, "not a usable number"),
        ({"alpha_pattern": {"(a+)+$": 1}}, "an alpha_pattern that is not a path"),
        ({"alpha_pattern": [1]}, "an alpha_pattern that is not a table"),
        ({"use_dora": True}, "DoRA magnitudes"),
        ({"base_model_name_or_path": None}, "does not name its model"),
        ({"base_model_name_or_path": ["a"]}, "does not name its model"),
        ({"base_model_name_or_path": "/no/such/folder"}, "there is no folder /no/such/folder"),
        ({"base_model_name_or_path": "org/never-there"}, "org/never-there could not be loaded"),
        ({"base_model_name_or_path": "x" * 5000}, "does not name its model"),
        ({"base_model_name_or_path": "a\0b"}, "does not name its model"),
        ({"base_model_name_or_path": "~nobody-of-this-name/a"}, "home directory"),
        ({"base_model_name_or_path": "https://host/model"}, "there is no folder https"),
        ({"base_model_name_or_path": "/dev/null"}, "/dev/null"),
    ],
)
def test_other_adapters_are_refused_in_a_sentence(
    adapter: Path, monkeypatch: pytest.MonkeyPatch, config: dict, says: str
) -> None:
    from rankscope.models.families import _sources

    monkeypatch.setattr(_sources, "hub_is_reachable", lambda: False)
    content = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**content, **config}))
    with pytest.raises(SourceError, match=says) as caught:
        load(adapter)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({}, "has no weight for any layer"),
        (lora("score", 24, 5), "has no weight for any layer"),
        (lora("model.layers.9.self_attn.q_proj", 24, 24), "which .*llama does not have"),
        (lora("layers.9.q_proj", 24, 24), "which .*llama does not have"),
        (lora(QUERY, 24, 25), r"does not fit .*q_proj, whose shape is \(24, 24\)"),
        (lora(QUERY, 24, 24, rank=0), "lacks a matrix"),
        ({f"{QUERY}.lora_A.weight": torch.ones(3, 24)}, "lacks a matrix"),
        (lora("model.norm", 24, 24), "changes model.norm, a LlamaRMSNorm"),
        ({f"{QUERY}.lora_E": torch.ones(3)}, "a weight of unknown meaning"),
        (
            {"model.norm.weight": torch.ones(7)},
            r"replaces model.norm.weight by one of shape \(7,\)",
        ),
        ({"model.norm.bias": torch.ones(24)}, "replaces model.norm.bias"),
    ],
)
def test_weights_that_do_not_fit(
    llama_folder: Path, tmp_path: Path, tensors: dict, says: str
) -> None:
    with pytest.raises(SourceError, match=says):
        load(save_adapter(tmp_path / "adapter", llama_folder, tensors))


def test_an_adapter_of_itself_or_of_another_adapter(adapter: Path, tmp_path: Path) -> None:
    onto_adapter = save_adapter(tmp_path / "second", adapter, lora(QUERY, 24, 24))
    with pytest.raises(SourceError, match="is itself an adapter"):
        load(onto_adapter)
    (tmp_path / "link").symlink_to(adapter)
    for base in (adapter, tmp_path / "link"):
        content = json.loads((adapter / "adapter_config.json").read_text())
        content["base_model_name_or_path"] = str(base)
        (adapter / "adapter_config.json").write_text(json.dumps(content))
        with pytest.raises(SourceError, match="names itself as its model"):
            load(adapter)
        with pytest.raises(SourceError):
            load(adapter, at_init=True)


def test_a_folder_with_a_model_and_an_adapter(adapter: Path, llama_folder: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (adapter / file).write_bytes((llama_folder / file).read_bytes())
    with pytest.raises(SourceError, match="holds a model and an adapter"):
        load(adapter)
    (adapter / "model.safetensors").unlink()  # some trainings write config.json beside an adapter
    assert load(adapter).verification.worst < 1e-5


class Evil:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("evil-was-here"),))


def test_pickles_of_adapters_only_when_asked_for(adapter: Path, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    (adapter / "adapter_model.safetensors").unlink()
    tensors = {f"base_model.model.{name}": each for name, each in lora(QUERY, 24, 24).items()}
    torch.save(tensors, adapter / "adapter_model.bin")
    with pytest.raises(SourceError, match="pickled=True"):
        load(adapter)
    assert load(adapter, pickled=True).verification.worst < 1e-5
    (adapter / "adapter_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(SourceError, match="could not be loaded"):
        load(adapter, pickled=True)
    assert not (tmp_path / "evil-was-here").exists()


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "null", b"\xff\xfe", "{}"])
def test_broken_configurations_of_adapters(adapter: Path, content: str | bytes) -> None:
    written = content if isinstance(content, bytes) else content.encode()
    (adapter / "adapter_config.json").write_bytes(written)
    with pytest.raises(SourceError) as caught:
        load(adapter)
    assert len(str(caught.value).splitlines()) == 1
    Model(str(adapter)).describe()  # the fingerprint of its files does not depend on it


def test_a_configuration_of_gigabytes_is_not_read(adapter: Path) -> None:
    with (adapter / "adapter_config.json").open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(SourceError, match="larger than any configuration"):
        load(adapter)


def test_broken_weights_of_adapters(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(SourceError, match="could not be loaded"):
        load(adapter)


def test_checkpoints_of_an_adapter(adapter: Path, llama_folder: Path, make) -> None:
    """A run that trains an adapter has adapters as checkpoints."""
    save_adapter(adapter / "checkpoint-5", llama_folder, {"model.norm.weight": torch.ones(24)})
    assert torch.equal(load(f"{adapter}@5").original.norm.weight, torch.ones(24))
    assert torch.equal(load(adapter).original.norm.weight, make("llama").model.norm.weight)


def test_an_adapter_needs_its_model_in_memory(adapter: Path) -> None:
    with pytest.raises(SourceError, match="merged in memory; load it without a device_map"):
        load(adapter, device_map={"": "disk"})


def test_a_model_with_an_adapter_beside_its_weights(make) -> None:
    model = make("llama")
    model.merge_and_unload = lambda: model
    with pytest.raises(UnsupportedModelError, match=r"rankscope\.load\(model\.merge_and_unload"):
        load(model)
