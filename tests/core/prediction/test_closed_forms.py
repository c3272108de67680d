"""Parts of a layer against closed forms, and the limit of infinite width."""

import math

import numpy as np
import pytest
import torch

from rankscope import Spec, predict
from rankscope.core.network import ACTIVATIONS, Visibility, activation
from rankscope.core.prediction._arithmetic import Plain
from rankscope.core.prediction._draws import (
    DrawnWeights,
    Streams,
    compress,
    coordinates,
    from_kernel,
    triangular,
)

from .laws import tokens

DRAWS = 60


def parts(spec, draws=DRAWS, *, limit=False, count=5):
    """The parts of a layer of many random networks on ``count`` tokens."""
    streams = Streams.of(0, [(draw, 0) for draw in range(draws)])
    seen = Visibility.of(spec.mask, count, None, torch.device("cpu"))
    return Plain(DrawnWeights(spec, streams, torch.float64, limit), seen, frozenset(), None)


def gram(x):
    return x @ x.mT


def mean_and_error(values):
    """The mean over draws, and its standard error."""
    return values.mean(0), values.std(0) / math.sqrt(len(values))


def expect(values, expected, *, errors=5.0):
    mean, error = mean_and_error(values)
    assert float(((mean - expected).abs() / (error + 1e-12)).max()) < errors


def arc_cosine(k):
    """``E[relu(u) relu(v)]`` for normal u, v of covariance k (Cho and Saul 2009)."""
    size = k.diag().sqrt()
    cosine = (k / (size[:, None] * size)).clamp(-1, 1)
    angle = cosine.arccos()
    turned = angle.sin() + (math.pi - angle) * cosine
    return size[:, None] * size * turned / (2 * math.pi)


def by_quadrature(phi, k):
    """``E[φ(u) φ(v)]`` by Gauss–Hermite quadrature in two dimensions."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    nodes, weights = torch.tensor(nodes), torch.tensor(weights) / math.sqrt(2 * math.pi)
    out = torch.empty_like(k)
    for i in range(len(k)):
        for j in range(len(k)):
            one = k[i, i].sqrt()
            along = k[i, j] / one
            beside = (k[j, j] - along**2).clamp(min=0).sqrt()
            u = one * nodes[:, None]
            v = along * nodes[:, None] + beside * nodes
            out[i, j] = (weights[:, None] * weights * phi(u) * phi(v)).sum()
    return out


def test_hidden_units_have_the_arc_cosine_kernel():
    spec = Spec(1, 1, 16, activation="relu", init="lecun", mlp_ratio=16)
    x = coordinates(tokens(5, 16)[None]).expand(DRAWS, -1, -1)
    hidden = parts(spec).hidden(x)
    expect(gram(hidden) / spec.mlp_width, arc_cosine(gram(x[0]) / 16))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_hidden_units_have_the_kernel_of_their_activation(name):
    spec = Spec(1, 1, 16, activation=name, init="lecun", mlp_ratio=16)
    x = coordinates(tokens(4, 16, seed=1)[None]).expand(DRAWS, -1, -1)
    expected = by_quadrature(activation(name).function, gram(x[0]) / 16)
    assert torch.allclose(arc_cosine(gram(x[0])), by_quadrature(torch.relu, gram(x[0])), rtol=1e-2)
    # Quadrature of a kink is good to a part in a thousand.
    mean, error = mean_and_error(gram(parts(spec).hidden(x)) / spec.mlp_width)
    assert bool(((mean - expected).abs() < 5 * error + 3e-3 * expected.abs().max()).all())


def test_gates_multiply_two_kernels():
    spec = Spec(1, 1, 16, activation="relu", gated=True, init="lecun", mlp_ratio=16)
    x = coordinates(tokens(5, 16)[None]).expand(DRAWS, -1, -1)
    k = gram(x[0]) / 16
    expect(gram(parts(spec).hidden(x)) / spec.mlp_width, arc_cosine(k) * k)


@pytest.mark.parametrize("limit", [False, True])
def test_uniform_attention_leaves_the_mean(limit):
    """Logits of zero: every head hands on the mean of its values, ``σ⁴·k·d·(11ᵀ/n)K(11ᵀ/n)``."""
    spec = Spec(1, 4, 64, score_scale=0.0, norm="none", skip=False, mlp_ratio=0, init=0.1)
    x = tokens(5, 64)
    layer = parts(spec, 200, limit=limit)
    rows = compress(coordinates(x[None])).expand(200, -1, -1)
    mixed, entropy = layer.attention(rows)
    assert torch.allclose(entropy, torch.tensor(math.log(5), dtype=torch.float64))
    out = layer.into_stream("output", mixed, rows.shape[-1])
    mean = x.mean(0)
    expect(gram(out), 0.1**4 * 64 * 64 * float(mean @ mean) * torch.ones(5, 5))
    found = predict(spec, x, draws=3).values["log10_relative_dispersion"]
    assert bool(found[1].isneginf().all())


def test_tokens_that_see_only_themselves_keep_their_kernel():
    """Attention is the identity, so a layer is two random matrices: ``σ⁴·k·d·K`` on average."""
    spec = Spec(1, 4, 64, mask="window:0", norm="none", skip=False, mlp_ratio=0, init=0.1)
    x = tokens(5, 64)
    rows = compress(coordinates(x[None])).expand(400, -1, -1)
    layer = parts(spec, 400)
    out = layer.into_stream("output", layer.attention(rows)[0], rows.shape[-1])
    expect(gram(out), 0.1**4 * 64 * 64 * gram(x))


def test_orthogonal_values_and_outputs_keep_every_length():
    spec = Spec(1, 4, 32, mask="window:0", norm="none", skip=False, mlp_ratio=0, init="orthogonal")
    x = tokens(5, 32)
    found = predict(spec, x, draws=5)
    for name in ("token_norm", "relative_dispersion", "mean_cosine", "effective_rank"):
        assert torch.allclose(found.values[name][1], found.values[name][0], rtol=1e-5), name


def test_what_the_width_leaves_shrinks_with_its_root():
    """Of the spread of token norms, what is there at a width and not in the limit goes as 1/d.

    Nothing else moves: the heads' space is the same for all widths, and weights are scaled so that
    the branch is as large as the stream.
    """
    spreads = {}
    for width in (64, 256, 1024):
        spec = Spec(
            1, 8, width, head_width=32, norm="none", mask="window:0", mlp_ratio=0, init="lecun"
        )
        kernel = torch.ones(1, 1, dtype=torch.float64)
        for limit in (False, True):
            found = predict(spec, kernel=kernel, draws=2500, infinite_width=limit)
            square = found.values["token_norm"][1].square().flatten()
            spreads[width, limit] = float((square.std() / square.mean()) ** 2)
    excess = {width: spreads[width, False] - spreads[width, True] for width in (64, 256, 1024)}
    assert 2.9 < excess[64] / excess[256] < 5.5
    assert 10.0 < excess[64] / excess[1024] < 26.0


def test_coordinates_keep_every_inner_product():
    x = tokens(9, 40)[None]
    turned = coordinates(x)
    assert torch.allclose(gram(turned), gram(x))
    assert torch.allclose(turned[..., 0], x.sum(-1) / math.sqrt(40))
    assert torch.allclose(coordinates(turned), x)
    short = compress(turned)
    assert short.shape == (1, 9, 10)
    assert torch.allclose(gram(short), gram(x))
    assert torch.allclose(short[..., 0], turned[..., 0])
    assert torch.equal(coordinates(x[..., :1]), x[..., :1])
    assert torch.allclose(gram(triangular(x[..., :5])), gram(x[..., :5]))


@pytest.mark.parametrize("width", [3, 5, 6, 20])
def test_a_kernel_becomes_tokens_again(width):
    x = tokens(5, width, mean=0.0)
    kernel = gram(x)[None] / width
    again = from_kernel(kernel, width)
    assert again.shape[-1] <= width
    assert torch.allclose(gram(again) / width, kernel, atol=1e-12)


def test_a_triangular_factor_has_the_products_of_a_wide_matrix():
    """Bartlett's factor beside the matrix itself: the mean and spread of every inner product."""
    weights = parts(Spec(1, 1, 50), 3000).weights
    factor = weights._factor(4, 50)
    assert factor.shape == (3000, 4, 4)
    full = weights.normal(4, 50)
    for moment in (1, 2):
        one, other = (gram(each) ** moment for each in (factor, full))
        mean, error = mean_and_error(one)
        more, another = mean_and_error(other)
        assert float(((mean - more).abs() / (error**2 + another**2).sqrt()).max()) < 4.5
