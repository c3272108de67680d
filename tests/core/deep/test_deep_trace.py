"""Residuals in scaled arithmetic against the oracle's many digits, part by part and input by input.

Everything here is asked to agree to 1e-10 (of the logarithm, relative where it is large); measured,
the worst case is a few 1e-14.
"""

import math
from dataclasses import replace

import pytest
import torch
from mpmath import mp

from rankscope.core.deep import deep_trace
from rankscope.core.network import Init, LinearKernel, Network, Sparsemax, Spec
from rankscope.errors import InputError, KindError, ShapeError

from .. import loaded_parts
from .cases import BARE, PADDING, SPECS, spec
from .comparing import MEASURES, by_layer, difference, gap
from .kinds import Kind
from .oracle import log10_residual, plain_states

CLOSE = 1e-10
THREE = {name: each for name, each in SPECS.items() if name != "explicit mask"}  # it wants five
ONE_EACH = ["pure attention", "post-norm", "causal", "window", "gated", "grouped heads"]


def near(tokens, apart, count=3):
    """Tokens that differ by about ``apart``."""
    return tokens(1, 1, 4, seed=9) + apart * tokens(1, count, 4)


@pytest.mark.parametrize("name", SPECS)
def test_every_part(name, lively, tokens):
    net = lively(SPECS[name])
    count = 3 if name in THREE else 5
    assert gap(net, torch.cat((tokens(1, count, 4), near(tokens, 1e-8, count)))) < CLOSE


@pytest.mark.parametrize("name", [name for name in SPECS if not SPECS[name].centered])
def test_every_part_without_skips_and_norms(name, lively, tokens):
    alone = {"skip": 0.0, "attention_skip": None, "norm": "none", "layers": 2}
    masks = SPECS[name].layer_masks
    net = lively(replace(SPECS[name], **alone, layer_masks=masks))
    assert gap(net, 0.5 * tokens(1, 3 if name in THREE else 5, 4)) < CLOSE


@pytest.mark.parametrize(
    "name", ["scaled views", "joined projections", "offset LayerNorm", "offset RMSNorm"]
)
def test_parts_of_loaded_models(name, lively, tokens):
    net = loaded_parts.network(name, lively)
    near = tokens(1, 1, 8, seed=9) + 1e-8 * tokens(1, 3, 8)
    assert gap(net, torch.cat((tokens(1, 3, 8), near))) < CLOSE


@pytest.mark.parametrize("name", [name for name in THREE if SPECS[name].scores != "dot"] + ONE_EACH)
def test_padding_left_right_and_in_the_middle(name, lively, tokens):
    net = lively(replace(SPECS[name], layers=1, mlp_ratio=0.0))
    x = tokens(3, 7, 4)
    x[~PADDING] = torch.nan
    assert gap(net, x, PADDING) < CLOSE


HOSTILE = {
    "pure attention": spec(**BARE),
    "skips alone": spec(mlp_ratio=0.0, norm="none", skip=0.4),
    "pre-norm": spec(),
    "post-norm, skipless": spec(norm_place="post", skip=False, norm_eps=1e-12),
    "RMSNorm": spec(norm="rms", norm_place="both", activation="relu"),
    "sphere": spec(norm="sphere", activation="gelu_tanh", skip=False),
    "gated silu, no norm": spec(gated=True, activation="silu", norm="none", skip=False),
    "causal": spec(mask="causal", norm="none", skip=False),
    "rotary": spec(head_width=4, scores=Kind("rotary"), norm="none", skip=False),
    "linear kernel": spec(scores=LinearKernel(), **BARE),
    "sparsemax": spec(scores=Sparsemax(), **BARE),
}
INPUTS = {
    "small": lambda tokens: 1e-9 * tokens(1, 3, 4),
    "tiny": lambda tokens: 1e-200 * tokens(1, 3, 4),
    "the least floats": lambda tokens: 1e-318 * tokens(1, 3, 4),
    "apart in the last digits": lambda tokens: near(tokens, 1e-14),
    "apart by 1e-200": lambda tokens: torch.cat(
        (near(tokens, 0.0)[..., :2], 1e-200 * tokens(1, 3, 2)), -1
    ),
    "one token apart": lambda tokens: (
        near(tokens, 0.0) + torch.tensor([0.0, 0.0, 1e-10]).double()[:, None]
    ),
    "opposite tokens": lambda tokens: torch.cat((tokens(1, 2, 4), -tokens(1, 2, 4)), 1),
    "entries of all sizes": lambda tokens: (
        tokens(1, 3, 4) * torch.tensor([1.0, 1e-30, 1e-150, 1e-290]).double()
    ),
}


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("name", HOSTILE)
def test_inputs_of_every_size(name, given, lively, tokens):
    net = lively(replace(HOSTILE[name], layers=1))
    assert gap(net, INPUTS[given](tokens), most=8000) < CLOSE


@pytest.mark.parametrize("size", [30.0, 1e8, 1e150, 1e300])
@pytest.mark.parametrize("name", ["pre-norm", "RMSNorm", "sphere"])
def test_huge_inputs_to_normed_networks(name, size, lively, tokens):
    assert gap(lively(HOSTILE[name]), size * tokens(1, 3, 4)) < CLOSE


@pytest.mark.parametrize("size", [1e4, 1e12])
@pytest.mark.parametrize("activation", ["gelu_tanh", "silu", "relu"])
def test_large_activations_take_no_digits_from_small_steps(activation, size, lively, tokens):
    one = spec(activation=activation, norm="none", score_scale=0.0, layers=1)
    common = size * tokens(1, 1, 4, seed=9)
    x = (common + tokens(1, 3, 4)).round()  # differences that float64 holds exactly
    assert gap(lively(one), x) < CLOSE


@pytest.mark.parametrize("scale", [1e-60, 1e-12, 1e-3])
@pytest.mark.parametrize("name", ["pure attention", "pre-norm", "gated silu, no norm", "rotary"])
def test_tiny_weights(name, scale, lively, tokens):
    layers = 1 if scale == 1e-60 else 2  # a second one would be below 10^-1000
    net = lively(replace(HOSTILE[name], init=Init("normal", scale), layers=layers))
    assert gap(net, tokens(1, 3, 4)) < CLOSE


@pytest.mark.parametrize("name", ["pure attention", "RMSNorm"])
def test_every_norm_and_center(name, lively, tokens):
    net = lively(replace(SPECS[name], layers=1))
    for count in (3, 4):  # an odd and an even number of tokens: the median is another
        assert gap(net, near(tokens, 1e-3, count), measures=MEASURES) < CLOSE
    assert gap(net, tokens(1, 7, 4), PADDING[1:2], measures=MEASURES) < CLOSE


PURE = Spec(12, 2, 4, init=Init("normal", 0.4), bias=False, **BARE)


def leading_order(net, rows, log):
    """What tokens of deviations ``e^log·rows`` become where e^log is next to nothing, by layer.

    Attention is all but uniform: of ``P = 1qᵀ + e^{2s}Δ`` only ``q = 1/n`` and
    ``Δ = (E − E 1 1ᵀ/n)/n`` are left, and R becomes the sum over heads of ``Δ R W_V W_O``.
    """
    for block in net.blocks:
        attention, each = block.attention, net.spec.head_width
        total = torch.zeros_like(rows)
        for start in range(0, net.spec.heads * each, each):
            part = slice(start, start + each)
            projections = attention.query, attention.key, attention.value
            query, key, value = (rows @ one.weight[part].T for one in projections)
            logits = query @ key.T * attention.scale
            own = (logits - logits.mean(1, keepdim=True)) / len(rows)
            total += own @ value @ attention.output.weight[:, part].T
        rows = total - total.mean(0)
        size = rows.abs().max()
        rows, log = rows / size, 3 * log + size.log()
        yield log + rows.norm().log()


@torch.no_grad()
def test_far_below_all_floats(tokens):
    net, x = Network.random(PURE, dtype=torch.float64), tokens(1, 3, 4)
    trace = deep_trace(net, x, norm="fro")
    got = by_layer(trace, "log10_residual")[:, 0]
    assert got[-1] < -40_000

    few = Network.random(replace(PURE, layers=7), dtype=torch.float64)  # the same first layers
    states = plain_states(few, x, digits=1200)
    exact = torch.stack([log10_residual(state, None, "fro") for state in states])[:, 0]
    assert -1000 < exact[-1] < -200
    assert difference(got[:8], exact) < 1e-13

    # From there on the first order is all there is, to more digits than float64 has.
    start, log = scaled_deviations(states[-1])
    deeper = Network(replace(PURE, layers=5), list(net.blocks)[7:])
    expected = torch.stack(list(leading_order(deeper, start, log))) / math.log(10)
    assert difference(got[8:], expected) < 1e-12

    exponents = by_layer(trace, "local_exponent")[:, 0]
    assert float(exponents[-1]) == pytest.approx(3, abs=1e-3)
    constants = by_layer(trace, "log10_cubic_constant")[:, 0]
    assert constants[4:].abs().max() < 5  # level, while the residual falls through 40,000 decades


def scaled_deviations(state):
    """``R`` and ``s`` of the one sample of an oracle's state."""
    with mp.workdps(state.digits):
        columns = list(zip(*state.samples[0], strict=True))
        rest = [[v - mp.fsum(column) / len(column) for v in column] for column in columns]
        largest = max(abs(v) for column in rest for v in column)
        rows = [[float(v / largest) for v in column] for column in rest]
        return torch.tensor(rows, dtype=torch.float64).T, float(mp.log(largest))


@torch.no_grad()
def test_what_a_layer_made_of_a_residual(lively, tokens):
    trace = deep_trace(lively(spec(**BARE)), tokens(2, 3, 4))
    log = by_layer(trace, "log10_residual")
    before, after = log[:-1], log[1:]
    for name, expected in {
        "local_exponent": after / before,
        "log10_contraction": after - before,
        "log10_cubic_constant": after - 3 * before,
    }.items():
        torch.testing.assert_close(by_layer(trace, name), expected, rtol=1e-15, atol=0)


def test_only_measured_tokens_count(lively, tokens):
    net, x = lively(spec(skip=0.5)), near(tokens, 1e-8, 4)
    measured = torch.tensor([[True, False, True, True]])
    got = by_layer(deep_trace(net, x, measured=measured), "log10_residual")
    relative = by_layer(deep_trace(net, x, measured=measured), "log10_relative_residual")
    for layer, state in enumerate(plain_states(net, x)):
        assert difference(got[layer], log10_residual(state, measured)) < CLOSE
        expected = log10_residual(state, measured, relative=True)
        assert difference(relative[layer], expected) < CLOSE
    with pytest.raises(ShapeError, match="measured"):
        deep_trace(net, x, measured=measured[:, :3])


def test_the_table_says_where_it_comes_from(lively, tokens):
    net, calls = lively(spec()), []
    trace = deep_trace(net, tokens(2, 3, 4), norm="inf", on_step=calls.append)
    assert calls == [0.5, 1.0]
    assert trace.provenance.notes == {
        "arithmetic": "scaled, float64",
        "norm": "inf",
        "center": "mean",
    }
    assert trace.provenance.spec == net.spec.digest(seed=net.seed)
    assert {*trace.columns["layer"]} == {0, 1, 2}
    assert trace.table.filter(layer=0, metric="local_exponent").is_empty()
    assert by_layer(trace, "log10_contraction").shape == (2, 2)


def test_what_is_no_input_is_refused(lively, tokens):
    net = lively(spec())
    with pytest.raises(KindError, match="expected a Network"):
        deep_trace(torch.nn.Linear(4, 4), tokens(1, 3, 4))
    with pytest.raises(KindError, match="int64"):
        deep_trace(net, tokens(1, 3, 4).long())
    with pytest.raises(ShapeError, match="feature=4"):
        deep_trace(net, tokens(3, 4))
    with pytest.raises(InputError):
        deep_trace(net, tokens(1, 3, 4), norm="euclid")
