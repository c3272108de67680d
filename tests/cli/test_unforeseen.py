"""No traceback, whatever happens: what cannot be foreseen is one sentence and a file."""

import re
from pathlib import Path

import pytest

SMALL = ("trace", "--layers", "2", "--heads", "2", "--width", "8", "--samples", "1")


def test_an_error_of_our_own_making_is_one_sentence_and_a_file(rankscope, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug\x1b[31m")

    monkeypatch.setattr("rankscope.cli.inputs.question", fail)
    got = rankscope(*SMALL)
    assert got.returncode == 1
    said = re.fullmatch(r"rankscope: Internal error: (.*); .* to (.*)\.\n", got.stderr)
    assert said[1] == "ZeroDivisionError: a bug�[31m"
    kept = Path(said[2])
    assert "in fail" in kept.read_text()
    kept.unlink()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_said_so(rankscope, monkeypatch, error) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("rankscope.cli.inputs.question", fail)
    got = rankscope(*SMALL)
    assert got.returncode == 2
    assert "not enough memory" in got.stderr


class Panic(BaseException):
    """As a panic of polars: no Exception."""


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (Panic('Os { code: 24, message: "Too many open files" }'), "Too many open files"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "No space left"),
        (RuntimeError("database or disk is full"), "disk is full"),
    ],
)
def test_what_the_system_refuses_is_said_whoever_raises_it(
    rankscope, monkeypatch, error, full
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("rankscope.cli.inputs.question", fail)
    got = rankscope(*SMALL)
    assert got.returncode == 2
    assert got.stderr.startswith(f"rankscope: operating system error: {full}")
    assert got.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("x" * 300_000,), ("trace", "--mask", "x" * 300_000)])
def test_a_long_argument_is_not_repeated_whole(refuses, words) -> None:
    said = refuses(*words)
    assert 100 < len(said) < 2200


def test_a_folder_whose_name_is_no_text_is_refused(refuses) -> None:
    assert "is not valid UTF-8" in refuses(*SMALL, "--output", "out\udcff")


def test_closed_standard_output_is_said_so(monkeypatch, capsys) -> None:
    from rankscope.cli import main

    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "standard output is closed" in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["0", "40"])
def test_no_figure_is_cut_in_a_narrow_terminal(rankscope, monkeypatch, columns) -> None:
    wide = rankscope(*SMALL).stdout
    monkeypatch.setenv("COLUMNS", columns)
    narrow = rankscope(*SMALL).stdout
    figures = r"\d+\.\d+|10\S+"
    seen = [re.findall(figures, re.sub(r"Took .*", "", each)) for each in (narrow, wide)]
    assert seen[0] == seen[1]
    assert "…" not in narrow
