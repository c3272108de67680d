"""What was run is written down line by line, and read back whatever else is in the file."""

import json
from dataclasses import replace

import pytest

from rankscope import results
from rankscope.run import _journal as journal
from rankscope.run._journal import Run

RUN = Run(
    id="D4",
    stem="d4-00000000",
    seed=0,
    scale="quick",
    verdict="holds",
    judgement={"verdict": "holds", "domain": "skips", "on": ""},
    beyond=None,
    key_figure=("residual", 0.5),
    seconds=1.5,
    finished="2026-01-01T00:00:00+00:00",
)
FAILED = replace(RUN, stem="", verdict="", judgement=None, key_figure=None, failure="no memory.")


@pytest.fixture
def folder(tmp_path):
    for stem in ("d4-00000000", "d4-11111111"):
        (tmp_path / f"{stem}.parquet").touch()
    return tmp_path


def test_runs_are_read_back_as_they_were_written(folder) -> None:
    other = replace(RUN, stem="d4-11111111", seed=1)
    for run in (RUN, other):
        journal.append(folder, run)
    assert journal.runs(folder) == [RUN, other]
    assert journal.last(journal.runs(folder), "D4") == other
    assert journal.last(journal.runs(folder), "D5") is None


def test_of_a_run_done_twice_the_last_counts(folder) -> None:
    again = replace(RUN, seconds=9.0)
    for run in (RUN, replace(RUN, stem="d4-11111111"), again):
        journal.append(folder, run)
    assert [run.stem for run in journal.runs(folder)] == ["d4-11111111", "d4-00000000"]
    assert journal.runs(folder)[-1] == again


def test_a_run_whose_file_is_gone_is_forgotten(folder) -> None:
    journal.append(folder, RUN)
    (folder / "d4-00000000.parquet").unlink()
    assert journal.runs(folder) == []


def test_a_failure_is_told_until_it_is_mended(folder) -> None:
    journal.append(folder, FAILED)
    assert journal.runs(folder) == [FAILED]
    journal.append(folder, RUN)
    assert journal.runs(folder) == [RUN]
    journal.append(folder, FAILED)
    assert journal.runs(folder) == [RUN, FAILED]


def test_no_folder_is_no_run(tmp_path) -> None:
    assert journal.runs(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "null",
        '{"id": "D4"}',
        json.dumps({**journal.asdict(RUN), "more": 1}),
        json.dumps({**journal.asdict(RUN), "key_figure": ["a"]}),
        json.dumps({**journal.asdict(RUN), "judgement": {"verdict": "<b>"}}),
        json.dumps({**journal.asdict(RUN), "judgement": {"verdict": "x", "domain": "", "on": ""}}),
        json.dumps({**journal.asdict(RUN), "beyond": "holds"}),
        json.dumps({**journal.asdict(RUN), "seconds": float("nan")}),
        json.dumps({**journal.asdict(RUN), "key_figure": ["a", float("inf")]}),
        json.dumps({**journal.asdict(RUN), "stem": "../d4-00000000"}),
        json.dumps({**journal.asdict(RUN), "verdict": 3}),
        json.dumps({**journal.asdict(RUN), "stem": ["a"]}),
        json.dumps({**journal.asdict(RUN), "seconds": "x"}),
        json.dumps({**journal.asdict(RUN), "key_figure": ["a", 10**400]}),
        "[" * 100_000,
        json.dumps({**journal.asdict(RUN), "seed": "<b>"}),
    ],
)
def test_a_line_that_is_none_is_passed_over(folder, line: str) -> None:
    journal.append(folder, RUN)
    with (folder / journal.NAME).open("a") as file:
        file.write(f"{line}\n")
    journal.append(folder, replace(RUN, stem="d4-11111111"))
    assert len(journal.runs(folder)) == 2


def test_an_interrupted_line_costs_no_other(folder) -> None:
    journal.append(folder, RUN)
    with (folder / journal.NAME).open("ab") as file:
        file.write(b'{"id": "D4", "stem": "\xff')
    assert journal.runs(folder) == [RUN]
    other = replace(RUN, stem="d4-11111111")
    journal.append(folder, other)
    assert journal.runs(folder) == [RUN, other]


def test_verdicts_are_those_of_results() -> None:
    assert results.get_args(results.Verdict) == journal.VERDICTS
