"""Which tensor of a block's output is its hidden states."""

import pytest
import torch
from torch import nn

from rankscope.core.metrics import dispersion
from rankscope.core.tracing import trace
from rankscope.errors import InputError, KindError


class Giving(nn.Module):
    """A block that gives its hidden states among other things."""

    def __init__(self, wrap):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.linear(x))


class Model(nn.Module):
    def __init__(self, wrap, unwrap, *, layers=3, between=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Giving(wrap) for _ in range(layers))
        self.unwrap, self.between = unwrap, between

    def forward(self, x):
        for layer in self.layers:
            x = self.unwrap(layer(x))
            x = x if self.between is None else self.between(x)
        return x


def square(h):
    """Something of three axes beside the hidden states: attention without its heads."""
    return torch.softmax(h @ h.mT, -1)


def by_hand(model, x):
    found = dispersion(x).tolist()
    with torch.no_grad():
        for layer in model.layers:
            x = model.unwrap(layer(x))
            found += dispersion(x).tolist()
            x = x if model.between is None else model.between(x)
    return found


WAYS = {
    "attention first": (lambda h: (square(h), h), lambda out: out[1]),
    "attention of the same shape first": (lambda h: (h * 0 + 1, h), lambda out: out[1]),
    "aux first": (lambda h: {"aux": square(h), "out": h}, lambda out: out["out"]),
    "aux of the same shape": (lambda h: {"aux": h * 2, "out": h}, lambda out: out["out"]),
    "usual name last": (lambda h: {"a": h * 2, "hidden_states": h}, lambda out: out["a"]),
    "deep inside": (lambda h: (None, {"p": (square(h), h)}), lambda out: out[1]["p"][1]),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_next_block_shows_what_the_hidden_states_are(way, tokens):
    model, x = Model(*WAYS[way]), tokens(2, 5, 8).float()
    traced = trace(model, x, metrics=["dispersion"])
    assert traced.columns["value"] == pytest.approx(by_hand(model, x), rel=1e-6)
    assert "what the next block takes" in traced.provenance.settings["tensor"]


@pytest.mark.parametrize("way", ["attention first", "aux first", "deep inside"])
def test_shape_decides_where_no_next_block_does(way, tokens):
    x = tokens(2, 5, 8).float()
    for model in (Model(*WAYS[way], layers=1), Model(*WAYS[way], between=torch.tanh)):
        traced = trace(model, x, metrics=["dispersion"])
        assert traced.columns["value"] == pytest.approx(by_hand(model, x), rel=1e-6)
        assert "shaped like the block's input" in traced.provenance.settings["tensor"]


def test_first_of_a_tuple_where_nothing_else_decides(tokens):
    model, x = Model(lambda h: (h, h * 2), lambda out: out[0], layers=1), tokens(2, 5, 8).float()
    traced = trace(model, x, metrics=["dispersion"])
    assert traced.columns["value"] == pytest.approx(by_hand(model, x), rel=1e-6)
    assert traced.provenance.settings["tensor"] == "[0]: where hidden states usually are"


@pytest.mark.parametrize("between", [None, torch.tanh])
def test_two_readings_are_refused_and_the_option_settles_it(between, tokens):
    wrap, unwrap = WAYS["aux of the same shape"]
    model, x = Model(wrap, unwrap, layers=1, between=between), tokens(2, 5, 8).float()
    with pytest.raises(InputError, match=r"\['aux'\] \(2, 5, 8\), \['out'\].*output='out'"):
        trace(model, x)
    expected = pytest.approx(by_hand(model, x), rel=1e-6)
    for output in ("out", lambda out: out["out"]):
        traced = trace(model, x, metrics=["dispersion"], output=output)
        assert traced.columns["value"] == expected
        assert "as specified" in traced.provenance.settings["tensor"]
    other = trace(model, x, metrics=["dispersion"], output="aux")
    assert other.columns["value"] != expected


@pytest.mark.parametrize(
    ("output", "error"),
    [(5, InputError), ("x", InputError), (lambda _: None, InputError), (1.5, KindError)],
    ids=["number", "key", "function", "kind"],
)
def test_wrong_options(output, error, tokens):
    model = Model(*WAYS["attention first"])
    with pytest.raises(error, match="output"):
        trace(model, tokens(2, 5, 8).float(), output=output)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Passing(nn.Module):
    """A block that takes all that the block before gives."""

    def __init__(self, wrap, pick):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.wrap, self.pick = wrap, pick

    def forward(self, given):
        return self.wrap(
            self.linear(given if isinstance(given, torch.Tensor) else self.pick(given))
        )


def passing(wrap, pick):
    torch.manual_seed(0)
    return nn.Sequential(*(Passing(wrap, pick) for _ in range(3)))


WHOLE = {
    "attention first": (lambda h: (square(h), h), lambda out: out[1]),
    "attention last": (lambda h: (h, square(h)), lambda out: out[0]),
    "by name": (
        lambda h: {"aux": h * 2, "hidden_states": h},
        lambda out: out["hidden_states"],
    ),
}


@pytest.mark.parametrize("way", WHOLE)
def test_a_next_block_that_takes_everything_proves_nothing(way, tokens):
    """The shape of layer 0 does, or the name."""
    wrap, pick = WHOLE[way]
    model, x = passing(wrap, pick), tokens(2, 5, 8).float()
    traced = trace(model, x, metrics=["dispersion"])
    expected = dispersion(x).tolist()
    with torch.no_grad():
        for block in model:
            x = pick(block(x))
            expected += dispersion(x).tolist()
    assert traced.columns["value"] == pytest.approx(expected, rel=1e-6)
    assert "the one that the next block takes" in traced.provenance.settings["tensor"]
    assert "shape" not in traced.provenance.settings


def test_everything_of_one_shape_is_refused(tokens):
    model, x = passing(lambda h: (h * 2, h), lambda out: out[1]), tokens(2, 5, 8).float()
    with pytest.raises(InputError, match=r"\[0\] \(2, 5, 8\), \[1\] \(2, 5, 8\); .*output=1"):
        trace(model, x)
    assert trace(model, x, output=1).provenance.settings["tensor"] == "output=1, as specified"


def test_a_next_block_that_takes_none_of_them_leaves_it_open(tokens):
    """``[0]`` is where hidden states usually are, and here they are not."""
    model = Model(lambda h: (h * 2, h), lambda out: out[1], between=torch.tanh)
    x = tokens(2, 5, 8).float()
    with pytest.raises(InputError, match=r"\[0\] \(2, 5, 8\), \[1\] \(2, 5, 8\); .*output=1"):
        trace(model, x)
    traced = trace(model, x, output=1, metrics=["dispersion"])
    assert traced.columns["value"] == pytest.approx(by_hand(model, x), rel=1e-6)


def test_a_shape_that_changes_is_noted(tokens):
    narrow = nn.Sequential(*(nn.Sequential(nn.Linear(8 - k, 7 - k)) for k in range(3)))
    settings = trace(narrow, tokens(2, 5, 8).float(), metrics=["dispersion"]).provenance.settings
    assert settings["shape"] == (
        "5 tokens of 8 features from layer 0 on, 5 tokens of 7 features from layer 1 on, "
        "5 tokens of 6 features from layer 2 on, 5 tokens of 5 features from layer 3 on"
    )
