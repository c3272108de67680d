"""What fields of configurations become in tiny models."""

from typing import Any


def every(names: str, value: Any) -> dict[str, Any]:
    """The same value for every name in a line of names."""
    return dict.fromkeys(names.split(), value)


_WIDTH = (
    "hidden_size d_model n_embd dim embed_dim decoder_hidden_size projection_dim out_hidden_size "
    "encoder_hidden_size output_hidden_size embed_dims hidden_sizes conv_dim tdnn_dim emb_dim "
    "hidden_size_global fpn_hidden_size decoder_width output_dim neck_hidden_sizes "
    "fusion_hidden_size text_hidden_size attention_hidden_size word_embed_proj_dim "
    "embed_dim_per_stage subsampling_conv_channels classifier_proj_size xvector_output_dim "
    "pooler_output_size output_channels num_filters codevector_dim proj_codevector_dim "
    "projection_size embedding_dim mlp_dim iou_head_hidden_dim projector_hidden_size "
    "pooler_hidden_size encoder_hidden_dim memory_attention_hidden_size "
    "memory_encoder_hidden_size mask_downsampler_embed_dim memory_fuser_embed_dim "
    "upsample_initial_channel linear_units unit_embed_dim entity_emb_size backbone_channel_list "
    "descriptor_dim keypoint_decoder_dim vision_output_dim projector_input_dim "
    "projector_output_dim encoder_hidden_sizes mask_feature_size decoder_dim stem_hidden_channels "
    "image_text_hidden_size cross_hidden_size condition_dim downsample_hidden_size "
    "audio_hidden_size dim_model_base conv_channels feature_projection_input_dim input_dim "
    "fpn_feature_size sscp_conv_channel_size n_embed project_dim encoder_in_channels "
    "decoder_in_channels downsample_channels vit_dim ext_pw_out_channel "
    "depthwise_separable_out_channel nemo_conv_channels stem_out_channels"
)
_INTERMEDIATE = (
    "intermediate_size d_ff n_inner ffn_dim encoder_ffn_dim decoder_ffn_dim hidden_dim d_inner "
    "ffn_hidden_size dim_ff dff shared_expert_intermediate_size shared_intermediate_size "
    "intermediate_size_mlp decoder_intermediate_size memory_attention_feed_forward_hidden_size "
    "memory_fuser_intermediate_dim speech_encoder_intermediate_size t2u_encoder_ffn_dim "
    "t2u_decoder_ffn_dim dense_intermediate_size moe_shared_expert_intermediate_size "
    "expert_ffn_hidden_size encoder_feedforward_dim dim_feedforward decoder_ffn_hidden_size "
    "encoder_linear_units decoder_linear_units duration_predictor_channels "
    "energy_predictor_channels pitch_predictor_channels speech_decoder_postnet_units "
    "projection_intermediate_size memory_attention_mlp_hidden_size"
)
_DEPTH = (
    "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers "
    "num_encoder_layers num_decoder_layers depth speech_encoder_layers t2u_encoder_layers "
    "t2u_decoder_layers num_encoder_blocks_per_stage"
)
_HEADS = (
    "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
    "num_attention_heads_per_stage speech_encoder_attention_heads t2u_encoder_attention_heads "
    "t2u_decoder_attention_heads encoder_num_attention_heads decoder_num_attention_heads"
)

SIZES: dict[str, int] = {
    **every(_WIDTH, 32),
    **every(_INTERMEDIATE, 48),
    **every(_DEPTH, 3),
    **every(_HEADS, 4),
    **every("vocab_size input_vocab_size output_vocab_size codebook_size", 99),
    **every("max_position_embeddings n_positions max_source_positions", 64),
    **every("max_target_positions chunk_size", 64),
    "sliding_window": 4,
    **every("head_dim d_kv d_head dim_head swa_head_dim", 8),
    **every("v_head_dim qk_nope_head_dim qk_rope_head_dim index_head_dim", 8),
    **every("linear_key_head_dim linear_value_head_dim linear_head_dim", 8),
    **every("q_lora_rank kv_lora_rank o_lora_rank embedding_size", 16),
    **every("num_experts num_local_experts n_routed_experts", 4),
    **every("num_experts_per_tok moe_top_k moe_k num_experts_per_token", 2),
    **every("num_key_value_heads depths num_kv_heads", 2),
    **every("linear_num_key_heads linear_num_value_heads", 2),
    "moe_intermediate_size": 24,
    "qk_head_dim": 16,
    "num_pos_feats": 16,
    "image_size": 32,
    "patch_size": 8,
    "num_mel_bins": 16,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "n_group": 1,
    "topk_group": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_queries": 6,
    "num_position_embeddings": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 99,
    "entity_vocab_size": 20,
    "shared_expert_intermediate_size": 24,
}  # fmt: skip
"""What an integer of this name becomes, or each in a list of integers."""
_LATENT = {"num_key_value_heads": 4}
_SECTIONS = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
}  # fmt: skip
_HALF_SECTIONS = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2],
    "partial_rotary_factor": 1.0},
}  # fmt: skip
_HEAD = {"head_dim": 8}
_CODEC = {"codebook_size": 64, "codebook_dim": 16}
_MIMI = {
    **_CODEC, "upsample_groups": 32, "num_filters": 8, "vector_quantization_hidden_dimension": 16,
    "upsampling_ratios": [4, 4], "num_quantizers": 8,
}  # fmt: skip
_SERIES = {
    "prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2, 3],
    "num_time_features": 1,
}  # fmt: skip
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_chunk_size": 16}
_HGNET = {
    "stem_channels": [3, 8, 8], "stage_in_channels": [8, 32, 32, 32], "stage_mid_channels": [8, 8,
    8, 8], "stage_out_channels": [32, 32, 32, 32], "hidden_sizes": [32, 32, 32, 32],
    "stage_num_blocks": [1, 1, 1, 1], "stage_numb_of_layers": [2, 2, 2, 2],
}  # fmt: skip
_VQ = {
    "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "num_embeddings": 20,
    "latent_channels": 8, "embed_dim": 8, "resolution": 32, "attn_resolutions": [16],
}  # fmt: skip
_TOKENIZER = {
    "num_filters": 4, "downsampling_ratios": [2, 2], "depths": [1, 1, 1], "hidden_size": 32,
}  # fmt: skip
_SWIN = {
    "embed_dim": 16, "depths": [2, 2, 2, 2], "num_heads": [2, 2, 2, 2], "window_size": 2,
    "patch_size": 4, "num_layers": 4, "image_size": 64,
}  # fmt: skip
_RESNET = {
    "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 32, 32], "depths": [1, 1,
    1, 1], "layer_type": "basic",
}  # fmt: skip
_DETECTOR = {"backbone_config": {**_RESNET, "out_features": ["stage4"]}}

FIELDS: dict[str, dict[str, Any]] = {
    **every(
        "axk1 axk2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_linear longcat_flash "
        "minicpm3 mistral_large4_text youtu esmc",
        _LATENT,
    ),
    **every(
        "cosmos3_edge_text glm4v_text glm_image_text glm_ocr_text qwen2_5_vl_text qwen2_vl_text "
        "paddleocr_vl_text qwen2_5_omni_text",
        _SECTIONS,
    ),
    "glm4v_moe_text": _HALF_SECTIONS,
    **every("hunyuan_v1_dense hunyuan_v1_moe ministral", _HEAD),
    "encodec": {**_CODEC, "codebook_dim": 32, "num_filters": 4, "upsampling_ratios": [4, 4]},
    "dac": {
        **_CODEC, "downsampling_ratios": [4, 4], "upsampling_ratios": [4, 4], "hidden_size": 128,
    },
    **every(
        "mimi mimi_encoder mimi_decoder pocket_tts_audio_tokenizer "
        "pocket_tts_audio_tokenizer_encoder pocket_tts_audio_tokenizer_decoder",
        _MIMI,
    ),
    **every("autoformer informer time_series_transformer", _SERIES),
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {
        **_MAMBA, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "hgnet_v2": _HGNET,
    **every("swin swinv2 donut-swin maskformer-swin", _SWIN),
    "swin2sr": {**_SWIN, "patch_size": 1, "image_size": 16},
    "nemotron": {**_HEAD, "num_key_value_heads": 2},
    "hunyuan_vl_text": {
        **_HEAD, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
        "xdrope_section": [1, 1, 1, 1]},
    },
    "mistral4": {**_LATENT, "head_dim": 16},
    "bit": {"num_groups": 4},
    "bridgetower_vision_model": {"hidden_size": 64},
    "chameleon": {"vocabulary_map": {"<image>": 3}, "image_token_id": 3},
    "chameleon_vqgan": _VQ,
    "emu3_vqgan": {**_VQ, "num_attention_heads": 1},
    "janus_vqgan": {**_VQ, "num_patches": 16},
    "emu3": {"vocabulary_map": {"<image>": 3}},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"moe_num_experts": 4},
    },
    "deepseek_ocr2_text": {
        "mlp_layer_types": ["dense", "sparse", "sparse"], "n_shared_experts": 1,
        "num_experts_per_tok": 2, **_LATENT,
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1,
        2]}, "moe_intermediate_size": [24, 24], "moe_num_experts": 4, "moe_k": 2,
    },
    "esm": {
        "vocab_size": 99, "pad_token_id": 1, "mask_token_id": 98,
        "position_embedding_type": "rotary",
    },
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 8}},
    "gemma3n_text": {
        "intermediate_size": 48, "activation_sparsity_pattern": [0.0, 0.5, 0.0], "laurel_rank": 8,
        "num_kv_shared_layers": 0,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "granite_speech5_encoder": {"context_size": 16, **_LATENT},
    "granite4_vision": {
        "downsample_rate": "4/8", "deepstack_layer_map": [[-1, 0]],
        "vision_config": {"hidden_size": 64}, "qformer_config": {"encoder_hidden_size": 64,
        "hidden_size": 64},
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 16, "chunk_size": 16},
    "molmo2_adapter": {"vision_feature_layer": [2, 1]},
    "moonshine_streaming_encoder": {"sliding_windows": [[16, 4]] * 3},
    "muse_spark_text": {"moe_hidden_size": 16, "layer_rope_theta": [10000.0, 0, 10000.0]},
    "muse_spark_audio": {"num_hidden_layers": 4},
    "nemotron3_5_transcribe_word_timestamp": {"blank_token_id": 98},
    "neomme": {"head_dim": 16, "per_layer_config": {"01": {"sliding_window": 4}}},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16,
        "indexer_compress_ratio": 4, "hc_lowrank": 8, "ple_embed_dim": 32,
        "ngram_vocab_size_base": 50,
    },
    "reformer": {
        "axial_pos_embds": False, "attention_head_size": 8, "feed_forward_size": 48,
        "attn_layers": ["local", "lsh", "local"], "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
    },
    "squeezebert": {
        "embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2,
        "post_attention_groups": 1, "intermediate_groups": 2, "output_groups": 2,
    },
    "t5gemma2_text": {"dropout_rate": 0.0},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4, "attention_hidden_size": 64, "attention_head_dim": 16,
        "mamba_dt_rank": 4, "num_key_value_heads": 4,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid"],
        "num_key_value_heads": 4, "layer_types": ["linear_attention", "linear_attention", "hybrid"],
        "n_mamba_heads": 4, "mamba_d_state": 16, "adapter_rank": 4, "attention_hidden_size": 64,
        "chunk_size": 16,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
    "align_vision_model": {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
    "clap_audio_model": {
        "patch_embeds_hidden_size": 16, "depths": [2, 2], "num_attention_heads": [2, 2],
        "hidden_size": 32, "spec_size": 32, "num_mel_bins": 16, "window_size": 2,
        "num_hidden_layers": 2, "patch_size": 4,
    },
    "align": {"projection_dim": 80},
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "cohere2_vision": {"alignment_intermediate_size": 48},
    "depth_pro": {
        "scaled_images_feature_dims": [32, 32, 32], "intermediate_feature_dims": [32, 32],
        "patch_size": 16, "intermediate_hook_ids": [2, 1],
    },
    "fsmt": {"src_vocab_size": 99, "tgt_vocab_size": 99},
    **every(
        "vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_encoder "
        "vibevoice_acoustic_tokenizer_decoder",
        _TOKENIZER,
    ),
    "vjepa2": {
        "pred_hidden_size": 32, "pred_num_attention_heads": 4, "pred_num_hidden_layers": 2,
        "crop_size": 32, "frames_per_clip": 4, "patch_size": 8,
    },
    "xclip_vision_model": {
        "mit_hidden_size": 32, "mit_intermediate_size": 48, "mit_num_attention_heads": 4,
        "num_frames": 2,
    },
    "univnet": {
        "kernel_predictor_hidden_channels": 8, "model_hidden_channels": 8, "model_in_channels": 8,
    },
    "perceiver": {
        "d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 3,
        "num_self_attention_heads": 4, "num_cross_attention_heads": 4,
    },
    "roc_bert": {
        "pronunciation_embed_dim": 16, "pronunciation_vocab_size": 99, "shape_embed_dim": 16,
        "shape_vocab_size": 99,
    },
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "xmod": {"default_language": "en_XX"},
    "layoutlmv3": {
        "coordinate_size": 6, "shape_size": 4, "max_2d_position_embeddings": 64, "input_size": 32,
    },
    "lilt": {"max_2d_position_embeddings": 64, "hidden_size": 48},
    "bailing_hybrid": {**_LATENT, "num_expert_group": 1, "topk_group": 1, "linear_num_heads": 4},
    **every("conditional_detr dab-detr detr table-transformer", _DETECTOR),
    "deformable_detr": {
        "backbone_config": {**_RESNET, "out_features": ["stage2", "stage3", "stage4"]},
        "num_feature_levels": 3,
    },
    **every("gemma4_text gemma4_unified_text embedding_gemma2_text", {"global_head_dim": 16}),
    "bros": {"hidden_size": 128},
    **every(
        "qwen3_vl_vision qwen3_vl_moe_vision cohere_compass_vision qwen3_omni_moe_vision_encoder",
        {"deepstack_visual_indexes": [1]},
    ),
    "data2vec-audio": {"num_conv_pos_embeddings": 2},
    "blip-2": {"image_token_index": 95, "num_query_tokens": 3},
    "instructblip": {"image_token_index": 95, "num_query_tokens": 3},
    "instructblipvideo": {"video_token_index": 95, "num_query_tokens": 3},
    "convnext": {"patch_size": 4},
    "convnextv2": {"patch_size": 4},
    "csm": {"text_vocab_size": 99, "codebook_vocab_size": 99},
    "csm_depth_decoder_model": {"backbone_hidden_size": 32},
    "deepseek_v2": {**_LATENT, "num_experts_per_tok": 2},
    "glm5_next_text": {
        **_LATENT, "qk_rope_head_dim": 0, "head_dim": 0, "qk_head_dim": 8, "index_n_heads": 4,
        "linear_num_heads": 4,
    },
    "kosmos-2": {"latent_query_num": 3},
    "muse_glimmer_assistant": {"sliding_window": 64},
    "kyutai_speech_to_text": {
        "audio_pad_token_id": 98, "codebook_vocab_size": 99, "audio_bos_token_id": 97,
    },
    "levit": {"image_size": 64, "patch_size": 16},
    "diffusion_gemma_text": {
        "global_head_dim": 16, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24,
    },
    "fastspeech2_conformer_with_hifigan": {
        "vocoder_config": {"model_in_dim": 16, "upsample_initial_channel": 32},
    },
    "qwen2_5_omni_thinker": {"vision_start_token_id": 91, "vision_end_token_id": 92},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 91, "vision_end_token_id": 92},
    "seggpt": {"image_size": [64, 32]},
    "step3p5": {
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 4, "num_sliding_attention_heads": 4, "share_expert_dim": 24,
    },
    "phi4_multimodal_audio": {"num_blocks": 2, "input_size": 16, "nemo_final_size": 2},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "speech_to_text": {"input_feat_per_channel": 16},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "mobilevitv2": {"width_multiplier": 0.25, "patch_size": 2, "image_size": 64},
    "mobilevit": {"patch_size": 2, "image_size": 64},
    "vivit": {"video_size": [4, 32, 32], "tubelet_size": [2, 8, 8], "num_frames": 4},
    "videomae": {"num_frames": 4},
    "videoprism_vision_model": {"num_frames": 4},
    "kimi_k25_vision": {"pos_emb_height": 4, "pos_emb_width": 4},
    "gemma4_audio": {"subsampling_conv_channels": [16, 8]},
}  # fmt: skip
"""What a model type needs beside ``SIZES``, as a model or as a part of one."""

_NO_FORWARD = "Transformers defines no forward pass for it"
_NOT_SMALL = "no small configuration that runs is known"
_SESSION = "it needs a video session rather than tensors"

UNAVAILABLE: dict[str, str] = {
    **every(
        "edgetam edgetam_vision_model fast_vlm gemma3n gemma3n_vision omdet-turbo pe_audio_video "
        "pe_audio_video_encoder pe_video pe_video_encoder perception_lm timm_backbone "
        "timm_wrapper",
        "needs timm",
    ),
    "dinat": "needs natten",
    "higgs_audio_v2_tokenizer": "needs torchaudio",
    "layoutlmv2": "needs detectron2",
    **every("bark glm_image_vqmodel", _NO_FORWARD),
    **every("musicgen musicgen_melody", "its base model does not take its own configuration"),
    "voxtral_realtime_text": "Transformers has no class for it",
    **every("edgetam_video sam2_video sam3_tracker_video sam3_video", _SESSION),
    "pi0": "it needs a cache that another model has filled",
    **every(
        "clvp efficientloftr lightglue lw_detr neucodec oneformer pp_doclayout_v3 "
        "pp_ocrv5_mobile_rec pp_ocrv5_server_rec pp_ocrv6_medium_det pp_ocrv6_small_det sam2 "
        "sam2_hiera_det_model sam2_vision_model sam3_tracker tvp uvdoc xcodec xcodec2",
        _NOT_SMALL,
    ),
}  # fmt: skip
"""Why a model type is not in the zoo."""
EXPLAINED: dict[str, str] = dict.fromkeys(
    ("flaubert", "xlm"),
    "attention and MLPs are two lists with the skip connections outside, so no module is a block",
)
"""Why what is traced of a stack, if one is named, differs from the model's own hidden states."""
