"""What a trace says of where it came from: equal provenance, equal numbers."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rankscope.core.deep import deep_trace
from rankscope.core.network import Network, Spec
from rankscope.core.tracing import Provenance, Trace, trace, trace_in_batches
from rankscope.errors import InputError
from rankscope.streams import stream

X = torch.randn(2, 4, 8, generator=stream(0, "test"))
PURE = Spec(2, 2, 8, mlp_ratio=0.0, norm="none")
DEEP = ("deep",)


def changed(net, amount):
    """The network with one of its numbers moved."""
    with torch.no_grad():
        net.blocks[-1].attention.value.weight[3, 4] += amount
    return net


def from_matrices(seed):
    shape, generator = (2, 2, 8, 8), stream(seed, "matrices")
    query_key, values = (torch.randn(shape, generator=generator) for _ in range(2))
    return Network.from_matrices(query_key, values, head_width=4)


def loaded(net, other):
    net.load_state_dict(other.state_dict())
    return net


NETWORKS = {
    "random": lambda seed: Network.random(Spec(2, 2, 8), seed=seed),
    "repeated": lambda seed: Network.random(Spec(1, 2, 8), seed=seed).repeat(2),
    "matrices": from_matrices,
    "pure": lambda seed: Network.random(PURE, seed=seed),
    "loaded": lambda seed: loaded(Network.random(PURE, seed=0), Network.random(PURE, seed=seed)),
    "changed": lambda seed: changed(Network.random(Spec(2, 2, 8), seed=0), 1e-3 * seed),
    "variant": lambda seed: Network.random(Spec(2, 2, 8), seed=seed).without("skip"),
    "causal": lambda seed: Network.random(Spec(2, 2, 8), seed=seed).with_mask("causal"),
    "normed": lambda seed: Network.random(Spec(2, 2, 8), seed=seed).with_norm("rms"),
    "half": lambda seed: Network.random(Spec(2, 2, 8), seed=seed).to(torch.bfloat16),
    "double": lambda seed: Network.random(Spec(2, 2, 8), seed=seed).double(),
    "drawn double": lambda seed: Network.random(Spec(2, 2, 8), seed=seed, dtype=torch.float64),
}
MASKS = {"none": None, "all": torch.ones(2, 4).bool(), "some": torch.tensor([[1, 1, 1, 0]] * 2) > 0}


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that makes numbers, from a space so small that equal runs are often drawn."""

    network: str
    seed: int
    inputs: float
    token_mask: str
    measured: str
    metrics: tuple[str, ...]
    batch_size: int | None

    def __call__(self) -> Trace:
        net = NETWORKS[self.network](self.seed)
        x = (X * self.inputs).to(next(net.parameters()).dtype)
        options = {
            "metrics": self.metrics,
            "token_mask": MASKS[self.token_mask],
            "measured": MASKS[self.measured],
        }
        if self.metrics == DEEP:
            del options["metrics"]
            return deep_trace(net, x, **options)
        if self.batch_size is None:
            return trace(net, x, **options)
        return trace_in_batches(net, x, batch_size=self.batch_size, **options)


RUNS = st.builds(
    Run,
    network=st.sampled_from(list(NETWORKS)),
    seed=st.integers(0, 1),
    inputs=st.sampled_from([1.0, 1.0 + 2**-20]),
    token_mask=st.sampled_from(list(MASKS)),
    measured=st.sampled_from(list(MASKS)),
    metrics=st.sampled_from([("residual",), ("dispersion",), ("residual", "dispersion"), DEEP]),
    batch_size=st.sampled_from([None, 1]),
)


@settings(max_examples=30, deadline=None)
@given(RUNS, RUNS, st.sampled_from(["", *(field.name for field in dataclasses.fields(Run))]))
def test_equal_provenance_equal_numbers(one, other, differs):
    """Runs that differ in one thing, in all, or in nothing."""
    if differs:
        other = dataclasses.replace(one, **{differs: getattr(other, differs)})
    first, second = one(), other()
    if first.provenance == second.provenance:
        assert first.columns == second.columns
    if one == other:
        assert first == second


def test_the_cases_of_the_audit():
    """Same spec, same seed, or no seed at all, and other numbers."""
    pairs = [
        (NETWORKS["repeated"](0), NETWORKS["random"](0)),
        (from_matrices(0), from_matrices(1)),
        (Network.random(PURE, seed=0), NETWORKS["loaded"](1)),
        (Network.random(PURE, seed=0), Network.random(PURE, seed=0, dtype=torch.float64)),
        (Network.random(PURE, seed=0), changed(Network.random(PURE, seed=0), 0.1)),
    ]
    for one, other in pairs:
        assert one.spec == other.spec
        first, second = (trace(net, X.to(next(net.parameters()).dtype)) for net in (one, other))
        assert first.columns != second.columns
        assert first.provenance != second.provenance
        assert first.provenance.weights != second.provenance.weights


# A seed is claimed where the weights are those that were drawn.

KEPT = {
    "as drawn": lambda net: net,
    "without skips": lambda net: net.without("skip"),
    "another norm": lambda net: net.with_norm("layer"),
    "another place": lambda net: net.with_norm("layer", place="both"),
    "repeated": lambda net: net.repeat(3),
    "double": lambda net: net.double(),
    "half": lambda net: net.to(torch.bfloat16),
    "loaded with its own": lambda net: loaded(net, Network.random(net.spec, seed=7)),
    "silent heads": lambda net: net.without_heads((0, 1)),
}
LOST = {
    "loaded": lambda net: loaded(net, Network.random(net.spec, seed=8)),
    "changed": lambda net: changed(net, 1e-6),
    "changed behind its back": lambda net: net.blocks[0].attention.key.weight.data.mul_(2),
    "trained": lambda net: torch.optim.SGD(net.parameters(), 0.1).step(
        lambda: sum(p.sum() for p in net.parameters()).backward()
    ),
    "moved after a change": lambda net: changed(net, 1e-6).double(),
    "queries swapped": lambda net: swapped(net, "query"),
    "queries swapped as modules": lambda net: swapped_modules(net, "query"),
    "keys set to queries": lambda net: net.blocks[0].attention.key.load_state_dict(
        net.blocks[0].attention.query.state_dict()
    ),
    "keys tied to queries": lambda net: setattr(
        net.blocks[1].attention, "key", net.blocks[1].attention.query
    ),
}


def swapped(net, part):
    one, other = (getattr(block.attention, part).weight.data for block in net.blocks)
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


def swapped_modules(net, part):
    first, second = (block.attention for block in net.blocks)
    one, other = getattr(first, part), getattr(second, part)
    setattr(first, part, other)
    setattr(second, part, one)


@pytest.mark.parametrize("way", KEPT)
def test_drawn_weights_name_their_seed(way):
    net = KEPT[way](Network.random(Spec(2, 2, 8, norm="rms", bias=True), seed=7))
    assert net.seed == 7
    assert Provenance.of(net).seed == 7
    assert "seed 7" in repr(net)


@pytest.mark.parametrize("way", LOST)
def test_other_weights_do_not(way):
    net = Network.random(Spec(2, 2, 8), seed=7)
    made = LOST[way](net)
    for each in (
        net,
        net.without("skip"),
        net.repeat(2),
        made if isinstance(made, Network) else net,
    ):
        assert each.seed is None
        assert Provenance.of(each).seed is None
        assert "seed" not in repr(each)


# What else it says.


def test_every_option_is_there():
    net = Network.random(Spec(2, 2, 8), seed=3)
    origin = trace(net, X, token_mask=MASKS["some"], metrics=["residual"]).provenance
    assert (origin.model, origin.seed, origin.dtype, origin.device) == (
        "Network",
        3,
        "float32",
        "cpu",
    )
    assert origin.network == net.spec.describe()
    assert origin.settings["metrics"] == "residual"
    assert len(origin.settings["token_mask"]) == 12
    assert origin.settings["mask"] == "token_mask, as specified"
    assert "measured" not in origin.settings


def test_equal_inputs_have_one_name_however_they_are_given():
    net = Network.random(Spec(2, 2, 8))
    ways = [X, {"x": X}, (X,), X.clone()]
    assert len({trace(net, way).provenance.inputs for way in ways}) == 1
    assert trace(net, X + 1e-7).provenance.inputs not in {trace(net, X).provenance.inputs}


def test_functions_of_ones_own_are_told_apart_by_their_code():
    net = Network.random(Spec(2, 2, 8))

    def measure(factor):
        if factor == 1:
            return lambda x, **_: x.sum((1, 2))
        return lambda x, **_: 2 * x.sum((1, 2))

    one, same, other = (
        trace(net, X, metrics={"mine": measure(factor)}).provenance for factor in (1, 1, 2)
    )
    assert one == same != other
    named = trace(net, X, metrics={"residual": measure(1)}).provenance
    assert named != trace(net, X, metrics=["residual"]).provenance


def power(n):
    return lambda x, **_: (x**n).sum((1, 2))


def scaled(x, *, factor=1.0, **_):
    return factor * x.sum((1, 2))


FUNCTIONS = {
    "closure": (lambda: power(1), lambda: power(2)),
    "tensor in a closure": (lambda: power(torch.ones(())), lambda: power(torch.zeros(()))),
    "partial": (lambda: partial(scaled, factor=1.0), lambda: partial(scaled, factor=2.0)),
    "constant": (lambda: lambda x, **_: x.sum((1, 2)), lambda: lambda x, **_: 2 * x.sum((1, 2))),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_are_told_apart_by_all_they_hold(kind):
    net = Network.random(Spec(2, 2, 8))
    first, second = FUNCTIONS[kind]
    one, same, other = (
        trace(net, X, metrics={"mine": make()}).provenance for make in (first, first, second)
    )
    assert one == same != other


def test_functions_that_pick_an_output_are_told_apart():
    def pick(factor):
        return lambda out: factor * out

    net = Network.random(Spec(2, 2, 8))
    one, same, other = (trace(net, X, output=pick(k)).provenance for k in (1.0, 1.0, 2.0))
    assert one == same != other


class Scaled(nn.Module):
    """No weight tells the two apart, only a number in their code."""

    def __init__(self, scale, activation=torch.tanh):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(2))
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.1)
        self.scale, self.activation = scale, activation

    def forward(self, x):
        for layer in self.layers:
            x = self.activation(self.scale * layer(x))
        return x


def test_models_that_differ_in_a_setting_or_a_function():
    origins = [trace(Scaled(*how), X).provenance for how in ((1.0,), (2.0,), (1.0, torch.relu))]
    assert len({origin.weights for origin in origins}) == 1
    assert len({origin.structure for origin in origins}) == 3
    assert trace(Scaled(1.0), X).provenance == origins[0]
    assert trace(Scaled(1.0).eval(), X).provenance == origins[0]


KEPT_ASIDE = {
    "tensor": lambda k: torch.full((3,), float(k)),
    "array": lambda k: np.full(3, k),
    "list": lambda k: [1, [k]],
    "tuple": lambda k: (1, {"a": torch.tensor(k)}),
    "dict": lambda k: {"scale": k},
    "set": lambda k: {"a", "b", str(k)},
    "namespace": lambda k: SimpleNamespace(scale=k),
    "dataclass": lambda k: Spec(1 + k, 1, 4),
    "function": lambda k: lambda x: k * x,
    "dtype": lambda k: (torch.float32, torch.float64)[k],
}


@pytest.mark.parametrize("name", ["kept", "_kept"])
@pytest.mark.parametrize("kind", KEPT_ASIDE)
def test_models_that_differ_in_what_a_module_keeps_aside(kind, name):
    def structure(k):
        model = Scaled(1.0)
        setattr(model.layers[0], name, KEPT_ASIDE[kind](k))
        return trace(model, X).provenance.structure

    assert structure(0) == structure(0) != structure(1)


def test_attributes_that_hold_themselves():
    model = Scaled(1.0)
    model.loop = [1]
    model.loop.append(model.loop)
    assert trace(model, X).provenance == trace(model, X).provenance


def test_numbers_the_model_draws_itself():
    """Random features, hashing: another random state is another run."""

    class Noisy(Scaled):
        def forward(self, x):
            return super().forward(x + torch.rand(x.shape))

    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(trace(Noisy(1.0), X))
    one, same, other = found
    assert one == same
    assert one.columns != other.columns
    assert one.provenance != other.provenance
    assert "drawn by the model from the global state" in one.provenance.settings["random numbers"]
    assert "random numbers" not in trace(Scaled(1.0), X).provenance.settings


def test_switches_that_change_every_number():
    net = Network.random(Spec(2, 2, 8))
    plain = trace(net, X)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = trace(net, X)
    assert plain.columns != mixed.columns
    assert mixed.provenance.settings["autocast on cpu"] == "torch.bfloat16"
    assert plain.provenance != mixed.provenance
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    rough = trace(net, X).provenance
    torch.set_float32_matmul_precision(before)
    assert rough.settings["float32 products"] == "medium"


def test_the_newer_switches_for_products():
    """PyTorch's own question how precise products are fails once one of these was turned."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("PyTorch has them from 2.9 on")
    net, before = Network.random(Spec(2, 2, 8)), matmul.fp32_precision
    plain = trace(net, X)
    matmul.fp32_precision = "tf32"
    try:
        rough = trace(net, X)
        assert rough.columns == plain.columns
        assert rough.provenance.settings["float32 products"].startswith("tf32 on cuda")
    finally:
        matmul.fp32_precision = before


def test_a_network_with_a_part_of_another_class():
    class Doubled(nn.LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    net = Network.random(Spec(1, 2, 8, norm_place="post"))
    plain = trace(net, X)
    norm = net.blocks[0].norms["mlp"]
    norm.__class__ = Doubled
    assert trace(net, X).columns != plain.columns
    assert trace(net, X).provenance != plain.provenance


def test_joined_parts_must_be_of_one_model():
    one, other = (trace(Network.random(Spec(2, 2, 8), seed=seed), X) for seed in (0, 1))
    with pytest.raises(InputError, match=r"different weights.*cannot be joined"):
        Trace.joined([one, other])


def test_a_file_of_an_earlier_version_can_be_read(tmp_path):
    """It says less, and what it says is kept."""
    from rankscope import tables

    traced = trace(Network.random(Spec(2, 2, 8)), X)
    old = {"model": "Network", "spec": "abc", "seed": 0, "versions": {}, "notes": {}}
    held = {"rankscope.object": '{"class": "rankscope.core.tracing._trace:Trace", "fields": {}}'}
    path = tables.write(traced.table, tmp_path / "old.parquet", old, held)
    assert Trace.load(path).provenance == Provenance("Network", "abc", 0, {}, {})
