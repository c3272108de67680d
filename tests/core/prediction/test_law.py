"""Predicted and measured networks follow one law, whatever they are made of."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from rankscope import Spec, predict
from rankscope.core.network import (
    ALiBi,
    CappedScores,
    GaussianKernel,
    LearnedSinks,
    Lent,
    LinearKernel,
    Linformer,
    RelativeBias,
    Rotary,
    Scores,
    Sink,
    Sparsemax,
)
from rankscope.core.prediction import _arithmetic, _draws, _ensemble

from .laws import (
    BEYOND_CHANCE,
    apart,
    farthest,
    measured,
    measured_logarithms,
    measured_slopes,
    tokens,
)

PURE = {"norm": "none", "skip": False, "mlp_ratio": 0}
SINKS = LearnedSinks(torch.nn.Parameter(torch.tensor([2.0, -1.0])), Scores())
KINDS = {
    "pre-norm": Spec(2, 2, 16, init=0.25),
    "post-norm, ReLU": Spec(2, 2, 16, norm_place="post", activation="relu", init="lecun"),
    "sandwich, gated, skip 0.7": Spec(
        2, 2, 16, norm="rms", norm_place="both", gated=True, activation="silu", skip=0.7, init=0.3
    ),
    "parallel, uniform weights": Spec(2, 2, 32, parallel=True, init="xavier"),
    "grouped heads, causal, sink": Spec(
        2, 4, 16, kv_heads=2, mask="causal", norm="rms", scores=Sink(), init=0.3
    ),
    "no norm, no skip": Spec(2, 2, 16, norm="none", skip=False, activation="relu", init="lecun"),
    "two skips, ALiBi": Spec(
        2, 2, 16, attention_skip=0.3, mlp_skip=1.0, scores=ALiBi(slopes=(2.0, 1.0)), init="lecun"
    ),
    "orthogonal": Spec(2, 2, 16, norm_place="post", mlp_ratio=0, init="orthogonal"),
    "orthogonal, wide heads, sphere": Spec(
        2, 2, 16, head_width=12, norm="sphere", norm_place="post", skip=0.5, init="orthogonal"
    ),
    "orthogonal, narrow heads": Spec(2, 2, 16, head_width=3, norm="none", init="orthogonal"),
    "more tokens than features, Gaussian kernel": Spec(
        2, 2, 4, head_width=3, scores=GaussianKernel(), **PURE, init="lecun"
    ),
    "wide": Spec(2, 4, 64, init=0.2),
    "identity for MLPs, Linformer": Spec(
        2, 2, 16, mlp_as="identity", scores=Linformer(segments=3), init="lecun", norm_place="both"
    ),
    "heads removed, relative bias": Spec(
        2,
        2,
        16,
        removed_heads=[(0, 1), (1, 0)],
        scores=RelativeBias(),
        **PURE | {"skip": 0.5},
        init="lecun",
    ),
    "a mask for each layer": Spec(
        2, 2, 16, layer_masks=["causal", "window:0"], skip=0.2, init="lecun"
    ),
    "sparsemax": Spec(2, 2, 16, scores=Sparsemax(), init="lecun", mask="window:2"),
    "output norm, linear kernel": Spec(
        2, 2, 16, norm_place="output", norm="rms", scores=LinearKernel(), init="lecun"
    ),
    "centred": Spec(2, 2, 16, centered=True, init="lecun"),
    "centred, causal, nothing else": Spec(
        2, 2, 16, centered=True, mask="causal", **PURE, init="lecun"
    ),
    "rotary, nothing else": Spec(2, 2, 16, scores=Rotary(), **PURE, init="lecun"),
    "squared ReLU": Spec(2, 2, 16, activation="relu2", norm="none", skip=0.5, init="lecun"),
    "quick GELU": Spec(2, 2, 16, activation="quick_gelu", norm="none", skip=False, init="lecun"),
    "learned sinks": Spec(
        2, 2, 16, scores=Lent("sinks", SINKS), **PURE | {"skip": 0.5}, init="lecun"
    ),
    "capped logits": Spec(
        2, 2, 16, scores=Lent("capped", CappedScores(0.3, Scores())), mlp_ratio=0, init=0.5
    ),
}
"""Every norm, place, score, rule for weights and shape of a block in one spec at least, chosen so
that a prediction without it has another law than the networks."""


@pytest.mark.parametrize("name", KINDS)
def test_a_prediction_has_the_law_of_measured_networks(name):
    spec = KINDS[name]
    x = tokens(7, spec.width)
    predicted = predict(spec, x, draws=200, seed=1)
    assert farthest(predicted.values, measured(spec, x, 60)) < BEYOND_CHANCE


def test_networks_return_to_plain_floats(monkeypatch):
    """Small tokens before a norm: the first layer may leave them alike, the others do not."""
    spec, x = Spec(3, 2, 16, init="lecun"), 0.02 * tokens(7, 16)
    used = []
    for kind in (_ensemble.Plain, _ensemble.Scaled):
        layer = kind.layer
        monkeypatch.setattr(
            kind,
            "layer",
            lambda self, state, layer=layer: used.append(type(self).__name__) or layer(self, state),
        )
    predicted = predict(spec, x, draws=200, seed=1)
    groups = used.count("Scaled")
    assert groups >= 1
    assert used.count("Plain") == 2 * groups
    assert farthest(predicted.values, measured(spec, x, 60)) < BEYOND_CHANCE


def test_squares_have_the_law_of_a_decomposition(monkeypatch):
    """What a GPU uses in place of QR, also for rows that are equal, zero or many."""
    rows = torch.randn(4, 6, 40, generator=torch.Generator().manual_seed(0))
    rows[0, 2], rows[1, 3], rows[2] = rows[0, 1], 0.0, 1e-20 * rows[2]
    rows[3, :2] *= 1e7  # beside these, the others keep their digits
    short = _draws._from_squares(rows)
    assert short.shape == (4, 6, 6)
    assert bool((short[1, 3] == 0).all())
    assert torch.allclose(short.norm(dim=-1), rows.norm(dim=-1), rtol=1e-6)
    units = [torch.nn.functional.normalize(x.double(), dim=-1, eps=1e-300) for x in (short, rows)]
    cosines = [x @ x.mT for x in units]
    assert torch.allclose(*cosines, atol=1e-6)
    assert torch.allclose(short[0], _draws._from_squares(rows[:1])[0], rtol=1e-6)
    monkeypatch.setattr(
        _draws,
        "triangular",
        lambda rows: _draws._from_squares(rows) if rows.shape[-1] > rows.shape[-2] else rows,
    )
    monkeypatch.setattr(_arithmetic, "triangular", _draws.triangular)
    spec, x = KINDS["wide"], tokens(7, 64)
    predicted = predict(spec, x, draws=200, seed=1)
    assert farthest(predicted.values, measured(spec, x, 60)) < BEYOND_CHANCE


def test_networks_change_arithmetic_both_ways():
    """Of two samples, the one of small tokens returns, the one that collapses leaves."""
    spec = Spec(4, 2, 16, norm_place="pre", attention_skip=1.0, mlp_skip=0.3, init="lecun")
    x = torch.stack([0.02 * tokens(7, 16), tokens(7, 16, seed=1)])
    together = predict(spec, x, draws=4, seed=3)
    apart = [predict(spec, x[at], draws=4, seed=3) for at in (0, 1)]
    assert together.values["relative_dispersion"].shape == (5, 4, 2)
    # Sample 0 has the same streams alone.
    for name, values in together.values.items():
        one = apart[0].values[name][..., 0]
        assert torch.allclose(values[..., 0], one, rtol=1e-4, equal_nan=True), name


@pytest.mark.parametrize("more", [{}, {"mlp_skip": 0.3}, {"norm": "rms"}, {"norm_place": "both"}])
@pytest.mark.parametrize("size", [0.001, 0.06])
def test_no_network_depends_on_the_number_of_others(size, more):
    """Tokens nearly alike, which some networks leave to plain floats and others do not."""
    spec, x = Spec(8, 2, 16, init="lecun", **more), 1 + size * tokens(7, 16, mean=0.0)
    many = predict(spec, x, draws=64, seed=3).values["effective_rank"]
    for draws in range(1, 7):
        few = predict(spec, x, draws=draws, seed=3).values["effective_rank"]
        assert torch.allclose(few[:, -1], many[:, draws - 1], rtol=1e-3)


@pytest.mark.parametrize(
    "name",
    ["pre-norm", "post-norm, ReLU", "sandwich, gated, skip 0.7", "wide", "orthogonal", "centred"],
)
def test_gradients_have_the_law_of_measured_ones(name):
    spec = KINDS[name]
    x = tokens(7, spec.width)
    predicted = predict(spec, x, draws=150, seed=1, gradients=True)
    found = measured_slopes(spec, x, 50)
    assert set(found) <= set(predicted.metrics)
    assert farthest(predicted.values, found) < BEYOND_CHANCE


def test_the_law_is_told_from_its_neighbours():
    """The statistic has the power to see a weight scale that is off by a fifth."""
    spec, x = KINDS["pre-norm"], tokens(7, 16)
    other = predict(Spec(2, 2, 16, init=0.3), x, draws=300, seed=1)
    assert farthest(other.values, measured(spec, x, 100)) > 2 * BEYOND_CHANCE


SPECS = st.builds(
    lambda layers, heads, more: Spec(layers, heads, 8 * heads, **more),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.fixed_dictionaries(
        {
            "norm": st.sampled_from(["layer", "rms", "sphere", "none"]),
            "norm_place": st.sampled_from(["pre", "post", "both"]),
            "skip": st.sampled_from([0.5, 1.0]),
            "parallel": st.booleans(),
            "gated": st.booleans(),
            "activation": st.sampled_from(["relu", "gelu", "silu"]),
            "mask": st.sampled_from(["full", "causal", "window:2"]),
            "mlp_ratio": st.sampled_from([0.0, 1.0, 4.0]),
            "init": st.sampled_from([0.1, 0.3, "lecun", "orthogonal"]),
        }
    ),
)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(spec=SPECS)
def test_any_spec_has_the_law_of_measured_networks(spec):
    x = tokens(6, spec.width, mean=0.2)
    assert farthest(predict(spec, x, draws=150).values, measured(spec, x, 40)) < 2.5


def test_a_wide_network_lies_in_its_band_as_often_as_stated():
    """Of 120 figures of networks, eight of ten are to lie between the percentiles."""
    spec = Spec(2, 4, 64, norm="rms", mask="causal", init="lecun")
    x = tokens(12, 64)
    predicted, found = predict(spec, x, draws=200), measured(spec, x, 120)
    for name in ("relative_dispersion", "token_norm"):
        band = predicted.band(name)
        inside = (found[name] >= band.low[:, None]) & (found[name] <= band.high[:, None])
        assert 0.68 < float(inside[2].double().mean()) < 0.91


def test_a_very_wide_layer_is_predicted_as_well():
    spec = Spec(1, 8, 2048, mlp_ratio=0, norm="rms", init="lecun")
    x = tokens(10, 2048)
    predicted, found = predict(spec, x, draws=40), measured(spec, x, 3)
    for name, values in found.items():
        low, high = (float(predicted.values[name][1].quantile(part)) for part in (0.0, 1.0))
        slack = 0.5 * (high - low)
        assert all(low - slack <= float(value) <= high + slack for value in values[1]), name


@pytest.mark.parametrize("more", [{}, {"norm": "rms", "norm_place": "post"}])
def test_collapse_is_followed_to_any_depth(more):
    spec = Spec(5, 2, 32, **{"mlp_ratio": 0, "norm": "none", "skip": False, "init": 0.1} | more)
    x = tokens(6, 32)
    predicted = predict(spec, x, draws=100)
    found = measured_logarithms(spec, x, 30)
    values = predicted.values["log10_relative_dispersion"]
    assert float(values[5].median()) < -60
    for layer in range(1, 6):
        assert apart(values[layer].flatten(), found[layer]) < BEYOND_CHANCE


@pytest.mark.parametrize("activation", ["gelu", "relu2", "quick_gelu"])
def test_collapse_with_mlps_is_followed_as_well(activation):
    spec = Spec(
        *(4, 2, 32), norm="none", skip=False, mlp_ratio=1, gated=True, init=0.1,
        activation=activation,
    )  # fmt: skip
    x = tokens(6, 32)
    values = predict(spec, x, draws=100).values["log10_relative_dispersion"]
    found = measured_logarithms(spec, x, 30)
    assert float(values[4].median()) < -20
    for layer in range(1, 5):
        assert apart(values[layer].flatten(), found[layer]) < BEYOND_CHANCE


def test_padding_changes_nothing():
    spec = Spec(2, 2, 16, mask="causal", init="lecun")
    x, mask = tokens(8, 16), torch.arange(8) < 5
    predicted = predict(spec, x, draws=150, token_mask=mask, gradients=True)
    assert farthest(predicted.values, measured(spec, x, 60, token_mask=mask)) < BEYOND_CHANCE
    assert farthest(predicted.values, measured_slopes(spec, x[:5], 50)) < BEYOND_CHANCE


def test_a_kernel_is_as_good_as_the_tokens():
    spec = Spec(2, 2, 16, init="lecun")
    x = tokens(7, 16, mean=0.0)
    x = x - x.mean(-1, keepdim=True)  # a kernel does not tell what LayerNorm would take away
    by_kernel = predict(spec, kernel=x @ x.T / 16, draws=200)
    assert by_kernel.band("token_norm").mean[0] == pytest.approx(
        float(predict(spec, x, draws=1).band("token_norm").mean[0])
    )
    assert farthest(by_kernel.values, measured(spec, x, 60)) < BEYOND_CHANCE
