"""BERT and its relatives: post-norm blocks with absolute positions."""

from typing import Any, ClassVar

from torch import Tensor

from rankscope.core.network import Spec
from rankscope.models.families._family import Family, Original, Parts, refuse, spec_of


class Bert(Family):
    """Post-norm blocks, absolute positions."""

    name = "BERT"
    model_types: ClassVar[tuple[str, ...]] = ("bert", "electra")
    layers_at = "encoder.layer"
    has_position_table = True

    def spec(self, config: Any) -> Spec:
        refuse(config, add_cross_attention=False)
        mask = "causal" if getattr(config, "is_decoder", False) else "full"
        return spec_of(config, norm_place="post", norm_eps=config.layer_norm_eps, mask=mask)

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner = layer.attention.self
        return Parts(
            (inner.query, inner.key, inner.value, layer.attention.output.dense),
            (layer.intermediate.dense, layer.output.dense),
            {"attention": layer.attention.output.LayerNorm, "mlp": layer.output.LayerNorm},
        )


class Roberta(Bert):
    """BERT's blocks; positions are counted on from the padding index, padding's own."""

    name = "RoBERTa"
    model_types = ("roberta", "xlm-roberta", "camembert")

    def positions(self, token_mask: Tensor, config: Any) -> Tensor:
        return token_mask.cumsum(-1) * token_mask + int(config.pad_token_id)

    def most_tokens(self, config: Any) -> int | None:
        return int(config.max_position_embeddings) - int(config.pad_token_id) - 1


class Albert(Family):
    """Post-norm blocks whose weights are shared by groups of layers, usually by all."""

    name = "ALBERT"
    model_types = ("albert",)
    has_position_table = True

    def layers(self, body: Original) -> list[Original]:
        groups, depth = body.encoder.albert_layer_groups, body.config.num_hidden_layers
        return [
            layer
            for index in range(depth)
            for layer in groups[index * len(groups) // depth].albert_layers
        ]

    def spec(self, config: Any) -> Spec:
        return spec_of(
            config,
            layers=config.num_hidden_layers * config.inner_group_num,
            norm_place="post",
            norm_eps=config.layer_norm_eps,
            shared_layers=config.num_hidden_groups * config.inner_group_num == 1,
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner = layer.attention
        return Parts(
            (inner.query, inner.key, inner.value, inner.dense),
            (layer.ffn, layer.ffn_output),
            {"attention": inner.LayerNorm, "mlp": layer.full_layer_layer_norm},
        )


class DistilBert(Family):
    """Post-norm blocks, absolute positions."""

    name = "DistilBERT"
    model_types = ("distilbert",)
    layers_at = "transformer.layer"
    has_position_table = True

    def spec(self, config: Any) -> Spec:
        names = {"mlp_width": config.hidden_dim, "activation": "activation"}
        return spec_of(config, **names, norm_place="post", norm_eps=1e-12)

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner = layer.attention
        return Parts(
            (inner.q_lin, inner.k_lin, inner.v_lin, inner.out_lin),
            (layer.ffn.lin1, layer.ffn.lin2),
            {"attention": layer.sa_layer_norm, "mlp": layer.output_layer_norm},
        )
