"""Every architecture that is converted: where the original keeps its parts, a class each.

To add one, write its class and enter it in ``FAMILIES``.
"""

import math
from typing import Any, ClassVar

from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core import network
from rankscope.core.masks import Causal, Mask, Window
from rankscope.core.network import Described, Init, Spec, View
from rankscope.errors import UnsupportedModelError
from rankscope.models.families._family import (
    ColumnSlice,
    Family,
    HeadAxis,
    Interleaved,
    Original,
    Parts,
    refuse,
    spec_of,
)


class Bert(Family):
    """Post-norm blocks, absolute positions."""

    name = "BERT"
    model_types: ClassVar[tuple[str, ...]] = ("bert", "electra")
    layers_at = "encoder.layer"
    has_position_table = True

    def spec(self, config: Any) -> Spec:
        refuse(config, add_cross_attention=False)
        mask = "causal" if getattr(config, "is_decoder", False) else "full"
        narrow = getattr(config, "embedding_size", config.hidden_size)  # ELECTRA's, projected
        scale = (
            config.initializer_range * math.sqrt(narrow) if narrow != config.hidden_size else 1.0
        )
        return spec_of(
            config,
            norm_place="post",
            norm_eps=config.layer_norm_eps,
            mask=mask,
            embedding_scale=scale,
        )

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
            # Normalised in fewer features, then projected.
            embedding_scale=config.initializer_range * math.sqrt(config.embedding_size),
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


class XLNet(Family):
    """Bidirectional, without memory, one segment: what a model sees that reads a text."""

    name = "XLNet"
    model_types = ("xlnet",)
    layers_at = "layer"
    takes_positions = False

    def spec(self, config: Any) -> Spec:
        refuse(config, attn_type="bi", bi_data=False)
        return spec_of(
            config,
            mlp_width=config.d_inner,
            activation="ff_activation",
            head_width=config.d_head,
            norm_place="post",
            norm_eps=config.layer_norm_eps,
            scores=Described("sinusoids of distances"),
            embedding_scale=config.initializer_range,  # no norm follows its embeddings
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner, config = layer.rel_attn, body.config
        query, key, value, project = (View(inner, HeadAxis(), weight=name) for name in "qkvr")
        scores = network.SinusoidKeys(
            content_bias=inner.r_w_bias,
            position_bias=inner.r_r_bias,
            project=project,
            width=spec.width,
            scale=spec.score_scale,
            farthest=config.clamp_len if config.clamp_len > 0 else None,
        )
        output = View(inner, HeadAxis(out_of_heads=True), weight="o")
        return Parts(
            (query, key, value, output),
            (layer.ff.layer_1, layer.ff.layer_2),
            {"attention": inner.layer_norm, "mlp": layer.ff.layer_norm},
            scores,
        )

    def batch_first(self, hidden: Tensor) -> Tensor:
        """The original keeps the tokens in front."""
        return hidden.transpose(0, 1)


class GPT2(Family):
    """Pre-norm blocks, absolute positions; the final norm is not part of the blocks."""

    name = "GPT-2"
    model_types = ("gpt2",)
    layers_at = "h"
    has_position_table = True

    def spec(self, config: Any) -> Spec:
        refuse(config, add_cross_attention=False, scale_attn_by_inverse_layer_idx=False)
        deviation, into_stream = config.initializer_range, 1 / math.sqrt(2 * config.n_layer)
        return spec_of(
            config,
            mlp_width=config.n_inner or 4 * config.n_embd,
            activation="activation_function",
            norm_eps=config.layer_norm_epsilon,
            mask="causal",
            score_scale=None if config.scale_attn_weights else 1.0,
            init=Init("normal", deviation, {"output": into_stream, "down": into_stream}),
            embedding_scale=math.sqrt(2) * deviation,  # those of words and of positions
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        fused, width = layer.attn.c_attn, spec.width
        query, key, value = (View(fused, ColumnSlice(k * width, (k + 1) * width)) for k in range(3))
        return Parts(
            (query, key, value, View(layer.attn.c_proj, ColumnSlice())),
            (View(layer.mlp.c_fc, ColumnSlice()), View(layer.mlp.c_proj, ColumnSlice())),
            {"attention": layer.ln_1, "mlp": layer.ln_2},
        )


_FIXED_ROTARY = ("default", "linear", "llama3", "yarn")


class Llama(Family):
    """Pre-norm blocks, causal or with a causal sliding window; the final norm is not included."""

    name = "Llama"
    model_types = ("llama", "mistral", "qwen2", "qwen3")

    def spec(self, config: Any) -> Spec:
        width = getattr(config, "head_dim", None)
        return spec_of(
            config,
            head_width=width or config.hidden_size // config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            gated=True,
            norm="rms",
            norm_eps=config.rms_norm_eps,
            layer_masks=self._masks(config),
            bias=False,
            scores=Described(f"rotary, {config.model_type}"),
        )

    def _masks(self, config: Any) -> list[Mask]:
        """Causal everywhere, or a causal window where the layer's type says so."""
        reach = getattr(config, "sliding_window", None)
        everywhere = "sliding_attention" if config.model_type == "mistral" else "full_attention"
        types = getattr(config, "layer_types", None) or [everywhere] * config.num_hidden_layers
        window: Mask = Causal() if reach is None else Window(before=reach - 1, after=0)
        return [window if kind == "sliding_attention" else Causal() for kind in types]

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner, scores = layer.self_attn, _rotary(body.rotary_emb)
        if hasattr(inner, "q_norm"):
            query, key = (_rms(norm, spec.head_width) for norm in (inner.q_norm, inner.k_norm))
            scores = network.NormedHeads(query, key, scores)
        norms = {"attention": layer.input_layernorm, "mlp": layer.post_attention_layernorm}
        return Parts(
            (inner.q_proj, inner.k_proj, inner.v_proj, inner.o_proj),
            (layer.mlp.up_proj, layer.mlp.down_proj, layer.mlp.gate_proj),
            {name: _rms(norm, spec.width) for name, norm in norms.items()},
            scores,
        )


def _rotary(original: Original) -> network.Scores:
    if original.rope_type not in _FIXED_ROTARY:
        raise UnsupportedModelError(
            f"rotary embeddings of type {original.rope_type!r} change with the sequence length and "
            f"are not converted ({', '.join(_FIXED_ROTARY)} are); "
            "rankscope.trace works on the model without conversion."
        )
    return network.RotaryScores(original.inv_freq, scaling=original.attention_scaling)


def _rms(original: Original, width: int) -> nn.Module:
    """RMSNorm with the original's gain, computed in the model's own precision.

    The originals drop to float32 inside, even in a float64 model, which would put a floor of 1e-8
    under every residual.
    """
    return network.build_norm(
        "rms", width, eps=original.variance_epsilon, bias=False, like=original
    )


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
            _rotary(body.rotary_emb),
        )


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
            init=Init("lecun", config.initializer_factor, {"query": config.d_kv**-0.5}),
            embedding_scale=config.initializer_factor,
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        attention, mlp = layer.layer
        inner, dense = attention.SelfAttention, mlp.DenseReluDense
        table = body.block[0].layer[0].SelfAttention.relative_attention_bias
        norms = {"attention": attention.layer_norm, "mlp": mlp.layer_norm}
        return Parts(
            (inner.q, inner.k, inner.v, inner.o),
            (dense.wi_1, dense.wo, dense.wi_0) if spec.gated else (dense.wi, dense.wo),
            {name: _rms(norm, spec.width) for name, norm in norms.items()},
            network.BucketedBiasScores(table, farthest=body.config.relative_attention_max_distance),
        )


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


FAMILIES: tuple[Family, ...] = tuple(
    family() for family in (Bert, Roberta, Albert, XLNet, DistilBert, GPT2, Llama, NeoX, T5, ViT)
)


@checked
def family_of(model: nn.Module) -> Family:
    """The family that converts a model, by the type its configuration states."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    for family in FAMILIES:
        if kind in family.model_types:
            return family
    known = ", ".join(sorted(kind for family in FAMILIES for kind in family.model_types))
    raise UnsupportedModelError(
        f"{type(model).__name__} (model type {kind!r}) belongs to no family rankscope converts "
        f"({known}); rankscope.trace(model, inputs) works on it without conversion."
    )
