"""BERT, and what has its blocks: RoBERTa, ELECTRA, MiniLM checkpoints."""

from typing import Any, ClassVar

from torch import Tensor

from rankscope.core.network import Spec
from rankscope.models.families.family import (
    Family,
    Original,
    Parts,
    activation,
    attention,
    mlp,
    refuse,
)


class Bert(Family):
    """Post-norm blocks, absolute positions."""

    name = "BERT"
    model_types: ClassVar[tuple[str, ...]] = ("bert", "electra")

    def body(self, model: Original) -> Original:
        return model.base_model

    def layers(self, body: Original) -> list[Original]:
        return list(body.encoder.layer)

    def spec(self, config: Any) -> Spec:
        refuse(config, add_cross_attention=False)
        return Spec(
            config.num_hidden_layers,
            config.num_attention_heads,
            config.hidden_size,
            mlp_ratio=config.intermediate_size / config.hidden_size,
            activation=activation(config, "hidden_act"),
            norm_place="post",
            norm_eps=config.layer_norm_eps,
            mask="causal" if getattr(config, "is_decoder", False) else "full",
        )

    def most_tokens(self, config: Any) -> int | None:
        return int(config.max_position_embeddings)

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner = layer.attention.self
        return Parts(
            attention(spec, inner.query, inner.key, inner.value, layer.attention.output.dense),
            mlp(spec, layer.intermediate.dense, layer.output.dense),
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
