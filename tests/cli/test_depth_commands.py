"""``rankscope deep``, ``bounds``, ``masks`` and the claims about depth, as a user meets them."""

import json

import polars as pl
import pytest
from rankscope.experiments.widths import width_study

from rankscope.cli import check, studies

TINY = ["--layers=4", "--heads=2", "--width=16", "--passages=2", "--length=12"]


@pytest.mark.parametrize("command", ["deep", "bounds", "masks"])
def test_files_and_words(rankscope, tmp_path, command) -> None:
    got = rankscope(command, *TINY, "--init=lecun")
    assert got.returncode == 0, got.stderr
    for kind in ("parquet", "png", "html"):
        assert (tmp_path / "rankscope-output" / f"{command}.{kind}").stat().st_size > 1000
    assert "layer" in got.stdout
    assert got.stdout.count(".") > 3


def test_deep_goes_below_what_floats_hold(rankscope) -> None:
    got = rankscope("deep", *TINY, "--json", "--layers=9")
    found = json.loads(got.stdout)
    ends = [
        row["value"] if "value" in row else row["median"]
        for row in found["summary"]
        if row["variant"] == "scaled"
        and row["metric"] == "log10_relative_residual"
        and row["layer"] == 9
    ]
    assert ends[0] < -400
    assert "doubly exponential" in found["sentences"][0]


def test_deep_keeps_what_is_not_left_out(rankscope) -> None:
    got = rankscope("deep", *TINY, "--without=", "--json")
    assert "no collapse" in json.loads(got.stdout)["sentences"][0]


def test_deep_takes_a_model(rankscope) -> None:
    got = rankscope("deep", "gpt2", "--at-init", "--passages=1", "--length=6", "--json")
    assert got.returncode == 0, got.stderr
    assert "exponential" in json.loads(got.stdout)["sentences"][0]


def test_bounds_say_why_they_do_not_apply(rankscope) -> None:
    got = rankscope("bounds", *TINY, "--without=mlp", "--json")
    told = " ".join(json.loads(got.stdout)["sentences"])
    assert "does not apply" in told
    assert "skip" in told


def test_masks_are_compared_to_any_depth(rankscope, tmp_path) -> None:
    got = rankscope(
        "masks", *TINY, "--masks", "full, window:2|star:1, block:4", "--depth=7", "--output=out"
    )
    assert got.returncode == 0, got.stderr
    table = pl.read_parquet(tmp_path / "out" / "masks.parquet")
    assert table["variant"].unique(maintain_order=True).to_list() == [
        "full",
        "star(1) | window(-2, +2)",
        "block(4)",
    ]
    assert table["layer"].max() == 7
    assert "no center but 3 closed classes" in " ".join(got.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["deep", "--in-norm=foo"], "in-norm"),
        (["deep", "--center=foo"], "center"),
        (["deep", "--without=foo"], "no part 'foo'"),
        (["deep", "--passages=0"], "--passages 0"),
        (["bounds", "--without=foo"], "no part 'foo'"),
        (["masks", "--masks=foo"], "foo"),
        (["masks", "--masks=,"], "--masks names none"),
        (["masks", "--mask=causal"], "--masks names those to compare"),
        (["masks", "--depth=0", *TINY], "depth=0"),
        (["claim", "D17"], "there is no claim 'D17'"),
        (["diagnose", "--mask=window"], "window"),
        (["study", "nonsense"], "there is no study 'nonsense'"),
        (["study", "wu", "--models=nonsense"], "--models nonsense"),
    ],
)
def test_bad_input_gets_one_sentence(rankscope, arguments, message) -> None:
    got = rankscope(*arguments)
    assert got.returncode == 2
    assert message in got.stderr
    assert "Traceback" not in got.stderr


def test_masks_by_name_work_everywhere(rankscope) -> None:
    got = rankscope("trace", *TINY, "--mask=window:1 | star:1", "--json")
    assert got.returncode == 0, got.stderr


def test_every_claim_is_listed_and_counts_its_steps() -> None:
    asked = check.Asked([], [], 8, check.Reading(), 0)
    assert set(check.EXPERIMENTS) >= {"D1", "D2", "D3", "D4", "D5", "D8", "D9", "N1", "W1", "W4"}
    assert all(check.steps(claim, asked) >= 0 for claim in check.EXPERIMENTS)
    assert check.known("n1") == "N1"


def test_a_claim_about_depth_leaves_its_files(rankscope, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("rankscope.experiments.d3.LAYERS", 7)
    monkeypatch.setattr("rankscope.experiments.d3.GAINS", (0.5, 2.0))
    got = rankscope("claim", "d3", "--output=out")
    assert got.returncode == 0, got.stderr
    assert "holds" in got.stdout
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".parquet", ".png", ".html"}


def test_a_study_leaves_its_files(rankscope, tmp_path, monkeypatch) -> None:
    small = studies.Known(
        lambda _cases, _seed, advance: width_study(
            sweeps={"heads": (1, 2)}, seeds=1, on_case=advance
        ),
        lambda _: 2,
    )
    monkeypatch.setitem(studies.STUDIES, "widths", small)
    got = rankscope("study", "widths")
    assert got.returncode == 0, got.stderr
    assert "Heads from 1 to 2" in got.stdout
    assert (tmp_path / "rankscope-output" / "widths.html").is_file()


def test_every_study_counts_its_steps() -> None:
    assert set(studies.STUDIES) == {"widths", "patterns", "layernorm", "wu"}
    assert all(known.steps([]) > 0 for known in studies.STUDIES.values())
