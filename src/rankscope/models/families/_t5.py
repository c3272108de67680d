"""The encoder of T5 (and mT5): RMSNorm, no biases, no scale, a learned bias of distances."""

from typing import Any

from rankscope.core.network import BucketedBiasScores, Described, Spec, build_norm
from rankscope.models.families._family import Family, Original, Parts, spec_of


class T5(Family):
    """Pre-norm blocks; one table of biases, kept in the first block, serves all of them."""

    name = "T5 encoder"
    model_types = ("t5", "mt5")
    body_at = "encoder"
    layers_at = "block"
    takes_positions = False

    def spec(self, config: Any) -> Spec:
        return spec_of(
            config,
            mlp_width=config.d_ff,
            activation="dense_act_fn",
            head_width=config.d_kv,
            score_scale=1.0,
            gated=config.is_gated_act,
            norm="rms",
            norm_eps=config.layer_norm_epsilon,
            bias=False,
            scores=Described("bias of distances"),
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        attention, mlp = layer.layer
        inner, dense = attention.SelfAttention, mlp.DenseReluDense
        table = body.block[0].layer[0].SelfAttention.relative_attention_bias
        # As in Llama: the originals' gains, without their step down to float32.
        norms = {
            name: build_norm("rms", spec.width, eps=spec.norm_eps, bias=False, like=part.layer_norm)
            for name, part in {"attention": attention, "mlp": mlp}.items()
        }
        return Parts(
            (inner.q, inner.k, inner.v, inner.o),
            (dense.wi_1, dense.wo, dense.wi_0) if spec.gated else (dense.wi, dense.wo),
            norms,
            BucketedBiasScores(table, farthest=body.config.relative_attention_max_distance),
        )
