"""GPT-NeoX and Pythia: attention and MLP side by side, rotary on a part of each head."""

from typing import Any

from rankscope.core.network import Described, Spec, View
from rankscope.models.families._family import Family, Interleaved, Original, Parts, spec_of
from rankscope.models.families._llama import rotary


class NeoX(Family):
    """Pre-norm blocks, parallel unless the configuration says otherwise."""

    name = "GPT-NeoX"
    model_types = ("gpt_neox",)

    def spec(self, config: Any) -> Spec:
        return spec_of(
            config,
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
            (query, key, value, inner.dense),
            (layer.mlp.dense_h_to_4h, layer.mlp.dense_4h_to_h),
            {"attention": layer.input_layernorm, "mlp": layer.post_attention_layernorm},
            rotary(body.rotary_emb),
        )
