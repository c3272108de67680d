"""The tables of norms, activations and scores: complete, true, and used wherever one is needed."""

import math
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn.functional import leaky_relu

from rankscope import bounds, deep_trace, head_shares, path_lengths, top_paths
from rankscope.core import names, network
from rankscope.core.deep import deep_states
from rankscope.core.deep._scores import RULES
from rankscope.core.network import (
    ACTIVATIONS,
    MLP,
    NORMS,
    SCORES,
    Activation,
    Described,
    Network,
    NormedHeads,
    PiecewiseLinear,
    RelativeBias,
    Rotary,
    Scores,
    SelfGated,
    Sparsemax,
    Spec,
    Sphere,
    Squared,
    activation,
    build_norm,
    norm_rule,
    score_entry,
)
from rankscope.core.network._score_table import Composed
from rankscope.errors import RankscopeError, SpecError, UnsupportedModelError

PURE = {"mlp_ratio": 0.0, "norm": "none", "skip": False}
ROOMS = {"deep": deep_trace, "paths": path_lengths, "bounds": bounds}
PATHS = {"lengths": path_lengths, "heads": head_shares, "top": top_paths}


class Doubled(nn.LayerNorm):
    """A LayerNorm by its class, and something else by what it computes."""

    def forward(self, x):
        return 2 * super().forward(x)


class RootDoubled(nn.RMSNorm):
    def forward(self, x):
        return 2 * super().forward(x)


class Shell(Sphere):
    def forward(self, x):
        return 2 * super().forward(x)


# Norms.


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_computes_what_its_rule_says(kind, dtype, eps, tokens):
    norm = build_norm(kind, 6, eps=eps, bias=True).to(dtype)
    for number, parameter in enumerate(norm.parameters()):
        parameter.data = 1 + tokens(1, 1, 6, seed=number)[0, 0].to(dtype)
    x = tokens(2, 5, 6).to(dtype)
    rule = norm_rule(norm, dtype)
    if rule is None:
        assert torch.equal(norm(x), x)
        return
    expected = (x - x.mean(-1, keepdim=True) if rule.centers else x) * rule.factor(x)
    expected = expected if rule.bias is None else expected + rule.bias
    close = 1e-6 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(norm(x), expected, rtol=close, atol=close)


def test_an_rms_norm_without_eps_takes_that_of_the_dtype():
    for dtype in (torch.float32, torch.float64):
        assert norm_rule(nn.RMSNorm(4), dtype).eps == torch.finfo(dtype).eps


def test_zero_on_the_sphere_stays_zero(tokens):
    x = tokens(1, 3, 4)
    x[0, 1] = 0.0
    assert norm_rule(Sphere(), x.dtype).factor(x).isfinite().all()


@pytest.mark.parametrize("norm", [Doubled(8), RootDoubled(8), Shell(), nn.BatchNorm1d(8)])
@pytest.mark.parametrize("ask", [*ROOMS.values(), *PATHS.values()])
def test_a_norm_that_computes_something_else_is_refused(norm, ask, lively, tokens):
    net, x = lively(Spec(1, 2, 8)), tokens(2, 5, 8)
    block = net.blocks[0]
    other = network.Block(
        net.spec,
        attention=block.attention,
        mlp=block.mlp,
        norms={"attention": norm.double(), "mlp": block.norms["mlp"]},
    )
    changed = Network(net.spec, [other])
    if not isinstance(norm, nn.BatchNorm1d):  # a forward pass runs any module on tokens
        assert not torch.allclose(changed(x), net(x))
    with pytest.raises(UnsupportedModelError, match=type(norm).__name__):
        ask(changed, x)


def test_norms_over_several_axes_are_refused():
    for norm in (nn.LayerNorm((5, 8)), nn.RMSNorm((5, 8))):
        with pytest.raises(UnsupportedModelError, match="over 2 axes"):
            norm_rule(norm, torch.float32)


def test_an_unknown_kind_of_norm_is_refused():
    with pytest.raises(SpecError, match=r"norm='batch' is unknown; choose one of layer, rms"):
        build_norm("batch", 4, eps=0.0, bias=False)


# Activations.


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives_and_the_limit_at_zero_are_those_of_what_the_network_runs(name):
    phi = activation(name)
    z = torch.linspace(-6, 6, 61, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(phi(z).sum(), z)
    expected = torch.tensor([phi.derivative(float(one)) for one in z.detach()], dtype=torch.float64)
    torch.testing.assert_close(slope, expected, atol=1e-9, rtol=0)
    (at_zero,) = torch.autograd.grad(phi(zero := torch.zeros((), requires_grad=True)), zero)
    assert phi.limit_at_zero == float(at_zero)
    if phi.slopes is None:  # they grow without end
        assert phi.lipschitz is None
        assert float(slope.max()) > 10
        return
    low, high = phi.slopes
    assert low - 1e-12 <= float(slope.min()) <= float(slope.max()) <= high + 1e-12
    assert phi.lipschitz == max(-low, high)


@pytest.mark.parametrize("name", sorted({*ACTIVATIONS} - {"relu2"}))  # which has no scaled form
def test_the_scaled_form_is_the_activation(name):
    phi = activation(name)
    z = torch.linspace(-6, 6, 61, dtype=torch.float64)
    if isinstance(phi.scaled, Squared):
        exact = activation(phi.scaled.of).scaled.exact(z).square()
    else:
        exact = phi.scaled.exact(z)
    torch.testing.assert_close(exact, phi(z), rtol=1e-6, atol=1e-15)
    if isinstance(phi.scaled, SelfGated):
        torch.testing.assert_close(phi(z), z.relu() + phi(-z.abs()), rtol=0, atol=1e-15)
        first, second = phi.scaled.coefficients(z)[:2]
        slopes = torch.tensor(
            [phi.derivative(float(one)) for one in z.detach()], dtype=torch.float64
        )
        torch.testing.assert_close(first, phi(z), rtol=1e-6, atol=1e-15)
        torch.testing.assert_close(second, slopes, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("ask", [*ROOMS.values(), *PATHS.values(), Network.__call__])
def test_an_invented_activation_is_refused_in_every_room(ask, lively, tokens):
    net, x = lively(Spec(1, 2, 8, norm="none", skip=False)), tokens(1, 3, 8)
    mlp = net.blocks[0].mlp
    with pytest.raises(SpecError, match="'invented' is unknown"):
        MLP(up=mlp.up, down=mlp.down, gate=None, activation="invented")
    mlp.activation = "invented"
    with pytest.raises(RankscopeError, match="'invented' is unknown"):
        ask(net, x)


@pytest.mark.parametrize("ask", [*ROOMS.values(), *PATHS.values()])
def test_what_a_record_leaves_out_a_room_refuses(ask, lively, tokens, monkeypatch):
    bump = Activation(lambda z: torch.exp(-z * z), lambda z: -2 * z * math.exp(-z * z))
    monkeypatch.setitem(ACTIVATIONS, "bump", bump)
    net, x = lively(Spec(1, 2, 8, norm="none", skip=False, activation="bump")), tokens(1, 3, 8)
    assert net(x).isfinite().all()
    with pytest.raises(UnsupportedModelError, match="'bump'"):
        ask(net, x)


def test_a_new_activation_is_one_entry(lively, tokens, monkeypatch):
    """A leaky ReLU: every room can do it once its record stands in the table."""
    leaky = Activation(
        lambda z: leaky_relu(z, 0.1),
        lambda z: 1.0 if z > 0 else 0.1,
        limit_at_zero=0.1,
        slopes=(0.1, 1.0),
        scaled=PiecewiseLinear(0.1, 1.0),
    )
    monkeypatch.setitem(ACTIVATIONS, "leaky", leaky)
    net, x = lively(Spec(3, 2, 8, activation="leaky", norm="none", skip=False)), tokens(2, 5, 8)
    states = [x, *net.states(x)]
    for layer, state in deep_states(net, x):
        torch.testing.assert_close(state.tensor(), states[layer], rtol=1e-12, atol=1e-12)
    assert path_lengths(net, x).reconstruction_error < 1e-12
    assert bounds(net, 0.1 * x).layers[0].applies


# Scores.


def every_score():
    found, open_ends = set(), [Scores]
    while open_ends:
        one = open_ends.pop()
        found.add(one)
        open_ends += one.__subclasses__()
    return {one for one in found if one.__module__.startswith("rankscope.")}


def test_every_score_has_an_entry_and_every_entry_its_rule():
    assert set(SCORES) == every_score() - {Composed}  # of which others are made
    assert set(RULES) == {entry.rule for entry in SCORES.values()} - {""}
    plain = {entry.words for entry in SCORES.values() if entry.deep == "plain"}
    assert plain == {"normalised heads", "sinusoids of distances", "disentangled positions"}
    refused = {entry.words for entry in SCORES.values() if entry.deep is None}
    assert refused == {"capped logits", "learned sinks"}
    assert {entry.words for entry in SCORES.values() if entry.bounds} == {"dot product"}


def test_the_names_that_need_no_torch_are_those_of_the_tables():
    assert list(names.NORMS) == list(get_args(names.NormName)) == list(NORMS)
    assert set(names.SCORES) == {entry.name for entry in SCORES.values()} - {""}
    assert list(names.NORM_PLACES) == list(get_args(names.NormPlace))
    assert list(names.MLP_FORMS) == list(get_args(names.MLPForm))
    for entry in SCORES.values():  # what a spec can hold has both, what it cannot has neither
        assert bool(entry.name) == (entry.usual is not None or entry.module is Scores)


def test_every_public_kind_of_score_builds_the_module_of_its_entry():
    kinds = {
        one
        for name in network.__all__
        if isinstance(one := getattr(network, name), type)
        and hasattr(one, "build")
        and one not in (Described, network.ScoreKind)
    }
    assert kinds == {entry.kind for entry in SCORES.values() if entry.kind is not None}
    for entry in SCORES.values():
        if entry.usual is not None:
            assert type(entry.usual.build(2, 4)) is entry.module
            assert Spec(1, 2, 8, scores=entry.usual).scores == entry.usual


class Own(Scores):
    """Somebody's own: no softmax makes its weights."""

    def weights(self, logits, visibility):
        squares = visibility.hide(logits).softmax(-1).square()
        return squares / squares.sum(-1, keepdim=True)


class Turned(network.RotaryScores):
    """A subclass of a known score that computes something else."""

    def prepare(self, query, key, positions):
        return super().prepare(2 * query, key, positions)


def test_a_score_of_ones_own_runs_and_is_followed_by_paths_alone(lively, tokens):
    net, x = lively(Spec(2, 2, 8, mlp_ratio=0.0, norm="none")), tokens(1, 4, 8)
    net.blocks[1].attention.scores = Own()
    assert not Own.fused  # or a forward pass would pass its weights by
    assert path_lengths(net, x).reconstruction_error < 1e-12
    with pytest.raises(UnsupportedModelError, match=r"layer 2: .* the score Own; .*path_lengths"):
        deep_trace(net, x)
    with pytest.raises(UnsupportedModelError, match="Own"):
        bounds(net, x)


def test_a_subclass_is_not_taken_for_its_base(lively, tokens):
    assert score_entry(Turned(torch.ones(2))).words == "Turned"
    assert score_entry(Turned(torch.ones(2))).deep == "plain"
    net, x = lively(Spec(2, 2, 8, scores=Rotary(), **PURE)), tokens(1, 4, 8)
    frequencies = net.blocks[0].attention.scores.frequencies
    for block in net.blocks:
        block.attention.scores = Turned(frequencies)
    states = [x, *net.states(x)]
    for layer, state in deep_states(net, x):
        torch.testing.assert_close(state.tensor(), states[layer], rtol=1e-10, atol=1e-10)


def test_bounds_name_the_score_in_words(lively, tokens):
    net = lively(Spec(1, 2, 8, scores=RelativeBias(), **PURE))
    assert "(relative bias)" in bounds(net, tokens(1, 4, 8)).why_not


def test_a_rule_that_an_entry_leaves_out_is_refused(lively, tokens, monkeypatch):
    net, x = lively(Spec(1, 2, 8, scores=Sparsemax(), **PURE)), tokens(1, 4, 8)
    entry = score_entry(net.blocks[0].attention.scores)
    monkeypatch.setitem(SCORES, entry.module, type(entry)(entry.words, entry.module))
    with pytest.raises(UnsupportedModelError, match=r"scaled arithmetic .* sparsemax"):
        deep_trace(net, x)
    assert path_lengths(net, x).reconstruction_error < 1e-12


def test_normed_heads_go_before_a_softmax_alone():
    with pytest.raises(SpecError, match="SparsemaxScores"):
        NormedHeads(nn.Identity(), nn.Identity(), Sparsemax().build(1, 2))
