"""Loading, verifying, reading and finishing leave the original as it was found."""

import random

import pytest
import torch

from rankscope.models.families import load, verify

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, not ours

IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).train()
    model.bert.encoder.layer[1].eval()
    model.bert.encoder.layer[0].output.dense.weight.requires_grad_(False)
    model.classifier.weight.grad = torch.ones_like(model.classifier.weight)
    return model


class Merging(torch.nn.Linear):
    """A layer whose ``train`` changes its weight, as LoRA layers' do."""

    def train(self, mode=True):
        with torch.no_grad():
            self.weight.add_(1.0 if mode else -1.0)
        return super().train(mode)


def picture(model):
    return str(
        (
            [module.training for module in model.modules()],
            [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
            [(p.requires_grad, p.grad, p.tolist()) for p in model.parameters()],
            (torch.is_grad_enabled(), torch.get_rng_state().tolist(), random.getstate()),
        )
    )


WAYS = {
    "load": lambda _, model: load(model),
    "verify": lambda _, model: verify(model),
    "inputs": lambda loaded, _: loaded.inputs(IDS),
    "finish": lambda loaded, _: loaded.finish(loaded.inputs(IDS).x, loaded.arguments(IDS)),
    "load anew": lambda _, model: load(model, at_init=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_everything_is_as_it_was(way):
    model = bert()
    loaded = load(model)
    for layer in model.bert.encoder.layer:
        layer.attention.self.query.__class__ = Merging
    before = picture(model)
    WAYS[way](loaded, model)
    assert picture(model) == before
