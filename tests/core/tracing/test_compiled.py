"""Compiled models, in every way there is: compiled code drops hooks, so none of it may run."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rankscope.core.network import Network, Spec
from rankscope.core.tracing import captured_input, captured_states, find_blocks, trace
from rankscope.core.tracing._temporary_changes import TemporaryChanges
from rankscope.errors import InputError

WAIT = 10.0


def compiled(thing):
    return torch.compile(thing, backend="eager")


@pytest.fixture(autouse=True)
def afresh():
    """PyTorch compiles the code of one class only so often."""
    torch._dynamo.reset()
    yield
    assert torch._dynamo.eval_frame._stance.stance == "default"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Decorated(Model):
    @torch.compile(backend="eager")
    def forward(self, x):
        return super().forward(x)


class Around(nn.Module):
    """Something that runs a model through a function that is kept beside it."""

    def __init__(self, model, run):
        super().__init__()
        self.model, self.run = model, run

    def forward(self, x):
        return self.run(x)


def own_call(model):
    model.compile(backend="eager")
    return model


def forward(model):
    model.forward = compiled(model.forward)
    return model


def each_forward(model):
    for layer in model.layers:
        layer.forward = compiled(layer.forward)
    return model


def layers(*places):
    def change(model):
        for place in places:
            model.layers[place] = compiled(model.layers[place])
        return model

    return change


def each_own_call(model):
    for layer in model.layers:
        layer.compile(backend="eager")
    return model


WAYS = {
    "the model": compiled,
    "the model, in one graph": lambda model: torch.compile(model, backend="eager", fullgraph=True),
    "its call": own_call,
    "its forward": forward,
    "its class": lambda _: Decorated(),
    "every layer": layers(0, 1, 2),
    "the first layer": layers(0),
    "two layers": layers(0, 2),
    "every layer's forward": each_forward,
    "every layer's call": each_own_call,
    "inside a wrapper": lambda model: Around(compiled(model), model),
    "beside itself": lambda model: Around(model, compiled(model)),
    "a function of it": lambda model: Around(model, compiled(lambda x: model(x))),
    "twice": lambda model: compiled(Around(model, compiled(model))),
}


@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_is_traced_as_it_was_before(tokens, way, ran):
    x = tokens(2, 5, 8)
    expected = trace(Model().eval(), x)
    model = WAYS[way](Model()).eval()
    if ran:
        with torch.no_grad():  # as the trace will: what was compiled for it would be found again
            model(x)
    found = trace(model, x)
    assert found.columns == expected.columns
    assert found.provenance.settings["stack"].endswith("3 Block")
    states = captured_states(find_blocks(model), lambda: model(x))
    assert [len(states), states[-1].shape] == [4, x.shape]
    assert torch.equal(captured_input(find_blocks(model), lambda: model(x)), x)


def test_compiled_code_does_drop_hooks(tokens):
    """If PyTorch mends this one day, what is done here is not needed any more."""
    model, x, called = compiled(Model()).eval(), tokens(2, 5, 8), []
    with torch.no_grad():
        model(x)
        model._orig_mod.layers[0].register_forward_hook(lambda *_: called.append(1))
        model(x)
    assert called == []


def test_compiled_layers_of_a_network_show_their_attention(tokens):
    network, x = Network.random(Spec(2, 2, 8), dtype=torch.float64), tokens(2, 5, 8)
    expected = trace(network, x, metrics=["attention_entropy"]).columns
    network.blocks[1] = compiled(network.blocks[1])
    assert trace(network, x, metrics=["attention_entropy"]).columns == expected


def test_a_list_of_compiled_leaves_is_no_stack():
    model = nn.Sequential(*(compiled(nn.Linear(8, 8)) for _ in range(9)), *Model().layers)
    holder = nn.ModuleDict({"leaves": model[:9], "blocks": model[9:]})
    assert [type(block).__name__ for block in find_blocks(holder)] == ["Block"] * 3


def test_compiled_code_stays_uncompiled_until_the_last_has_left(tokens):
    """Two traces in two threads; the one that began first ends first."""
    began, ended = threading.Event(), threading.Event()
    x = tokens(2, 5, 8)
    models = [forward(Model()).eval() for _ in range(2)]
    with torch.no_grad():
        for model in models:
            model(x)

    class Waiting(nn.Module):
        def __init__(self, model, start, end):
            super().__init__()
            self.model, self.start, self.end = model, start, end

        def forward(self, x):
            self.start()
            self.end()
            return self.model(x)

    first = Waiting(models[0], lambda: began.wait(WAIT), lambda: None)
    second = Waiting(models[1], began.set, lambda: ended.wait(WAIT))

    def trace_first():
        try:
            return trace(first, x).columns
        finally:
            ended.set()

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(trace_first), pool.submit(trace, second, x)
        found = one.result(2 * WAIT), two.result(2 * WAIT).columns
    expected = trace(Model().eval(), x).columns
    assert found == (expected, expected)


def test_flex_attention_stays_compiled_and_what_is_lost_with_it_is_refused(tokens):
    """Uncompiled, it would hold a matrix for every pair of tokens."""
    x, model = tokens(2, 5, 8), Model().eval()
    for layer in model.layers:
        layer.config = SimpleNamespace(_attn_implementation="flex_attention")
    expected = trace(Model().eval(), x).columns
    assert trace(model, x).columns == expected
    forward(model)
    with torch.no_grad():
        model(x)
    with pytest.raises(InputError, match="set_stance"):
        trace(model, x)
    with torch.compiler.set_stance("force_eager"):
        assert trace(model, x).columns == expected


def test_what_was_chosen_before_is_chosen_again():
    with torch.compiler.set_stance("fail_on_recompile"):
        with TemporaryChanges() as one, one, one, one, TemporaryChanges() as two, two, two, two:
            one.run_as_written()
            two.run_as_written()
            assert torch._dynamo.eval_frame._stance.stance == "force_eager"
        assert torch._dynamo.eval_frame._stance.stance == "fail_on_recompile"


def test_nothing_is_imported_where_nothing_was_compiled(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo.eval_frame")
    monkeypatch.setattr(torch.compiler, "set_stance", pytest.fail)
    with TemporaryChanges() as changes, changes, changes, changes:
        changes.run_as_written()
        assert "torch._dynamo.eval_frame" not in sys.modules
