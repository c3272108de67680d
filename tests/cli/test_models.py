"""A tiny saved model through the commands that take one."""

import json
from pathlib import Path

import pytest
import transformers as hf

from rankscope import load
from rankscope.core.tracing import Provenance

RESIDUAL = "relative_residual"
LITTLE = ["--samples=2", "--length=12", "--json", "--table"]


def trace(rankscope, *arguments: str) -> dict:
    got = rankscope("trace", *arguments, *LITTLE)
    assert got.returncode == 0, got.stderr
    return json.loads(got.stdout)


def values(result: dict, layer: int = 2) -> list[float]:
    return [row["value"] for row in result["table"] if row["layer"] == layer]


def test_options_change_what_they_say(rankscope, wordy: str) -> None:
    plain = trace(rankscope, wordy)
    assert plain["provenance"]["model"] == wordy
    assert "12 tokens" in plain["provenance"]["input"]
    for option in ("--no-special-tokens", "--mask=causal", "--without=skip", "--at-init"):
        assert values(trace(rankscope, wordy, option)) != values(plain), option


def test_what_was_chosen_is_recorded(rankscope, wordy: str) -> None:
    told = trace(rankscope, wordy, "--mask=causal", "--without=skip,mlp", "--no-special-tokens")
    assert told["provenance"]["mask"] == "causal"
    assert told["provenance"]["without"] == "skip, mlp"
    assert told["provenance"]["special tokens"] == "left out of the figures"
    assert told["provenance"]["origin"] == "pretrained"
    saved = hf.BertModel.from_pretrained("wordy")
    assert (
        told["provenance"]["weights"]
        == Provenance.of(load(saved).network.without("skip", "mlp")).weights
    )


@pytest.mark.parametrize("command", ["trace", "deep"])
def test_special_tokens_count_unless_told_otherwise(rankscope, command) -> None:
    """Also in a random network: the figures change with the option, and say so."""
    small = ["--layers=2", "--heads=2", "--width=16", *LITTLE]
    all_of_them = json.loads(rankscope(command, *small).stdout)
    inner = json.loads(rankscope(command, *small, "--no-special-tokens").stdout)
    assert all_of_them["summary"] != inner["summary"]
    assert inner["provenance"]["special tokens"] == "left out of the figures"


def test_diagnose_under_two_readings(rankscope, wordy: str) -> None:
    ends = {}
    for parts in ("paper", "theorems"):
        result = json.loads(rankscope("diagnose", wordy, *LITTLE, f"--parts={parts}").stdout)
        ends[parts] = tuple(
            row["median"]
            for row in result["summary"]
            if row["variant"] in ("SAN+MLP", "SAN+skip") and row["metric"] == RESIDUAL
        )
        assert str(result["provenance"]["config"]["ablations"]).startswith(f"{parts}: ")
    assert len(set(ends.values())) == 2
    assert all(ends.values())


def test_texts_longer_than_the_positions(refuses, wordy: str, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 700)
    said = refuses("trace", wordy, "--text=long.txt", "--length=700")
    assert "more than the 512 positions" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--seed=5"], "--seed 5 has no effect"),
        (["--seed=0"], "--seed 0 has no effect"),
        (["--layers=12"], "--layers describes a random network"),
        (["--init=bert"], "--init describes a random network"),
        (["--at-init", "--pickled"], "--pickled applies to pretrained weights"),
    ],
)
def test_what_says_nothing_about_a_model_is_refused(refuses, wordy, options, says) -> None:
    assert says in refuses("trace", wordy, *options)


@pytest.mark.parametrize("option", ["--at-init", "--pickled"])
def test_what_is_about_a_model_needs_one(refuses, option) -> None:
    assert f"{option} needs a MODEL, and none was named" in refuses("trace", option)


def test_a_seed_is_of_use_where_something_is_drawn(rankscope, wordy: str, seeing: str) -> None:
    for arguments in ([wordy, "--at-init"], [seeing]):
        first, other = (trace_seeing(rankscope, *arguments, f"--seed={seed}") for seed in (1, 2))
        assert values(first) != values(other)


def trace_seeing(rankscope, *arguments: str) -> dict:
    got = rankscope("trace", *arguments, "--samples=2", "--json", "--table")
    assert got.returncode == 0, got.stderr
    return json.loads(got.stdout)


def test_a_model_that_sees_is_told_so(rankscope, refuses, seeing: str) -> None:
    assert "images of noise" in trace_seeing(rankscope, seeing)["provenance"]["input"]
    Path("text.txt").write_text("A rose is a rose.")
    for option in ("--length=12", "--text=text.txt"):
        assert "reads images" in refuses("trace", seeing, option)


def test_random_masks_follow_the_seed(rankscope, wordy: str) -> None:
    small = ["--layers=2", "--heads=2", "--width=16", *LITTLE]
    masks = ["masks", "--masks=random:2"]
    told = [
        json.loads(rankscope(*masks, *small, f"--seed={seed}").stdout)["summary"][0]["variant"]
        for seed in (3, 4)
    ]
    assert "3" in told[0]
    assert "4" in told[1]
    # A seed that is named stays, and so a pretrained model has no use for another.
    assert rankscope("trace", wordy, "--mask=random:2", "--seed=3", *LITTLE).returncode == 0
    assert rankscope("trace", wordy, "--mask=random:2:7", "--seed=3", *LITTLE).returncode == 2


def test_a_model_that_is_not_converted_is_diagnosed_traced_and_compared(rankscope, tmp_path):
    shape = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 3, "intermediate_size": 24}
    hf.FNetModel(hf.FNetConfig(**shape, max_position_embeddings=64)).save_pretrained(
        tmp_path / "fnet"
    )
    row = " ".join(str(3 + at % 90) for at in range(36))
    (tmp_path / "ids.txt").write_text(f"{row}\n{row[:60]}\n", encoding="utf-8")
    got = rankscope("diagnose", "fnet", "--ids=ids.txt", "--json")
    assert got.returncode == 0, got.stderr
    answer = json.loads(got.stdout)
    assert answer["title"].endswith("pretrained: fnet, 3 layers, not converted")
    assert len(answer["findings"]) == 11
    assert rankscope("trace", "fnet", "--ids=ids.txt").returncode == 0
    got = rankscope("compare", "fnet", "fnet@init", "--ids=ids.txt")
    assert got.returncode == 0, got.stderr
    got = rankscope("paths", "fnet", "--ids=ids.txt")
    assert got.returncode == 2
    assert "FNetLayer" in got.stderr
