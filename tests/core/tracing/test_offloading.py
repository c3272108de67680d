"""Models whose weights are elsewhere between calls: the figures are theirs, and no claim is not."""

import math

import pytest
import torch
import transformers as hf
from accelerate import cpu_offload, disk_offload, dispatch_model

from rankscope.core.tracing import trace
from rankscope.errors import InputError

IDS = torch.arange(14).reshape(2, 7)
SPREAD = {
    "model.embed_tokens": "cpu",
    "model.rotary_emb": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.layers.2": "disk",
    "model.norm": "cpu",
    "lm_head": "cpu",
}
QUERY = "model.layers.1.self_attn.q_proj.weight"


def make(**changes):
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = hf.LlamaConfig(vocab_size=99, num_hidden_layers=3, **shape)
        model = hf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, value in changes.items():
            model.get_parameter(name.replace("__", "."))[0, 0] = value
    return model


def to_main_memory(model, _folder):
    return cpu_offload(model, execution_device="cpu")


def to_disk(model, folder):
    return disk_offload(model, str(folder), execution_device="cpu")


def spread(model, folder):
    return dispatch_model(model, SPREAD, main_device="cpu", offload_dir=str(folder))


WAYS = {"main memory": (to_main_memory, 0), "disk": (to_disk, 30), "both": (spread, 18)}


@pytest.mark.parametrize("way", WAYS)
def test_figures_are_those_of_the_model_and_unread_weights_are_named(way, tmp_path):
    plain = trace(make(), {"input_ids": IDS})
    offload, unread = WAYS[way]
    model = offload(make(), tmp_path)
    found = trace(model, {"input_ids": IDS})
    assert found.columns == plain.columns
    assert trace(model, {"input_ids": IDS}).provenance == found.provenance
    said = found.provenance.settings.get("unread weights", "0 of 32")
    assert said.startswith(f"{unread} of 32")
    assert (found.provenance.weights == plain.provenance.weights) == (unread == 0)
    assert ("meta" in found.provenance.device) == (unread > 0)


def test_weights_in_main_memory_are_read(tmp_path):
    """Through a spread model too: its first layer is at hand, and its digest follows it."""
    one, other = (
        trace(
            to_main_memory(make(**{QUERY.replace(".", "__"): value}), tmp_path), {"input_ids": IDS}
        )
        for value in (0.1, 0.2)
    )
    assert one.provenance.weights != other.provenance.weights
    broken = to_main_memory(make(**{QUERY.replace(".", "__"): math.nan}), tmp_path)
    with pytest.raises(
        InputError, match=r"layer 2, model\.layers\.1\.self_attn\.q_proj\.weight is nan"
    ):
        trace(broken, {"input_ids": IDS})


def test_what_is_broken_on_disk_does_not_pass_for_collapse(tmp_path):
    broken = to_disk(make(**{QUERY.replace(".", "__"): math.nan}), tmp_path)
    with pytest.raises(InputError, match="layer 2"):
        trace(broken, {"input_ids": IDS})
