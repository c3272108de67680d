"""The network as an object: what it refuses, how it is copied and saved, and that it collapses."""

import copy
import io
import itertools
import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from rankscope.core.masks import Window
from rankscope.core.network import Network, Spec, Visibility
from rankscope.errors import InputError, KindError, ShapeError, SpecError


def small(**options):
    return Spec(2, 2, 8, init="lecun", mlp_ratio=2, **options)


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
def test_padding_may_hold_anything(junk, lively, tokens):
    net, x = lively(small()), tokens(2, 4, 8)
    token_mask = torch.tensor([[True] * 4, [True, True, False, False]])
    spoiled = torch.where(token_mask[..., None], x, junk)
    assert torch.equal(net(spoiled, token_mask), net(x, token_mask))


def test_states_are_the_blocks_outputs_in_turn(lively, tokens):
    net, x = lively(small(mask="causal")), tokens(2, 4, 8)
    token_mask = torch.tensor([[True] * 4, [False, True, True, True]])
    x[1, 0] = 0.0  # what the network makes of padding before anything else
    seen = Visibility.of(net.spec.mask, 4, token_mask, x.device)
    first = net.blocks[0](x, seen)
    states = list(net.states(x, token_mask))
    assert len(states) == 2
    assert torch.equal(states[0], first)
    assert torch.equal(states[1], net.blocks[1](first, seen))
    assert torch.equal(states[1], net(x, token_mask))
    with pytest.raises(ShapeError, match="batch axis"):
        next(net.states(x[0]))


# Copies and files.


def test_deepcopy_is_independent(lively, tokens):
    """The copy's steps must use the copy's weights, though they are no submodules."""
    net, x = lively(small()), tokens(1, 4, 8)
    before = net(x)
    other = copy.deepcopy(net)
    assert torch.equal(other(x), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(net(x), before)
    assert torch.equal(other(x), x)  # only the skips are left


@pytest.mark.parametrize("shared", [False, True])
def test_state_dict_round_trip(shared, lively, tokens):
    net, x = lively(small(shared_layers=shared)), tokens(1, 4, 8)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = Network.random(net.spec, seed=99, dtype=torch.float64)
    assert not torch.allclose(other(x), net(x))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), net(x))


def test_pickle_round_trip(lively, tokens):
    net, x = lively(small(mask=Window(before=1, after=0))), tokens(1, 4, 8)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    assert other.spec == net.spec
    assert torch.equal(other(x), net(x))
    with torch.no_grad():
        other.blocks[0].mlp.down.weight.zero_()
    assert not torch.allclose(other(x), net(x))


def test_moving_in_place_moves_every_part(lively, tokens):
    net = lively(small()).to(torch.bfloat16)
    assert net(tokens(1, 4, 8).bfloat16()).dtype == torch.bfloat16


# What is refused.


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (torch.zeros(4, 8), ShapeError, r"got \(4, 8\); a single sequence needs a batch axis"),
        (torch.zeros(1, 4, 7), ShapeError, r"feature=8\), got \(1, 4, 7\)"),
        (torch.zeros(1, 1, 4, 8), ShapeError, r"\(1, 1, 4, 8\)"),
        ([[0.0]], KindError, "x is a list"),
        (torch.zeros(1, 4, 8).double(), KindError, "torch.float64, the network torch.float32"),
        (torch.zeros(1, 4, 8).long(), KindError, "torch.int64"),
    ],
    ids=["no-batch", "width", "axes", "list", "double", "ids"],
)
def test_wrong_input(x, error, words):
    with pytest.raises(error, match=words):
        Network.random(small())(x)


@pytest.mark.parametrize("mask", ["full", "causal", torch.eye(4).bool()], ids=["f", "c", "e"])
@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8)], ids=["no-sample", "no-token"])
def test_empty_input(shape, mask):
    """Either an empty answer or a sentence, not an error from inside PyTorch."""
    net = Network.random(small(mask=mask))
    try:
        out = net(torch.zeros(shape))
    except ShapeError:
        return
    assert out.shape == shape


def test_blocks_must_be_as_many_as_layers(lively):
    net = lively(small())
    with pytest.raises(SpecError, match="2 layers, got 1 blocks"):
        Network(net.spec, [net.blocks[0]])


# Networks from the theory's own matrices.


def naive_san(x, query_key, values, *, head_width, skip, allowed, sphere):
    """``Σ_h softmax(X W_QK Xᵀ/√d) X W_h`` layer by layer, for one sample."""
    for layer_qk, layer_v in zip(query_key, values, strict=True):
        total = skip * x
        for w_qk, w_h in zip(layer_qk, layer_v, strict=True):
            logits = x @ w_qk @ x.T / math.sqrt(head_width)
            weights = np.where(allowed, np.exp(logits), 0.0)
            total = total + weights / weights.sum(1, keepdims=True) @ x @ w_h
        x = total / np.linalg.norm(total, axis=1, keepdims=True) if sphere else total
    return x


@pytest.mark.parametrize("norm", ["none", "sphere"])
@pytest.mark.parametrize("skip", [False, True, 0.5])
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("head_width", [2, 5])
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (3, 2)])
def test_from_matrices_written_out(layers, heads, head_width, mask, skip, norm, tokens):
    query_key = tokens(layers, heads, 5, 5, seed=1)  # not symmetric, so transposes show
    values = 0.5 * tokens(layers, heads, 5, 5, seed=2)
    x = 0.5 * tokens(2, 4, 5)
    net = Network.from_matrices(
        query_key, values, head_width=head_width, mask=mask, skip=skip, norm=norm
    )
    allowed = np.tril(np.ones((4, 4))) if mask == "causal" else np.ones((4, 4))
    expected = [
        naive_san(
            sample.numpy(), query_key.numpy(), values.numpy(), head_width=head_width,
            skip=float(skip), allowed=allowed > 0, sphere=norm == "sphere",
        )
        for sample in x
    ]  # fmt: skip
    np.testing.assert_allclose(net(x).detach().numpy(), expected, rtol=1e-10, atol=1e-10)


def test_from_matrices_copies_them(tokens):
    matrices = tokens(1, 1, 3, 3)
    net, x = Network.from_matrices(matrices, matrices, head_width=3), tokens(1, 4, 3)
    before = net(x)
    matrices.zero_()
    assert torch.equal(net(x), before)
    assert {p.dtype for p in net.parameters()} == {torch.float64}


SQUARE = torch.zeros(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("query_key", "values", "error", "words"),
    [
        (SQUARE[0], SQUARE, ShapeError, "query_key has shape"),
        (SQUARE, SQUARE[None], ShapeError, r"values has shape .* w\[None, None\]"),
        (SQUARE[..., :3], SQUARE, ShapeError, "query_key has shape"),
        (SQUARE[:1], SQUARE, ShapeError, "must agree"),
        (SQUARE.double(), SQUARE, ShapeError, "must agree in shape and dtype"),
        (SQUARE.long(), SQUARE, KindError, "query_key has dtype"),
        (SQUARE, SQUARE.tolist(), KindError, "values is a list"),
        (SQUARE, SQUARE * math.nan, ValueError, "values is nan"),
        (SQUARE[:0], SQUARE[:0], ShapeError, "no empty axis"),
    ],
    ids=["3d", "5d", "oblong", "layers", "dtypes", "integers", "list", "nan", "empty"],
)
def test_from_matrices_refuses(query_key, values, error, words):
    with pytest.raises(error, match=words):
        Network.from_matrices(query_key, values, head_width=4)


@pytest.mark.parametrize("head_width", [0, -1, 2.5])
def test_from_matrices_wrong_head_width(head_width):
    with pytest.raises((SpecError, KindError), match="head_width"):
        Network.from_matrices(SQUARE, SQUARE, head_width=head_width)


# The phenomenon itself (theory sections 4 and 5).


def relative_dispersion(x):
    return float((x - x.mean(-2, keepdim=True)).norm() / x.norm())


def by_layer(net, x):
    seen = Visibility.of(net.spec.mask, x.shape[1], None, x.device)
    values = []
    with torch.no_grad():
        for block in net.blocks:
            x = block(x, seen)
            values.append(relative_dispersion(x))
    return values


SAN = {"norm": "none", "mlp_ratio": 0.0, "bias": False, "init": "lecun"}


def test_pure_attention_collapses_doubly_exponentially(tokens):
    net = Network.random(Spec(6, 2, 16, **SAN, skip=False), dtype=torch.float64)
    values = by_layer(net, tokens(1, 8, 16))
    assert values[-1] < 1e-12
    # Each layer about triples the exponent until float64 ends; asked for here: more than doubles.
    logs = [math.log10(value) for value in values if value > 1e-13]
    assert len(logs) >= 2
    assert all(after < 2 * before for before, after in itertools.pairwise(logs))


def test_the_skip_stops_the_collapse(tokens):
    net = Network.random(Spec(6, 2, 16, **SAN, skip=True), dtype=torch.float64)
    assert min(by_layer(net, tokens(1, 8, 16))) > 0.1


# Anything goes.


@st.composite
def specs(draw):
    heads = draw(st.sampled_from([1, 2, 4]))
    parallel = draw(st.booleans())
    skip = st.one_of(st.booleans(), st.floats(0, 2))
    options = {
        "head_width": draw(st.integers(1, 4)),
        "kv_heads": draw(st.sampled_from([k for k in (1, 2, 4) if heads % k == 0])),
        "mlp_ratio": draw(st.sampled_from([0, 0.5, 1, 2.25])),
        "activation": draw(st.sampled_from(["gelu", "gelu_tanh", "relu", "silu"])),
        "gated": draw(st.booleans()),
        "norm": draw(st.sampled_from(["layer", "rms", "sphere", "none"])),
        "norm_place": draw(st.sampled_from(["pre", "post", "both"])),
        "parallel": parallel,
        "skip": draw(skip),
        "mask": draw(st.sampled_from(["full", "causal", Window(before=1, after=2)])),
        "mlp_as": draw(st.sampled_from(["mlp", "activation", "mlp" if parallel else "identity"])),
        "bias": draw(st.booleans()),
        "shared_layers": draw(st.booleans()),
        "score_scale": draw(st.one_of(st.none(), st.floats(0, 10))),
        "init": draw(st.sampled_from(["bert", "xavier", "lecun", "orthogonal", 0.5])),
    }
    if not parallel:
        options["attention_skip"] = draw(st.one_of(st.none(), skip))
        options["mlp_skip"] = draw(st.one_of(st.none(), skip))
    return Spec(draw(st.integers(1, 3)), heads, draw(st.integers(2, 6)), **options)


@hypothesis.given(
    spec=specs(),
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
def test_every_valid_spec_runs(spec, seed, lengths):
    net = Network.random(spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), max(lengths), spec.width, generator=generator)
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    out = net(x, token_mask)
    assert out.shape == x.shape
    assert out.isfinite().all()
    for variant in (net.without("skip", "mlp"), net.with_norm("rms", place="post"), net.repeat(2)):
        assert variant(x, token_mask).isfinite().all()
    assert torch.equal(Network.random(spec, seed=seed)(x, token_mask), out)


@pytest.mark.parametrize("part", ["attention", "mlp", "norm"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_a_part_put_in_anothers_place_is_what_runs(place, part):
    spec = Spec(2, 2, 8, norm_place=place)
    net, other = Network.random(spec, seed=0), Network.random(spec, seed=1)
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    before = net(x)
    if part == "norm":
        net.blocks[0].norms["attention"] = torch.nn.Tanh()
    else:
        setattr(net.blocks[0], part, getattr(other.blocks[0], part))
    assert not torch.equal(net(x), before)
    branch = net.blocks[0].steps[part == "mlp"].branches[0]
    if part != "norm":
        assert branch.part is getattr(other.blocks[0], part)
    elif place == "pre":
        assert isinstance(branch.before, torch.nn.Tanh)


def test_more_tokens_than_fit_are_refused_before_anything_is_made():
    net = Network.random(Spec(1, 1, 4))
    for tokens in (2**31, 2**62, 0):
        with pytest.raises(SpecError, match=r"tokens=.*out of range"):
            next(net.sighted_blocks(tokens))
    with pytest.raises(InputError, match="pairs of a query and a key"):
        next(net.with_mask("causal").sighted_blocks(2**20))
