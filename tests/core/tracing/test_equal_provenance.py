"""Pairs of traces with other numbers: the provenance differs, or names what it does not cover."""

import contextlib
import random
import re
import types
from collections import UserDict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rankscope.core.tracing import Provenance, Trace, trace
from rankscope.streams import stream

WIDTH = 96
X = torch.randn(2, 4, WIDTH, generator=stream(0, "test"))
Make = Callable[[int], contextlib.AbstractContextManager[Any]]


class Block(nn.Module):
    strength = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("shift", torch.zeros(WIDTH))

    def forward(self, x):
        return x + self.strength * self.down(torch.tanh(self.up(x))) + self.shift


class Net(nn.Module):
    """Multiplies its input by the number that is read from what it is given, or from ``kept``."""

    def __init__(self, read=None, **kept) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.ModuleList(Block() for _ in range(2))
        self.read = read
        vars(self).update(kept)

    def forward(self, x, *given, **named):
        factor = 1.0
        if self.read is not None:
            factor = self.read(vars(self).get("kept", given[0] if given else named))
        x = x * factor
        for layer in self.layers:
            x = layer(x)
        return x


def number(k):
    return 1.0 + k / 2


# Values that a model may be given, or keep: how one is made for k, and what a model reads in it.


class Colour(Enum):
    RED = 1.0
    BLUE = 1.5


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Settings:
    factor: float


class Plain:
    def __init__(self, factor):
        self.factor = factor

    def scale(self, x):
        return x * self.factor

    def __call__(self, x):
        return x * self.factor


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class Hidden:
    __slots__ = ("__factor",)

    def __init__(self, factor):
        self.__factor = factor

    def read(self):
        return self.__factor


class Sized(float):
    """A number with something beside it."""


class Listed(list):
    """A list with something beside it."""


class Placed(NamedTuple):
    factor: float


Pair = namedtuple("Pair", "first second")


def scaled(x, factor=1.0, *, by=1.0):
    return x * factor * by


def one_by(x, factor):
    return x * factor


def one(x):
    return 1.0 * x


def three_halves(x):
    return 1.5 * x


def nested_in(value, depth):
    for level in range(depth):
        value = [value] if level % 2 else {"inside": value}
    return value


def out_of(value, depth):
    for level in reversed(range(depth)):
        value = value[0] if level % 2 else value["inside"]
    return value


def beside(value, name, kept):
    setattr(value, name, kept)
    return value


def linear(k):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, number(k))
    return layer


def drawn(k):
    return torch.Generator().manual_seed(k)


def draw(generator):
    return torch.rand((), generator=generator.clone_state()).item()


def tensor(k):
    return torch.full((2,), number(k))


def structured(k):
    return np.array([(number(k), 1)], dtype=[("factor", "f8"), ("count", "i8")])


def looped(k):
    values = [number(k)]
    values.append(values)
    return values


def factor_of(value):
    return value.factor


def first(value):
    return value[0]


def call(value):
    return value(1.0)


def largest(value):
    return float(max(value))


def total(value):
    return float(value.to_dense().sum()) / 2


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], float]]] = {
    "float": (number, float),
    "int": (lambda k: 1 + k, float),
    "bool": (bool, lambda value: 1.0 + value),
    "str": (lambda k: str(number(k)), float),
    "bytes": (lambda k: str(number(k)).encode(), float),
    "bytearray": (lambda k: bytearray([1 + k]), first),
    "complex": (lambda k: complex(0, number(k)), lambda value: value.imag),
    "True against 1": (lambda k: (True, 1)[k], lambda value: 1.0 + isinstance(value, bool)),
    "1 against 1.0": (lambda k: (1, 1.0)[k], lambda value: 1.0 + isinstance(value, float)),
    "None against its name": (lambda k: (None, "None")[k], lambda value: 1.0 + (value is None)),
    "-0.0 against 0.0": (lambda k: (-0.0, 0.0)[k], lambda value: 1.5 + np.copysign(0.5, value)),
    "np.int64": (lambda k: np.int64(1 + k), float),
    "np.float32": (lambda k: np.float32(number(k)), float),
    "np.float64": (lambda k: np.float64(number(k)), float),
    "np.bool": (lambda k: np.bool_(k), lambda value: 1.0 + bool(value)),
    "array": (lambda k: np.full(2, number(k)), lambda value: float(value[1])),
    "array of text": (lambda k: np.array([str(number(k))]), lambda value: float(value[0])),
    "array of objects": (lambda k: np.array([Plain(number(k))]), lambda value: value[0].factor),
    "structured array": (structured, lambda value: float(value["factor"][0])),
    "array of half precision": (lambda k: np.full(2, number(k), "f2"), lambda v: float(v[0])),
    "np.dtype": (lambda k: np.dtype(("f4", "f8")[k]), lambda value: value.itemsize / 4),
    "tensor": (tensor, lambda value: value[0].item()),
    "sparse tensor": (lambda k: tensor(k).to_sparse(), total),
    "sparse places": (lambda k: torch.eye(2).roll(k, 0)[0].to_sparse(), lambda v: 1 + v[0].item()),
    "compressed rows": (lambda k: torch.diag(tensor(k)).to_sparse_csr(), total),
    "compressed columns": (lambda k: torch.diag(tensor(k)).to_sparse_csc(), total),
    "nested tensor": (
        lambda k: torch.nested.nested_tensor([tensor(k), tensor(k)]),
        lambda value: value.unbind()[0][0].item(),
    ),
    "dtype": (lambda k: (torch.float32, torch.float64)[k], lambda value: value.itemsize / 4),
    "device": (lambda k: torch.device(("cpu", "meta")[k]), lambda v: 1.0 + (v.type == "cpu")),
    "layout": (lambda k: (torch.strided, torch.sparse_coo)[k], lambda v: 1.0 + ("sp" in str(v))),
    "size": (lambda k: torch.Size([1 + k]), first),
    "generator of PyTorch": (drawn, draw),
    "generator of NumPy": (
        np.random.default_rng,
        lambda value: np.random.Generator(type(b := value.bit_generator)(b.seed_seq)).random(),
    ),
    "generator of Python": (random.Random, lambda value: 1 + value.getstate()[1][1] / 2**32),
    "dataclass": (lambda k: Settings(number(k)), factor_of),
    "object": (lambda k: Plain(number(k)), factor_of),
    "object with slots": (lambda k: Slotted(number(k)), factor_of),
    "namespace": (lambda k: types.SimpleNamespace(factor=number(k)), factor_of),
    "named tuple": (lambda k: Placed(number(k)), factor_of),
    "attribute of a number": (lambda k: beside(Sized(1), "factor", number(k)), factor_of),
    "number with attributes": (lambda k: beside(Sized(number(k)), "factor", 1), float),
    "attribute of a list": (lambda k: beside(Listed([1]), "factor", number(k)), factor_of),
    "list with attributes": (lambda k: beside(Listed([number(k)]), "factor", 1), first),
    "enum": (lambda k: (Colour.RED, Colour.BLUE)[k], lambda value: value.value),
    "enum of integers": (lambda k: (Level.LOW, Level.HIGH)[k], float),
    "decimal": (lambda k: Decimal(number(k)), float),
    "fraction": (lambda k: Fraction(2 + k, 2), float),
    "path": (lambda k: Path(f"{number(k)}"), lambda value: float(str(value))),
    "range": (lambda k: range(1 + k), len),
    "slice": (lambda k: slice(1 + k), lambda value: value.stop),
    "list": (lambda k: [1, [number(k)]], lambda value: value[1][0]),
    "tuple against list": (lambda k: ((1,), [1])[k], lambda v: 1.0 + isinstance(v, list)),
    "deque": (lambda k: deque([number(k)]), first),
    "mapping": (lambda k: UserDict(f=number(k)), lambda value: value["f"]),
    "set": (lambda k: {0.5, number(k)}, largest),
    "frozen set": (lambda k: frozenset({0.5, number(k)}), largest),
    "order of keys": (lambda k: dict([(1, 0), (2, 0)][:: 1 - 2 * k]), lambda v: next(iter(v))),
    "kind of keys": (lambda k: {(1, "1")[k]: 0}, lambda value: 1.0 + (1 in value)),
    "inside against dotted": (
        lambda k: ({"a": {"b": 1}}, {"a.b": 1})[k], lambda value: 1.0 + ("a" in value)
    ),
    "empty list against empty tuple": (lambda k: ([], ())[k], lambda v: 1.0 + (v == [])),
    "ten deep": (lambda k: nested_in(number(k), 10), lambda value: out_of(value, 10)),
    "fifty deep": (lambda k: nested_in(number(k), 50), lambda value: out_of(value, 50)),
    "10,001 entries": (lambda k: [0.5] * 10_000 + [number(k)], lambda value: value[-1]),
    "10,001 keys": (lambda k: dict.fromkeys(range(10_000), 1) | {-1: number(k)}, lambda v: v[-1]),
    "10,001 tensors": (
        lambda k: [torch.zeros(1)] * 10_000 + [tensor(k)], lambda value: value[-1][0].item()
    ),
    "holds itself": (looped, first),
    "function": (lambda k: (one, three_halves)[k], call),
    "closure": (lambda k: lambda x: number(k) * x, call),
    "default": (lambda k: types.FunctionType(one_by.__code__, {}, "f", (number(k),)), call),
    "partial": (lambda k: partial(scaled, by=number(k)), call),
    "method": (lambda k: Plain(number(k)).scale, call),
    "callable object": (lambda k: Plain(number(k)), call),
    "built-in function": (lambda k: (abs, float)[k], lambda value: 2.0 + value(-1.0)),
    "method of a built-in class": (
        lambda k: (str.upper, str.lower)[k], lambda value: 1.0 + value("a").islower()
    ),
    "private slot": (lambda k: Hidden(number(k)), lambda value: value.read()),
    "class": (lambda k: (int, str)[k], lambda value: 1.0 + (value is int)),
    "modules in a list": (lambda k: [linear(k)], lambda value: value[0].weight.item()),
    "modules in a mapping": (lambda k: {"a": linear(k)}, lambda value: value["a"].weight.item()),
    "iterator": (lambda k: iter([number(k)]), lambda value: value.__reduce__()[1][0][0]),
    "generator function's": (lambda k: (x for x in [number(k)]), next),
    "quantised tensor": (
        lambda k: torch.quantize_per_tensor(tensor(k), 0.5, 0, torch.qint8),
        lambda value: value.dequantize()[0].item(),
    ),
}  # fmt: skip
OPAQUE = {"iterator", "generator function's"}
"""What cannot be read without using it up: known by its type alone, and said."""


@contextlib.contextmanager
def kept(kind: str, k: int) -> Iterator[tuple[nn.Module, Any]]:
    make, read = KINDS[kind]
    yield Net(read, kept=make(k)), X


@contextlib.contextmanager
def given(kind: str, k: int, *, by_name: bool) -> Iterator[tuple[nn.Module, Any]]:
    make, read = KINDS[kind]
    if by_name:
        yield Net(lambda named: read(named["value"])), {"x": X, "value": make(k)}
    else:  # inside a sequence
        yield Net(lambda values: read(values[0])), (X, [make(k)])


# Hooks: how one of strength k is made.

STRENGTH = 1.0


def by_closure(k):
    strength = number(k)
    return lambda *call: call[-1] * strength


def by_list(strengths):
    return lambda *call: call[-1] * strengths[0]


def by_key(strengths):
    return lambda *call: call[-1] * strengths["strength"]


def by_layer(layer):
    return lambda *call: call[-1] * layer.weight.item()


def by_object(settings):
    return lambda *call: call[-1] * settings.factor


def by_default(k):
    amount = number(k)

    def hook(_module, _args, output, strength=amount):
        return output * strength

    return hook


def by_keyword(k):
    amount = number(k)

    def hook(_module, _args, output, *, strength=amount):
        return output * strength

    return hook


def by_function_attribute(k):
    def hook(*call):
        return call[-1] * hook.strength

    hook.strength = number(k)
    return hook


def by_global(k):
    def hook(*call):
        return call[-1] * STRENGTH

    return types.FunctionType(hook.__code__, {"STRENGTH": number(k)}, "hook")


def by_helper(k):
    """A function of the same module that a hook calls by its global name."""
    helper = types.FunctionType((by_one if k else by_half).__code__, {}, "helper")
    helper.__module__ = "__main__"
    hook = types.FunctionType(by_calling.__code__, {"helper": helper, "__name__": "__main__"})
    hook.__module__ = "__main__"
    return hook


def by_one(x):
    return x * 1.0


def by_half(x):
    return x * 0.5


def by_calling(*call):
    return helper(call[-1])


def by_global_tensor(k):
    return types.FunctionType(by_global(0).__code__, {"STRENGTH": torch.tensor(number(k))}, "hook")


def steer(_module, _args, output, *, strength):
    return output * strength


class Steering:
    def __init__(self, strength):
        self.strength = strength

    def __call__(self, _module, _args, output):
        return output * self.strength

    def method(self, _module, _args, output):
        return output * self.strength


@dataclass
class SteeringRecord:
    strength: float

    def __call__(self, _module, _args, output):
        return output * self.strength


def by_class(k):
    """Two classes of one name, whose code differs."""
    if k:

        class Hook:
            def __call__(self, *call):
                return call[-1] * 1.5
    else:

        class Hook:
            def __call__(self, *call):
                return call[-1] * 1.0

    return Hook()


HOOKS: dict[str, Callable[[int], Callable[..., Any]]] = {
    "closure": by_closure,
    "closure in a closure": lambda k: (lambda inner: lambda *call: inner(*call))(by_closure(k)),
    "list in a closure": lambda k: by_list([number(k)]),
    "deque in a closure": lambda k: by_list(deque([number(k)])),
    "tensor in a closure": lambda k: by_list(tensor(k)),
    "array in a closure": lambda k: by_list(np.full(2, number(k), "f4").tolist()),
    "mapping in a closure": lambda k: by_key({"strength": number(k)}),
    "module in a closure": lambda k: by_layer(linear(k)),
    "object in a closure": lambda k: by_object(Plain(number(k))),
    "slots in a closure": lambda k: by_object(Slotted(number(k))),
    "dataclass in a closure": lambda k: by_object(Settings(number(k))),
    "default": by_default,
    "keyword default": by_keyword,
    "function attribute": by_function_attribute,
    "global number": by_global,
    "global tensor": by_global_tensor,
    "function it calls": by_helper,
    "partial": lambda k: partial(steer, strength=number(k)),
    "partial of a partial": lambda k: partial(partial(steer), strength=number(k)),
    "object": lambda k: Steering(number(k)),
    "method": lambda k: Steering(number(k)).method,
    "dataclass": lambda k: SteeringRecord(number(k)),
    "code of a class": by_class,
}


@contextlib.contextmanager
def hooked(kind: str, k: int) -> Iterator[tuple[nn.Module, Any]]:
    net = Net()
    net.layers[0].register_forward_hook(HOOKS[kind](k))
    yield net, X


@contextlib.contextmanager
def hooked_before(kind: str, k: int) -> Iterator[tuple[nn.Module, Any]]:
    """The same hook, called with what a hook after the module is called with."""
    net, hook = Net(), HOOKS[kind](k)
    net.layers[1].register_forward_pre_hook(lambda module, args: hook(module, args, args[0]))
    yield net, X


# Weights that are changed behind PyTorch's back; the trace before is read after the change.


def swap(weight, a, b):
    weight[[a, b]] = weight[[b, a]]


def fused_step(net):
    weight = net.layers[0].up.weight
    weight.grad = torch.ones_like(weight)
    torch.optim.Adam([weight], lr=1e-3, fused=True).step()


def up(net):
    return net.layers[0].up.weight.data


WRITES: dict[str, Callable[[Net], object]] = {
    **{f"column {j}": partial(lambda net, j: up(net)[:, j].zero_(), j=j) for j in (0, 7, 50, 95)},
    **{f"row {j}": partial(lambda net, j: up(net)[j].zero_(), j=j) for j in (0, 33, 95)},
    **{
        f"number {place}": partial(lambda net, place: up(net)[place].add_(1), place=place)
        for place in ((0, 1), (13, 77), (95, 94))
    },
    "rows swapped": lambda net: swap(up(net), 3, 4),
    "sign of a column": lambda net: up(net)[:, 5].neg_(),
    "through NumPy": lambda net: net.layers[0].up.weight.detach().numpy().__setitem__((1, 2), 9),
    "a bias": lambda net: net.layers[0].up.bias.data[17].add_(1),
    "a buffer": lambda net: net.layers[0].shift.data[17].add_(9),
    "a fused optimiser": fused_step,
    "in place": lambda net: torch.no_grad()(net.layers[0].up.weight[3].mul_)(2),
    "another tensor": lambda net: setattr(net.layers[0].up.weight, "data", up(net) * 2),
}


# What is neither in the model nor in its input.


@contextlib.contextmanager
def globally(register: Callable[..., Any], hook) -> Iterator[tuple[nn.Module, Any]]:
    handle = register(hook)
    try:
        yield Net(), X
    finally:
        handle.remove()


def scaled_output(k, module, _args, output):
    return output * number(k) if isinstance(module, Block) else output


def scaled_input(k, module, args):
    return (args[0] * number(k),) if isinstance(module, Block) else args


@contextlib.contextmanager
def patched(k: int, kind: type, name: str, values) -> Iterator[tuple[nn.Module, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, name, values[k])
        yield Net(), X


class Shifted(TorchFunctionMode):
    def __init__(self, amount):
        super().__init__()
        self.amount = amount

    def __torch_function__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        return output * self.amount if function is torch.tanh else output


class ShiftedBelow(TorchDispatchMode):
    def __init__(self, amount):
        super().__init__()
        self.amount = amount

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        return output * self.amount if function is torch.ops.aten.tanh.default else output


@contextlib.contextmanager
def in_mode(k: int, mode) -> Iterator[tuple[nn.Module, Any]]:
    with mode(number(k)):
        yield Net(), X


class Attending(nn.Module):
    """Attention whose kernel PyTorch chooses."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Tanh() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
            mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
            x = layer(mixed.transpose(1, 2).flatten(2))
        return x


@contextlib.contextmanager
def attending(k: int) -> Iterator[tuple[nn.Module, Any]]:
    with sdpa_kernel((SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)[k]):
        yield Attending(), torch.randn(2, 64, WIDTH, generator=stream(1, "test"))


@contextlib.contextmanager
def default_dtype(k: int) -> Iterator[tuple[nn.Module, Any]]:
    net = Net(lambda _: (torch.tensor(1.0) / 3).double())
    before = torch.get_default_dtype()
    torch.set_default_dtype((torch.float32, torch.float64)[k])
    try:
        yield net.double(), X.double()
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def called_by_forward(k: int) -> Iterator[tuple[nn.Module, Any]]:
    """Not the class's forward is another one, but a method that it calls."""
    methods = (lambda _: 1.0), (lambda _: 1.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Block, "factor", methods[k], raising=False)
        patch.setattr(Block, "forward", lambda self, x: x + self.factor() * self.up(x))
        yield Net(), X


@contextlib.contextmanager
def weights_of(k: int, make) -> Iterator[tuple[nn.Module, Any]]:
    net = Net(lambda kept: float(kept.to_dense().sum()) / 2)
    net.register_buffer("sparse", make(k))
    net.read = partial(lambda net, _: float(net.sparse.to_dense().sum()) / 2, net)
    yield net, X


@contextlib.contextmanager
def absent(k: int, value, *, by_name: bool) -> Iterator[tuple[nn.Module, Any]]:
    if by_name:
        net = Net(lambda named: 1.0 + len(named))
        yield net, {"x": X, **({"value": value} if k else {})}
    else:
        yield Counting(), (X, *([value] if k else []))


class Taking(Net):
    def forward(self, x, value=None, **named):
        return super().forward(x * (1 + (value is not None) + len(named) / 4))


@contextlib.contextmanager
def flattened(k: int) -> Iterator[tuple[nn.Module, Any]]:
    yield Taking(), ({"x": X, "value": {"b": 1}}, {"x": X, "b": 1})[k]


@contextlib.contextmanager
def emptied(k: int) -> Iterator[tuple[nn.Module, Any]]:
    yield Taking(), ({"x": X, "value": {}}, {"x": X})[k]


class Counting(Net):
    def forward(self, x, *given):
        return super().forward(x * (1 + len(given)))


WORLD: dict[str, Make] = {
    "global hook": lambda k: globally(
        torch_module.register_module_forward_hook, partial(scaled_output, k)
    ),
    "global hook before": lambda k: globally(
        torch_module.register_module_forward_pre_hook, partial(scaled_input, k)
    ),
    "patched forward": lambda k: patched(
        k, Block, "forward", (lambda self, x: 1.0 * self.up(x), lambda self, x: 1.5 * self.up(x))
    ),
    "patched forward of PyTorch's": lambda k: patched(
        k, nn.Linear, "forward", (lambda _, x: x * 1.0, lambda _, x: x * 1.5)
    ),
    "patched base class": lambda k: patched(
        k,
        nn.Module,
        "__call__",
        (nn.Module.__call__, lambda self, *args: 1.5 * self._call_impl(*args)),
    ),
    "method that forward calls": called_by_forward,
    "number of a class": lambda k: patched(k, Block, "strength", (1.0, 1.5)),
    "function mode": lambda k: in_mode(k, Shifted),
    "dispatch mode": lambda k: in_mode(k, ShiftedBelow),
    "kernel of attention": attending,
    "default dtype": default_dtype,
    "mapping against its entries": flattened,
    "empty mapping against none": emptied,
    "sparse buffer": lambda k: weights_of(k, lambda k: tensor(k).to_sparse()),
    "compressed buffer": lambda k: weights_of(k, lambda k: torch.diag(tensor(k)).to_sparse_csr()),
    **{
        f"{value!r} against absent{', by name' * by_name}": partial(
            absent, value=value, by_name=by_name
        )
        for value in ([], {}, (), None, "")
        for by_name in (False, True)
    },
}
PAIRS: dict[str, Make] = {
    **{f"kept: {kind}": partial(kept, kind) for kind in KINDS},
    **{f"given: {kind}": partial(given, kind, by_name=False) for kind in KINDS},
    **{f"given by name: {kind}": partial(given, kind, by_name=True) for kind in KINDS},
    **{f"hook: {kind}": partial(hooked, kind) for kind in HOOKS},
    **{f"hook before: {kind}": partial(hooked_before, kind) for kind in HOOKS},
    **WORLD,
}


def traced(make: Make, k: int) -> Trace:
    with make(k) as (model, inputs):
        return trace(model, inputs, metrics=["residual"], blocks="layers")


def is_opaque(pair: str) -> bool:
    return any(pair.endswith(f": {kind}") for kind in OPAQUE)


@pytest.mark.filterwarnings("ignore")  # nested, compressed and quantised tensors warn when made
@pytest.mark.parametrize("pair", PAIRS)
def test_other_numbers_have_another_provenance_or_it_says_what_it_does_not_cover(pair):
    first, same, other = (traced(PAIRS[pair], k) for k in (0, 0, 1))
    assert first.columns == same.columns != other.columns
    assert first.provenance == same.provenance  # what is the same is not told apart
    said = first.provenance.settings.get("not covered", "")
    if is_opaque(pair):
        kind = "list_iterator" if "iterator" in pair else "generator"
        assert f"builtins.{kind}" in said
    else:
        assert first.provenance != other.provenance
        assert said == ""


@pytest.mark.parametrize("write", WRITES)
def test_weights_are_those_of_the_run_whatever_was_written_since(write):
    net = Net()
    first, late = (trace(net, X, metrics=["residual"]) for _ in range(2))
    before = first.provenance
    WRITES[write](net)
    other = trace(net, X, metrics=["residual"])
    assert first.columns == late.columns != other.columns
    assert late.provenance == before != other.provenance


def test_the_promise_is_stated_in_one_sentence():
    def words(text: str) -> str:
        return " ".join(text.replace("`", "").replace("\n> ", "\n").split())

    (promise,) = re.findall(r"Equal provenance means.*?module\.", words(Provenance.__doc__))
    root = Path(__file__).parents[3]
    for page in ("docs/guide.md", "docs/architecture.md"):
        assert promise in words((root / page).read_text("utf-8"))


def test_there_are_as_many_pairs_as_were_tried_before():
    assert len(PAIRS) + len(WRITES) >= 89
