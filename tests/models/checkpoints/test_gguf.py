"""GGUF files, written with the package ``gguf`` and read back; broken ones are refused."""

import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from rankscope.ask import Model
from rankscope.ask._sources import Sources
from rankscope.errors import MissingPackageError, SourceError
from rankscope.models.families import load

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(path: Path, model: Any, *, packed: bool = False, without: str = "", **sizes: int):
    """A Llama as llama.cpp stores it: rotary pairs side by side, optionally in eight bits."""
    gguf = pytest.importorskip("gguf")
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(sizes.get("layers", config.num_hidden_layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(sizes.get("units", config.intermediate_size))
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    names = dict(ENDS)
    for layer in range(config.num_hidden_layers):
        names |= {f"model.layers.{layer}.{a}": f"blk.{layer}.{b}" for a, b in PARTS.items()}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        path_, _, suffix = name.rpartition(".")
        if (count := heads.get(path_.rpartition(".")[2])) is not None:
            halves = weight.reshape(count, 2, -1, weight.shape[1])
            weight = halves.transpose(1, 2).reshape(weight.shape)
        if names[path_] == without:
            continue
        values = weight.contiguous().numpy()
        kind = None
        if packed and weight.ndim == 2 and weight.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            values = gguf.quants.quantize(values, kind)
        writer.add_tensor(f"{names[path_]}.{suffix}", values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def llama(make) -> nn.Module:
    return make("llama")


@pytest.fixture
def file(llama: nn.Module, tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf", llama)
    return tmp_path / "tiny.gguf"


def test_a_file_is_the_model_it_was_written_from(file: Path, llama: nn.Module, capfd) -> None:
    loaded = load(file)
    for name, weight in loaded.original.state_dict().items():
        assert torch.equal(weight, llama.state_dict()[f"model.{name}"]), name
    assert loaded.verification.worst < 1e-6
    assert loaded.original.config.name_or_path == str(file)
    assert capfd.readouterr().err.count("de-quantizing") == 0
    assert load(file, at_init=True).network.seed == 0
    assert load(file, dtype=torch.float64).verification.worst < 1e-12


def test_eight_bits_become_floating_point(tmp_path: Path) -> None:
    model = hf.LlamaForCausalLM(
        hf.LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                       num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64)
    )  # fmt: skip
    write_gguf(tmp_path / "packed.gguf", model, packed=True)
    query = load(tmp_path / "packed.gguf").original.layers[0].self_attn.q_proj.weight
    exact = model.model.layers[0].self_attn.q_proj.weight
    assert query.dtype == torch.float32
    assert not torch.equal(query, exact)
    assert (query - exact).abs().max() < exact.abs().max() / 127


def test_files_are_named_wherever_folders_are(file: Path, llama: nn.Module) -> None:
    before = Model(str(file)).describe()["contents"]
    sources = Sources(str(file.parent))
    assert sources.locate("tiny.gguf") == str(file)
    assert sources.contents(str(file))[0].startswith("files ")
    assert sources.spec(str(file)) is not None
    with torch.no_grad():
        llama.model.norm.weight.add_(1.0)
    write_gguf(file, llama)
    assert Model(str(file)).describe()["contents"] != before


def test_what_was_loaded_can_be_saved(file: Path, tmp_path: Path, llama: nn.Module) -> None:
    load(file).save(tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved").original.norm.weight, llama.model.norm.weight)


def test_a_folder_names_the_files_it_holds(file: Path) -> None:
    with pytest.raises(SourceError, match=r"no config\.json.*It holds tiny\.gguf; name that file"):
        load(file.parent)


def test_the_package_that_reads_them_is_named(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingPackageError, match=r"needs gguf.*pip install 'gguf'"):
        load(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("init", [False, True])
def test_a_file_cannot_ask_for_more_than_it_holds(
    tmp_path: Path, llama: nn.Module, init: bool
) -> None:
    start = time.perf_counter()
    write_gguf(tmp_path / "deep.gguf", llama, layers=10**8)
    with pytest.raises(SourceError, match="more than the 2,000 that are tried"):
        load(tmp_path / "deep.gguf", at_init=init)
    write_gguf(tmp_path / "wide.gguf", llama, units=2**31)
    with pytest.raises(SourceError, match=r"describes a model of|takes about"):
        load(tmp_path / "wide.gguf", at_init=init)
    assert time.perf_counter() - start < 10


def test_a_file_without_a_weight_is_refused(tmp_path: Path, llama: nn.Module) -> None:
    write_gguf(tmp_path / "part.gguf", llama, without="blk.1.ffn_up")
    with pytest.raises(SourceError, match=r"layers\.1\.mlp\.up_proj\.weight among them"):
        load(tmp_path / "part.gguf")


def header(*values: bytes, tensors: int = 0, fields: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, fields) + b"".join(values)


KEY = struct.pack("<Q", 1) + b"a"
BROKEN = {
    "empty": b"",
    "other": b"GGUX" + bytes(100),
    "version": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
    "nothing inside": header(fields=0),
    "many fields": header(fields=2**60),
    "many tensors": header(fields=0, tensors=2**60),
    "long text": header(KEY, struct.pack("<IQ", 8, 2**60)),
    "long list": header(KEY, struct.pack("<IIQ", 9, 0, 2**60)),
    "list of texts": header(KEY, struct.pack("<IIQ", 9, 8, 2**60)),
    "list in a list": header(KEY, struct.pack("<I", 9), struct.pack("<IQ", 9, 1) * 5000),
    "unknown kind": header(KEY, struct.pack("<I", 77)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files_are_one_sentence(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "broken.gguf").write_bytes(BROKEN[kind])
    start = time.perf_counter()
    with pytest.raises(SourceError, match=r"broken\.gguf could not be loaded") as caught:
        load(tmp_path / "broken.gguf")
    assert len(str(caught.value).splitlines()) == 1
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_cut_files_are_one_sentence(file: Path, share: float) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(SourceError, match=r"could not be loaded|describes a model of"):
        load(file)


def test_other_files_are_not_models(tmp_path: Path) -> None:
    (tmp_path / "weights.txt").write_text("1 2 3")
    with pytest.raises(SourceError, match=r"is a file; a model is a folder, a \.gguf file"):
        load(tmp_path / "weights.txt")
    with pytest.raises(SourceError, match="there is no"):
        load(tmp_path / "missing.gguf")
