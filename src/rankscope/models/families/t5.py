"""The encoder of T5 (and mT5): RMSNorm, no biases, no scale, a learned bias of distances."""

from typing import Any

from torch import nn

from rankscope.core.network import BucketedBiasScores, Described, Spec, build_norm
from rankscope.models.families.family import Family, Original, Parts, activation, attention, mlp


class T5(Family):
    """Pre-norm blocks; one table of biases, kept in the first block, serves all of them."""

    name = "T5 encoder"
    model_types = ("t5", "mt5")
    takes_positions = False

    def body(self, model: Original) -> Original:
        return model.encoder

    def layers(self, body: Original) -> list[Original]:
        return list(body.block)

    def spec(self, config: Any) -> Spec:
        return Spec(
            config.num_layers,
            config.num_heads,
            config.d_model,
            head_width=config.d_kv,
            score_scale=1.0,
            mlp_ratio=config.d_ff / config.d_model,
            activation=activation(config, "dense_act_fn"),
            gated=config.is_gated_act,
            norm="rms",
            norm_eps=config.layer_norm_epsilon,
            bias=False,
            scores=Described("bias of distances"),
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        first, second = layer.layer
        inner, dense = first.SelfAttention, second.DenseReluDense
        table = body.block[0].layer[0].SelfAttention.relative_attention_bias
        scores = BucketedBiasScores(table, farthest=body.config.relative_attention_max_distance)
        up, gate = (dense.wi_1, dense.wi_0) if spec.gated else (dense.wi, None)
        return Parts(
            attention(spec, inner.q, inner.k, inner.v, inner.o, scores),
            mlp(spec, up, dense.wo, gate),
            {"attention": self._norm(first, spec), "mlp": self._norm(second, spec)},
        )

    @staticmethod
    def _norm(sublayer: Original, spec: Spec) -> nn.Module:
        """As in ``llama``: the original's gain, without its step down to float32."""
        return build_norm(
            "rms", spec.width, eps=spec.norm_eps, bias=False, like=sublayer.layer_norm
        )
