"""Each action on ``1xᵀ + eˢR`` by itself: against float64 where s is near 0, else against mpmath.

Mantissas are compared entry by entry, not through a norm, so that no entry can be wrong unseen.
"""

import math
from itertools import cycle

import pytest
import torch
from mpmath import mp, mpf
from torch import nn

from rankscope.core.deep import (
    ScaledTensor,
    SplitState,
    add_states,
    apply_activation,
    apply_linear,
    apply_mlp,
    apply_norm,
    attend,
)
from rankscope.core.deep._run import REACH, multiply
from rankscope.core.deep._scaled_tensor import bounded_exp, expand_like, scaled_sum
from rankscope.core.metrics import residual
from rankscope.core.network import (
    ACTIVATIONS,
    Activation,
    BareMLP,
    Network,
    OffsetNorm,
    Sphere,
    Visibility,
    activation,
)
from rankscope.core.network._activations import ORDER
from rankscope.errors import InputError, ShapeError, UnsupportedModelError

from ...pairwise import pairwise
from .cases import EVERY_RULE, SPECS, spec
from .equations import PHI, _attention, _mlp
from .oracle import _scenes
from .rows import exact, linear, normed

CLOSE = 1e-12  # the rounding of s alone makes 300 · 1e-16 of e^s
LOGS = [0.5, -3.0, -30.0, -300.0]
"""s from not small at all to far below the squares float64 holds."""


def float64(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def state_at(s, tokens, *, seed=0, common=1.0):
    """Three tokens that differ by ``e^s``."""
    rest = tokens(1, 3, 4, seed=seed)
    rest = rest - rest.mean(1, keepdim=True)
    x = common * tokens(1, 4, seed=seed + 50)
    return SplitState(ScaledTensor.of(x), ScaledTensor.of(rest, s))


def rows_of(state):
    """One sample as mpf, every digit of it: only where e^s is within the digits in force."""
    common, rest = exact(state.common.mantissa[0]), exact(state.mantissa[0])
    x, size = mp.exp(mpf(state.common.log.item())), mp.exp(mpf(state.log_scale.item()))
    return [[c * x + r * size for c, r in zip(common, row, strict=True)] for row in rest]


def apart(state, rows):
    """How far common part and deviations are from those of ``rows``.

    Deviations relative to the largest of them, the common part relative to the larger part.
    """
    means = [mp.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    deviations = [v - m for row in rows for v, m in zip(row, means, strict=True)]
    gaps = []
    everything = max(map(abs, means + deviations))
    both = (
        (state.common, means, everything),
        (state.deviation, deviations, max(map(abs, deviations))),
    )
    for part, numbers, largest in both:
        log, mantissas = part.log.item(), exact(part.mantissa.flatten())
        if not largest:
            gaps.append(0.0 if log == -math.inf else math.inf)
            continue
        unit = mp.exp(mpf(log)) / largest
        gaps += [
            float(abs(m * unit - v / largest)) for m, v in zip(mantissas, numbers, strict=True)
        ]
    return max(gaps)


@pytest.fixture(autouse=True)
def many_digits():
    with mp.workdps(600), torch.no_grad():
        yield


def test_lifted_numbers_by_hand():
    values = float64([[0.0, -20.0], [3e-310, 1e-310], [0.0, 0.0]])
    lifted = ScaledTensor.of(values, float64([1.0, 2.0, 3.0]))
    assert lifted.mantissa[0].tolist() == [0, -1]
    assert lifted.mantissa[1].tolist() == pytest.approx([1, 1 / 3], rel=1e-12)
    assert lifted.mantissa[2].tolist() == [0, 0]
    expected = [math.log(20) + 1, math.log(3e-310) + 2, -math.inf]
    assert lifted.log.tolist() == pytest.approx(expected, rel=1e-15)
    assert ScaledTensor.of(values).log[0] == math.log(20)


def test_lifted_numbers_in_units():
    lifted = ScaledTensor(float64([[1.0, -0.5]]), float64([-2000.0]))
    assert lifted.at(-2001.0).tolist() == [pytest.approx([math.e, -math.e / 2])]
    assert lifted.at(0.0).tolist() == [[0, 0]]
    assert lifted.times_exp(3.0).log.tolist() == [-1997]
    both = ScaledTensor(torch.eye(2).double(), float64([1.0, 2.0]))
    chosen = both.select(torch.tensor([False, True]))
    assert (chosen.mantissa.tolist(), chosen.log.tolist()) == ([[0, 1]], [2])
    assert bounded_exp(float64([-341.0, -339.0, 0.0, 5e3])).tolist() == pytest.approx(
        [0, math.exp(-339), 1, math.exp(690)]
    )
    assert expand_like(torch.tensor([1.0, 2.0]), torch.zeros(2, 3, 4)).shape == (2, 1, 1)


def test_sums_of_any_size():
    def at(mantissa, log):
        return ScaledTensor(float64([mantissa]), float64([log]))

    for shift in (0.0, -9e9, 9e9):
        summed = scaled_sum(
            at([1.0, -1.0], shift), at([1.0, 0.5], shift - 1), at([0.0, 0.0], -math.inf)
        )
        first, second = 1 + math.exp(-1), -1 + 0.5 * math.exp(-1)
        assert summed.log.item() == pytest.approx(shift + math.log(first), rel=1e-15)
        assert summed.mantissa.tolist() == [pytest.approx([1, second / first])]
    assert scaled_sum(at([1.0, 0.0], -1e5), at([0.0, 1.0], 0.0)).mantissa.tolist() == [[0, 1]]
    nothing = scaled_sum(at([1.0], -1e5), at([-1.0], -1e5))
    assert (nothing.mantissa.tolist(), nothing.log.tolist()) == ([[0]], [-math.inf])
    assert scaled_sum(nothing, nothing).log.tolist() == [-math.inf]


def test_states_of_plain_numbers(tokens):
    x = tokens(4, 3, 4) * float64([1.0, 1e-318, 1e307, 1e-160])[:, None, None]
    x[0] = x[0, :1] + 1e-14 * x[0]
    state = SplitState.of(x)
    torch.testing.assert_close(state.tensor(), x, rtol=1e-11, atol=1e-322)
    assert state.mantissa.abs().flatten(1).amax(1).tolist() == [1, 1, 1, 1]
    for sample in range(4):
        assert apart(state.select(torch.arange(4) == sample), exact(x[sample])) < CLOSE
    near = float64([[[1.0], [1.0 + 2**-52], [1.0]]])
    assert apart(SplitState.of(near), exact(near[0])) < 1e-15


def test_padding_of_a_state_holds_nothing(tokens):
    x, mask = tokens(2, 4, 4), torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]]).bool()
    x[0, 0], x[0, 3] = math.nan, math.inf
    state = SplitState.of(x, mask)
    assert state.mantissa[0, 0].tolist() == state.mantissa[0, 3].tolist() == [0] * 4
    torch.testing.assert_close(state.tensor()[mask], x[mask], rtol=1e-14, atol=1e-15)
    alone = SplitState.of(x[:1, 1:3])
    torch.testing.assert_close(state.log_scale[:1], alone.log_scale)
    for norm in ("composite", "one", "inf", "fro"):
        expected = residual(x[:1, 1:3], norm=norm).log()
        got = state.log_residual(norm=norm)[:1]
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(state.log_norm(norm=norm)[:1], alone.log_norm(norm=norm))
    chosen = state.select(torch.tensor([False, True]))
    assert chosen.token_mask.tolist() == [[True] * 4]
    torch.testing.assert_close(chosen.tensor(), x[1:], rtol=1e-14, atol=1e-15)


def test_states_are_checked(tokens):
    with pytest.raises(ShapeError, match=r"\(batch, token, feature\)"):
        SplitState.of(tokens(2, 3, 4, 4))
    with pytest.raises(InputError, match="not finite"):
        SplitState.of(tokens(1, 3, 4) / 0)


def test_a_state_times_a_number(tokens):
    state = state_at(-300.0, tokens)
    assert (
        apart(state.times(-2.5), [[mpf(-2.5) * v for v in row] for row in rows_of(state)]) < CLOSE
    )
    nothing = state.times(0.0)
    assert (nothing.log_scale.item(), nothing.common.log.item()) == (-math.inf, -math.inf)
    assert nothing.log_residual().tolist() == nothing.log_norm().tolist() == [-math.inf]


@pytest.mark.parametrize("other", [*LOGS, -math.inf])
@pytest.mark.parametrize("s", LOGS)
def test_states_are_added(s, other, tokens):
    one, two = state_at(s, tokens), state_at(other, tokens, seed=5)
    rows = [
        [a + b for a, b in zip(p, q, strict=True)]
        for p, q in zip(rows_of(one), rows_of(two), strict=True)
    ]
    assert apart(add_states(one, two), rows) < CLOSE


@pytest.mark.parametrize("s", LOGS)
def test_linear_maps(s, tokens):
    layer = nn.Linear(4, 3, dtype=torch.float64)
    layer.weight.copy_(tokens(3, 4))
    state = state_at(s, tokens)
    for bias in (True, False):
        if not bias:
            layer.bias = None
        got = apply_linear(state, layer.weight, layer.bias)
        assert apart(got, linear(layer)(rows_of(state))) < CLOSE


def attention_case(name, s, tokens, lively, *, mask=None):
    """An action, what it should be, and float64's word for it."""
    net = lively(SPECS[name])
    attention, state = net.blocks[0].attention, state_at(s, tokens)
    seen = Visibility.of(net.spec.masks[0], 3, mask, torch.device("cpu"))
    with mp.workdps(1000):  # cubes of e^-300
        expected = _attention(attention)(rows_of(state), _scenes(seen, 1, 3, mask)[0])
        return state, attend(attention, state, seen), expected, attention, seen


SCORES = [name for name in SPECS if SPECS[name].scores != "dot" and name != "normed heads"]
PLAIN = ["pure attention", "no biases", "causal", "window", "grouped heads", "silent heads"]


AT = {name: [*LOGS, 2.5] for name in EVERY_RULE}
OTHERS = [name for name in PLAIN + SCORES if name not in AT]
AT |= dict(zip(OTHERS, cycle([[-3.0, 0.5], [-30.0, 2.5], [-300.0]]), strict=False))


@pytest.mark.parametrize(("name", "s"), [(name, s) for name in AT for s in AT[name]])
def test_attention(name, s, tokens, lively):
    state, got, expected, attention, seen = attention_case(name, s, tokens, lively)
    with mp.workdps(1000):
        assert apart(got, expected) < CLOSE
    if s >= 0:
        plain = attention(state.tensor(), seen)
        torch.testing.assert_close(got.tensor(), plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["pure attention", "no biases", "sink", "linear kernel"])
def test_attention_takes_a_deviation_to_its_cube(name, tokens, lively):
    net, x = lively(SPECS[name]), state_at(0.0, tokens)
    seen = Visibility.of(net.spec.masks[0], 3, None, torch.device("cpu"))
    steps = [
        attend(
            net.blocks[0].attention,
            SplitState(x.common, ScaledTensor(x.mantissa, x.log_scale + s)),
            seen,
        )
        for s in (-1e4, -1e4 - 1, -1e15)
    ]
    one, two, far = (step.log_scale.item() for step in steps)
    assert one - two == pytest.approx(3, abs=1e-10)
    assert far == pytest.approx(-3e15, rel=1e-15)
    torch.testing.assert_close(steps[0].mantissa, steps[2].mantissa, rtol=1e-12, atol=1e-12)


def parameter(width):
    return nn.Parameter(torch.zeros(width, dtype=torch.float64))


NORMS = {
    "layer": nn.LayerNorm(4, eps=1e-5, dtype=torch.float64),
    "layer, large eps": nn.LayerNorm(4, eps=3.0, dtype=torch.float64),
    "layer without bias": nn.LayerNorm(4, bias=False, dtype=torch.float64),
    "rms": nn.RMSNorm(4, eps=1e-5, dtype=torch.float64),
    "rms, default eps": nn.RMSNorm(4, dtype=torch.float64),
    "rms, no eps": nn.RMSNorm(4, eps=0.0, dtype=torch.float64),
    "sphere": Sphere(),
    "layer, gain 1 + w": OffsetNorm(centers=True, eps=1e-5, offset=parameter(4), bias=parameter(4)),
    "rms, gain 1 + w": OffsetNorm(centers=False, eps=0.1, offset=parameter(4)),
    "rms, gain 1 + w, bias": OffsetNorm(
        centers=False, eps=1e-5, offset=parameter(4), bias=parameter(4)
    ),
}


@pytest.fixture(params=NORMS)
def norm(request, tokens):
    module = NORMS[request.param]
    for seed, parameter in enumerate(module.parameters()):
        parameter.copy_(1 + 0.4 * tokens(4, seed=seed))
    return module


@pytest.mark.parametrize(
    ("norm", "s", "common"),
    [
        tuple(case.values())
        for case in pairwise(
            {"norm": tuple(NORMS), "s": (*LOGS, 5.0), "common": (1.0, 1e-3, 1e-200, 1e200)}
        )
    ],
    indirect=["norm"],
)
def test_norms(norm, s, common, tokens):
    state = state_at(s + math.log(common), tokens, common=common)
    assert apart(apply_norm(norm, state), normed(norm)(rows_of(state))) < CLOSE


@pytest.mark.parametrize("s", [0.0, -30.0])
def test_norms_of_tokens_with_nothing_in_common(norm, s, tokens):
    state = state_at(s, tokens, common=0.0)
    got = apply_norm(norm, state)
    assert apart(got, normed(norm)(rows_of(state))) < CLOSE


@pytest.mark.parametrize("s", [0.7, -3.0, -19.0, -30.0, -290.0])
def test_norms_of_tokens_along_one_row(norm, s):
    # Deviations along the common row: a norm takes them away to first order, but for its ε; the
    # rows are x·(1 + p), with 1 + p < 0 for one of them where s is large.
    x = float64([[1.0, -1.0, 0.5, -0.5]])
    along_x = float64([1.0, -0.75, -0.25])
    state = SplitState(ScaledTensor.of(x), ScaledTensor.of(along_x[None, :, None] * x[:, None], s))
    rows = normed(norm)(rows_of(state))
    got = apply_norm(norm, state)
    eps = getattr(norm, "eps", 0.0)
    if eps == 0.0 and s < 0:
        assert got.log_scale.item() == -math.inf  # nothing is left, exactly
    else:
        assert apart(got, rows) < 1e-10


def test_norms_of_nothing(norm):
    state = SplitState.of(torch.zeros(1, 3, 4, dtype=torch.float64))
    got = apply_norm(norm, state)
    assert got.log_scale.tolist() == [-math.inf]
    bias = getattr(norm, "bias", None)
    torch.testing.assert_close(got.x[0], torch.zeros(4).double() if bias is None else bias.data)


def test_a_batch_is_normalised_sample_by_sample(norm, tokens):
    # One sample is expanded around its common row, one is not, one is all zero.
    alone = [
        state_at(-40.0, tokens),
        state_at(0.0, tokens, common=0.0),
        state_at(2.0, tokens, seed=7),
        SplitState.of(torch.zeros(1, 3, 4, dtype=torch.float64)),
    ]

    def joined(name):
        parts = [getattr(state, name) for state in alone]
        return ScaledTensor(
            torch.cat([p.mantissa for p in parts]), torch.cat([p.log for p in parts])
        )

    got = apply_norm(norm, SplitState(joined("common"), joined("deviation")))
    for sample, state in enumerate(alone):
        expected = apply_norm(norm, state)
        torch.testing.assert_close(got.mantissa[sample], expected.mantissa[0], rtol=0, atol=0)
        assert got.log_scale[sample] == expected.log_scale[0]


def test_other_norms_are_refused(tokens):
    with pytest.raises(UnsupportedModelError, match="BatchNorm1d"):
        apply_norm(nn.BatchNorm1d(3), state_at(0.0, tokens))
    state = state_at(0.0, tokens)
    assert apply_norm(nn.Identity(), state) is state


POINTS = float64([[-6.0, -1.0, -1e-5, 0.0, 1e-9, 0.3, 2.0, 7.0]])


@pytest.mark.parametrize("s", [1.5, 0.0, math.log(REACH), math.log(REACH) - 0.1, -12.0, -300.0])
@pytest.mark.parametrize("name", PHI)
def test_activations(name, s, tokens):
    rest = tokens(1, 3, 8)
    rest = rest / rest.abs().amax()
    state = SplitState(ScaledTensor.of(POINTS), ScaledTensor.of(rest, s))
    got = apply_activation(name, state)
    phi, rows = PHI[name], rows_of(state)
    alone = SplitState(state.common, ScaledTensor.of(torch.zeros_like(rest)))
    at = [phi(v) for v in rows_of(alone)[0]]
    size = mp.exp(mpf(got.log_scale.item()))
    for row, mine in zip(rows, exact(got.mantissa[0]), strict=True):
        for v, common, m in zip(row, at, mine, strict=True):
            assert abs(m * size - (phi(v) - common)) < mpf(CLOSE) * size
    expected = float64([[float(value) for value in at]])  # F.gelu has no digits in its tail
    torch.testing.assert_close(got.x, expected, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("unit", [-5000.0, -400.0, 400.0, 5000.0])
@pytest.mark.parametrize("name", PHI)
def test_activations_far_from_one(name, unit, tokens):
    # Homogeneous there: tiny numbers are halved (a ReLU keeps what is positive), huge ones too
    # large to meet the curve.
    x, rest = tokens(1, 4), tokens(1, 3, 4)
    state = SplitState(ScaledTensor.of(x, unit), ScaledTensor.of(rest, unit - 2.0))
    got = apply_activation(name, state)
    degree, slope = 1, PHI["relu"] if unit > 0 or name == "relu" else lambda v: v / 2
    if name == "relu2":
        degree, slope = 2, PHI["relu2"]
    expected = [
        [slope(v) for v in row]
        for row in rows_of(SplitState(ScaledTensor.of(x), ScaledTensor.of(rest, -2.0)))
    ]
    by = -degree * unit
    back = SplitState(got.common.times_exp(by), got.deviation.times_exp(by)).recenter()
    assert apart(back, expected) < degree * CLOSE  # that of the logarithm alone


@pytest.mark.parametrize("s", LOGS)
@pytest.mark.parametrize(
    "name",
    [
        *("gelu_tanh", "relu", "silu", "relu2", "quick_gelu"),
        *("gated", "gated gelu", "activation for MLP"),
    ],
)
def test_mlps(name, s, tokens, lively):
    mlp, state = lively(SPECS[name]).blocks[0].mlp, state_at(s, tokens)
    got = apply_mlp(mlp, state)
    assert apart(got, _mlp(mlp)(rows_of(state))) < CLOSE
    if s >= 0:
        torch.testing.assert_close(got.tensor(), mlp(state.tensor()), rtol=1e-12, atol=1e-12)
    assert apply_mlp(BareMLP(), state) is state


@pytest.mark.parametrize("other", [0.5, -300.0])
@pytest.mark.parametrize("s", LOGS)
def test_products(s, other, tokens):
    one, two = state_at(s, tokens), state_at(other, tokens, seed=3)
    rows = [
        [a * b for a, b in zip(p, q, strict=True)]
        for p, q in zip(rows_of(one), rows_of(two), strict=True)
    ]
    assert apart(multiply(one, two).recenter(), rows) < CLOSE


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "quick_gelu"])
@pytest.mark.parametrize("a", [-6.0, -0.4, 0.0, 1e-8, 0.9, 5.0])
def test_taylor_coefficients(name, a):
    got = torch.stack(
        activation(name).scaled.coefficients(torch.tensor(a, dtype=torch.float64))
    ).tolist()
    with mp.workdps(60):
        expected = [float(c) for c in mp.taylor(PHI[name], a, ORDER)]
    assert len(got) == ORDER + 1
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert got[:3] == pytest.approx(expected[:3], rel=1e-13, abs=1e-16)


def test_what_has_no_scaled_form(monkeypatch, tokens):
    monkeypatch.setitem(ACTIVATIONS, "sine", Activation(torch.sin, math.cos))
    with pytest.raises(UnsupportedModelError, match="sine"):
        apply_activation("sine", SplitState.of(tokens(1, 2, 3)))


def test_a_whole_block_where_nothing_is_small(tokens, lively):
    net, x = lively(spec(norm_place="both")), tokens(2, 3, 4)
    assert isinstance(net, Network)
    seen = Visibility.of(net.spec.masks[0], 3, None, x.device)
    branch = net.blocks[0].steps[0].branches[0]
    state = apply_norm(branch.before, SplitState.of(x))
    got = apply_norm(branch.inside, attend(branch.part, state, seen))
    torch.testing.assert_close(got.tensor(), branch(x, seen), rtol=1e-12, atol=1e-12)
