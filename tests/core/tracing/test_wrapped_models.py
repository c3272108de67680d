"""Adapters, parametrizations, autocast and quantisation: models as they are in use."""

import warnings

import pytest
import torch
import transformers as hf
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from rankscope.core.metrics import residual
from rankscope.core.tracing import captured_states, trace

IDS = torch.arange(14).reshape(2, 7)
MASK = torch.ones(2, 7, dtype=torch.long)
MASK[0, 5:] = 0
GIVEN = {"input_ids": IDS, "attention_mask": MASK}


def make():
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = hf.LlamaConfig(vocab_size=99, num_hidden_layers=3, **shape)
        return hf.LlamaForCausalLM(config).eval()


def expected(model):
    """From the hidden states themselves, which a second pass gives."""
    states = captured_states(list(_layers(model)), lambda: model(**GIVEN))
    each = [residual(state, relative=True, token_mask=MASK.bool()) for state in states]
    return torch.stack(each).flatten().tolist()


def _layers(model):
    return next(m for name, m in model.named_modules() if name.split(".")[-1] == "layers")


def figures(found):
    columns = (found.columns[name] for name in ("value", "metric"))
    return [value for value, name in zip(*columns, strict=True) if name == "relative_residual"]


class Adapted(nn.Module):
    """A linear map with a low-rank one beside it, as PEFT's LoRA layers are built."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base.out_features, bias=False)})
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(0.5)})

    def forward(self, x):
        dropped = self.lora_dropout["default"](x)
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](dropped))


class Adapter(nn.Module):
    """Two shells around the model, and its attributes, as PEFT's models have them."""

    def __init__(self, model):
        super().__init__()
        for layer in model.model.layers:
            layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
        self.base_model = nn.Module()
        self.base_model.model = model

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model").model, name)

    def forward(self, *args, **kwargs):
        return self.base_model.model(*args, **kwargs)


def parametrized(change):
    def made():
        model = make()
        for layer in model.model.layers:
            change(layer.self_attn.q_proj)
        return model

    return made


WRAPPED = {
    "adapters": lambda: Adapter(make()),
    "DataParallel": lambda: nn.DataParallel(make()),
    "weight norm": parametrized(parametrizations.weight_norm),
    "spectral norm": parametrized(parametrizations.spectral_norm),
    "orthogonal": parametrized(parametrizations.orthogonal),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("way", WRAPPED)
def test_figures_are_those_of_the_hidden_states_and_nothing_moves(way, training):
    torch.manual_seed(1)
    model = WRAPPED[way]().train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = trace(model, GIVEN)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert figures(found) == pytest.approx(expected(model.eval()), rel=1e-5)
    assert found.provenance.settings["mask"] == "attention_mask: 1 is a token"


def test_what_is_parametrized_counts_in_the_digest():
    model = WRAPPED["weight norm"]()
    first = trace(model, GIVEN).provenance.weights
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.parametrizations.weight.original0 += 1
    assert trace(model, GIVEN).provenance.weights != first
    with parametrize.cached():
        assert trace(model, GIVEN).columns == trace(model, GIVEN).columns


def test_autocast_and_inference_mode():
    model = make()
    with torch.inference_mode():
        assert trace(model, GIVEN).columns == trace(make(), GIVEN).columns
    with torch.autocast("cpu", torch.bfloat16):
        found = trace(model, GIVEN)
        states = captured_states(list(model.model.layers), lambda: model(**GIVEN))
    each = [residual(state, relative=True, token_mask=MASK.bool()) for state in states]
    assert figures(found) == pytest.approx(torch.stack(each).flatten().tolist(), rel=1e-5)
    assert found.provenance.settings["autocast on cpu"] == "torch.bfloat16"


def in_eight_bits(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch would rather have it done elsewhere
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def test_eight_bit_weights():
    """PyTorch's own quantisation; others' packages keep tensors of their kind in its place."""
    model = in_eight_bits(make())
    found = trace(model, GIVEN)
    assert figures(found) == pytest.approx(expected(model), rel=1e-5)
    assert figures(found) != figures(trace(make(), GIVEN))
    assert figures(found) == pytest.approx(figures(trace(make(), GIVEN)), rel=0.05)
    assert trace(in_eight_bits(make()), GIVEN).provenance == found.provenance
    changed = make()
    with torch.no_grad():
        changed.model.layers[1].mlp.up_proj.weight.mul_(2)  # the same integers, at another scale
    other = trace(in_eight_bits(changed), GIVEN)
    assert other.provenance.weights != found.provenance.weights
