"""The command line as a user meets it: its output, its files and its exit code."""

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from rankscope.cli import main

SMALL = ["--layers=2", "--heads=2", "--width=16", "--passages=2", "--length=12"]


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def rankscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ran]:
    """Run the command line in an empty folder, in this process: importing torch takes seconds."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["rankscope", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run


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
        (["diagnose", "--length=2"], "length=2"),
        (["diagnose", "--text=nowhere.txt"], "nowhere.txt"),
        (["diagnose", "--text=."], "--text ."),
        (["diagnose", "--nonsense"], "--nonsense"),
        (["trace", "--metrics=magic"], "magic"),
        (["trace", "--metrics="], "no metric"),
        (["trace", "--without=attention"], "attention"),
        (["trace", *SMALL, "--output=a-file"], "a-file"),
        (["dance"], "dance"),
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
