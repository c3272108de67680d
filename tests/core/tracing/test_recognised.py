"""A model that is recognised is the model that was read: whatever changed is read again."""

import gc
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

from rankscope.core.tracing import _memory, trace
from rankscope.streams import stream

X = torch.randn(2, 5, 8, generator=stream(0, "test"))


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
        self.loose, self.array, self.number = torch.ones(8), 1.0, 2
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
        y = y * self.factors[0] * self.deque[0] * self.user["f"] * torch.as_tensor(self.array)
        return x + y * self.frozen.factors[0] * self.frozen.apart + self.shift


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(3)))


def put(name, value):
    return lambda block: setattr(block, name, value)


CHANGES = {
    "data": lambda block: block.linear.weight.data.mul_(2),
    "one entry": lambda block: block.linear.weight.data[3].__setitem__(4, 9.0),
    "through NumPy": lambda block: np.multiply(
        view := block.linear.weight.detach().numpy(), 2, out=view
    ),
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


def doubled(_block, x):
    return 2 * x


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_is_read_again(change):
    net = model()
    before = trace(net, X)
    assert trace(net, X) == before
    assert net in _memory._memories
    with torch.no_grad():
        CHANGES[change](net[1])
    seen = trace(net, X)
    _memory._memories.clear()
    assert seen == trace(net, X)
    assert seen.provenance != before.provenance


def test_arrays_are_read_each_time():
    net = model()
    net[1].array = np.ones(8, dtype=np.float32)
    before = trace(net, X)
    net[1].array *= 2
    assert trace(net, X).provenance != before.provenance


def test_what_is_written_in_a_pass_past_the_count_is_named_as_it_was_before():
    class Counting(Block):
        def forward(self, x):
            self.loose.data += 1
            self.linear.weight.data += 1
            return super().forward(x)

    net = nn.Sequential(*(Counting() for _ in range(2)))
    traces = [trace(net, X) for _ in range(3)]
    assert len({each.provenance.weights for each in traces}) == 3


def pointing_back(net):
    net[0].__dict__["parent"] = net


def bound(net):
    net.forward = types.MethodType(nn.Sequential.forward, net)


def listed(net):
    net[0].parents = [net]


@pytest.mark.parametrize("point", [pointing_back, bound, listed])
def test_models_that_their_parts_point_at_are_freed(point):
    net = model()
    point(net)
    trace(net, X)
    assert net in _memory._memories
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_equal_models_are_not_one():
    class Same(nn.Sequential):
        def __eq__(self, other):
            return isinstance(other, Same)

        def __hash__(self):
            return 1

    one, other = (Same(Block(), Block()) for _ in range(2))
    assert trace(one, X).provenance.weights != trace(other, X).provenance.weights
