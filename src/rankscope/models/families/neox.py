"""GPT-NeoX and Pythia: attention and MLP side by side, rotary on a part of each head."""

from typing import Any

from rankscope.core.network import Described, Spec, View
from rankscope.models.families.family import (
    Family,
    Interleaved,
    Original,
    Parts,
    activation,
    attention,
    mlp,
)
from rankscope.models.families.llama import rotary


class NeoX(Family):
    """Pre-norm blocks, parallel unless the configuration says otherwise."""

    name = "GPT-NeoX"
    model_types = ("gpt_neox",)

    def body(self, model: Original) -> Original:
        return model.base_model

    def layers(self, body: Original) -> list[Original]:
        return list(body.layers)

    def spec(self, config: Any) -> Spec:
        return Spec(
            config.num_hidden_layers,
            config.num_attention_heads,
            config.hidden_size,
            mlp_ratio=config.intermediate_size / config.hidden_size,
            activation=activation(config, "hidden_act"),
            norm_eps=config.layer_norm_eps,
            parallel=config.use_parallel_residual,
            mask="causal",
            scores=Described("rotary"),
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner = layer.attention
        query, key, value = (
            View(inner.query_key_value, Interleaved(spec.heads, part)) for part in range(3)
        )
        return Parts(
            attention(spec, query, key, value, inner.dense, rotary(body.rotary_emb)),
            mlp(spec, layer.mlp.dense_h_to_4h, layer.mlp.dense_4h_to_h),
            {"attention": layer.input_layernorm, "mlp": layer.post_attention_layernorm},
        )
