"""Sharded and offloaded models: their weights are read where they are."""

from pathlib import Path

import accelerate
import pytest
import torch
from accelerate import cpu_offload, disk_offload

from rankscope.errors import UnsupportedModelError
from rankscope.models.checkpoints import _files
from rankscope.models.families import load
from rankscope.models.families._loaded import fresh

SPREAD = {
    "embed_tokens": "cpu",
    "rotary_emb": "cpu",
    "layers.0": "cpu",
    "layers.1": "disk",
    "norm": "cpu",
}


def assert_equal_weights(found: dict, expected: dict) -> None:
    for name, weight in found.items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize("places", [{"": "cpu"}, {"": "disk"}, SPREAD], ids=["cpu", "disk", "both"])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_folder_whose_model_is_offloaded(
    make, tmp_path: Path, places: dict, sharded: bool, caplog
) -> None:
    model = make("llama")
    model.save_pretrained(tmp_path, max_shard_size="8KB" if sharded else "1GB")
    assert (tmp_path / "model.safetensors.index.json").is_file() == sharded
    loaded = load(tmp_path, device_map=places)
    assert_equal_weights(loaded.original.state_dict(), model.model.state_dict())
    assert loaded.verification.worst < 1e-6
    assert caplog.records == []  # Accelerate warns of empty parameters, which are filled here


@pytest.mark.parametrize("place", ["main memory", "disk"])
def test_an_offloaded_model_at_hand(make, tmp_path: Path, place: str) -> None:
    expected = make("llama").state_dict()
    if place == "disk":
        model = disk_offload(make("llama"), str(tmp_path), execution_device="cpu")
    else:
        model = cpu_offload(make("llama"), execution_device="cpu")
    assert_equal_weights(load(model).original.state_dict(), expected)
    assert load(model, dtype=torch.float64).verification.worst < 1e-12
    assert load(model, at_init=True, seed=2).network.seed == 2
    assert all(parameter.is_meta for parameter in model.parameters())  # it stays as it is


def test_the_twin_of_a_spread_model_is_spread_as_well(make, monkeypatch) -> None:
    model = make("llama").model
    model.hf_device_map = SPREAD
    placed = []

    def dispatch(drawn: torch.nn.Module, places: dict) -> torch.nn.Module:
        placed.append(places)
        return drawn

    monkeypatch.setattr(accelerate, "dispatch_model", dispatch)
    before = torch.get_rng_state()
    twin = fresh(model, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert placed == [dict.fromkeys(SPREAD, "cpu")]
    del model.hf_device_map
    torch.manual_seed(99)
    assert_equal_weights(fresh(model, 3).state_dict(), twin.state_dict())  # the same draw
    weights = [
        one.layers[0].mlp.up_proj.weight for one in (model, twin, fresh(model, 4), fresh(model, 5))
    ]
    assert len({tuple(weight.flatten().tolist()) for weight in weights}) == 4


def test_one_that_does_not_fit_is_traced(make, monkeypatch) -> None:
    model = cpu_offload(make("llama"), execution_device="cpu")
    monkeypatch.setattr(_files, "available_memory", lambda: 1000)
    with pytest.raises(UnsupportedModelError, match=r"is offloaded and takes about .*trace meas"):
        load(model)


def test_a_model_without_weights_is_refused(make) -> None:
    with pytest.raises(UnsupportedModelError, match="cannot be read"):
        load(make("llama").to("meta"))
    with torch.device("meta"):
        empty = torch.nn.Linear(3, 3)
    with pytest.raises(UnsupportedModelError, match="cannot be read"):
        load(empty)
