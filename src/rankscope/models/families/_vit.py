"""ViT and DeiT: pre-norm encoders of image patches."""

from typing import Any

from rankscope.core.network import Spec
from rankscope.models.families._family import Family, Original, Parts, spec_of


class ViT(Family):
    """Pre-norm blocks; the tokens are patches, so there is no padding and no position argument."""

    name = "ViT"
    model_types = ("vit", "deit")
    takes_positions = False

    def layers(self, body: Original) -> list[Original]:
        return list(body.layers if hasattr(body, "layers") else body.encoder.layer)

    def spec(self, config: Any) -> Spec:
        return spec_of(config, norm_eps=config.layer_norm_eps)

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner = layer.attention
        return Parts(
            (inner.q_proj, inner.k_proj, inner.v_proj, inner.o_proj),
            (layer.mlp.fc1, layer.mlp.fc2),
            {"attention": layer.layernorm_before, "mlp": layer.layernorm_after},
        )
