"""Inputs that were found to break scaled arithmetic, and do not any more."""

import math

import pytest
import torch
from torch import nn

from rankscope.core.deep import SplitState, apply_norm, deep_states, deep_trace
from rankscope.core.network import Init, LinearKernel, Network, Spec, Sphere
from rankscope.errors import InputError, UnsupportedModelError

from .cases import BARE, spec
from .comparing import by_layer, gap

PURE = Spec(4, 2, 4, init=Init("normal", 0.4), bias=False, **BARE)


@pytest.mark.parametrize(("name", "bias"), [("gelu", -30.0), ("gelu_tanh", -9.0), ("silu", -200.0)])
def test_activations_far_in_their_tails(name, bias, lively, tokens):
    net = lively(spec(layers=1, mlp_ratio=2.0, activation=name))
    net.blocks[0].mlp.up.bias.data.fill_(bias)
    assert gap(net, tokens(1, 3, 4)) < 1e-10
    assert gap(net, tokens(1, 1, 4) + 1e-3 * tokens(1, 3, 4, seed=5)) < 1e-10


def test_a_zero_token_stays_zero_on_the_sphere():
    x = torch.tensor([[[1.0, 2.0], [0.5, -1.7], [0.0, 0.0]]], dtype=torch.float64)
    got = apply_norm(Sphere(), SplitState.of(x)).tensor()
    torch.testing.assert_close(got, Sphere()(x), rtol=1e-14, atol=1e-15)


def test_a_bias_of_keys_that_is_no_number_is_named(lively, tokens):
    """It drops out of every softmax, so that no state would show it."""
    net = lively(spec(layers=2))
    net.blocks[1].attention.key.bias.data[0] = math.nan
    with pytest.raises(InputError, match=r"layer 2.*key\.bias"):
        deep_trace(net, tokens(1, 3, 4))


def test_padding_is_never_measured(lively, tokens):
    net, x = lively(spec(layers=1)), tokens(1, 4, 4)
    mask = torch.tensor([[True, True, False, False]])
    every = torch.ones(1, 4, dtype=torch.bool)
    one, other = (
        by_layer(deep_trace(net, x, token_mask=mask, measured=m), "log10_relative_residual")
        for m in (every, None)
    )
    torch.testing.assert_close(one, other)
    with pytest.raises(InputError, match="measured"):
        deep_trace(net, x, token_mask=mask, measured=~mask)


def test_norms_that_may_do_anything_are_refused():
    class Own(nn.LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    state = SplitState.of(torch.randn(1, 3, 4, dtype=torch.float64))
    for norm in (Own(4), nn.LayerNorm((3, 4))):
        with pytest.raises(UnsupportedModelError, match="LayerNorm"):
            apply_norm(norm.double(), state)


def test_features_that_underflow(tokens):
    net = Network.random(
        Spec(2, 2, 4, mlp_ratio=0.0, norm="none", skip=False, init=0.7, scores=LinearKernel()),
        dtype=torch.float64,
    )
    assert gap(net, 1e3 * tokens(1, 4, 4)) < 1e-10
    assert gap(net, 1e8 * tokens(1, 4, 4)) < 1e-7  # logits that large have no more digits


def test_features_far_below_the_common_ones():
    """One token is far from the others; beside what all have in common these have no digits."""
    spec = Spec.pure_attention(1, 1, 2, bias=False, scores=LinearKernel())
    net = Network.random(spec, dtype=torch.float64)
    for name in ("query", "key", "value", "output"):
        getattr(net.blocks[0].attention, name).weight.data.copy_(torch.eye(2))
    x = torch.tensor([[[120.0, 60.0], [-40.0, -41.0], [-42.0, -40.0]]], dtype=torch.float64)
    assert gap(net, x) < 1e-10
    torch.testing.assert_close(list(deep_states(net, x))[-1][1].tensor(), net(x))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("query", "key"), [(3.0, 3.0), (1e-9, 30.0)])
def test_linear_kernels_with_queries_and_keys_of_any_size(query, key, seed, tokens):
    spec = Spec.pure_attention(2, 2, 4, scores=LinearKernel(), init=0.7)
    net = Network.random(spec, seed=seed, dtype=torch.float64)
    for block in net.blocks:
        block.attention.query.weight.data.mul_(query)
        block.attention.key.weight.data.mul_(key)
    assert gap(net, tokens(1, 4, 4, seed=seed)) < 1e-9


def test_a_residual_that_vanishes_at_once_is_doubted():
    """Two tokens all others look at agree to the last digit: what is between them is not kept."""
    net = Network.random(
        Spec(4, 1, 4, mlp_ratio=0.0, norm="none", init=2.0, skip=False, mask="causal"),
        seed=5,
        dtype=torch.float64,
    )
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    found = deep_trace(net, x)
    assert bool(by_layer(found, "log10_residual").isneginf().any())
    assert "doubt" in found.provenance.notes
    calm = deep_trace(Network.random(PURE, dtype=torch.float64), x)
    assert "doubt" not in calm.provenance.notes
