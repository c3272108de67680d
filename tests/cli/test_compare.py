"""Models side by side from the command line."""

import json
from pathlib import Path

import polars as pl
import pytest
import torch
import transformers as hf

from rankscope import Result, results
from rankscope.show import report

LITTLE = ["--samples=2", "--length=12"]


@pytest.fixture
def mute(tmp_path: Path) -> str:
    """A tiny BERT without a tokeniser, and ids for it."""
    shape = {"vocab_size": 30, "hidden_size": 24, "num_hidden_layers": 2}
    more = {"num_attention_heads": 4, "intermediate_size": 40}
    hf.BertModel(hf.BertConfig(**shape, **more)).save_pretrained(tmp_path / "mute")
    (tmp_path / "ids.txt").write_text("2 7 8 9 3\n2 11 3\n")
    return "mute"


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write tables alone: pages and pictures take seconds and are tested where they are made."""

    def write(result: Result, folder: Path, **_: object) -> None:
        results.write(result, report.names(result, folder)["table"])

    monkeypatch.setattr(report, "write", write)


@pytest.mark.usefixtures("undrawn")
def test_a_model_its_architecture_and_an_earlier_run(rankscope, wordy: str, tmp_path: Path) -> None:
    assert rankscope("trace", wordy, *LITTLE, "--output=before").returncode == 0
    (before,) = (tmp_path / "before").glob("*.parquet")
    got = rankscope(
        "compare", wordy, f"{wordy}@init", f"before/{before.name}", *LITTLE, "--json", "--seed=1"
    )
    assert got.returncode == 0, got.stderr
    told = json.loads(got.stdout)
    rows = {row["model"]: row for row in told["listings"][0]["rows"]}
    assert list(rows) == [wordy, f"{wordy} at initialisation", before.stem]
    figures = ["layers", "input", "lowest", "end"]
    assert [rows[wordy][name] for name in figures] == [rows[before.stem][name] for name in figures]
    assert rows[wordy]["input"] != rows[f"{wordy} at initialisation"]["input"]
    assert told["provenance"]["command"].startswith("rankscope compare wordy wordy@init before/")
    assert told["warnings"] == []


def test_ids_for_models_without_a_tokeniser(rankscope, refuses, mute: str) -> None:
    said = refuses("compare", mute, f"{mute}@init")
    assert "--ids" in said
    assert "--tokenizer" in said
    got = rankscope("compare", mute, f"{mute}@init", "--ids=ids.txt", "--json")
    assert got.returncode == 0, got.stderr
    read = json.loads(got.stdout)["listings"][2]["rows"]
    assert [row["tokens"] for row in read] == [8, 8]


def test_a_pickled_model_is_compared_if_that_is_asked_for(
    rankscope, refuses, mute, tmp_path
) -> None:
    model = hf.BertModel.from_pretrained(mute)
    torch.save(model.state_dict(), tmp_path / "mute" / "pytorch_model.bin")
    (tmp_path / "mute" / "model.safetensors").unlink()
    two = ["compare", mute, f"{mute}@init", "--ids=ids.txt"]
    assert "--pickled" in refuses(*two)
    assert rankscope(*two, "--pickled", "--json").returncode == 0


@pytest.mark.usefixtures("undrawn")
def test_the_table_as_csv(rankscope, wordy: str, tmp_path: Path) -> None:
    got = rankscope("compare", wordy, f"{wordy}@init", *LITTLE, "--csv", "--output=out")
    assert got.returncode == 0, got.stderr
    (table,) = (tmp_path / "out").glob("*.parquet")
    assert f"out/{table.stem}.csv" in got.stdout
    written = pl.read_csv(table.with_suffix(".csv"))
    assert written["value"].to_list() == pl.read_parquet(table)["value"].to_list()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["wordy"], "alone cannot be compared"),
        (["wordy", "wordy", "--seed=3"], "no model is followed by @init"),
        (["wordy@init", "wordy@init", "--pickled"], "every model is followed by @init"),
        (["wordy", "gone/from/here"], "no folder gone/from/here"),
        (["wordy", "none.parquet"], "none.parquet does not exist"),
        (["wordy", "wordy@init", "--samples=0"], "--samples 0"),
        (["wordy", "wordy@init", "--device=cuda:99"], "available: cpu"),
        (["wordy", "wordy@init", "--csv", "--json"], "--output"),
        (["wordy", "wordy@init", "--ids=a", "--text=b"], "two inputs"),
    ],
)
@pytest.mark.usefixtures("wordy")
def test_what_makes_no_sense_is_refused(refuses, arguments, words) -> None:
    assert words in refuses("compare", *arguments)
