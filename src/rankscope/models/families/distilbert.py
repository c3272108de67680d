"""DistilBERT: BERT's blocks under other names."""

from typing import Any

from rankscope.core.network import Spec
from rankscope.models.families.family import Family, Original, Parts, activation, attention, mlp


class DistilBert(Family):
    """Post-norm blocks, absolute positions."""

    name = "DistilBERT"
    model_types = ("distilbert",)

    def body(self, model: Original) -> Original:
        return model.base_model

    def layers(self, body: Original) -> list[Original]:
        return list(body.transformer.layer)

    def spec(self, config: Any) -> Spec:
        return Spec(
            config.n_layers,
            config.n_heads,
            config.dim,
            mlp_ratio=config.hidden_dim / config.dim,
            activation=activation(config, "activation"),
            norm_place="post",
            norm_eps=1e-12,
        )

    def most_tokens(self, config: Any) -> int | None:
        return int(config.max_position_embeddings)

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner = layer.attention
        return Parts(
            attention(spec, inner.q_lin, inner.k_lin, inner.v_lin, inner.out_lin),
            mlp(spec, layer.ffn.lin1, layer.ffn.lin2),
            {"attention": layer.sa_layer_norm, "mlp": layer.output_layer_norm},
        )
