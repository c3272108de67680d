"""Where scaled arithmetic has lost its digits it says so: which sample, from which layer on."""

import math

import pytest
import torch

from rankscope.core.deep import ScaledTensor, _doubts, deep_trace, describe_doubts
from rankscope.core.deep._scaled_tensor import scaled_sum
from rankscope.core.network import Network, NormedHeads, Scores, Sparsemax, Spec
from rankscope.core.tracing import Trace
from rankscope.errors import UnsupportedModelError
from rankscope.streams import stream

from . import stored
from .comparing import by_layer
from .oracle import Measure, log10_residuals

SHARP = Spec.pure_attention(4, 1, 4, init=2.0, mask="causal")
"""Tokens that look at the same one agree to the last digit: what is between them is not kept."""


@pytest.fixture
def sharp():
    return Network.random(SHARP, seed=5, dtype=torch.float64)


@pytest.fixture
def x():
    """A calm sample, and one whose digits are lost."""
    generator = torch.Generator().manual_seed(5)
    lost = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    return torch.cat([1e-3 * lost, lost])


def test_a_doubt_has_its_sample_and_its_layer(sharp, x):
    found = deep_trace(sharp, x)
    doubts = found.table.filter(metric="log10_residual").sort("sample", "layer")["doubt"].to_list()
    calm, lost = doubts[:5], doubts[5:]
    assert not any(calm)
    assert lost == sorted(lost)
    assert lost[-1]
    assert not lost[0]
    note = found.provenance.notes["doubt"]
    assert note.startswith(f"from layer {lost.index(True)} on the residuals of 1 of 2 samples (1)")
    (truth,) = stored.residuals(sharp, x, None, [Measure()], most=4000).values()
    got = by_layer(found, "log10_residual")
    torch.testing.assert_close(got[:, 0], truth[:, 0], rtol=1e-9, atol=1e-9)
    first = lost.index(True)
    torch.testing.assert_close(got[:first, 1], truth[:first, 1], rtol=1e-9, atol=1e-9)
    assert abs(got[first, 1] - truth[first, 1]) > 1e-6


def test_without_a_doubt_the_table_is_as_ever(sharp, x):
    found = deep_trace(sharp, x[:1])
    assert set(found.columns) == {"layer", "sample", "metric", "value"}
    assert "doubt" not in found.provenance.notes
    assert describe_doubts(found.columns) == ""


def test_traces_with_and_without_doubts_are_joined(sharp, x):
    parts = [deep_trace(sharp, one) for one in x.split(1)]
    names = ["layer", "sample", "metric", "doubt"]
    joined, whole = (
        one.table.sort(names).select(names) for one in (Trace.joined(parts), deep_trace(sharp, x))
    )
    assert joined.equals(whole)


def test_tokens_that_are_exactly_equal_are_not_doubted():
    spec = Spec.pure_attention(3, 1, 2, bias=False, scores=Sparsemax(), score_scale=30.0, init=1.0)
    net = Network.random(spec, seed=44, dtype=torch.float64)
    x = torch.tensor([[[5.0, 1.0], [4.0, -2.0], [9.0, 3.0]]], dtype=torch.float64)
    found = deep_trace(net, x)
    assert by_layer(found, "log10_residual")[-1].item() == -math.inf
    assert "doubt" not in found.columns


@pytest.mark.parametrize(
    "fields",
    [
        {"mlp_ratio": 0.0, "norm": "none", "skip": False},
        {"norm_place": "post"},
        {"norm_place": "post", "skip": False, "init": "lecun"},
        {"mask": "causal", "init": "lecun"},
        {"gated": True, "activation": "silu", "norm": "rms", "mask": "causal"},
    ],
)
def test_ordinary_networks_are_run_once(fields, tokens, monkeypatch):
    def again(*_):
        raise AssertionError("run again")

    monkeypatch.setattr(_doubts, "_moved", again)
    net = Network.random(Spec(6, 4, 64, **fields), dtype=torch.float64)
    found = deep_trace(net, tokens(2, 16, 64))
    assert "doubt" not in found.columns


def test_one_sample_of_a_deep_network_shows_whether_errors_grow(tokens, monkeypatch):
    """No sum cancels, but each of many layers may make every error larger."""
    spec = Spec(20, 1, 4, norm="rms", init=3.0, mlp_ratio=2.0)
    net, x = Network.random(spec, seed=1, dtype=torch.float64), tokens(2, 4, 4)
    seen = []

    def again(_network, x, _mask, _measurement, clean):
        seen.append(len(x))
        return torch.zeros(len(clean), clean.shape[-1])

    monkeypatch.setattr(_doubts, "SUSPICIOUS", math.inf)
    monkeypatch.setattr(_doubts, "_moved", again)
    deep_trace(net, x)
    assert seen == []
    monkeypatch.setattr(_doubts, "_GROWN", 1e-11)
    deep_trace(net, x)
    assert seen == [4]  # both samples, two runs of each
    monkeypatch.setattr(_doubts, "_DEEP", 20)
    deep_trace(net, x)
    assert seen == [4]


def test_equal_tokens_do_not_hide_that_errors_grow(tokens, monkeypatch):
    """The sample that is tried is not just the first one, from which there is no step away."""
    spec = Spec(20, 1, 4, norm="rms", init=3.0, mlp_ratio=2.0)
    net, x = Network.random(spec, seed=1, dtype=torch.float64), tokens(2, 4, 4)
    x[0] = 1.0
    monkeypatch.setattr(_doubts, "SUSPICIOUS", math.inf)
    monkeypatch.setattr(_doubts, "_GROWN", 1e-11)
    monkeypatch.setattr(_doubts, "MOVED", -1.0)  # whatever is run again is doubted
    assert set(deep_trace(net, x).table.filter("doubt")["sample"]) >= {1}


def test_measured_tokens_that_agree_more_than_others_are_doubted(tokens):
    """All sixteen digits of the deviations go into the token that is left out."""
    net = Network.random(Spec.pure_attention(1, 1, 4, init=1.0, bias=False), dtype=torch.float64)
    x = tokens(1, 4, 4)
    x[:, :3] = x[:, :1] + 1e-15 * tokens(1, 3, 4, seed=1)
    x[:, 3] *= 1e4
    measured = torch.tensor([[True, True, True, False]])
    assert "doubt" in deep_trace(net, x, measured=measured).columns


def test_a_sum_measures_how_much_smaller_than_its_terms_it_is():
    one = ScaledTensor.of(torch.tensor([[1.0, -2.0], [1.0, 1.0]], dtype=torch.float64))
    other = ScaledTensor.of(torch.tensor([[-1.0, 2.0 - 1e-9], [1.0, 0.5]], dtype=torch.float64))
    lost = scaled_sum(one, other).lost
    assert lost[0].item() == pytest.approx(math.log(2e9), rel=1e-6)
    assert lost[1].item() == 0


def test_small_features_beside_a_large_common_value_are_doubted():
    """The tokens' mean is rounded before a norm takes away what all features have in common."""
    spec = Spec(2, 1, 4, init=0.5, norm_place="pre", mlp_ratio=0.0, skip=0.0)
    network = Network.random(spec, seed=0, dtype=torch.float64)
    x = torch.randn(1, 3, 4, generator=stream(0, "test"), dtype=torch.float64)
    assert "doubt" in deep_trace(network, x + 1e12).provenance.notes
    assert "doubt" not in deep_trace(network, x + 1e2).provenance.notes


def test_tokens_that_are_equal_from_the_start_are_not_doubted():
    for more in ({}, {"norm": "none"}, {"mlp_ratio": 0.0, "skip": False}):
        found = deep_trace(Network.random(Spec(2, 2, 4, **more)), torch.ones(1, 4, 4))
        assert "doubt" not in found.columns


def test_what_hangs_on_a_bias_that_was_absorbed_is_doubted():
    """Values of rank one leave a norm nothing but what the bias makes of them."""
    shape = {"head_width": 1, "mlp_ratio": 0.0, "skip": 0.0, "norm": "rms", "norm_place": "post"}
    spec = Spec(1, 1, 4, **shape, init=1.0, norm_eps=1e-12, score_scale=1e-8)
    network = Network.random(spec, seed=0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)  # a draw in which nothing else is lost
    with torch.no_grad():
        bias = torch.randn(4, generator=generator, dtype=torch.float64)
        network.blocks[0].attention.output.bias.copy_(1e-6 * bias)
    x = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64) + 1e10
    found = deep_trace(network, x)
    assert found.columns["doubt"][-1]
    # mpmath has −43.9532; without the bias it would be below −60.
    assert float(by_layer(found, "log10_residual")[1, 0]) == pytest.approx(-43.95, abs=0.1)


@pytest.mark.parametrize(
    ("apart", "expected"),
    [(1e-1, "right"), (1e-4, "right"), (3e-7, "doubted"), (1e-8, "refused"), (1e-12, "refused")],
)
def test_logits_in_plain_numbers_are_right_doubted_or_refused(apart, expected, tokens):
    """Norms of heads without positions: queries of tokens that agree differ by rounding alone."""
    spec = Spec.pure_attention(1, 2, 4, head_width=4, init=0.7, bias=False)
    net = Network.random(spec, dtype=torch.float64)
    norms = [torch.nn.RMSNorm(4, eps=0.1, dtype=torch.float64) for _ in range(2)]
    net.blocks[0].attention.scores = NormedHeads(*norms, Scores())
    x = tokens(1, 1, 4, seed=9) + apart * tokens(1, 3, 4)
    if expected == "refused":
        with pytest.raises(UnsupportedModelError, match="NormedHeads hardly depends on the pair"):
            deep_trace(net, x)
        return
    found = deep_trace(net, x)
    truth = log10_residuals(net, x)
    assert ("doubt" in found.columns) == (expected == "doubted")
    if expected == "right":
        got = by_layer(found, "log10_residual")
        torch.testing.assert_close(got, truth, rtol=1e-7, atol=1e-7)
