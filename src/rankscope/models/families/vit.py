"""ViT and DeiT: pre-norm encoders of image patches."""

from typing import Any

from rankscope.core.network import Spec
from rankscope.models.families.family import Family, Original, Parts, activation, attention, mlp


class ViT(Family):
    """Pre-norm blocks; the tokens are patches, so there is no padding and no position argument."""

    name = "ViT"
    model_types = ("vit", "deit")
    takes_positions = False

    def body(self, model: Original) -> Original:
        return model.base_model

    def layers(self, body: Original) -> list[Original]:
        return list(body.layers if hasattr(body, "layers") else body.encoder.layer)

    def spec(self, config: Any) -> Spec:
        return Spec(
            config.num_hidden_layers,
            config.num_attention_heads,
            config.hidden_size,
            mlp_ratio=config.intermediate_size / config.hidden_size,
            activation=activation(config, "hidden_act"),
            norm_eps=config.layer_norm_eps,
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner = layer.attention
        return Parts(
            attention(spec, inner.q_proj, inner.k_proj, inner.v_proj, inner.o_proj),
            mlp(spec, layer.mlp.fc1, layer.mlp.fc2),
            {"attention": layer.layernorm_before, "mlp": layer.layernorm_after},
        )
