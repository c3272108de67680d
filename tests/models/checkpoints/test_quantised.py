"""Quantised checkpoints: dequantised where Transformers can by itself, refused otherwise."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from rankscope.errors import SourceError, UnsupportedModelError
from rankscope.models.families import load
from rankscope.models.families._sources import load_pretrained


def quantise(folder: Path, tensors: dict[str, torch.Tensor], said: Any) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": said}))


def test_eight_bit_floats_become_floating_point(llama_folder: Path, tmp_path: Path) -> None:
    stored, exact = {}, {}
    for name, weight in load_file(llama_folder / "model.safetensors").items():
        stored[name] = exact[name] = weight
        if "_proj" in name:
            scale = weight.abs().max() / 448
            stored[name] = (weight / scale).to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale.reshape(1, 1)
            exact[name] = stored[name].float() * scale
    said = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    quantise(llama_folder, stored, said)
    loaded = load(llama_folder)
    for name, weight in loaded.original.state_dict().items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, exact[f"model.{name}"]), name
    loaded.save(tmp_path / "saved")
    assert torch.equal(
        load(tmp_path / "saved").original.layers[1].mlp.up_proj.weight,
        exact["model.layers.1.mlp.up_proj.weight"],
    )


def test_four_bit_floats_become_floating_point(tmp_path: Path) -> None:
    """gpt-oss: blocks of 32 numbers of four bits with an exponent of eight."""
    config = hf.GptOssConfig(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_local_experts=2,
        num_experts_per_tok=1, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    hf.GptOssForCausalLM(config).save_pretrained(tmp_path)
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    levels = torch.cat([levels, -levels])
    source = torch.Generator().manual_seed(0)
    stored, exact = {}, {}
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = weight
            continue
        experts, columns, rows = weight.shape
        codes = torch.randint(0, 16, (experts, rows, columns // 32, 32), generator=source)
        powers = torch.randint(120, 124, codes.shape[:3], generator=source)
        stored[f"{name}_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        stored[f"{name}_scales"] = powers.to(torch.uint8)
        values = levels[codes] * 2.0 ** (powers - 127.0)[..., None]
        exact[name] = values.reshape(experts, rows, columns).transpose(1, 2)
    quantise(tmp_path, stored, {"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn"]})
    options = {"revision": None, "trust_remote_code": False, "dtype": torch.float32}
    model, _, _ = load_pretrained(str(tmp_path), {**options, "device_map": None}, pickled=False)
    for name, values in exact.items():
        assert torch.equal(model.get_parameter(name.removeprefix("model.")), values), name


@pytest.mark.parametrize(
    ("said", "method"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
        ({"quant_method": "never-heard-of"}, "never-heard-of"),
        ({"bits": 3}, "an unnamed method"),
        ({"quant_method": ["fp8"]}, "fp8"),
    ],
)
def test_other_methods_are_named(llama_folder: Path, said: Any, method: str) -> None:
    quantise(llama_folder, load_file(llama_folder / "model.safetensors"), said)
    with pytest.raises(SourceError, match=rf"is quantised \(.*{method}.*\), .*made from") as caught:
        load(llama_folder)
    assert len(str(caught.value).splitlines()) == 1
    assert load(llama_folder, at_init=True).network.seed == 0


@pytest.mark.parametrize("said", ["fp8", 7, [1]])
def test_a_broken_description_is_one_sentence(llama_folder: Path, said: Any) -> None:
    quantise(llama_folder, load_file(llama_folder / "model.safetensors"), said)
    with pytest.raises(SourceError) as caught:
        load(llama_folder)
    assert len(str(caught.value).splitlines()) == 1


def test_a_quantised_model_at_hand_is_refused(make) -> None:
    model = make("bert")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch moves its quantisation to another package
        linear = {torch.nn.Linear}
        packed = torch.ao.quantization.quantize_dynamic(model, linear, dtype=torch.qint8)
    halves = make("bert")
    halves.pooler.dense.weight.data = halves.pooler.dense.weight.data.to(torch.float8_e4m3fn)
    marked = make("bert")
    marked.is_quantized, marked.quantization_method = True, "gptq"
    for each in (packed, halves, marked):
        with pytest.raises(UnsupportedModelError, match=r"is quantised.*rankscope\.trace measures"):
            load(each)
