"""A model that was read before is recognised, and what changed of it is read again."""

import weakref

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import BertConfig, BertModel

from rankscope import Network, Spec, trace
from rankscope.core.tracing import _memory

IDS = {"input_ids": torch.arange(12).reshape(2, 6)}
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def bert():
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=32,
        vocab_size=50,
    )  # fmt: skip
    return BertModel(config).eval()


@pytest.fixture
def reads(monkeypatch):
    """The models that were looked at in full, in order."""
    found = []
    look = _memory.Memory.of.__func__

    def counted(cls, model):
        found.append(type(model).__name__)
        return look(cls, model)

    monkeypatch.setattr(_memory.Memory, "of", classmethod(counted))
    return found


def test_weights_are_read_once(reads) -> None:
    model, network = bert(), Network.random(Spec(2, 2, 8), seed=0)
    for _ in range(3):
        trace(model, IDS)
        trace(network, X)
    assert reads == ["BertModel", "Network"]


CHANGES = {
    "in place": lambda model: model.encoder.layer[0].output.dense.weight.mul_(2),
    "one number": lambda model: model.encoder.layer[0].output.dense.weight[0, 0].add_(1),
    "past PyTorch": lambda model: model.encoder.layer[0].output.dense.weight.data.mul_(2),
    "NumPy": lambda model: model.encoder.layer[0].output.dense.weight.numpy().fill(0.5),
    "another parameter": lambda model: setattr(
        model.encoder.layer[0].output.dense, "weight", nn.Parameter(torch.zeros(16, 32))
    ),
    "another module": lambda model: model.encoder.layer.__setitem__(0, model.encoder.layer[1]),
    "a buffer": lambda model: model.embeddings.position_ids.add_(1),
    "an attribute": lambda model: setattr(model.encoder.layer[0].attention.self, "scaling", 0.1),
    "the configuration": lambda model: setattr(model.config, "layer_norm_eps", 0.5),
    "its dtype": lambda model: model.double(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_is_noticed(name, reads) -> None:
    model = bert()
    before = trace(model, IDS).provenance
    with torch.no_grad():
        CHANGES[name](model)
    after = trace(model, IDS).provenance
    assert (after.weights, after.structure) != (before.weights, before.structure)
    assert len(reads) == 2
    assert trace(model, IDS).provenance == after
    assert len(reads) == 2


def test_weights_that_break_past_pytorch_are_refused() -> None:
    model = bert()
    trace(model, IDS)
    model.encoder.layer[1].output.dense.weight.data.fill_(torch.nan)
    with pytest.raises(Exception, match="layer 2"):
        trace(model, IDS)


def test_nothing_is_kept_alive() -> None:
    model = bert()
    trace(model, IDS)
    old = StorageWeakRef(model.encoder.layer[0].output.dense.weight.untyped_storage())
    model.double()
    assert old.expired()
    gone = weakref.ref(model)
    del model
    assert gone() is None


def test_a_model_that_holds_tensors_in_a_list_is_always_read(reads) -> None:
    model = bert()
    model.encoder.kept = [torch.zeros(2)]
    for _ in range(2):
        trace(model, IDS)
    assert len(reads) == 2
