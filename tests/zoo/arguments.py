"""Which arguments tiny models are given."""

from collections.abc import Callable
from typing import Any

import torch

from .configurations import every


def field(config, *names, default=None):
    """The first field of these names in a configuration or in its parts."""
    parts = [config, *(getattr(config, part, None) for part in getattr(config, "sub_configs", ()))]
    for name in names:
        for part in parts:
            value = getattr(part, name, None)
            if isinstance(value, int | list | tuple):
                return value
    return default


def reals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(*shape, low=3, high=90, seed=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def _mask(tokens):
    mask = torch.ones(2, tokens, dtype=torch.long)
    mask[1, -3:] = 0
    return mask


def _pixels(config):
    size = field(config, "image_size", default=32)
    height, width = (size, size) if isinstance(size, int) else size
    return reals(2, field(config, "num_channels", "in_channels", default=3), height, width)


_GRID = torch.tensor([[1, 4, 4]])


def _patches(config):
    """An image of 4 by 4 patches, flat."""
    patch = field(config, "patch_size", default=8)
    depth = field(config, "temporal_patch_size", default=1)
    channels = field(config, "in_channels", "in_chans", "num_channels", default=3)
    return reals(16, channels * depth * patch * patch)


ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "input_ids": lambda _: ids(2, 12),
    "attention_mask": lambda _: _mask(12),
    "decoder_input_ids": lambda _: ids(2, 7, seed=1),
    "pixel_values": _pixels,
    "input_features": lambda config: reals(
        2,
        field(config, "num_mel_bins", default=16),
        2 * field(config, "max_source_positions", default=50),
    ),
    "input_values": lambda _: reals(2, 4000),
    "bbox": lambda _: ids(2, 12, 4, low=0, high=30).sort(-1).values,
    "hidden_states": _patches,
    "grid_thw": lambda _: _GRID,
}
"""How an argument of this name is made from the configuration."""
_FRAMES = reals(2, 96, 16)
_BOTH = {"input_ids": ids(2, 12), "attention_mask": None, "pixel_values": reals(2, 3, 32, 32)}
_TEXT_AND_IMAGE = {**_BOTH, "attention_mask": _mask(12)}
_WITH_IMAGE_TOKENS = {
    **_TEXT_AND_IMAGE, "input_ids": torch.cat([torch.full((2, 3), 95), ids(2, 9)], 1),
}  # fmt: skip
_SPEECH = {"input_features": reals(2, 16, 128), "decoder_input_ids": ids(2, 7, seed=1)}

INPUTS: dict[str, dict[str, Any]] = {
    **every(
        "aimv2 altclip blip chinese_clip clip clipseg groupvit metaclip_2 owlv2 owlvit siglip "
        "vision-text-dual-encoder kosmos-2 vilt flava bridgetower align sam3 sam3_lite_text git "
        "tipsv2",
        _TEXT_AND_IMAGE,
    ),
    **every(
        "lasr_ctc lasr_encoder nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_audio "
        "nemotron3_diarization nemotron3_diarization_audio nemotron_asr_streaming_encoder "
        "parakeet_ctc parakeet_encoder",
        {"input_features": _FRAMES},
    ),
    **every(
        "canary cohere_asr nemotron3_5_asr nemotron_asr_streaming parakeet_rnnt parakeet_tdt "
        "speech_to_text",
        {"input_features": _FRAMES, "decoder_input_ids": ids(2, 7, seed=1)},
    ),
    **every(
        "dac encodec mimi mimi_encoder pe_audio pe_audio_encoder pocket_tts_audio_tokenizer "
        "pocket_tts_audio_tokenizer_encoder vibevoice_acoustic_tokenizer",
        {"input_values": reals(2, 1, 4000)},
    ),
    **every(
        "autoformer informer time_series_transformer",
        {
            "past_values": reals(2, 15), "past_time_features": reals(2, 15, 1),
            "past_observed_mask": torch.ones(2, 15), "future_values": reals(2, 4),
            "future_time_features": reals(2, 4, 1),
        },
    ),
    **every(
        "cosmos3_edge_vision glm_image_vision hunyuan_vl_vision",
        {"pixel_values": reals(16, 192), "grid_thw": _GRID},
    ),
    **every(
        "muse_glimmer_vision muse_spark_vision",
        {"pixel_values": reals(16, 384), "grid_thw": _GRID},
    ),
    "kimi_k25_vision": {"pixel_values": reals(16, 3, 8, 8), "grid_thw": _GRID},
    "video_llama_3_vision": {"pixel_values": reals(16, 192), "merge_sizes": torch.tensor([1])},
    **every(
        "siglip2 siglip2_vision_model",
        {
            "pixel_values": reals(2, 16, 192), "pixel_attention_mask": torch.ones(2, 16),
            "spatial_shapes": torch.tensor([[4, 4], [4, 4]]),
        },
    ),
    **every(
        "videoprism_vision_model videoprism vjepa2",
        {"pixel_values_videos": reals(2, 4, 3, 32, 32)},
    ),
    "audioflamingo3_encoder": {"input_features_mask": torch.ones(2, 128, dtype=torch.long)},
    "qwen3_asr_encoder": {
        "input_features": reals(2, 16, 200), "input_features_mask": torch.ones(2, 200,
        dtype=torch.long),
    },
    "fun_asr_nano_encoder": {
        "input_features": reals(2, 20, 112), "input_features_mask": torch.ones(2, 20,
        dtype=torch.long),
    },
    "depth_pro": {"pixel_values": reals(2, 3, 64, 64)},
    "kyutai_speech_to_text": {"input_ids": ids(2, 12, 33)},
    "moonshine_streaming": {"decoder_input_ids": ids(2, 7, seed=1)},
    "muse_glimmer_assistant": {
        "noise_embeds": reals(2, 12, 32), "context_hidden_states": reals(2, 5, 160),
    },
    **every(
        "pp_ocrv6_small_rec pp_ocrv6_tiny_rec",
        {"pixel_values": reals(2, 3, 48, 320)},
    ),
    "minicpmv4_7_vision": {
        "pixel_values": reals(1, 3, 8, 256), "target_sizes": torch.tensor([[4, 4], [4, 4]]),
    },
    "granite_speech5_encoder": {"input_features": reals(2, 96, 64)},
    "granite_speech5_ctc": {"input_features": reals(2, 96, 64)},
    "gemma4_audio": {"input_features": reals(2, 96, 16)},
    "gemma4_vision": {
        "pixel_values": reals(2, 36, 192),
        "pixel_position_ids": torch.cartesian_prod(torch.arange(6), torch.arange(6)).expand(2, 36,
        2),
    },
    "gemma3n_audio": {
        "audio_mel": reals(2, 96, 128), "audio_mel_mask": torch.zeros(2, 96, dtype=torch.bool),
    },
    "idefics": {
        "pixel_values": reals(2, 1, 3, 32, 32), "image_attention_mask": torch.ones(2, 12, 1,
        dtype=torch.long),
    },
    "kosmos-2": {
        **_TEXT_AND_IMAGE, "image_embeds_position_mask": torch.tensor([[1, 1, 1] + [0] * 9] * 2),
    },
    "mimi_decoder": {"latents": reals(2, 32, 20)},
    "pocket_tts_audio_tokenizer_decoder": {"latents": reals(2, 32, 20)},
    "nemotron3_5_transcribe_word_timestamp": {"inputs_embeds": reals(2, 12, 32)},
    "perceiver": {"inputs": reals(2, 12, 32)},
    "seggpt": {
        "pixel_values": reals(2, 3, 32, 32), "prompt_pixel_values": reals(2, 3, 32, 32),
        "prompt_masks": reals(2, 3, 32, 32),
    },
    "blt": {"use_cache": False},
    "clap": {
        "input_features": reals(2, 1, 64, 16), "input_ids": ids(2, 12), "attention_mask": _mask(12),
    },
    "univnet": {"input_features": reals(2, 20, 16)},
    "muse_spark_audio": {"input_values": reals(2, 3840)},
    "voxtral_realtime": {"input_features": reals(2, 16, 96)},
    "vibevoice_acoustic_tokenizer_decoder": {"hidden_states": reals(2, 32, 12)},
    "vibevoice_acoustic_tokenizer_encoder": {"hidden_states": reals(2, 1, 4000)},
    "sam3_lite_text_text_model": {"input_ids": ids(2, 12), "pixel_values": None},
    "levit": {"pixel_values": reals(2, 3, 64, 64)},
    "minicpm_ocr_vision": {
        "pixel_values": reals(1, 3, 8, 256), "target_sizes": torch.tensor([[4, 4], [4, 4]]),
    },
    "audio-spectrogram-transformer": {"input_values": reals(2, 1024, 16)},
    "bros": {"bbox": reals(2, 12, 8)},
    "blip-2": _WITH_IMAGE_TOKENS,
    "blip_2_qformer": {
        "query_embeds": reals(2, 6, 32), "encoder_hidden_states": reals(2, 5, 32),
        "input_ids": None, "attention_mask": None,
    },
    "lxmert": {"visual_feats": reals(2, 6, 2048), "visual_pos": reals(2, 6, 4)},
    "speecht5": {"input_values": reals(2, 12, 32), "decoder_input_values": reals(2, 7, 32)},
    **every("patchtsmixer patchtst", {"past_values": reals(2, 32, 1)}),
    "timesfm": {
        "past_values": reals(2, 64), "past_values_padding": torch.zeros(2, 64), "freq": ids(2, 1,
        low=0, high=3),
    },
    "timesfm2_5": {"past_values": reals(2, 64)},
    **every("timesformer xclip", {"pixel_values": reals(2, 2, 3, 32, 32)}),
    **every("videomae vivit", {"pixel_values": reals(2, 4, 3, 32, 32)}),
    "whisper": _SPEECH,
    "moonshine": {"decoder_input_ids": ids(2, 7, seed=1)},
    "wav2vec2-bert": {"input_features": reals(2, 20, 32)},
    "udop": {"bbox": reals(2, 12, 4).abs().clamp(max=1).sort(-1).values},
    "instructblip": {**_WITH_IMAGE_TOKENS, "qformer_input_ids": ids(2, 5)},
    "instructblipvideo": {
        **_WITH_IMAGE_TOKENS, "qformer_input_ids": ids(2, 5), "pixel_values": reals(2, 1, 3, 32,
        32),
    },
    "decision_transformer": {
        "states": reals(2, 6, 17), "actions": reals(2, 6, 4), "rewards": reals(2, 6, 1),
        "returns_to_go": reals(2, 6, 1), "timesteps": ids(2, 6, low=0, high=20),
        "attention_mask": torch.ones(2, 6), "input_ids": None,
    },
    "dia": {"decoder_input_ids": ids(2, 7, 9)},
}  # fmt: skip
"""What a model type is given beside that, or instead; None leaves an argument out."""
