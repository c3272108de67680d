"""The command line as a user meets it: its output, its files and its exit code."""

import json
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import transformers as hf

from rankscope.text import Tokenizer

from ..families.conftest import lively

SMALL = ["--layers=2", "--heads=2", "--width=16", "--passages=2", "--length=12"]


def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rankscope", "trace", *SMALL, "--json"]
    got = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(got.stdout)["table"]
    assert "Traceback" not in got.stderr


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'polars', 'altair', 'numpy'}"
    code = (
        "import sys, rankscope.cli as c\n"
        "sys.argv = ['rankscope', 'diagnose', '--help']\n"
        "try: c.main()\n"
        "finally: sys.stderr.write(str(sorted(" + heavy + " & set(sys.modules))))"
    )
    start = time.perf_counter()
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    assert got.stderr == "[]"
    assert "--json" in got.stdout
    assert "--output" in got.stdout
    assert seconds < 2.0  # half a second on a quiet machine; see benchmarks


def test_version(rankscope) -> None:
    assert rankscope("--version").stdout.startswith("rankscope 0.")


def test_diagnose_writes_report_table_and_chart(rankscope, tmp_path: Path) -> None:
    got = rankscope("diagnose", *SMALL, "--output", "out")
    assert got.returncode == 0, got.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "diagnose.html",
        "diagnose.parquet",
        "diagnose.png",
    }
    assert "SAN+skip" in got.stdout
    assert got.stdout.rstrip().endswith(str(Path("out") / "diagnose.html"))
    table = pl.read_parquet(tmp_path / "out" / "diagnose.parquet")
    assert table["variant"].n_unique() == 4


def test_files_go_to_a_default_folder(rankscope, tmp_path: Path) -> None:
    assert rankscope("trace", *SMALL).returncode == 0
    assert (tmp_path / "rankscope-output" / "trace.parquet").is_file()
    assert (tmp_path / "rankscope-output" / "trace.html").is_file()


def test_json_alone_writes_no_files(rankscope, tmp_path: Path) -> None:
    got = rankscope("diagnose", *SMALL, "--json")
    result = json.loads(got.stdout)
    assert [each["variant"] for each in result["findings"]] == [
        "SAN",
        "SAN+MLP",
        "SAN+skip",
        "transformer",
    ]
    assert result["provenance"]["seed"] == 0
    assert list(tmp_path.iterdir()) == []


def test_trace_json_holds_what_was_asked_for(rankscope) -> None:
    got = rankscope("trace", *SMALL, "--metrics=stable_rank,dobrushin", "--without=mlp", "--json")
    rows = json.loads(got.stdout)["table"]
    assert {row["metric"] for row in rows} == {"stable_rank", "dobrushin"}
    assert {row["head"] for row in rows if row["metric"] == "dobrushin"} == {0, 1}
    assert {row["layer"] for row in rows if row["metric"] == "stable_rank"} == {0, 1, 2}


def test_own_text_from_file_and_standard_input(rankscope, tmp_path: Path) -> None:
    text = "First paragraph here.\n\nAnd a second one,\nover two lines.\n"
    (tmp_path / "mine.txt").write_text(text)
    small = ["--layers=1", "--heads=1", "--width=8", "--json"]
    by_file = rankscope("trace", *small, "--text", "mine.txt")
    by_pipe = rankscope("trace", *small, "--text", "-", stdin=text)
    assert by_file.returncode == 0, by_file.stderr
    table = json.loads(by_file.stdout)["table"]
    assert {row["sample"] for row in table} == {0, 1}
    assert json.loads(by_pipe.stdout)["table"] == table


def test_seeds_decide_the_figures(rankscope) -> None:
    first, again, other = (
        rankscope("trace", *SMALL, "--json", f"--seed={seed}").stdout for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["diagnose", "--width=10", "--heads=3"], "width=10 does not divide into 3 heads"),
        (["diagnose", "--layers=0"], "layers=0"),
        (["diagnose", "--layers=x"], "--layers"),
        (["diagnose", "--init=magic"], "init='magic'"),
        (["diagnose", "--init=nan"], "init scale nan"),
        (["diagnose", "--passages=0"], "--passages 0"),
        (["diagnose", "--length=2"], "--length 2"),
        (["diagnose", "--text=nowhere.txt"], "nowhere.txt"),
        (["diagnose", "--text=."], "--text ."),
        (["diagnose", "--nonsense"], "--nonsense"),
        (["trace", "--metrics=magic"], "magic"),
        (["trace", "--metrics="], "no metric"),
        (["trace", "--without=attention"], "attention"),
        (["trace", *SMALL, "--output=a-file"], "a-file"),
        (["dance"], "dance"),
        (["diagnose", "--seed=99999999999999999999"], "--seed"),
        (["diagnose", "--mlp-ratio=1e308"], "mlp_ratio"),
        (["diagnose", "--at-init"], "--at-init"),
        (["diagnose", "bert-base", "--at-init", "--layers=3"], "--layers"),
        (["diagnose", "./nowhere"], "./nowhere"),
        (["claim", "D5", "--models=magic"], "magic"),
        (["claim", "D5", "--models="], "no model"),
        (["paths", *SMALL, "--max-length=-1"], "max_length=-1"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    rankscope, tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "a-file").write_text("in the way")
    got = rankscope(*arguments)
    assert got.returncode == 2
    assert got.stdout == ""
    assert got.stderr.startswith("rankscope: ")
    assert says in got.stderr
    assert len(got.stderr.strip().splitlines()) == 1
    assert (tmp_path / "a-file").read_text() == "in the way"


def test_no_command_shows_the_help(rankscope) -> None:
    got = rankscope()
    assert "diagnose" in got.stdout
    assert got.stderr == ""


def test_interruption_is_told_and_has_its_code(rankscope, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rankscope.cli.prepare.subject", interrupted)
    got = rankscope("diagnose")
    assert got.returncode == 130
    assert got.stderr == "rankscope: interrupted.\n"


def test_names_that_look_like_markup(rankscope, tmp_path: Path) -> None:
    got = rankscope("trace", *SMALL, "--output", "odd[red]")
    assert got.returncode == 0, got.stderr
    assert "odd[red]" in got.stdout.replace("\n", "")
    assert (tmp_path / "odd[red]" / "trace.parquet").is_file()


def test_binary_text_is_one_sentence(rankscope, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    got = rankscope("trace", *SMALL, "--text", "noise")
    assert got.returncode == 2
    assert "UTF-8" in got.stderr


def test_every_metric_fits_eighty_columns(rankscope, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    got = rankscope("trace", *SMALL, "--metrics=all")
    assert "…" not in got.stdout
    assert "second_singular_value" in got.stdout


def test_paths_of_a_small_network(rankscope, tmp_path: Path) -> None:
    got = rankscope("paths", *SMALL, "--by-head", "--precision=float64", "--output", "out")
    assert got.returncode == 0, got.stderr
    assert "9 attention paths" in got.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"heads.parquet", "paths.html", "paths.parquet", "paths.png"}
    result = json.loads(rankscope("paths", *SMALL, "--precision=float64", "--json").stdout)
    assert result["reconstruction_error"] < 1e-12
    assert result["heads"] is None
    cut = json.loads(rankscope("paths", *SMALL, "--max-length=1", "--json").stdout)
    assert cut["reconstruction_error"] is None


class TestRealModels:
    """A tiny saved model through every command that takes one."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> str:
        lively("bert").save_pretrained(tmp_path / "tiny")
        shape = {"vocab_size": 2400, "hidden_size": 24, "num_hidden_layers": 2}
        more = {"num_attention_heads": 4, "intermediate_size": 40}
        config = hf.BertConfig(**shape, **more)
        hf.BertModel(config).save_pretrained(tmp_path / "wordy")
        words = Tokenizer.bundled().words
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
        (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
        hf.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "wordy")
        return "wordy"

    def trace(self, rankscope, *arguments: str) -> dict:
        got = rankscope("trace", *arguments, "--passages=2", "--length=12", "--json")
        assert got.returncode == 0, got.stderr
        return json.loads(got.stdout)

    def values(self, result: dict, layer: int = 2) -> list[float]:
        return [row["value"] for row in result["table"] if row["layer"] == layer]

    def test_options_change_what_they_say(self, rankscope, folder: str) -> None:
        plain = self.trace(rankscope, folder)
        assert plain["provenance"]["model"] == folder
        assert "12 tokens" in plain["provenance"]["notes"]["input"]
        for option in ("--no-special-tokens", "--mask=causal", "--without=skip", "--at-init"):
            assert self.values(self.trace(rankscope, folder, option)) != self.values(plain), option

    def test_diagnose_under_both_readings(self, rankscope, folder: str) -> None:
        ends = {}
        for norms in ("keep", "drop"):
            for mlp in ("remove", "identity"):
                arguments = ["--passages=2", "--length=12", f"--norms={norms}", f"--mlp={mlp}"]
                result = json.loads(rankscope("diagnose", folder, *arguments, "--json").stdout)
                ends[norms, mlp] = tuple(each["last"] for each in result["findings"])
                assert "norms" in result["provenance"]["reading of SAN"]
        assert ends["keep", "remove"] != ends["drop", "remove"]
        assert len({each[2] for each in ends.values()}) >= 3

    def test_models_of_one_name_are_told_apart(
        self, rankscope, folder: str, tmp_path: Path
    ) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / folder).rename(tmp_path / "other" / folder)
        again = str(Path("other") / folder)
        arguments = ["--models=", f"--pretrained={again}", f"--pretrained=mine={again}"]
        got = rankscope(
            "claim",
            "D5",
            *arguments,
            f"--pretrained={again}",
            "--passages=1",
            "--length=8",
            "--json",
        )
        models = {row["model"] for row in json.loads(got.stdout)["summary"]}
        assert models == {"wordy (pretrained)", "mine (pretrained)", "wordy (pretrained) 2"}

    def test_texts_longer_than_the_positions(self, rankscope, folder: str, tmp_path: Path) -> None:
        (tmp_path / "long.txt").write_text("word " * 700)
        got = rankscope("trace", folder, "--text=long.txt", "--length=700")
        assert got.returncode == 2
        assert "more than the 512 positions" in got.stderr
