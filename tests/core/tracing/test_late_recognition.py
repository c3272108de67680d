"""Where a device works meanwhile, a model is recognised after it has run; if it is not, it is run
again. Here a CPU stands in for the device."""

import copy

import pytest
import torch
from torch import nn

from rankscope import trace
from rankscope.core.tracing import _memory, _samples
from rankscope.errors import InputError

from .test_memory import CHANGES, IDS, bert


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """Weights as if they lay on a device that has to be waited for."""
    begin = _samples.Samples.__init__

    def begin_elsewhere(self, tensors):
        begin(self, tensors)
        self.are_at_hand = False

    monkeypatch.setattr(_samples.Samples, "__init__", begin_elsewhere)


@pytest.fixture
def events(monkeypatch):
    """When a model was asked whether it still fits what is remembered."""
    found = []
    fits = _memory.Memory.fits
    monkeypatch.setattr(
        _memory.Memory, "fits", lambda self, model: found.append("asked") or fits(self, model)
    )
    return found


def heard(model, events):
    model.register_forward_pre_hook(lambda *_: events.append("run"))
    return model


def test_a_model_is_asked_after_it_has_run(events) -> None:
    model = heard(bert(), events)
    trace(model, IDS)
    assert events == ["run", "asked"]  # read in full, and found as it was
    for _ in range(2):
        events.clear()
        trace(model, IDS)
        assert events == ["run", "asked"]


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_is_traced_as_it_is(name, events) -> None:
    model = bert()
    for _ in range(2):
        before = trace(model, IDS)
    with torch.no_grad():
        CHANGES[name](model)
    events.clear()
    heard(model, events)
    found = trace(model, IDS)
    known = trace(copy.deepcopy(model), IDS)
    assert found.columns == known.columns
    assert found.provenance == known.provenance
    assert found.provenance != before.provenance


def test_a_model_with_other_blocks_is_run_again(events) -> None:
    model = bert()
    for _ in range(2):
        trace(model, IDS)
    model.encoder.layer = nn.ModuleList(
        [*model.encoder.layer, copy.deepcopy(model.encoder.layer[0])]
    )
    events.clear()
    found = trace(model, IDS)
    assert sorted(set(found.columns["layer"])) == [0, 1, 2, 3]
    assert events.count("asked") >= 1
    assert found.columns == trace(copy.deepcopy(model), IDS).columns


def test_fewer_blocks_than_are_remembered() -> None:
    model = bert()
    for _ in range(2):
        trace(model, IDS)
    del model.encoder.layer[1]
    model.config.num_hidden_layers = 1
    assert sorted(set(trace(model, IDS).columns["layer"])) == [0, 1]


def test_weights_that_train_cost_no_second_run() -> None:
    runs: list[str] = []
    model = heard(bert(), runs)
    for _ in range(5):
        with torch.no_grad():
            model.encoder.layer[0].output.dense.weight.mul_(1.5)
        trace(model, IDS)
        assert runs == ["run"]
        runs.clear()


class Restless(nn.Module):
    """Counts its runs, and shifts by their number."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        for layer in self.layers:
            x = layer(x) + self.runs
        return x


def test_a_model_that_changes_while_it_runs_is_run_once_each_time() -> None:
    model, x = Restless(), torch.randn(1, 3, 4)
    origins = []
    for run in range(1, 4):
        origins.append(trace(model, x).provenance)
        assert model.runs == run
    assert len({origin.structure for origin in origins}) == 3


class Greedy(nn.Module):
    """Works in its input."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
        self.factor = 2.0

    def forward(self, x):
        x.mul_(self.factor)
        for layer in self.layers:
            x = layer(x)
        return x


def test_inputs_that_were_written_to_are_not_used_again() -> None:
    model, x = Greedy(), torch.randn(1, 3, 4)
    for _ in range(2):
        trace(model, x.clone())
    model.factor = 3.0
    with pytest.raises(InputError, match="trace it again, with inputs as they were"):
        trace(model, x.clone())
    known = trace(copy.deepcopy(model), x.clone())
    assert trace(model, x.clone()).columns == known.columns


def test_an_error_of_the_model_itself_is_its_own() -> None:
    model = bert()
    for _ in range(2):
        trace(model, IDS)
    with pytest.raises(IndexError):
        trace(model, {"input_ids": torch.tensor([[10_000]])})
