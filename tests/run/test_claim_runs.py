"""What was run of claims is noted, and read back whatever else is in the database."""

import json
from dataclasses import replace
from typing import get_args

import pytest

from rankscope import results
from rankscope.errors import InputError
from rankscope.run import ClaimRun, claim_runs
from rankscope.run._reproduce import _note
from rankscope.run._status import VERDICTS
from rankscope.run._store import Ended, Store

JUDGED = {"verdict": "holds", "domain": "skips", "on": ""}
RUN = Ended(
    "d4-00000000",
    "D4",
    {"seed": 0, "scale": "quick"},
    ended=1767225600.0,
    seconds=1.5,
    file="d4-00000000.parquet",
    details={"verdict": "holds", "judgement": JUDGED, "key_figure": ["residual", 0.5]},
)
OTHER = replace(RUN, key="d4-11111111", settings={"seed": 1, "scale": "quick"})
FAILED = replace(RUN, key="D4", file="", error="no memory.", details={})


@pytest.fixture
def folder(tmp_path):
    for stem in ("d4-00000000", "d4-11111111"):
        (tmp_path / f"{stem}.parquet").touch()
    return tmp_path


def stems(folder):
    return [run.stem or run.failure for run in claim_runs(folder)]


def test_runs_are_read_back_as_they_were_noted(folder):
    for run in (RUN, OTHER):
        _note(folder, run)
    first, last = claim_runs(folder)
    assert first == ClaimRun(
        id="D4",
        stem="d4-00000000",
        seed=0,
        scale="quick",
        verdict="holds",
        judgement=JUDGED,
        beyond=None,
        key_figure=("residual", 0.5),
        seconds=1.5,
        finished="2026-01-01T00:00:00+00:00",
    )
    assert (last.stem, last.seed) == ("d4-11111111", 1)


def test_of_a_run_done_twice_the_last_counts(folder):
    for run in (RUN, OTHER, replace(RUN, seconds=9.0)):
        _note(folder, run)
    assert stems(folder) == ["d4-11111111", "d4-00000000"]
    assert claim_runs(folder)[-1].seconds == 9.0


def test_a_run_whose_file_is_gone_is_forgotten(folder):
    _note(folder, RUN)
    (folder / "d4-00000000.parquet").unlink()
    assert claim_runs(folder) == []


def test_a_failure_is_told_until_it_is_mended(folder):
    _note(folder, FAILED)
    assert stems(folder) == ["no memory."]
    _note(folder, RUN)
    assert stems(folder) == ["d4-00000000"]
    _note(folder, FAILED)
    assert stems(folder) == ["d4-00000000", "no memory."]


def test_no_folder_is_no_run(tmp_path):
    assert claim_runs(tmp_path / "nowhere") == []


DETAILS = dict(RUN.details)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("details", ""),
        ("details", "{"),
        ("details", "[]"),
        ("details", "null"),
        ("details", "[" * 100_000),
        ("details", b"\xff"),
        ("details", json.dumps({**DETAILS, "more": 1})),
        ("details", json.dumps({**DETAILS, "id": "D5"})),
        ("details", json.dumps({**DETAILS, "key_figure": ["a"]})),
        ("details", json.dumps({**DETAILS, "key_figure": ["a", float("inf")]})),
        ("details", json.dumps({**DETAILS, "key_figure": ["a", 10**400]})),
        ("details", json.dumps({**DETAILS, "judgement": {"verdict": "<b>"}})),
        ("details", json.dumps({**DETAILS, "judgement": {**JUDGED, "verdict": "x"}})),
        ("details", json.dumps({**DETAILS, "beyond": "holds"})),
        ("details", json.dumps({**DETAILS, "verdict": 3})),
        ("settings", json.dumps({"seed": "<b>", "scale": "quick"})),
        ("settings", json.dumps({"seed": 0})),
        ("settings", json.dumps([1])),
        ("seconds", float("inf")),
        ("seconds", "x"),
        ("ended", "yesterday"),
        ("ended", 1e300),
        ("key", "../d4-00000000"),
        ("experiment", b"D4"),
        ("error", b"\x00"),
    ],
)
def test_a_row_that_is_none_is_passed_over(folder, sql, column, value):
    _note(folder, RUN)
    sql(folder, f"UPDATE runs SET {column} = ?", value)
    assert claim_runs(folder) == []
    _note(folder, OTHER)
    assert stems(folder) == ["d4-11111111"]


def test_a_folder_of_a_sweep_holds_no_claims(tmp_path):
    with Store(tmp_path, "sweep", create=True):
        pass
    with pytest.raises(InputError, match="holds runs of 'sweep', not of 'reproduce'"):
        claim_runs(tmp_path)


def test_verdicts_are_those_of_results():
    assert get_args(results.Verdict) == VERDICTS
