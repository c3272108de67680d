"""Layers are numbered by the blocks that run; what does not fit is refused."""

import pytest
import torch
from torch import nn

from rankscope.core.metrics import dispersion
from rankscope.core.network import Network, Spec
from rankscope.core.tracing import trace
from rankscope.errors import InputError, KindError


class Piece(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Model(nn.Module):
    """Three blocks, run as ``way`` says."""

    def __init__(self, way, layers=3):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Piece() for _ in range(layers))
        self.way = way

    def forward(self, x):
        return self.way(self.layers, x)


def in_turn(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def generating(blocks, x):
    for _ in range(3):
        x = torch.cat((x, in_turn(blocks, x)[:, -1:]), 1)
    return x


def with_cache(blocks, x):
    x = in_turn(blocks, x)[:, -1:]
    for _ in range(2):
        x = in_turn(blocks, x * 2)
    return x


WRONG = {
    "skipped": (lambda b, x: b[2](b[0](x)), r"block 2 \(Piece\) of 3 did not run.*blocks=\["),
    "replaced": (lambda b, x: b[2](torch.relu(b[0](x))), "it is skipped or replaced"),
    "cut short": (lambda b, x: b[1](b[0](x)), r"block 3 \(Piece\) of 3 did not run"),
    "generate": (generating, r"block 1 \(Piece\) of 3 ran again.*no generate\(\)"),
    "generate with a cache": (with_cache, "ran again, but not on the output"),
    "micro-batches": (lambda b, x: torch.cat([in_turn(b, h) for h in x.chunk(2)]), "micro-batches"),
    "micro-batches in a block": (
        lambda b, x: b[2](b[1](torch.cat([b[0](half) for half in x.chunk(2)]))),
        r"block 1 \(Piece\) of 3 ran again",
    ),
    "two passes": (lambda b, x: in_turn(b, x) + in_turn(b, x), "ran again"),
    "fewer samples": (
        lambda b, x: b[2](b[1](b[0](x)[:1])),
        "layer 2 has 1 samples, earlier layers have 2",
    ),
}


@pytest.mark.parametrize("way", WRONG)
def test_what_is_no_single_pass_is_refused(way, tokens):
    run, words = WRONG[way]
    model = Model(run)
    with pytest.raises(InputError, match=words):
        trace(model, tokens(2, 5, 8))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_blocks_inside_blocks(tokens):
    class Nested(Piece):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return super().forward(self.inner(x) if self.inner is not None else x)

    inner = Nested(None)
    model = nn.Sequential(Nested(inner))
    with pytest.raises(InputError, match=r"block 2 \(Nested\) of 2 runs inside block 1"):
        trace(model, tokens(2, 5, 8), blocks=[model[0], inner])


def test_a_block_that_calls_itself(tokens):
    class Recursive(Piece):
        def forward(self, x, depth=2):
            return self(super().forward(x), depth - 1) if depth else x

    with pytest.raises(InputError, match=r"block 1 \(Recursive\) of 1 runs inside block 1"):
        trace(nn.Sequential(Recursive()), tokens(2, 5, 8))


@pytest.mark.parametrize("times", [2, 5])
def test_laps_that_go_on_where_the_last_ended_are_layers(times, tokens):
    def laps(blocks, x):
        for _ in range(times):
            x = in_turn(blocks, x)
        return x

    model, x = Model(laps), tokens(2, 5, 8)
    traced = trace(model, x, metrics=["dispersion"])
    states = [x]
    with torch.no_grad():
        for block in list(model.layers) * times:
            states.append(block(states[-1]))
    expected = [value for state in states for value in dispersion(state).tolist()]
    assert traced.columns["value"] == pytest.approx(expected, rel=1e-12)
    words = f"3 blocks ran {3 * times} times, one after another"
    assert traced.provenance.settings["order"] == words


def test_laps_with_something_between_have_to_be_named(tokens):
    model, x = Model(lambda b, x: in_turn(b, torch.sin(in_turn(b, x)))), tokens(2, 5, 8)
    with pytest.raises(InputError, match="name every run"):
        trace(model, x)
    named = trace(model, x, blocks=list(model.layers) * 2)
    assert max(named.columns["layer"]) == 6
    with pytest.raises(InputError, match="ran 2 times, not 3"):
        trace(model, x, blocks=list(model.layers) * 3)


def test_a_module_that_is_in_the_stack_several_times(tokens):
    piece = Piece()
    model = nn.Sequential(*[piece] * 4)
    traced = trace(model, tokens(2, 5, 8))
    assert max(traced.columns["layer"]) == 4
    assert "order" not in traced.provenance.settings
    assert traced.provenance.settings["stack"] == "the model itself: 4 Piece"


def test_another_order_is_recorded(tokens):
    turned = trace(Model(lambda b, x: in_turn(reversed(b), x)), tokens(2, 5, 8))
    assert turned.provenance.settings["order"] == "in the order they ran: 3, 2, 1"


def test_layers_of_other_lengths_are_layers_all_the_same(tokens):
    """Funnel and Swin pool their tokens on the way."""
    traced = trace(Model(lambda b, x: b[2](b[1](b[0](x)[:, ::2]))), tokens(2, 6, 8))
    assert max(traced.columns["layer"]) == 3


def test_stages_are_said_to_be_stages(tokens):
    class Stage(nn.Module):
        def __init__(self, blocks):
            super().__init__()
            self.blocks = nn.ModuleList(Piece() for _ in range(blocks))

        def forward(self, x):
            return in_turn(self.blocks, x)

    traced = trace(nn.Sequential(Stage(2), Stage(3)), tokens(2, 5, 8))
    assert traced.provenance.settings["stack"] == (
        "the model itself: 2 Stage, with 2 to 3 blocks inside each; each outer block is one layer"
    )


def test_the_stack_is_recorded(tokens):
    traced = trace(Model(in_turn), tokens(2, 5, 8))
    assert traced.provenance.settings["stack"] == "layers: 3 Piece"
    named = trace(Model(in_turn), tokens(2, 5, 8), blocks=["layers.0", "layers.1"])
    assert named.provenance.settings["stack"] == "layers.0, layers.1: 2 Piece"


@pytest.mark.filterwarnings("ignore")
def test_torchscript_cannot_be_watched(tokens):
    scripted = torch.jit.trace(Model(in_turn).eval(), tokens(2, 5, 8))
    for blocks in (None, "layers"):
        with pytest.raises(KindError, match="trace the original model"):
            trace(scripted, tokens(2, 5, 8), blocks=blocks)


def test_a_compiled_model_is_traced_as_it_was_before(tokens):
    """Compiled code knows nothing of hooks that came later."""
    plain = Network.random(Spec(2, 2, 8), dtype=torch.float64)
    model, x = Model(in_turn), tokens(2, 5, 8)
    expected = trace(model, x).columns
    assert trace(torch.compile(model, backend="eager"), x).columns == expected
    ran = torch.compile(model, backend="eager")
    ran(x)
    assert trace(ran, x).columns == expected
    model.compile(backend="eager")
    assert trace(model, x).columns == expected
    assert max(trace(torch.compile(plain, backend="eager"), x).columns["layer"]) == 2
