"""Models that are not converted, and small ones written by hand."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional

_SHAPE = {
    "vocab_size": 97,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = {**_SHAPE, **_ENDS, "num_key_value_heads": 1}


def _deepseek() -> nn.Module:
    latent = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
    experts = {"n_routed_experts": 4, "moe_intermediate_size": 8, "num_experts_per_tok": 2}
    groups = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "v_head_dim": 8}
    shape = {**_GROUPED, "num_key_value_heads": 2}
    return hf.DeepseekV3Model(hf.DeepseekV3Config(**shape, **latent, **experts, **groups))


def _jamba() -> nn.Module:
    hybrid = {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4}
    experts = {"expert_layer_period": 2, "num_experts": 2, "use_mamba_kernels": False}
    return hf.JambaModel(hf.JambaConfig(**_GROUPED, **hybrid, **experts))


def _qwen3_next() -> nn.Module:
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    linear = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
    rest = {"linear_value_head_dim": 8, "head_dim": 8, "shared_expert_intermediate_size": 8}
    return hf.Qwen3NextModel(hf.Qwen3NextConfig(**_GROUPED, **experts, **linear, **rest))


def _mamba() -> nn.Module:
    sizes = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 4, "state_size": 4}
    return hf.MambaModel(hf.MambaConfig(**sizes))


def _longformer() -> nn.Module:
    return hf.LongformerModel(hf.LongformerConfig(**_SHAPE, **_ENDS, attention_window=[8] * 4))


FOREIGN: dict[str, Callable[[], nn.Module]] = {
    "deepseek_v3": _deepseek,
    "jamba": _jamba,
    "qwen3_next": _qwen3_next,
    "fnet": lambda: hf.FNetModel(hf.FNetConfig(**_SHAPE)),
    "mamba": _mamba,
    "longformer": _longformer,
}
"""Models of transformers that read token ids."""


def whisper() -> nn.Module:
    """Whisper; its encoder is what is looked at."""
    shape = {"d_model": 16, "encoder_layers": 3, "decoder_layers": 1, "vocab_size": 97}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24}
    sound = {"num_mel_bins": 8, "max_source_positions": 40, "max_target_positions": 20}
    config = hf.WhisperConfig(
        **shape, **heads, **sound, decoder_ffn_dim=24, decoder_start_token_id=1, **_ENDS
    )
    return hf.WhisperModel(config)


class _Clamp(nn.Module):
    """A part that no loader knows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sinh(x).clamp(-2.0, 2.0) * 0.9


def clip_vision() -> nn.Module:
    """CLIP's image tower with an activation of its own."""
    shape = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    image = {"intermediate_size": 24, "image_size": 24, "patch_size": 4}
    model = hf.CLIPVisionModel(hf.CLIPVisionConfig(**shape, **image))
    for module in model.modules():
        if hasattr(module, "activation_fn"):
            module.activation_fn = _Clamp()
    return model


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool, fused: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.fused = heads, causal, fused
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        if self.fused:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.mT * (q.shape[-1] ** -0.5)
            if self.causal:
                later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(later, -torch.inf)
            out = functional.softmax(scores, dim=-1) @ v
        return self.c_proj(out.transpose(1, 2).reshape(batch, tokens, width))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, **options: bool) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), _Attention(width, heads, **options)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """A decoder as people write it, with token ids or keyword arguments."""

    def __init__(self, *, fused: bool = True, layers: int = 4) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(97, 16), nn.Embedding(64, 16)
        blocks = (_Block(16, 2, causal=True, fused=fused) for _ in range(layers))
        self.h, self.ln_f = nn.ModuleList(blocks), nn.LayerNorm(16)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.mT
        return logits, None if targets is None else logits.mean()


class HandmadeViT(nn.Module):
    """An image encoder with a class token and a table of positions of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.cls, self.pos = (nn.Parameter(torch.randn(1, n, 16) * 0.02) for n in (1, 37))
        self.layers = nn.Sequential(*(_Block(16, 2, causal=False, fused=False) for _ in range(3)))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.layers(x)[:, 0]


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A model with weights of its own, in evaluation mode; global random states are restored."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().eval()


def token_ids(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Rows of random ids."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 97, (n,), generator=generator).tolist() for n in lengths]
