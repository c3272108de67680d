"""The forward pass against other people's arithmetic: NumPy written from theory.md, and PyTorch."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.special
import torch
from torch import nn

from rankscope.core.masks import Window
from rankscope.core.network import Network, Sparsemax, Spec, Visibility

from ...pairwise import pairwise

TOKENS, WIDTH, HEADS, HEAD_WIDTH = 5, 8, 4, 3


# Theory section 1, in loops.


def array(tensor):
    return tensor.detach().numpy()


def affine(linear, x):
    y = x @ array(linear.weight).T
    return y if linear.bias is None else y + array(linear.bias)


def phi(name, z):
    return {
        "relu": lambda: np.maximum(z, 0),
        "gelu": lambda: z * (1 + scipy.special.erf(z / math.sqrt(2))) / 2,
        "gelu_tanh": lambda: z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2,
        "silu": lambda: z / (1 + np.exp(-z)),
    }[name]()


def normalised(kind, module, x, eps):
    if kind == "none" or module is None:
        return x
    if kind == "sphere":
        return np.array([row / math.sqrt((row**2).sum()) for row in x])
    if kind == "rms":
        return np.array([row / math.sqrt((row**2).mean() + eps) for row in x]) * array(
            module.weight
        )
    y = np.array([(row - row.mean()) / math.sqrt(row.var() + eps) for row in x])
    y = y * array(module.weight)
    return y if module.bias is None else y + array(module.bias)


def softmax_over(logits, allowed):
    weights = [math.exp(z) if ok else 0.0 for z, ok in zip(logits, allowed, strict=True)]
    return np.array(weights) / sum(weights)


def naive_attention(attention, x, allowed, *, kv_heads, score_scale):
    """Σ_h P_h X W_h + 1bᵀ, one head and one row after the other; and all P_h."""
    q, k, v = (affine(part, x) for part in (attention.query, attention.key, attention.value))
    output = array(attention.output.weight).T  # inner × width
    total = np.zeros_like(x)
    patterns = []
    for head in range(HEADS):
        mine = slice(head * HEAD_WIDTH, (head + 1) * HEAD_WIDTH)
        group = head // (HEADS // kv_heads)
        shared = slice(group * HEAD_WIDTH, (group + 1) * HEAD_WIDTH)
        P = np.zeros((len(x), len(x)))
        for i in range(len(x)):
            logits = [score_scale * (q[i, mine] @ k[j, shared]) for j in range(len(x))]
            P[i] = softmax_over(logits, allowed[i])
        patterns.append(P)
        total = total + P @ v[:, shared] @ output[mine]
    if attention.output.bias is not None:
        total = total + array(attention.output.bias)
    return total, np.array(patterns)


def naive_mlp(mlp, x, *, activation):
    up = affine(mlp.up, x)
    hidden = phi(activation, up) if mlp.gate is None else phi(activation, affine(mlp.gate, x)) * up
    return affine(mlp.down, hidden)


def naive_block(block, x, allowed, *, options, skips):
    """One block; ``options`` as given to Spec, ``skips`` as the test means them."""
    kind, place, eps = options["norm"], options["norm_place"], options["norm_eps"]

    norms = dict(block.norms.items())

    def norm(name, y):
        return normalised(kind, norms.get(name), y, eps)

    def attention(y):
        scale = options.get("score_scale", 1 / math.sqrt(HEAD_WIDTH))
        return naive_attention(
            block.attention, y, allowed, kv_heads=options["kv_heads"], score_scale=scale
        )[0]

    def mlp(y):
        return naive_mlp(block.mlp, y, activation=options["activation"])

    def branch(name, part, y):
        before = norm(name, y) if place in ("pre", "both") else y
        inside = place in ("both", "output")
        return norm(f"{name}_inside", part(before)) if inside else part(before)

    def after(name, y):
        return norm(name, y) if place == "post" else y

    if options["parallel"]:
        both = branch("attention", attention, x) + branch("mlp", mlp, x)
        return after("attention", skips[0] * x + both)
    x = after("attention", skips[0] * x + branch("attention", attention, x))
    return after("mlp", skips[1] * x + branch("mlp", mlp, x))


def naive(net, x, allowed, *, options, skips):
    """All blocks on each sample of ``(batch, token, feature)``."""
    results = []
    for sample in array(x):
        for block in net.blocks:
            sample = naive_block(block, sample, allowed, options=options, skips=skips)
        results.append(sample)
    return np.array(results)


# Every two options meet; what decides how a block is put together, in every combination.

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
PLACES = ("pre", "post", "both", "output")
SKIPS = {
    "skip": ({"skip": True}, (1.0, 1.0)),
    "no-skip": ({"skip": False}, (0.0, 0.0)),
    "half-skip": ({"skip": 0.5}, (0.5, 0.5)),
    "two-skips": ({"attention_skip": 0.25, "mlp_skip": True}, (0.25, 1.0)),
}
SCATTERED = torch.tensor(
    [[1, 0, 1, 0, 0], [1, 1, 0, 0, 1], [0, 0, 0, 1, 0], [1, 1, 1, 1, 0], [0, 1, 0, 0, 1]]
).bool()
MASKS = {
    "full": ("full", lambda _i, _j: True),
    "causal": ("causal", lambda i, j: j <= i),
    "window": (Window(before=2, after=1), lambda i, j: i - 2 <= j <= i + 1),
    "explicit": (SCATTERED, lambda i, j: bool(SCATTERED[i, j])),
}


STRUCTURES = pairwise(
    {
        "norm": ("layer", "rms", "sphere", "none"),
        "norm_place": PLACES,
        "parallel": (False, True),
        "skip": tuple(SKIPS),
        "mask": tuple(MASKS),
        "gated": (False, True),
        "kv_heads": (1, 2, 4),
        "activation": ACTIVATIONS,
        "bias": (True, False),
    },
    ("norm", "norm_place", "parallel"),
    ("norm_place", "parallel", "skip"),
    possible=lambda case: not (case["parallel"] and case["skip"] == "two-skips"),
)


@pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: "-".join(map(str, case.values())))
def test_forward_is_the_equations(case, lively, tokens):
    options = {**case, "norm_eps": 1e-2}  # large enough that a misplaced eps shows
    written, skips = SKIPS[options.pop("skip")]
    mask_option, allows = MASKS[options.pop("mask")]
    spec = Spec(
        2, HEADS, WIDTH, head_width=HEAD_WIDTH, mask=mask_option, mlp_ratio=1.5, init="lecun",
        **written, **options,
    )  # fmt: skip
    net = lively(spec)
    x = tokens(1, TOKENS, WIDTH)
    allowed = [[allows(i, j) for j in range(TOKENS)] for i in range(TOKENS)]
    expected = naive(net, x, allowed, options=options, skips=skips)
    np.testing.assert_allclose(array(net(x)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("score_scale", [0.0, 0.3, 2.0])
def test_score_scale_multiplies_the_logits(score_scale, lively, tokens):
    options = {"norm": "none", "norm_place": "pre", "norm_eps": 1e-5, "parallel": False,
               "gated": False, "kv_heads": 4, "activation": "gelu", "bias": True}  # fmt: skip
    spec = Spec(
        1, HEADS, WIDTH, head_width=HEAD_WIDTH, init="lecun", score_scale=score_scale, **options
    )
    net = lively(spec)
    x = tokens(2, TOKENS, WIDTH)
    everything = np.ones((TOKENS, TOKENS), dtype=bool)
    written = dict(options, score_scale=score_scale)
    expected = naive(net, x, everything, options=written, skips=(1, 1))
    np.testing.assert_allclose(array(net(x)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("mask", MASKS)
def test_pattern_is_the_softmax_of_the_equations(mask, kv_heads, lively, tokens):
    mask_option, allows = MASKS[mask]
    spec = Spec(
        1, HEADS, WIDTH, head_width=HEAD_WIDTH, kv_heads=kv_heads, mask=mask_option, init="lecun"
    )
    net = lively(spec)
    x = tokens(1, TOKENS, WIDTH)
    allowed = [[allows(i, j) for j in range(TOKENS)] for i in range(TOKENS)]
    pattern = captured_pattern(net, x)
    attention = net.blocks[0].attention
    seen = normalised("layer", net.blocks[0].norms["attention"], array(x[0]), 1e-5)
    _, expected = naive_attention(
        attention, seen, allowed, kv_heads=kv_heads, score_scale=1 / math.sqrt(HEAD_WIDTH)
    )
    np.testing.assert_allclose(array(pattern[0]), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(array(pattern.sum(-1)), 1.0, rtol=0, atol=1e-12)
    assert (array(pattern[0])[:, ~np.array(allowed)] == 0.0).all()


def captured_pattern(net, x):
    """The attention matrices of the first block, for what really enters its attention."""
    found = []
    attention = net.blocks[0].attention
    handle = attention.register_forward_pre_hook(
        lambda module, args: found.append(module.pattern(*args))
    )
    net(x)
    handle.remove()
    return found[0]


def from_torch_layer(layer, net):
    """Copy the weights of a TransformerEncoderLayer into the first block of ``net``."""
    block, attention = net.blocks[0], layer.self_attn
    weights = attention.in_proj_weight.chunk(3)
    biases = attention.in_proj_bias.chunk(3)
    mine = (block.attention.query, block.attention.key, block.attention.value)
    with torch.no_grad():
        for linear, weight, bias in zip(mine, weights, biases, strict=True):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        for ours, theirs in (
            (block.attention.output, attention.out_proj),
            (block.mlp.up, layer.linear1),
            (block.mlp.down, layer.linear2),
            (block.norms["attention"], layer.norm1),
            (block.norms["mlp"], layer.norm2),
        ):
            ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_agrees_with_torch_encoder_layer(norm_first, causal, activation, tokens):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        12, 3, 20, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first,
        dtype=torch.float64,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    spec = Spec(
        1, 3, 12, mlp_ratio=20 / 12, activation=activation,
        norm_place="pre" if norm_first else "post", mask="causal" if causal else "full",
    )  # fmt: skip
    net = Network.random(spec, dtype=torch.float64)
    from_torch_layer(layer, net)
    x = tokens(2, 6, 12)
    hidden = ~torch.ones(6, 6).tril().bool() if causal else None
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    theirs = layer(x, src_mask=hidden, src_key_padding_mask=padding)
    ours = net(x, ~padding)
    torch.testing.assert_close(ours[~padding], theirs[~padding], rtol=0, atol=1e-12)
    torch.testing.assert_close(net(x), layer(x, src_mask=hidden), rtol=0, atol=1e-12)


def test_zero_token_stays_zero_on_the_sphere(lively):
    net = lively(
        Spec(1, 2, 4, norm="sphere", norm_place="post", mlp_ratio=0, skip=True, bias=False)
    )
    out = net(torch.zeros(1, 3, 4, dtype=torch.float64))
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("parallel", [False, True], ids=["sequential", "parallel"])
@pytest.mark.parametrize("place", PLACES)
def test_gradients_reach_every_parameter_and_the_input(place, parallel, lively, tokens):
    """No parameter is carried along unused, in particular no norm that has no place."""
    options = {"norm_place": place, "parallel": parallel, "gated": True, "mask": "causal"}
    net = lively(Spec(2, 2, 8, init="lecun", **options))
    x = tokens(2, 4, 8).requires_grad_()
    (net(x) * tokens(2, 4, 8, seed=1)).sum().backward()  # a norm's own length is constant
    without = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    # A key bias adds a constant along each row, which the softmax does not see (theory section 1).
    assert [name for name in without if not name.endswith("key.bias")] == []
    assert x.grad.abs().min() > 0


@pytest.mark.parametrize("mask", ["full", "causal", "window:1"])
@pytest.mark.parametrize("scores", ["dot", Sparsemax()])
def test_centred_attention_takes_away_the_mean_of_what_is_seen(mask, scores, lively, tokens):
    spec = Spec(
        1, 4, 8, kv_heads=2, mask=mask, scores=scores, centered=True, removed_heads=[(0, 1)]
    )
    block, x = lively(spec).blocks[0], tokens(2, 5, 8)
    padding = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    seen = Visibility.of(spec.mask, 5, padding, x.device)
    attention = block.attention
    pattern = attention.pattern(x, seen)
    allowed = (seen.allowed & torch.ones(1, 1, 5, 1, dtype=torch.bool)).double()
    uniform = allowed / allowed.sum(-1, keepdim=True)
    values = attention.value(x).unflatten(-1, (2, 2)).transpose(1, 2).repeat_interleave(2, 1)
    mixed = (pattern - uniform) @ values
    mixed[:, 1] = 0.0
    expected = attention.output(mixed.transpose(1, 2).flatten(2))
    assert torch.allclose(attention(x, seen)[padding], expected[padding])
    assert torch.allclose(attention.mixing(x, seen), pattern - uniform)
    plain = lively(replace(spec, centered=False)).blocks[0].attention
    assert torch.allclose(plain.mixing(x, seen), plain.pattern(x, seen))
    assert not torch.allclose(plain(x, seen)[padding], expected[padding])
