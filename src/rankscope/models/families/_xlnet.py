"""XLNet: post-norm blocks whose scores see distances; the content stream only."""

from typing import Any

from torch import Tensor

from rankscope.core.network import Described, SinusoidKeys, Spec, View
from rankscope.models.families._family import Family, HeadAxis, Original, Parts, refuse, spec_of


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
        )

    def parts(self, layer: Original, body: Original, spec: Spec) -> Parts:
        inner, config = layer.rel_attn, body.config
        query, key, value, project = (View(inner, HeadAxis(), weight=name) for name in "qkvr")
        scores = SinusoidKeys(
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
