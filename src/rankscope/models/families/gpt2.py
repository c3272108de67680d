"""GPT-2: pre-norm, causal, queries, keys and values in one transposed matrix."""

from typing import Any

from rankscope.core.network import Spec, View
from rankscope.models.families.family import (
    ColumnSlice,
    Family,
    Original,
    Parts,
    activation,
    attention,
    mlp,
    refuse,
)


class GPT2(Family):
    """Pre-norm blocks, absolute positions; the final norm is not part of the blocks."""

    name = "GPT-2"
    model_types = ("gpt2",)

    def body(self, model: Original) -> Original:
        return model.base_model

    def layers(self, body: Original) -> list[Original]:
        return list(body.h)

    def spec(self, config: Any) -> Spec:
        refuse(config, add_cross_attention=False, scale_attn_by_inverse_layer_idx=False)
        return Spec(
            config.n_layer,
            config.n_head,
            config.n_embd,
            mlp_ratio=(config.n_inner or 4 * config.n_embd) / config.n_embd,
            activation=activation(config, "activation_function"),
            norm_eps=config.layer_norm_epsilon,
            mask="causal",
            score_scale=None if config.scale_attn_weights else 1.0,
        )

    def most_tokens(self, config: Any) -> int | None:
        return int(config.max_position_embeddings)

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        fused, width = layer.attn.c_attn, spec.width
        query, key, value = (View(fused, ColumnSlice(k * width, (k + 1) * width)) for k in range(3))
        return Parts(
            attention(spec, query, key, value, View(layer.attn.c_proj, ColumnSlice())),
            mlp(spec, View(layer.mlp.c_fc, ColumnSlice()), View(layer.mlp.c_proj, ColumnSlice())),
            {"attention": layer.ln_1, "mlp": layer.ln_2},
        )
