"""Tiny specs in which every part of a network occurs at least once."""

import torch

from rankscope.core.masks import Explicit, Window
from rankscope.core.network import (
    ALiBi,
    GaussianKernel,
    Init,
    LinearKernel,
    Linformer,
    RelativeBias,
    Rotary,
    Sink,
    Sparsemax,
    Spec,
)

from .kinds import Kind


def spec(heads=2, *, layers=2, **options):
    return Spec(layers, heads, 4, init=Init("normal", 0.7), **{"mlp_ratio": 1.5, **options})


BARE = {"mlp_ratio": 0.0, "norm": "none", "skip": False}
SHAPE = torch.tensor([[1, 0, 1, 0, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0], [1] * 5, [0, 0, 0, 0, 1]])
SPECS = {
    "pure attention": spec(**BARE),
    "one head": spec(1, **BARE),
    "no biases": spec(bias=False, **BARE),
    "attention and skips": spec(mlp_ratio=0.0, norm="none"),
    "pre-norm": spec(),
    "post-norm": spec(norm_place="post"),
    "sandwich": spec(norm_place="both", norm_eps=0.2),
    "output norm": spec(norm_place="output"),
    "parallel output norm": spec(parallel=True, norm_place="output", norm="rms"),
    "centred": spec(centered=True),
    "centred, causal": spec(centered=True, mask="causal", kv_heads=1),
    "skipless post-norm": spec(norm_place="post", skip=False),
    "two skips": spec(attention_skip=0.3, mlp_skip=1.7),
    "attention's skip alone": spec(mlp_skip=False),
    "parallel": spec(parallel=True, skip=0.6),
    "parallel post-norm": spec(parallel=True, norm_place="post"),
    "parallel sandwich": spec(parallel=True, norm_place="both"),
    "RMSNorm": spec(norm="rms", norm_eps=0.1),
    "RMSNorm after": spec(norm="rms", norm_place="post"),
    "sphere": spec(norm="sphere"),
    "sphere after": spec(norm="sphere", norm_place="post", mlp_ratio=0.0),
    "relu": spec(activation="relu"),
    "gelu_tanh": spec(activation="gelu_tanh"),
    "silu": spec(activation="silu"),
    "relu2": spec(activation="relu2"),
    "quick_gelu": spec(activation="quick_gelu"),
    "gated": spec(gated=True, activation="silu", norm="rms"),
    "gated gelu": spec(gated=True, norm="none"),
    "identity for MLP": spec(mlp_as="identity", norm_place="post"),
    "activation for MLP": spec(mlp_as="activation", norm_place="post"),
    "grouped heads": spec(4, kv_heads=2, head_width=3),
    "one key head": spec(3, kv_heads=1, head_width=2, score_scale=0.9),
    "silent heads": spec(removed_heads=[(0, 1), (1, 0), (1, 1)]),
    "shared layers": spec(shared_layers=True),
    "causal": spec(mask="causal"),
    "window": spec(mask=Window(before=1, after=1)),
    "a mask for each layer": spec(layer_masks=("causal", Window(before=0, after=2))),
    "explicit mask": spec(mask=Explicit.of(SHAPE.bool())),
    "rotary": spec(head_width=5, scores=Kind("rotary"), mask="causal"),
    "rotary in part": spec(head_width=5, scores=Kind("rotary in part")),
    "rotary, interleaved": spec(head_width=5, scores=Kind("rotary, interleaved")),
    "rotary of a grid": spec(head_width=4, scores=Kind("grid")),
    "normed heads": spec(head_width=4, scores=Kind("normed")),
    "normed last": spec(head_width=4, scores=Kind("normed last"), mask="causal"),
    "normed side by side": spec(4, kv_heads=2, head_width=4, scores=Kind("normed side by side")),
    "disentangled": spec(scores=Kind("disentangled")),
    "disentangled, buckets": spec(4, kv_heads=2, scores=Kind("disentangled, buckets")),
    "buckets": spec(scores=Kind("buckets")),
    "buckets, one side": spec(scores=Kind("buckets, one side"), mask="causal"),
    "sinusoids": spec(scores=Kind("sinusoids")),
    "sinusoids, clamped": spec(scores=Kind("sinusoids, clamped"), norm_place="post"),
    "linear kernel": spec(scores=LinearKernel()),
    "linear kernel, causal": spec(scores=LinearKernel(), mask="causal", score_scale=3.0),
    "linformer": spec(scores=Linformer(segments=2)),
    "linformer, a segment each": spec(scores=Linformer(segments=9)),
    "gaussian kernel": spec(4, kv_heads=2, scores=GaussianKernel(bandwidth=0.7)),
    "sparsemax": spec(scores=Sparsemax(), score_scale=1.5),
    "sparsemax, causal": spec(scores=Sparsemax(), score_scale=4.0, mask="causal"),
    "sink": spec(scores=Sink(tokens=2, strength=1.5)),
    "rotary as a spec": spec(head_width=4, scores=Rotary(base=10.0)),
    "relative bias": spec(scores=RelativeBias(buckets=8, farthest=6, seed=1)),
    "alibi": spec(3, head_width=2, scores=ALiBi()),
    "alibi, causal": spec(scores=ALiBi(slopes=(0.9, -0.2)), mask="causal"),
}
EVERY_RULE = (
    *("pure attention", "causal", "rotary", "buckets", "sinusoids", "gaussian kernel"),
    *("linear kernel", "linear kernel, causal", "linformer", "sparsemax", "sparsemax, causal"),
)
"""One score for each rule of scaled arithmetic, and for one support or several."""
PADDING = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 0]]).bool()
