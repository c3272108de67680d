"""A model is left as it was: modules, hooks, modes, gradients and random states, come what may."""

import importlib
import random
import sys
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from rankscope.core.tracing import (
    _temporary_changes,
    captured_input,
    captured_states,
    evaluating,
    trace,
    with_replaced_state,
)
from rankscope.core.tracing._temporary_changes import TemporaryChanges
from rankscope.errors import RankscopeError

legacy = importlib.import_module("numpy.random")  # the global state, as models draw from it


class Lora(nn.Module):
    """A layer that merges its update into its weight for evaluation, as LoRA layers do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.down, self.up = (nn.Parameter(torch.randn(*shape)) for shape in ((2, 8), (8, 2)))
        self.merged, self.part = False, nn.Identity()

    def train(self, mode=True):
        if mode == self.merged:
            sign = -1 if mode else 1
            self.weight.data += sign * (self.up @ self.down).detach()
            self.merged = not mode
        self.down.requires_grad_(mode)
        return super().train(mode)

    def forward(self, x):
        update = 0 if self.merged else x @ (self.up @ self.down).T
        return torch.tanh(x @ self.weight.T + update)


class Drawing(nn.Module):
    """A block that draws random numbers, whatever the mode, and fails if told to."""

    def __init__(self, error=None):
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout()
        self.error = error

    def forward(self, x):
        noise = torch.rand(()) + random.random() + legacy.rand()
        if self.error is not None:
            raise self.error
        return self.linear(self.dropout(x)) * noise


def states():
    return (random.getstate(), legacy.get_state()[1].tolist(), torch.get_rng_state().tolist())


def picture(model):
    """Everything about a model that could have changed."""
    return (
        [(module.training, dict(module._forward_hooks)) for module in model.modules()],
        [dict(module._forward_pre_hooks) for module in model.modules()],
        [(p.requires_grad, p.grad, p.detach().clone().tolist()) for p in model.parameters()],
        [getattr(module, "merged", None) for module in model.modules()],
        torch.is_grad_enabled(),
        states(),
    )


WAYS = {
    "trace": lambda model, x: trace(model, x),
    "captured_input": lambda model, x: captured_input(list(model), lambda: model(x)),
    "captured_states": lambda model, x: captured_states(list(model), lambda: model(x)),
    "with_replaced_state": lambda model, x: with_replaced_state(list(model), x, lambda: model(x)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("training", [True, False])
def test_lora_layers_are_not_merged(way, training, tokens):
    model = nn.Sequential(Lora(), Lora()).train(training)
    before = picture(model)
    with evaluating(model):
        WAYS[way](model, tokens(2, 5, 8).float())
    assert picture(model) == before
    assert model[0].down.requires_grad is training


def test_lora_layers_compute_the_same_unmerged(tokens):
    model, x = nn.Sequential(Lora(), Lora()), tokens(2, 5, 8).float()
    unmerged = trace(model, x)
    merged = trace(model.eval(), x)
    assert unmerged.columns["value"] == pytest.approx(merged.columns["value"], rel=1e-5)
    assert "without calling the train() of Lora" in unmerged.provenance.settings["mode"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "error", [None, RuntimeError("broke"), KeyboardInterrupt(), SystemExit(1)], ids=repr
)
def test_whatever_happens(way, error, tokens):
    model = nn.Sequential(Drawing(), Drawing(error))
    model[1].linear.eval()
    model[0].linear.weight.grad = torch.ones(8, 8)
    model[1].register_forward_hook(lambda *_: None)
    before = picture(model)
    x = tokens(2, 5, 8).float()
    with evaluating(model):
        if error is None or way == "captured_input":  # which ends before the error
            WAYS[way](model, x)
        else:
            with pytest.raises(type(error)):
                WAYS[way](model, x)
    assert str(picture(model)) == str(before)


def test_a_trace_draws_nothing_of_the_callers_random_numbers(tokens):
    """The numbers a caller draws are the same with a trace between."""
    model, x = nn.Sequential(Drawing(), Drawing()), tokens(2, 5, 8).float()
    drawn = []
    for traced in (False, True):
        torch.manual_seed(1)
        random.seed(1)
        legacy.seed(1)
        if traced:
            trace(model, x)
        drawn.append((torch.rand(3).tolist(), random.random(), legacy.rand()))
    assert drawn[0] == drawn[1]


def test_a_refusal_leaves_everything_too(tokens):
    model = nn.Sequential(Drawing(), Drawing())
    with torch.no_grad():
        model[1].linear.weight[0, 0] = float("nan")
    before = str(picture(model))
    with pytest.raises(RankscopeError):
        trace(model, tokens(2, 5, 8).float())
    assert str(picture(model)) == before


def test_the_train_of_transformers_is_no_mode_of_its_own():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip

    class Merging(transformers.BertModel):
        def train(self, mode=True):
            return super().train(mode)

    x = torch.tensor([[1, 2, 3]])
    assert "mode" not in trace(transformers.BertModel(config), x).provenance.settings
    assert "Merging" in trace(Merging(config), x).provenance.settings["mode"]


class Ending:
    """Ends what runs at the n-th call or return of a function, as Ctrl-C may."""

    def __init__(self, at):
        self.at, self.events = at, 0

    def __call__(self, _frame, _event, _argument):
        self.events += 1
        if self.events == self.at:
            raise KeyboardInterrupt


def run_until(at, model, x):
    ending = Ending(at)
    sys.setprofile(ending)
    try:
        trace(model, x, metrics=["residual", "attention_entropy"])
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return ending.events


@pytest.mark.filterwarnings("ignore")  # Python drops what is raised where a generator is freed
def test_an_interrupt_at_any_moment():
    """Hooks, modes, gradients and random states, and what is shared by all traces."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    model, x = transformers.BertModel(config), torch.tensor([[1, 2, 3]])
    model.register_forward_hook(lambda *_: torch.rand(1))
    function = transformers.modeling_utils.AttentionInterface.get_interface
    run_until(-1, model, x)
    events, before = run_until(-1, model, x), str(picture(model))
    assert events > 1000
    for at in range(1, events, events // 97):
        run_until(at, model, x)
        assert str(picture(model)) == before, at
        assert torch.overrides._get_current_function_mode() is None
        assert transformers.modeling_utils.AttentionInterface.get_interface is function
    assert all(module.training for module in model.modules())
    assert not _temporary_changes._shared


def test_what_cannot_be_undone_keeps_nothing_else_from_it():
    model, undone = nn.Dropout(), []

    def fail():
        undone.append(1)
        raise RuntimeError("the device is lost")

    def run():
        with TemporaryChanges() as changes, changes, changes, changes:
            changes.evaluate([model])
            changes.change(lambda: None, fail)
            changes.after(model, print)

    with pytest.raises(RuntimeError, match="device is lost"):
        run()
    assert model.training
    assert not model._forward_hooks
    assert not _temporary_changes._shared
    assert undone


def test_it_has_to_be_entered_more_than_once():
    """Else an interrupt before the first instruction of its exit would leave everything."""
    with pytest.raises(AssertionError, match="changes, changes"), TemporaryChanges() as changes:
        changes.evaluate([nn.Dropout()])


def test_a_context_that_was_interrupted_does_not_go_on_later():
    """As one whose generator is freed with the traceback would."""
    events = []

    @contextmanager
    def closing():
        try:
            yield
        finally:
            events.append("closed")

    def interrupt(frame, event, _argument):
        if event == "call" and frame.f_code is type(closing()).__exit__.__code__:
            raise KeyboardInterrupt

    def run():
        with TemporaryChanges() as changes, changes, changes, changes:
            changes.without_gradients()
            with closing():
                sys.setprofile(interrupt)

    try:
        run()
    except KeyboardInterrupt:
        assert events == ["closed"]
    finally:
        sys.setprofile(None)
    assert events == ["closed"]
