"""Tiny random models of many architectures, by name, none of which is a family of ours."""

import torch
import transformers as hf

_PLAIN = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 16, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_PLAIN, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 4}
_MIXED = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_SEQUENCES = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "pad_token_id": 0,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip

TEXT = {
    "gemma2": (
        hf.Gemma2Model,
        hf.Gemma2Config,
        {**_HEADS, **_MIXED, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4},
    ),
    "gemma3": (
        hf.Gemma3TextModel,
        hf.Gemma3TextConfig,
        {**_HEADS, **_MIXED, "query_pre_attn_scalar": 4},
    ),
    "gpt_oss": (hf.GptOssModel, hf.GptOssConfig, {**_HEADS, **_MIXED, **_EXPERTS}),
    "mistral": (hf.MistralModel, hf.MistralConfig, {**_HEADS, "sliding_window": 4}),
    "qwen2": (hf.Qwen2Model, hf.Qwen2Config, _GROUPED),
    "phi3": (hf.Phi3Model, hf.Phi3Config, _GROUPED),
    "olmo2": (hf.Olmo2Model, hf.Olmo2Config, _GROUPED),
    "cohere": (hf.CohereModel, hf.CohereConfig, _GROUPED),
    "starcoder2": (hf.Starcoder2Model, hf.Starcoder2Config, {**_GROUPED, "sliding_window": None}),
    "granite": (hf.GraniteModel, hf.GraniteConfig, {**_GROUPED, "attention_multiplier": 0.3}),
    "smollm3": (hf.SmolLM3Model, hf.SmolLM3Config, _GROUPED),
    "glm4": (hf.Glm4Model, hf.Glm4Config, _HEADS),
    "opt": (hf.OPTModel, hf.OPTConfig, {**_PLAIN, "ffn_dim": 16, "word_embed_proj_dim": 16}),
    "modernbert": (
        hf.ModernBertModel,
        hf.ModernBertConfig,
        {
            **_PLAIN, "local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
}  # fmt: skip
OWN_CODE = {
    "falcon": (hf.FalconModel, hf.FalconConfig, _PLAIN),
    "bloom": (hf.BloomModel, hf.BloomConfig, {"vocab_size": 40, "hidden_size": 16, "n_head": 4}),
}
SEQUENCES = {
    "bart": (hf.BartModel, hf.BartConfig, _SEQUENCES),
    "whisper": (
        hf.WhisperModel,
        hf.WhisperConfig,
        {**_SEQUENCES, "num_mel_bins": 4, "max_source_positions": 9, "max_target_positions": 20},
    ),
}
_PICTURES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
PICTURES = {
    "dinov2": (hf.Dinov2Model, hf.Dinov2Config, _PICTURES),
    "clip": (hf.CLIPVisionModel, hf.CLIPVisionConfig, _PICTURES),
}


def build(entry, implementation="eager"):
    """The model with weights that make attention far from uniform, in evaluation mode."""
    kind, config_kind, options = entry
    config = config_kind(**options)
    config._attn_implementation = implementation
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.4)
                elif name.endswith("sinks"):
                    parameter.normal_()
    return model
