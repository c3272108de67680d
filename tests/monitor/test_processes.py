"""Two processes with DDP and FSDP2: the values of one process, and no rank waits for another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rankscope import Monitor

from .tiny import TINY, Written, ids, padded

SCRIPT = Path(__file__).parent / "two_processes.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def ranks(folder):
    """What the two processes printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(folder)],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=240) for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    return [json.loads(out) for out, _ in outputs]


def alone(model, probe, tmp_path):
    """The baseline of one process, by name and layer in one text."""
    monitor = Monitor(model, probe, folder=tmp_path / "run", predict=False)
    values = monitor.history.baseline.values
    return {f"{name} {layer}": value for (name, layer), value in values.items()}


def of_probe(values):
    """What the probe measures, without the figures of training."""
    return {
        name: value
        for name, value in values.items()
        if name.startswith(("rank/", "attention/", "stream/", "router/", "pooled/"))
    }


@pytest.mark.parametrize("case", ["ddp", "fsdp"])
def test_training_is_bit_for_bit_the_same(case, ranks):
    for result in ranks:
        assert result[case]["same, live=False"]
        assert result[case]["same, live=True"]


@pytest.mark.parametrize("case", ["ddp", "fsdp"])
def test_values_are_those_of_one_process(case, ranks, folder, tmp_path):
    """Of five samples, of which one process has two and the other three."""
    model = Written(dropout=0.1)
    model.load_state_dict(torch.load(folder / f"{case}.pt"))
    expected = alone(model, ids(5, 7, seed=9), tmp_path)
    records = ranks[0][case]["records"]
    assert list(records) == ["0", "2", "4"]
    assert ranks[0][case]["divided"]
    assert of_probe(records["4"]) == pytest.approx(expected, rel=1e-5)
    names = {name.partition(" ")[0] for name in records["4"]}
    assert {"update/ratio", "grad/qk_over_v", "live/rms", "loss"} <= names
    assert ranks[0][case]["model"] == "Written"


@pytest.mark.parametrize("case", ["ddp", "fsdp"])
def test_the_first_process_writes_and_logs_and_all_hear_of_alarms(case, ranks):
    first, second = (result[case] for result in ranks)
    assert sorted(first["files"]) == ["monitor.journal", "monitor.parquet"]
    assert first["logged"] == [0, 2, 4]
    assert (second["files"], second["logged"]) == ([], [])
    assert first["alarms"] == second["alarms"] == [["non-finite", 4]]


@pytest.mark.parametrize("case", ["ddp", "fsdp"])
@pytest.mark.parametrize(("samples", "divided"), [("one", False), ("two", True)])
def test_few_samples(samples, divided, case, ranks, tmp_path):
    torch.manual_seed(0)
    expected = alone(Written(dropout=0.1), ids({"one": 1, "two": 2}[samples], 7), tmp_path)
    result = ranks[0][f"{samples} samples" if divided else "one sample"][case]
    assert result["divided"] == divided
    assert of_probe(result["first"]) == pytest.approx(expected, rel=1e-5)
    assert of_probe(result["last"]) == pytest.approx(expected, rel=1e-5)


def test_tokens_of_experts_are_added_up(ranks, tmp_path):
    torch.manual_seed(0)
    expected = alone(TINY["mixtral"](), padded(5, 8), tmp_path)
    assert "router/entropy 2" in expected
    assert of_probe(ranks[0]["mixtral"]["last"]) == pytest.approx(expected, rel=1e-5)
    assert ranks[0]["mixtral"]["divided"]


def test_different_probes_are_refused_by_all(ranks, folder):
    for result in ranks:
        assert "processes have different probes" in result["refused"]
    assert not list(folder.glob("refused*"))


def test_a_run_is_continued_by_all(ranks):
    for result in ranks:
        assert result["continued"]["steps"] == [2, 4]
        assert result["continued"]["stop"]
    assert "another probe" in ranks[0]["continued"]["error"]
    assert "another probe" in ranks[1]["continued"]["error"]


def test_models_may_be_sharded_after_the_baseline(ranks):
    later = ranks[0]["sharded later"]
    baseline, first, second = map(of_probe, later["values"])
    assert later["divided"]
    assert set(first) ^ set(baseline) == set()
    assert first == pytest.approx(baseline, rel=1e-5)
    assert second == pytest.approx(baseline, rel=1e-5)


def test_the_loss_is_that_of_all_processes(ranks):
    later = ranks[0]["sharded later"]
    assert later["losses"] == ["nan", "2.0"]
    assert later["alarms"] == ["non-finite"]


def test_weights_are_saved_once(ranks):
    assert ranks[0]["saved"] == ["weights-1.pt"]
