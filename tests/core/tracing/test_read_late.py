"""Provenance is that of the run, whatever changes before it is read, or while the model runs."""

import copy
import gc
import pickle
import types
import weakref
from collections import UserDict, deque
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import BertConfig, BertModel

from rankscope.core.network import Network, Spec
from rankscope.core.tracing import Trace, trace, trace_in_batches
from rankscope.errors import InputError
from rankscope.streams import stream

from .architectures import TEXT, build

X = torch.randn(2, 5, 8, generator=stream(0, "test"))
IDS = {"input_ids": torch.arange(12).reshape(2, 6)}


class Scaling:
    """A function with a setting of its own, equal to everything, as a mock is."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor

    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


class Incomparable:
    """Raises what nobody expects when it is compared, and has no attributes to look at."""

    __slots__ = ()

    def __eq__(self, other):
        raise KeyError(other)

    def to_dict(self):
        return {}

    __hash__ = object.__hash__


class Unwilling:
    """Says of nothing that it is not there."""

    def __getattr__(self, name):
        raise KeyError(name)


@dataclass
class Open:
    factor: float = 1.0

    def scale(self, x):
        return x * self.factor


@dataclass(frozen=True)
class Frozen:
    factors: list
    apart: float = field(default=1.0, compare=False)


def scaling_by(factors):
    return lambda x: x * factors[0]


def scaled(x, factors):
    return x * factors[0]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.gate = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("shift", torch.zeros(8), persistent=False)
        self.loose, self.number = torch.ones(8), 2
        self.array = np.ones((8, 2), dtype=np.float32)[:, 0]
        self.factors, self.deque, self.user = [1.0], deque([1.0]), UserDict(f=1.0)
        self.frozen = Frozen([1.0])
        self.act, self.leaky = Scaling(1.0), partial(nn.functional.leaky_relu, negative_slope=0.1)
        self.method, self.closed = Open().scale, scaling_by([1.0])
        self.default = types.FunctionType(scaled.__code__, {}, "default", ([1.0],))
        self.strange, self.unwilling = Incomparable(), Unwilling()

    def forward(self, x):
        y = self.leaky(self.other(self.linear(x))) * self.gate * self.loose * self.number
        for function in (self.act, self.method, self.closed, self.default):
            y = function(y)
        y = y * self.factors[0] * self.deque[0] * self.user["f"] * torch.tensor(self.array)
        return x + y * self.frozen.factors[0] * self.frozen.apart + self.shift


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(3)))


def bert():
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=32,
        vocab_size=50,
    )  # fmt: skip
    return BertModel(config).eval()


def put(name, value):
    return lambda block: setattr(block, name, value)


def doubled(_block, x):
    return 2 * x


def fused_step(block):
    block.linear.weight.grad = torch.ones_like(block.linear.weight)
    torch.optim.Adam([block.linear.weight], lr=1e-6, fused=True).step()


CHANGES = {
    "data": lambda block: block.linear.weight.data.mul_(2),
    "one entry": lambda block: block.linear.weight.data[3].__setitem__(4, 9.0),
    "through NumPy": lambda block: np.multiply(
        view := block.linear.weight.detach().numpy(), 2, out=view
    ),
    "a fused optimiser": fused_step,
    "transposed where it lies": lambda block: setattr(
        block.linear.weight, "data", block.linear.weight.data.T
    ),
    "in place": lambda block: block.linear.weight.mul_(2),
    "another precision": put("gate", nn.Parameter(torch.tensor(1.0, dtype=torch.bfloat16))),
    "another kind of number": put("number", 2.0),
    "another number": put("number", 3),
    "a callable's setting": lambda block: setattr(block.act, "factor", 3.0),
    "a callable that says it is equal": put("act", Scaling(3.0)),
    "a partial's keyword": lambda block: block.leaky.keywords.update(negative_slope=0.9),
    "an array": lambda block: block.array.__imul__(2),
    "a list": lambda block: block.factors.append(block.factors.pop() * 2),
    "a deque": lambda block: block.deque.append(block.deque.pop() * 2),
    "a mapping": lambda block: block.user.update(f=2.0),
    "a list in a frozen dataclass": lambda block: block.frozen.factors.insert(0, 2.0),
    "a field that does not count as different": put("frozen", Frozen([1.0], 2.0)),
    "what a method is bound to": lambda block: setattr(block.method.__self__, "factor", 2.0),
    "what a function closes over": lambda block: block.closed.__closure__[0].cell_contents.insert(
        0, 2.0
    ),
    "a default": lambda block: block.default.__defaults__[0].insert(0, 2.0),
    "a plain tensor": lambda block: block.loose.mul_(2),
    "a plain tensor's data": lambda block: block.loose.data.mul_(2),
    "a buffer": lambda block: block.shift.add_(1),
    "a new buffer": put("shift", torch.ones(8)),
    "a new module": put("linear", nn.Linear(8, 8)),
    "tied weights": lambda block: setattr(block.other, "weight", block.linear.weight),
    "loaded": lambda block: block.load_state_dict(
        {name: 2 * each for name, each in block.state_dict().items()}, assign=True
    ),
    "another class": lambda block: setattr(block.linear, "__class__", nn.Identity),
    "another forward": lambda block: setattr(block, "forward", types.MethodType(doubled, block)),
    "a parametrization": lambda block: parametrize.register_parametrization(
        block.linear, "weight", nn.Tanh()
    ),
    "a hook": lambda block: block.register_forward_hook(lambda _m, _a, output: 2 * output),
    "a hook before": lambda block: block.register_forward_pre_hook(lambda _m, a: (2 * a[0],)),
    "something that cannot be compared": put("strange", Scaling(1.0)),
}
BERT_CHANGES = {
    "another parameter": lambda model: setattr(
        model.encoder.layer[0].output.dense, "weight", nn.Parameter(torch.zeros(16, 32))
    ),
    "another module": lambda model: model.encoder.layer.__setitem__(0, model.encoder.layer[1]),
    "a buffer": lambda model: model.embeddings.position_ids.add_(1),
    "an attribute": lambda model: setattr(model.encoder.layer[0].attention.self, "scaling", 0.1),
    "the configuration": lambda model: setattr(model.config, "layer_norm_eps", 0.5),
    "its dtype": lambda model: model.double(),
}
EVERY_CHANGE = {
    **{name: (model, X, change, True) for name, change in CHANGES.items()},
    **{f"bert: {name}": (bert, IDS, change, False) for name, change in BERT_CHANGES.items()},
}


@pytest.mark.parametrize("name", EVERY_CHANGE)
def test_whatever_changes_counts_from_then_on(name):
    make, inputs, change, is_of_a_block = EVERY_CHANGE[name]
    net = make()
    before, late = (trace(net, inputs) for _ in range(2))
    known = before.provenance
    with torch.no_grad():
        change(net[1] if is_of_a_block else net)
    after = trace(net, inputs)
    assert late.provenance == known != after.provenance
    assert after == trace(net, inputs)


def test_inputs_and_masks_are_those_of_the_run():
    net, x, mask = model(), X.clone(), torch.tensor([[True] * 5, [True] * 4 + [False]])
    late, known = trace(net, x, token_mask=mask), trace(net, x, token_mask=mask).provenance
    x.add_(1)
    mask.fill_(True)
    assert late.provenance == known != trace(net, x, token_mask=mask).provenance


def test_a_model_that_works_in_its_input():
    class Greedy(nn.Sequential):
        def forward(self, input):
            return super().forward(input.mul_(2))

    net, x = Greedy(Block(), Block()), X.clone()
    assert trace(net, x).provenance.inputs == trace(nn.Sequential(*net), X).provenance.inputs
    assert not torch.equal(x, X)


def test_a_network_keeps_its_seed():
    net = Network.random(Spec(2, 2, 8), seed=3)
    late = trace(net, X)
    with torch.no_grad():
        net.blocks[0].mlp.up.weight.mul_(2)
    assert (late.provenance.seed, late.provenance.network) == (3, net.spec.describe())
    assert late.provenance.spec == net.spec.digest(seed=3)
    assert trace(net, X).provenance.seed is None


# Batches and copies.


def test_a_model_runs_once_for_each_trace():
    net, runs = model(), []
    net.register_forward_hook(lambda *_: runs.append(1))
    Trace.joined([trace(net, X) for _ in range(3)][:1])
    assert len(runs) == 3


def test_batches_are_joined_as_their_traces_are():
    net = Network.random(Spec(2, 2, 8), seed=0)
    parts = trace_in_batches(net, X, batch_size=1)
    assert parts.provenance == Trace.joined([trace(net, X[:1]), trace(net, X[1:])]).provenance
    assert parts.provenance.weights == trace(net, X).provenance.weights


def test_batches_of_a_model_that_changes_are_refused():
    net = Network.random(Spec(2, 2, 8), seed=0)

    def train(_share):
        with torch.no_grad():
            net.blocks[0].mlp.up.weight.mul_(2)

    with pytest.raises(InputError, match="cannot be joined"):
        trace_in_batches(net, X, batch_size=1, on_step=train)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_trace_that_has_not_been_read_can_be_copied(way):
    net = Network.random(Spec(2, 2, 8), seed=3)
    late = trace(net, X)
    again = way(late)
    net.double()
    assert again == late
    assert again.provenance.seed == 3
    with pytest.raises(AttributeError, match="'colour'"):
        print(again.colour)


# How long a model lives.


def pointing_back(net):
    net[0].__dict__["parent"] = net


def bound(net):
    net.forward = types.MethodType(nn.Sequential.forward, net)


def listed(net):
    net[0].parents = [net]


@pytest.mark.parametrize("point", [id, pointing_back, bound, listed])
def test_a_trace_keeps_no_model_alive(point):
    net = model()
    point(net)
    known, late = trace(net, X).provenance, trace(net, X)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    assert late.provenance == known


def test_equal_models_are_not_one():
    class Same(nn.Sequential):
        def __eq__(self, other):
            return isinstance(other, Same)

        def __hash__(self):
            return 1

    one, other = (Same(Block(), Block()).train() for _ in range(2))
    assert trace(one, X).provenance.weights != trace(other, X).provenance.weights
    assert one.training
    assert other.training


# Models that change while they run, or refuse to be looked at.


def test_a_model_that_changes_while_it_runs_is_what_it_was_before():
    class Restless(nn.Sequential):
        runs = 0

        def forward(self, x):
            self.runs += 1
            return super().forward(x) * self.runs

    def restless():
        torch.manual_seed(0)
        return Restless(Block(), Block())

    net, again = restless(), restless()
    traces = [trace(net, X) for _ in range(3)]
    assert net.runs == 3
    assert len({each.provenance.structure for each in traces}) == 3
    assert [trace(again, X) for _ in range(3)] == traces


@pytest.mark.parametrize("name", TEXT)
def test_models_of_transformers_stay_what_they_are(name):
    net = build(TEXT[name])
    one, other = (trace(net, {"input_ids": torch.arange(8).reshape(2, 4)}) for _ in range(2))
    assert one == other
    assert len(one.provenance.weights) == len(one.provenance.structure) == 12
    assert "not covered" not in one.provenance.settings


class RefusingError(RuntimeError):
    """As Gemma 4's AmbiguousGlobalPerLayerAttributeError."""


@dataclass
class Refusing:
    """A configuration that answers no question."""

    width: int = 8
    heads: int = 2

    def __getattribute__(self, name):
        if name in ("heads", "model_type", "_attn_implementation", "to_dict"):
            raise RefusingError(name)
        return super().__getattribute__(name)

    def to_dict(self):
        return {}


def test_a_configuration_that_refuses_attribute_access():
    net = model()
    expected = trace(net, X)
    for module in net.modules():
        module.config = Refusing()
    traced = trace(net, X)
    assert traced.columns == expected.columns
    assert traced == trace(net, X)
    net[0].config.width = 9
    assert trace(net, X).provenance != traced.provenance


def test_gemma_4_with_heads_of_several_widths():
    hf = pytest.importorskip("transformers")
    if not hasattr(hf, "Gemma4TextConfig"):
        pytest.skip("Transformers without Gemma 4")
    config = hf.Gemma4TextConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, head_dim=8,
        num_key_value_heads=1, intermediate_size=16, max_position_embeddings=32, pad_token_id=0,
        global_head_dim=16, layer_types=["sliding_attention", "full_attention"], sliding_window=4,
        vocab_size_per_layer_input=40, hidden_size_per_layer_input=4,
    )  # fmt: skip
    torch.manual_seed(0)
    net = hf.Gemma4TextModel(config).eval()
    metrics = ["residual", "attention_entropy"]
    one, other = (trace(net, IDS, metrics=metrics) for _ in range(2))
    assert sorted(set(one.columns["layer"])) == [0, 1, 2]
    assert one == other
    assert len(one.provenance.structure) == 12


@pytest.mark.filterwarnings("ignore")  # TorchScript is going away
def test_a_scripted_part():
    net = model()
    expected = trace(net, X).columns
    for block in net:
        block.other = torch.jit.script(block.other)
    traced = trace(net, X)
    assert traced.columns == expected
    assert traced == trace(net, X)
