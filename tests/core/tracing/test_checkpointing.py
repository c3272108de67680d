"""Gradient checkpointing: no layer is counted twice, whoever asked for gradients."""

from functools import partial

import pytest
import torch
import transformers as hf
from torch import nn
from torch.utils.checkpoint import checkpoint

from rankscope.core.tracing import trace
from rankscope.errors import InputError

IDS = torch.arange(14).reshape(2, 7)
BOTH = pytest.mark.parametrize("reentrant", [True, False])


def llama():
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = hf.LlamaConfig(vocab_size=99, num_hidden_layers=3, attention_dropout=0.5, **shape)
        return hf.LlamaForCausalLM(config)


class Own(nn.Module):
    """Runs each block as it is told to."""

    def __init__(self, run):
        super().__init__()
        torch.manual_seed(0)
        blocks = (nn.Sequential(nn.Linear(8, 8).double(), nn.Tanh()) for _ in range(3))
        self.layers = nn.ModuleList(blocks)
        self.run = run

    def forward(self, x):
        for layer in self.layers:
            x = self.run(layer, x)
        return x


def plainly(layer, x):
    return layer(x)


def with_gradients_of_its_own(reentrant):
    """As models do that need gradients in their forward pass: each block is computed again."""

    def run(layer, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = checkpoint(layer, x, use_reentrant=reentrant)
            y.sum().backward()
        return y.detach()

    return run


@BOTH
@pytest.mark.parametrize("training", [True, False])
def test_transformers_models_in_either_mode(reentrant, training):
    expected = trace(llama(), {"input_ids": IDS}).columns
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train(training)
    with torch.enable_grad():
        assert trace(model, {"input_ids": IDS}).columns == expected
    assert model.training == training
    assert all(parameter.grad is None for parameter in model.parameters())


@BOTH
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # nor shall they
def test_own_models(reentrant, tokens):
    x = tokens(2, 5, 8)
    expected = trace(Own(plainly), x).columns
    model = Own(partial(checkpoint, use_reentrant=reentrant)).train()
    with torch.enable_grad():
        assert trace(model, x.clone().requires_grad_()).columns == expected


@BOTH
def test_blocks_that_are_computed_again_are_not_counted_as_layers(reentrant, tokens):
    """Gradients inside the pass: each block runs a second time, on the same input."""
    model, x = Own(with_gradients_of_its_own(reentrant)), tokens(2, 5, 8)
    with pytest.raises(InputError, match=r"block 1 .* ran again, but not on the output"):
        trace(model, x)
