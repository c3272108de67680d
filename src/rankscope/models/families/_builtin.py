"""Configurations that ship with rankscope, so that architectures work without a download."""

from collections.abc import Callable
from typing import Any

from transformers import (
    AlbertConfig,
    BertConfig,
    DistilBertConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    T5Config,
    ViTConfig,
    XLNetConfig,
)

_SMALL: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 576,
    "num_hidden_layers": 12,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "max_position_embeddings": 2048,
}

BUILTIN: dict[str, Callable[[], PreTrainedConfig]] = {
    "bert-base": BertConfig,
    "bert-large": lambda: BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
    "albert-base-v2": lambda: AlbertConfig(
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    "xlnet-base": lambda: XLNetConfig(d_model=768, n_layer=12, n_head=12, d_inner=3072),
    "distilbert": DistilBertConfig,
    "gpt2": GPT2Config,
    "roberta-base": lambda: RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
    ),
    "llama-small": lambda: LlamaConfig(**_SMALL),
    "mistral-small": lambda: MistralConfig(**_SMALL, sliding_window=256),
    "qwen2-small": lambda: Qwen2Config(**_SMALL),
    "qwen3-small": lambda: Qwen3Config(**_SMALL, head_dim=64),
    "pythia-160m": lambda: GPTNeoXConfig(
        vocab_size=50304,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
    ),
    "vit-base": ViTConfig,
    "t5-base": lambda: T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
}
"""Names and the configurations they stand for: the published shapes, or small ones of a family."""
