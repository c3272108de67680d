"""The oracle against float64, against closed forms, and against itself at more digits."""

import time

import pytest
import torch
from mpmath import mp, mpf
from torch import nn

from rankscope.core.metrics import residual
from rankscope.core.network import Init, Network, Scores, Spec, View
from rankscope.models.recognition._projections import Slots

from .. import loaded_parts
from .cases import BARE, PADDING, SPECS, spec
from .equations import PHI
from .oracle import (
    State,
    TooFewDigitsError,
    agree,
    log10_residual,
    log10_residuals,
    matrix_norm,
    plain_states,
)


def states64(net, x, token_mask=None):
    with torch.no_grad():
        return torch.stack([x, *net.states(x, token_mask)])


@pytest.mark.parametrize("name", SPECS)
def test_every_part_agrees_with_float64(name, lively, tokens):
    net, x = lively(SPECS[name]), tokens(2, 5, 4)
    expected = states64(net, x)
    got = torch.stack([state.tensor() for state in plain_states(net, x, digits=30)])
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", SPECS)
def test_padding_agrees_with_float64_and_is_left_out(name, lively, tokens):
    net, x = lively(SPECS[name]), tokens(3, 7, 4)
    expected = states64(net, x, PADDING)
    x[~PADDING] = torch.nan
    states = plain_states(net, x, PADDING, 30)
    got = torch.stack([state.tensor() for state in states])
    torch.testing.assert_close(got[:, PADDING], expected[:, PADDING], rtol=1e-13, atol=1e-13)
    assert bool(got[:, ~PADDING].isnan().all())
    with pytest.raises(ValueError, match="give the token_mask"):
        log10_residual(states[-1])
    with_mask = log10_residual(states[-1], PADDING, "fro")
    by_metric = residual(expected[-1], norm="fro", token_mask=PADDING).log10()
    torch.testing.assert_close(with_mask, by_metric, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("name", SPECS)
def test_more_digits_change_only_what_lies_behind_the_last(name, lively, tokens):
    net, x = lively(SPECS[name]), tokens(1, 5, 4)
    few, many = (plain_states(net, x, digits=digits)[-1] for digits in (50, 90))
    with mp.workdps(90):
        for p, q in zip(few.samples[0], many.samples[0], strict=True):
            assert all(abs(a - b) < mpf("1e-45") for a, b in zip(p, q, strict=True))


def test_projections_that_live_in_other_weights(lively, tokens):
    net, x = lively(spec()), tokens(1, 5, 4)
    fused = nn.Linear(4, 4, dtype=torch.float64)  # stored as (input, output), as GPT-2 does
    net.blocks[0].attention.query = View(fused, Slots(transposed=True))
    got = plain_states(net, x, digits=30)[-1].tensor()
    torch.testing.assert_close(got, states64(net, x)[-1], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "name", ["scaled views", "joined projections", "offset LayerNorm", "offset RMSNorm"]
)
def test_parts_of_loaded_models_agree_with_float64(name, lively, tokens):
    net, x = loaded_parts.network(name, lively), tokens(1, 5, 8)
    got = plain_states(net, x, digits=30)[-1].tensor()
    torch.testing.assert_close(got, states64(net, x)[-1], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["latent projections", "gates of heads", "experts"])
def test_parts_without_an_equation_are_refused(name, lively, tokens):
    with pytest.raises(NotImplementedError, match="no equation"):
        plain_states(loaded_parts.network(name, lively), tokens(1, 3, 8))


def test_two_opposite_tokens_have_a_closed_form():
    # Tokens ±a of one feature: P's rows are softmax(±wa²), so the next token is va·tanh(wa²).
    a, w, v = 0.75, 1.25, -0.875
    query_key, values = (torch.full((6, 1, 1, 1), number).double() for number in (w, v))
    net = Network.from_matrices(query_key, values, head_width=1)
    x = torch.tensor([[[a], [-a]]], dtype=torch.float64)
    got = log10_residuals(net, x, norm="inf")
    digits_enough = plain_states(net, x, digits=700)
    with mp.workdps(700):
        token = mpf(a)
        for layer in range(7):
            assert abs(digits_enough[layer].samples[0][0][0] / token - 1) < mpf("1e-600")
            assert got[layer].item() == float(mp.log10(abs(token)))
            token = v * token * mp.tanh(w * token**2)
    assert got[-1] < -60
    with pytest.raises(ArithmeticError, match="do not settle"):
        log10_residuals(net, x + 1, digits=20, most=50)


def test_activations_in_other_words():
    with mp.workdps(50):
        for z in map(mpf, ("-7.5", "-0.3", "0", "1e-30", "0.7", "11")):
            tanh = mp.tanh(mp.sqrt(2 / mp.pi) * (z + mpf(0.044715) * z**3))
            density = mp.quad(lambda t: mp.exp(-t * t / 2), [0, z]) / mp.sqrt(2 * mp.pi)
            others = {
                "relu": (z + abs(z)) / 2,
                "gelu": z / 2 + z * density,
                "gelu_tanh": z / 2 * (1 + tanh),
                "silu": z / 2 * (1 + mp.tanh(z / 2)),
                "relu2": (z * z + z * abs(z)) / 2,
                "quick_gelu": z / 2 * (1 + mp.tanh(mpf(1.702) * z / 2)),
            }
            for name, other in others.items():
                assert abs(PHI[name](z) - other) < mpf("1e-47"), (name, z)


@pytest.mark.parametrize("norm", ["layer", "rms", "sphere"])
def test_norms_normalise_to_every_digit(norm, tokens):
    plain = Spec(1, 1, 4, mlp_ratio=0.0, norm=norm, norm_place="post", norm_eps=0.0, bias=False)
    net = Network.random(plain, dtype=torch.float64)
    (row, *_), *_ = plain_states(net, tokens(1, 3, 4), digits=60)[-1].samples
    with mp.workdps(60):
        length = mp.fdot(row, row)
        assert abs(length - (1 if norm == "sphere" else 4)) < mpf("1e-57")
        assert (abs(mp.fsum(row)) < mpf("1e-57")) == (norm == "layer")


def test_residuals_by_hand():
    rows = [[mpf(v) for v in row] for row in ([1, 2], [3, -4], [8, 5])]
    state = State([rows], 30)
    # Less the mean (4, 1): (-3, 1), (-1, -5), (4, 4).
    # Less the median (3, 2): (-2, 0), (0, -6), (5, 3).
    sizes = {
        ("one", "mean"): 10,
        ("inf", "mean"): 8,
        ("composite", "mean"): 80**0.5,
        ("fro", "mean"): 68**0.5,
        ("one", "median"): 9,
        ("inf", "median"): 8,
        ("composite", "median"): 72**0.5,
        ("fro", "median"): 74**0.5,
    }
    whole = {"one": 12, "inf": 13, "composite": 156**0.5, "fro": 119**0.5}
    for (norm, center), size in sizes.items():
        got = log10_residual(state, None, norm, center)
        ratio = log10_residual(state, None, norm, center, relative=True)
        assert 10 ** got.item() == pytest.approx(size, rel=1e-14)
        assert 10 ** ratio.item() == pytest.approx(size / whole[norm], rel=1e-14)
        assert float(matrix_norm(rows, norm)) == pytest.approx(whole[norm], rel=1e-15)


@pytest.mark.parametrize("norm", ["composite", "one", "inf", "fro"])
@pytest.mark.parametrize("center", ["mean", "median"])
@pytest.mark.parametrize("count", [4, 5])
def test_residuals_as_the_metrics_define_them(norm, center, count, tokens):
    x = tokens(2, count, 3)
    (state, _) = plain_states(Network.random(Spec(1, 1, 3), dtype=x.dtype), x, digits=30)
    for relative in (False, True):
        expected = residual(x, norm=norm, center=center, relative=relative).log10()
        got = log10_residual(state, None, norm, center, relative=relative)
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-14)


def test_residuals_are_computed_in_the_digits_of_their_state(tokens):
    # In other words: ‖X − 1x̄ᵀ‖² is the mean, over tokens, of all squared distances of pairs.
    x = tokens(30, 3, 2)
    samples = [[[mpf(v) for v in row] for row in sample] for sample in x.tolist()]
    logarithms = log10_residual(State(samples, 40), None, "fro").tolist()
    with mp.workdps(80):
        for got, (a, b, c) in zip(logarithms, samples, strict=True):
            gaps = [p - q for r, s in ((a, b), (b, c), (c, a)) for p, q in zip(r, s, strict=True)]
            assert got == float(mp.log10(mp.fdot(gaps, gaps) / 3) / 2)


def test_agreement_of_two_precisions():
    assert agree(-mp.inf, -mp.inf)
    with mp.workdps(40):
        assert agree(mpf(-1000), mpf(-1000) - mpf("9e-15"))
        assert not agree(mpf(-1000), mpf(-1000) - mpf("2e-14"))
    assert not agree(mpf(-1000), -mp.inf)
    assert not agree(-mp.inf, mpf(-1000))


def test_equal_tokens_leave_exactly_nothing(lively):
    x = torch.full((1, 3, 4), 0.1, dtype=torch.float64)
    assert log10_residuals(lively(spec()), x, relative=True).tolist() == [[-torch.inf]] * 3


def test_too_few_digits_are_told_from_a_small_residual():
    near = [[mpf(1)], [mpf(1) + mpf(2) ** -50]]  # apart by about 1e-15
    assert log10_residual(State([near], 36))[0] < -15
    with pytest.raises(TooFewDigitsError, match="use more digits"):
        log10_residual(State([near], 34))


def test_a_collapse_far_below_float64_needs_no_guess_of_digits(tokens):
    deep = Spec(7, 2, 4, init=Init("normal", 0.4), bias=False, **BARE)
    net, x = Network.random(deep, dtype=torch.float64), tokens(1, 3, 4)
    got = log10_residuals(net, x, relative=True)[:, 0]
    assert got[-1] < -200
    steps = got.diff()
    torch.testing.assert_close(steps[-1] / steps[-2], torch.tensor(3.0).double(), rtol=0.05, atol=0)
    again = [log10_residual(s, relative=True)[0] for s in plain_states(net, x, digits=2000)]
    torch.testing.assert_close(got, torch.stack(again), rtol=1e-16, atol=1e-16)


def test_what_it_has_no_equation_for_is_refused(tokens):
    class Unknown(Scores):
        pass

    net = Network.random(spec(), dtype=torch.float64)
    with pytest.raises(TypeError, match="float64"):
        plain_states(net, tokens(1, 5, 4).float())
    net.blocks[0].attention.scores = Unknown()
    with pytest.raises(NotImplementedError, match="Unknown"):
        plain_states(net, tokens(1, 5, 4))


def test_a_tiny_network_takes_no_time(lively, tokens):
    net, x = lively(Spec(2, 2, 4)), tokens(1, 4, 4)
    start = time.process_time()
    plain_states(net, x, digits=60)
    assert time.process_time() - start < 0.3
