"""The same model and input have the same provenance: again, copied, and in another process."""

import copy
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

from rankscope.core.network import Network, Spec
from rankscope.core.tracing import Provenance, trace

SHAPE = {"num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}
IDS = {"input_ids": torch.arange(12).reshape(2, 6)}
X = torch.linspace(-1, 1, 2 * 6 * 16).reshape(2, 6, 16)
MODELS = {
    "bert": lambda: hf.BertModel(hf.BertConfig(vocab_size=50, hidden_size=16, **SHAPE)),
    "gpt2": lambda: hf.GPT2Model(hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2)),
    "llama": lambda: hf.LlamaModel(hf.LlamaConfig(vocab_size=50, hidden_size=16, **SHAPE)),
    "torch": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    ),
    "sequence": lambda: nn.Sequential(*(nn.Sequential(nn.Linear(16, 16)) for _ in range(2))),
    "network": lambda: Network.random(Spec(2, 2, 16, norm="rms"), seed=5),
}


def made(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[name]().eval()


def origin(model: nn.Module) -> Provenance:
    inputs = IDS if isinstance(model, hf.PreTrainedModel) else X
    return trace(model, inputs, metrics=["residual"]).provenance


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def loaded(model: nn.Module, name: str) -> nn.Module:
    """A new one of its kind with its weights."""
    with torch.no_grad():
        other = made(name)
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("name", MODELS)
def test_the_same_model_has_one_provenance(name):
    model = made(name)
    known = origin(model)
    assert "not covered" not in known.settings
    twins = [model, made(name), model.train(), copy.deepcopy(model), saved(model)]
    twins += [pickle.loads(pickle.dumps(model)), loaded(model, name)]
    assert [origin(twin) == known for twin in twins] == [True] * len(twins)


PROGRAM = """
import tests.core.tracing.test_same_provenance as same
for name in same.MODELS:
    origin = same.origin(same.made(name))
    print(origin.weights, origin.structure, origin.inputs)
"""


@pytest.mark.parametrize("hashes", ["1", "2"])
def test_another_process_finds_the_same(hashes):
    """One in which texts have other hashes, so that sets have another order."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": hashes},
    )
    known = [origin(made(name)) for name in MODELS]
    expected = [f"{each.weights} {each.structure} {each.inputs}" for each in known]
    assert run.stdout.splitlines() == expected
