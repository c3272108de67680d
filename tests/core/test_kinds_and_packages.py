"""Every kind of score, norm, activation and projection in every package of the core.

Each cell of that table holds right numbers (those of the forward pass) or a refusal by name. A
kind that is added to the core and not to ``KINDS`` fails the first test.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import get_args

import pytest
import torch
from torch import nn

from rankscope.core.deep import deep_trace
from rankscope.core.masks import Causal
from rankscope.core.metrics import residual
from rankscope.core.names import ABLATIONS
from rankscope.core.network import (
    ACTIVATIONS,
    NORMS,
    SCORES,
    Init,
    Network,
    OffsetNorm,
    Projection,
    Scores,
    Spec,
    Visibility,
    activation,
    drawable,
)
from rankscope.core.paths import head_shares, path_lengths, top_paths
from rankscope.core.prediction import measured_gradients, predict
from rankscope.core.theory import bounds, design_values
from rankscope.core.theory._bounds import BOUNDS
from rankscope.core.tracing import trace
from rankscope.errors import InputError, SpecError, UnsupportedModelError
from rankscope.streams import stream

from .loaded_parts import PARTS, WIDTH, drawn, network

Make = Callable[..., Network]


def described(**fields) -> Make:
    def make(lively, **more) -> Network:
        given = {"mlp_ratio": 1.5, "init": Init("normal", 0.5), **fields, **more}
        return lively(Spec(2, 2, WIDTH, **given))

    return make


def loaded(name: str) -> Make:
    return lambda lively, **more: network(name, lively, **more)


@dataclass(frozen=True)
class OwnKind:
    """A user's score: a bias of the distance and a softmax."""

    def build(self, heads, head_width):
        del heads, head_width
        return OwnScores()


class OwnScores(Scores):
    def bias(self, query, key, positions):
        del key
        away = positions[:, :, None] - positions[:, None, :]
        return (0.3 * away).to(query.dtype).unsqueeze(1)


KINDS: dict[str, Make] = {
    "plain": described(),
    **{
        f"{entry.name} scores": described(scores=entry.usual)
        for entry in SCORES.values()
        if entry.usual is not None
    },
    "a score of one's own": described(scores=OwnKind()),
    **{f"{norm} norm": described(norm=norm) for norm in NORMS},
    "norms of outputs": described(norm_place="output"),
    **{name: described(activation=name) for name in ACTIVATIONS},
    "gated": described(gated=True, activation="silu"),
    "centred": described(centered=True),
    **{f"{name} (loaded)": loaded(name) for name in PARTS},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def attempt(call):
    """What a call returns, or None and why it is refused; any other error is an error here."""
    try:
        return call(), ""
    except (UnsupportedModelError, SpecError, InputError) as refusal:
        return None, str(refusal)


NOT_DEEP = {
    "latent projections": "latent projections",
    "latent projections with biases": "latent projections",
    "gates of entries": "gates on its output",
    "gates of heads": "gates on its output",
    "experts": "mixtures of experts",
    "gated experts": "mixtures of experts",
    "capped logits": "the score capped logits",
    "capped, normed heads": "the score capped logits",
    "learned sinks": "the score learned sinks",
    "learned sinks, rotary": "the score learned sinks",
}
"""What scaled arithmetic refuses, and in which words."""
NOT_DESIGNED = {
    "linformer scores": "Linformer pools the keys",
    "sparsemax scores": "condition number",
    "centred": "condition number",
}
"""Attention that is singular, or that no causal mask fits."""
BOUNDED = {
    *("plain", "none norm", "scaled views (loaded)", "joined projections (loaded)"),
    *("gelu", "gelu_tanh", "relu", "silu", "quick_gelu", "quick_gelu (loaded)", "gated"),
    *("layer norm", "rms norm", "sphere norm", "norms of outputs"),
    *("offset LayerNorm (loaded)", "offset RMSNorm (loaded)"),
}
"""What the theorems cover, in networks without skips and norms."""


def x_of(batch: int = 2, tokens: int = 5) -> torch.Tensor:
    return drawn(batch, tokens, WIDTH, seed=17)


def states_of(net: Network, x: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        return [x, *net.states(x)]


def test_every_kind_is_in_the_table(lively):
    made = [make(lively) for make in KINDS.values()]
    modules = [module for net in made for module in net.modules()]
    assert set(SCORES) <= {type(module) for module in modules}
    assert {entry.module for entry in NORMS.values()} - {nn.Identity} <= {*map(type, modules)}
    assert {type(module) for module in modules} >= {*get_args(Projection)} - {_Stack}
    assert set(ACTIVATIONS) <= {net.spec.activation for net in made}
    assert OffsetNorm in {type(module) for module in modules}


_Stack = next(kind for kind in get_args(Projection) if kind.__name__ == "Stack")
"""Many networks at once; only predictions use it."""


def value_of(columns, metric, layer, sample):
    rows = zip(*(columns[name] for name in ("metric", "layer", "sample", "value")), strict=True)
    (found,) = [value for *key, value in rows if key == [metric, layer, sample]]
    return found


@kinds
def test_traces_are_those_of_the_states_and_patterns(kind, lively):
    net, x = KINDS[kind](lively), x_of()
    states = states_of(net, x)
    columns = trace(net, x, metrics=["residual"]).columns
    for layer, state in enumerate(states):
        for sample, expected in enumerate(residual(state).tolist()):
            assert value_of(columns, "residual", layer, sample) == pytest.approx(expected, rel=1e-9)
    attended = trace(net, x, metrics=["attention_entropy"]).table
    seen = Visibility.of(net.spec.masks[1], 5, None, x.device)
    block = net.blocks[1]
    with torch.no_grad():
        pattern = block.attention.pattern(block.steps[0].branches[0].before(states[1]), seen)
    if pattern.sum(-1).max() < 1 - 1e-9:  # a learned sink is one more outcome
        pattern = torch.cat((pattern, 1 - pattern.sum(-1, keepdim=True)), -1)
    expected = -torch.special.xlogy(pattern, pattern.clamp(min=1e-300)).sum(-1).mean(-1)
    for sample in range(2):
        for head in range(net.spec.heads):
            (got,) = attended.filter(layer=2, sample=sample, head=head)["value"].to_list()
            assert got == pytest.approx(float(expected[sample, head]), rel=1e-9, abs=1e-12)


@kinds
def test_paths_sum_to_the_output(kind, lively):
    net, x = KINDS[kind](lively), x_of()
    found = path_lengths(net, x)
    torch.testing.assert_close(found.output, states_of(net, x)[-1], rtol=1e-10, atol=1e-12)
    assert found.reconstruction_error < 1e-10
    assert head_shares(net, x).contributions.isfinite().all()
    assert top_paths(net, x, count=1).proven


def why_not_deep(kind: str) -> str:
    return NOT_DEEP.get(kind.removesuffix(" (loaded)"), "")


@kinds
def test_scaled_arithmetic_agrees_with_float64_or_refuses_by_name(kind, lively):
    net, x = KINDS[kind](lively), x_of()
    if why_not_deep(kind):
        with pytest.raises(UnsupportedModelError, match=f"layer 1: .*{why_not_deep(kind)}"):
            deep_trace(net, x)
        return
    columns = deep_trace(net, x).columns
    for layer, state in enumerate(states_of(net, x)):
        for sample, expected in enumerate(residual(state).log10().tolist()):
            got = value_of(columns, "log10_residual", layer, sample)
            assert got == pytest.approx(expected, rel=1e-9, abs=1e-9)


@kinds
def test_bounds_hold_or_name_the_obstacle(kind, lively):
    net, x = KINDS[kind](lively, skip=0.0, norm="none"), 0.1 * x_of()
    if why_not_deep(kind):
        with pytest.raises(UnsupportedModelError, match=why_not_deep(kind)):
            bounds(net, x)
        return
    if kind == "centred":
        with pytest.raises(UnsupportedModelError, match="centred attention without a skip"):
            bounds(net, x)
        return
    found = bounds(net, x)
    for layer, state in zip(found.layers, states_of(net, x)[1:], strict=True):
        at_mean = residual(state).log10()
        assert bool((layer.log10_residual <= at_mean + 1e-9).all())
        assert bool((layer.log10_residual >= at_mean - math.log10(2) - 1e-9).all())
        assert layer.applies == (kind in BOUNDED), layer.why_not
        if not layer.applies:
            assert layer.why_not
            assert all(getattr(layer, name).isnan().all() for name in BOUNDS)
            continue
        given = [getattr(layer, name) for name in BOUNDS]
        assert all(bool(((bound >= layer.log10_residual) | bound.isnan()).all()) for bound in given)
        assert not layer.log10_sharp_bound.isnan().any()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gates of heads", "gates on the output of attention"),
        ("latent projections", "norms inside its projections"),
        ("experts", "a mixture of experts"),
        ("capped logits", "capped logits"),
        ("learned sinks, rotary", "learned sinks"),
        ("disentangled", "disentangled positions"),
        ("rotary of a grid", "rotations of a grid"),
        ("normed side by side", "normalised heads"),
        ("relu2", "relu2"),
    ],
)
def test_obstacles_name_the_part(name, why, lively):
    """Also those of parts that scaled arithmetic refuses first."""
    from rankscope.core.theory._bounds import _obstacle

    net = network(name, lively, skip=0.0, norm="none", mask="full", parallel=False)
    assert why in str(_obstacle(net, 1, net.blocks[0]))


@kinds
def test_predictions_are_of_the_same_shape_or_refused_by_name(kind, lively):
    net, x = KINDS[kind](lively), x_of()
    if net.spec.undescribed:
        for ask in (
            drawable,
            lambda net: predict(net.spec, x),
            lambda net: Network.random(net.spec),
        ):
            with pytest.raises(UnsupportedModelError, match=net.spec.undescribed[0]):
                ask(net)
        return
    spec = drawable(net)
    found = predict(spec, x, draws=2, gradients=True)
    assert found.values["token_norm"].shape == (3, 2, 2)
    for name, values in found.values.items():
        assert values[1:].isfinite().all(), name
    drawn_net = Network.random(replace(spec, layers=1), dtype=torch.float64)
    assert drawn_net(x).isfinite().all()
    assert type(drawn_net.blocks[0].attention.scores) is type(net.blocks[0].attention.scores)


@kinds
def test_measured_gradients_are_autograds_or_refused(kind, lively):
    net, x = KINDS[kind](lively), x_of(1)
    if net.blocks[0].attention.latent:
        with pytest.raises(UnsupportedModelError, match="latent projections"):
            measured_gradients(net, x)
        return
    found = measured_gradients(net, x, seed=2)
    towards = torch.randn(x.shape, generator=stream(2, "gradient", "measured"), dtype=x.dtype)
    start = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((net(start) * towards).sum(), start)
    assert float(found["state_gradient"][0]) == pytest.approx(float(gradient.norm()), rel=1e-9)


@kinds
def test_designed_values_keep_the_tokens_or_are_refused(kind, lively):
    net, x = KINDS[kind](lively).without("mlp", "norm"), x_of(1)[0]
    designed, refusal = attempt(lambda: design_values(net.with_mask("causal"), x))
    if kind in NOT_DESIGNED:
        assert designed is None
        assert NOT_DESIGNED[kind] in refusal
        return
    assert designed is not None, refusal
    torch.testing.assert_close(designed(x[None])[0], x, rtol=1e-6, atol=1e-6)


# Ablations: what is left is what one would write down.


def norm_by_hand(kind, old, x, eps):
    """Another norm with the gain of an old one, and its bias where both have one."""
    if kind == "none":
        return x
    if kind == "sphere":
        return x / x.norm(dim=-1, keepdim=True)
    gain = getattr(old, "weight", None)
    gain = x.new_ones(WIDTH) if gain is None else gain
    if kind == "rms":
        return gain * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    bias = getattr(old, "bias", None)
    z = x - x.mean(-1, keepdim=True)
    out = gain * z / (z.square().mean(-1, keepdim=True) + eps).sqrt()
    return out if bias is None else out + bias


def by_hand(net, x, *, removed=(), **fields):
    """``x ↦ after(α x + Σ inside(part(before(x))))`` with the parts of ``net`` as they are."""
    spec = replace(net.spec, **fields)
    for layer, block in enumerate(net.blocks):
        seen = Visibility.of(spec.masks[layer], x.shape[1], None, x.device)
        silent = frozenset(head for at, head in removed if at == layer)
        mlp = block.mlp
        if spec.mlp_as != "mlp":
            phi = None if spec.mlp_as == "identity" else activation(spec.activation)

            def mlp(y, _seen, phi=phi):
                return y if phi is None else phi(y)

        branches = {"attention": block.attention.replaced(removed=silent), "mlp": mlp}
        if not spec.mlp_width:
            del branches["mlp"]

        def norm(name, y, *places, block=block):
            if spec.norm_place not in places:
                return y
            old = dict(block.norms.items()).get(name)
            if spec.norm == net.spec.norm and old is not None:
                return old(y)
            return norm_by_hand(spec.norm, old, y, spec.norm_eps)

        def branch(name, y, branches=branches, seen=seen, norm=norm):
            y = branches[name](norm(name, y, "pre", "both"), seen)
            return norm(f"{name}_inside", y, "both", "output")

        if spec.parallel:
            x = norm("attention", spec.skips[0] * x + sum(branch(n, x) for n in branches), "post")
            continue
        for name, skip in zip(branches, spec.skips, strict=False):
            x = norm(name, skip * x + branch(name, x), "post")
    return x


VARIANTS = {
    **{
        f"without {part}": (lambda net, part=part: net.without(part), fields)
        for part, fields in {
            "skip": {"skip": 0.0, "attention_skip": None},
            "attention_skip": {"attention_skip": 0.0},
            "mlp_skip": {"mlp_skip": 0.0, "attention_skip": 1.0},
            "mlp": {"mlp_ratio": 0.0},
            "mlp_weights": {"mlp_as": "activation"},
            "norm": {"norm": "none"},
        }.items()
    },
    **{
        f"{norm} norm, {place}": (
            lambda net, norm=norm, place=place: net.with_norm(norm, place=place),
            {"norm": norm, "norm_place": place},
        )
        for norm, place in zip(
            ("layer", "rms", "sphere", "rms", "layer"),
            ("post", "both", "pre", "output", "pre"),
            strict=True,
        )
    },
    "causal": (lambda net: net.with_mask("causal"), {"mask": Causal(), "layer_masks": None}),
    "a head less": (lambda net: net.without_heads((1, 0)), {"removed": [(1, 0)]}),
    "identity MLP": (lambda net: net.with_identity_mlp(), {"mlp_as": "identity"}),
}


def test_every_ablation_is_tried():
    assert {f"without {part}" for part in ABLATIONS} <= set(VARIANTS)


@torch.no_grad()
@kinds
def test_ablations_leave_what_one_would_write_down(kind, lively):
    net, x = KINDS[kind](lively), x_of()
    before = net(x)
    for name, (vary, fields) in VARIANTS.items():
        variant, refusal = attempt(lambda vary=vary: vary(net))
        if variant is None:  # attention and MLP have one skip there
            assert net.spec.parallel, (name, refusal)
            assert "parallel block" in refusal
            continue
        got, refusal = attempt(lambda variant=variant: variant(x))
        if got is None:
            assert (kind, name) == ("linformer scores", "causal")
            assert "Linformer" in refusal
            continue
        torch.testing.assert_close(got, by_hand(net, x, **fields), rtol=0, atol=1e-10, msg=name)
        error = path_lengths(variant, x).reconstruction_error
        assert error < 1e-10, name
        if name == "without skip" and not why_not_deep(kind) and not net.spec.centered:
            columns = deep_trace(variant, x).columns
            expected = residual(got).log10().tolist()
            last = [value_of(columns, "log10_residual", 2, sample) for sample in range(2)]
            assert last == pytest.approx(expected, abs=1e-6), name
    assert torch.equal(net(x), before)  # nothing changed in place
    assert torch.equal(net.repeat(2)(x), net(before))
