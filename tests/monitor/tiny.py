"""Tiny models for the tests of the monitor, in which no weight, bias or gain is trivial."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 61
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_GROUPED = {**_SHAPE, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
_EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}


class Block(nn.Module):
    """A pre-norm block as people write it: one projection, fused attention, dropout."""

    def __init__(self, width: int = 16, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.ln_1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in heads)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.proj(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.mlp(self.ln_2(x)))


class Written(nn.Module):
    """A small causal language model without any library."""

    def __init__(self, layers: int = 2, dropout: float = 0.0, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 16)
        self.blocks = nn.ModuleList(Block(dropout=dropout) for _ in range(layers))
        self.head = nn.Linear(16, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


TINY: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**_SHAPE)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_GROUPED)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**_GPT2, **_ENDS)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**_GROUPED, **_EXPERTS)),
    "gpt-oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(**_GROUPED, **_EXPERTS, head_dim=6, sliding_window=4)
    ),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**_GROUPED, head_dim=6, sliding_window=4, attn_logit_softcapping=2.0)
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(**_GROUPED, head_dim=6, sliding_window=4)
    ),
    "written": Written,
}


def lively(name: str, **config: Any) -> nn.Module:
    """A tiny model with random biases and gains; ``config`` changes its configuration."""
    return enlivened(TINY[name], **config)


def enlivened(make: Callable[[], nn.Module], **config: Any) -> nn.Module:
    """What is made, with random biases and gains."""
    hf.utils.logging.set_verbosity_error()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make().eval()
        for key, value in config.items():
            setattr(model.config, key, value)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.25)
                if parameter.ndim == 1:
                    parameter += 0.5
    return model


def fresh(name: str) -> nn.Module:
    """A tiny model as its library draws it."""
    hf.utils.logging.set_verbosity_error()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TINY[name]()


def ids(samples: int = 5, tokens: int = 9, *, seed: int = 0) -> Tensor:
    """Token ids, none of which is special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (samples, tokens), generator=generator)


def padded(samples: int = 4, tokens: int = 9) -> dict[str, Tensor]:
    """A batch of texts of different lengths, padded on the right."""
    mask = torch.ones(samples, tokens, dtype=torch.long)
    for sample in range(1, samples):
        mask[sample, tokens - sample :] = 0
    return {"input_ids": ids(samples, tokens) * mask, "attention_mask": mask}
