"""Networks of every kind, small enough to add up every single path."""

import torch

from rankscope.core.masks import Window
from rankscope.core.network import Init, Spec

INIT = Init("normal", 0.5)
KINDS: dict[str, Spec] = {
    "centred, output norm": Spec(
        3, 2, 8, centered=True, norm_place="output", mask="causal", init=INIT
    ),
    "pure attention": Spec(3, 2, 8, mlp_ratio=0.0, norm="none", skip=False, init=INIT),
    "attention, skips": Spec(3, 2, 8, mlp_ratio=0.0, norm="none", init=INIT),
    "pre-norm": Spec(3, 2, 8, init=INIT),
    "post-norm": Spec(3, 2, 8, norm_place="post", init=INIT),
    "sandwich": Spec(3, 2, 8, norm_place="both", init=INIT),
    "skipless post-norm": Spec(3, 2, 8, norm_place="post", skip=False, init=INIT),
    "one skip": Spec(3, 2, 8, attention_skip=False, init=INIT),
    "scaled skips": Spec(3, 2, 8, skip=0.7, init=INIT),
    "parallel": Spec(3, 2, 8, parallel=True, init=INIT),
    "parallel post-norm": Spec(3, 2, 8, parallel=True, norm_place="post", init=INIT),
    "gated": Spec(3, 2, 8, gated=True, activation="silu", norm="rms", init=INIT),
    "grouped heads": Spec(3, 4, 8, kv_heads=2, head_width=3, init=INIT),
    "sphere": Spec(3, 2, 8, norm="sphere", norm_place="post", init=INIT),
    "causal": Spec(3, 2, 8, mask="causal", init=INIT),
    "window": Spec(3, 2, 8, mask=Window(before=1, after=1), activation="relu", init=INIT),
    "a mask for each layer": Spec(
        3, 2, 8, layer_masks=("full", "causal", Window(before=1, after=0)), init=INIT
    ),
    "shared layers": Spec(3, 2, 8, shared_layers=True, norm_place="post", init=INIT),
    "identity for MLP": Spec(3, 2, 8, mlp_as="identity", norm_place="post", init=INIT),
    "activation for MLP": Spec(3, 2, 8, mlp_as="activation", norm_place="post", init=INIT),
    "silent heads": Spec(3, 2, 8, removed_heads=[(0, 1), (2, 0)], init=INIT),
    "no biases": Spec(3, 2, 8, bias=False, init=INIT),
}


def batch(tokens: int = 5, width: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(2, tokens, width, generator=generator, dtype=torch.float64)
