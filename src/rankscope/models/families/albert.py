"""ALBERT: BERT's block once, applied again and again."""

from typing import Any

from rankscope.core.network import Spec
from rankscope.models.families.family import Family, Original, Parts, activation, attention, mlp


class Albert(Family):
    """Post-norm blocks whose weights are shared by groups of layers, usually by all."""

    name = "ALBERT"
    model_types = ("albert",)

    def body(self, model: Original) -> Original:
        return model.base_model

    def layers(self, body: Original) -> list[Original]:
        groups, depth = body.encoder.albert_layer_groups, body.config.num_hidden_layers
        return [
            layer
            for index in range(depth)
            for layer in groups[index * len(groups) // depth].albert_layers
        ]

    def spec(self, config: Any) -> Spec:
        return Spec(
            config.num_hidden_layers * config.inner_group_num,
            config.num_attention_heads,
            config.hidden_size,
            mlp_ratio=config.intermediate_size / config.hidden_size,
            activation=activation(config, "hidden_act"),
            norm_place="post",
            norm_eps=config.layer_norm_eps,
            shared_layers=config.num_hidden_groups * config.inner_group_num == 1,
        )

    def most_tokens(self, config: Any) -> int | None:
        return int(config.max_position_embeddings)

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner = layer.attention
        return Parts(
            attention(spec, inner.query, inner.key, inner.value, inner.dense),
            mlp(spec, layer.ffn, layer.ffn_output),
            {"attention": inner.LayerNorm, "mlp": layer.full_layer_layer_norm},
        )
