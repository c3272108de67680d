"""GPT-2: pre-norm, causal, queries, keys and values in one transposed matrix."""

from typing import Any

from rankscope.core.network import Spec, View
from rankscope.models.families._family import ColumnSlice, Family, Original, Parts, refuse, spec_of


class GPT2(Family):
    """Pre-norm blocks, absolute positions; the final norm is not part of the blocks."""

    name = "GPT-2"
    model_types = ("gpt2",)
    layers_at = "h"
    has_position_table = True

    def spec(self, config: Any) -> Spec:
        refuse(config, add_cross_attention=False, scale_attn_by_inverse_layer_idx=False)
        return spec_of(
            config,
            mlp_width=config.n_inner or 4 * config.n_embd,
            activation="activation_function",
            norm_eps=config.layer_norm_epsilon,
            mask="causal",
            score_scale=None if config.scale_attn_weights else 1.0,
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        fused, width = layer.attn.c_attn, spec.width
        query, key, value = (View(fused, ColumnSlice(k * width, (k + 1) * width)) for k in range(3))
        return Parts(
            (query, key, value, View(layer.attn.c_proj, ColumnSlice())),
            (View(layer.mlp.c_fc, ColumnSlice()), View(layer.mlp.c_proj, ColumnSlice())),
            {"attention": layer.ln_1, "mlp": layer.ln_2},
        )
