"""Llama, Mistral, Qwen2, Qwen3: rotary positions, grouped heads, RMSNorm, gated MLP."""

from typing import Any

from torch import nn

from rankscope.core.masks import Causal, Mask, Window
from rankscope.core.network import Described, NormedHeads, RotaryScores, Scores, Spec, build_norm
from rankscope.errors import UnsupportedModelError
from rankscope.models.families._family import Family, Original, Parts, spec_of

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
            layer_masks=_masks(config),
            bias=False,
            scores=Described(f"rotary, {config.model_type}"),
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner = layer.self_attn
        scores = rotary(body.rotary_emb)
        if hasattr(inner, "q_norm"):
            scores = NormedHeads(
                _rms(inner.q_norm, spec.head_width), _rms(inner.k_norm, spec.head_width), scores
            )
        norms = {"attention": layer.input_layernorm, "mlp": layer.post_attention_layernorm}
        return Parts(
            (inner.q_proj, inner.k_proj, inner.v_proj, inner.o_proj),
            (layer.mlp.up_proj, layer.mlp.down_proj, layer.mlp.gate_proj),
            {name: _rms(norm, spec.width) for name, norm in norms.items()},
            scores,
        )


def rotary(original: Original) -> Scores:
    """The rotary score of an original's rotary module, if its frequencies are fixed."""
    if original.rope_type not in _FIXED_ROTARY:
        raise UnsupportedModelError(
            f"rotary embeddings of type {original.rope_type!r} change with the sequence length and "
            f"are not converted ({', '.join(_FIXED_ROTARY)} are); "
            "rankscope.trace works on the model without conversion."
        )
    return RotaryScores(original.inv_freq, scaling=original.attention_scaling)


def _rms(original: Original, width: int) -> nn.Module:
    """RMSNorm with the original's gain, computed in the model's own precision.

    The originals drop to float32 inside, even in a float64 model, which would put a floor of 1e-8
    under every residual.
    """
    return build_norm("rms", width, eps=original.variance_epsilon, bias=False, like=original)


def _masks(config: Any) -> list[Mask]:
    """Causal everywhere, or a causal window where the layer's type says so."""
    reach = getattr(config, "sliding_window", None)
    everywhere = "sliding_attention" if config.model_type == "mistral" else "full_attention"
    types = getattr(config, "layer_types", None) or [everywhere] * config.num_hidden_layers
    window: Mask = Causal() if reach is None else Window(before=reach - 1, after=0)
    return [window if kind == "sliding_attention" else Causal() for kind in types]
