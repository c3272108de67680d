"""Networks and their parts."""

import torch
from table import add
from things import BLOCK, MASK, NET, SPEC, X
from torch import nn

import rankscope as rs
from rankscope.core import masks, network

add(
    "network.Spec",
    network.Spec,
    layers=2,
    heads=2,
    width=8,
    head_width=4,
    kv_heads=1,
    mlp_ratio=2.0,
    activation="gelu",
    gated=False,
    norm="layer",
    norm_place="pre",
    norm_eps=1e-5,
    skip=True,
    bias=True,
    mask="causal",
    scores="dot",
    init="xavier",
    removed_heads=[(0, 1)],
)
add("network.Spec.pure_attention", network.Spec.pure_attention, layers=1, heads=1, width=4)
add("network.Spec.digest", SPEC.digest, seed=3)
add("network.ALiBi", network.ALiBi, slopes=(0.5, 1.0))
add("network.GaussianKernel", network.GaussianKernel, bandwidth=2.0)
add("network.Linformer", network.Linformer, segments=2)
add("network.RelativeBias", network.RelativeBias, buckets=8, farthest=16, seed=1)
add("network.Rotary", network.Rotary, base=100.0)
add("network.Sink", network.Sink, tokens=1, strength=2.0)
add("network.Described", network.Described, name="mine")
add("network.Init", network.Init, kind="lecun", scale=0.5)
for one in (
    network.ALiBi(),
    network.GaussianKernel(),
    network.LinearKernel(),
    network.Linformer(segments=2),
    network.RelativeBias(),
    network.Rotary(),
    network.Sink(),
    network.Sparsemax(),
):
    add(f"network.{type(one).__name__}.build", one.build, heads=2, head_width=2)
add("network.Spec.build_scores", SPEC.build_scores, dtype=torch.float64, device=None)
add("network.Network.random", network.Network.random, spec=SPEC, seed=1, dtype=torch.float64)
add("network.Network", network.Network, spec=rs.Spec(1, 2, 4), blocks=[BLOCK], seed=1, name="mine")
add(
    "network.Network.from_matrices",
    network.Network.from_matrices,
    query_key=torch.ones(1, 1, 4, 4),
    values=torch.ones(1, 1, 4, 4),
    head_width=4,
    skip=True,
    norm="none",
    mask="causal",
)
add("network.Network.forward", NET.forward, x=X, token_mask=MASK)
add("network.Network.states", NET.states, x=X, token_mask=MASK)
add("network.Network.sighted_blocks", NET.sighted_blocks, tokens=X.shape[1], token_mask=MASK)
add("network.Network.prepare", NET.prepare, x=X, token_mask=MASK)
add("network.Network.check", NET.check, x=X)
add("network.Network.without", NET.without, **{"*0": "skip", "*1": "mlp"})
add("network.Network.with_mask", NET.with_mask, mask="causal")
add("network.Network.without_heads", NET.without_heads, **{"*0": (0, 1)})
add("network.Network.with_structure", NET.with_structure, spec=NET.spec)
add("network.Network.with_norm", NET.with_norm, norm="rms", place="post")
add("network.Network.repeat", NET.repeat, times=2)
add(
    "network.Activation",
    network.Activation,
    function=torch.relu,
    derivative=lambda x: x,
    limit_at_zero=None,
    slopes=(0.0, 1.0),
    scaled=None,
)
add(
    "network.Attention",
    network.Attention,
    query=BLOCK.attention.query,
    key=BLOCK.attention.key,
    value=BLOCK.attention.value,
    output=BLOCK.attention.output,
    scores=BLOCK.attention.scores,
    heads=2,
    kv_heads=2,
    scale=0.5,
    removed=frozenset({1}),
)
add("network.Attention.replaced", BLOCK.attention.replaced, removed=frozenset({0}))
add(
    "network.Block",
    network.Block,
    spec=SPEC,
    attention=BLOCK.attention,
    mlp=BLOCK.mlp,
    norms=dict(BLOCK.norms),
)
add("network.Branch", network.Branch, before=nn.Identity(), part=BLOCK.mlp, inside=nn.Identity())
add("network.Step", network.Step, branches=BLOCK.steps[0].branches, skip=1.0, after=nn.Identity())
add(
    "network.MLP",
    network.MLP,
    up=nn.Linear(4, 8),
    down=nn.Linear(8, 4),
    gate=None,
    activation="relu",
)
add(
    "network.NormRule",
    network.NormRule,
    centers=True,
    square="mean",
    eps=1e-5,
    gain=X[0, 0],
    bias=None,
    keeps_zero=False,
)
add(
    "network.NormRule.factor",
    network.NormRule(centers=True, square="mean", eps=1e-5, gain=X[0, 0]).factor,
    x=X,
)
add("network.Visibility", network.Visibility, positions=torch.arange(3)[None], allowed=None)
add(
    "network.Visibility.of",
    network.Visibility.of,
    mask=masks.Causal(),
    tokens=3,
    token_mask=MASK,
    device=torch.device("cpu"),
)
