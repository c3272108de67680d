"""What was run of claims is noted, and read back whatever else is in the database."""

import json
from dataclasses import replace

import pytest

from rankscope.errors import InputError
from rankscope.judgements import Judgement
from rankscope.run import ClaimRun, claim_runs, over_seeds
from rankscope.run._reproduce import _note
from rankscope.run._store import RunRecord, Store

JUDGED = {"verdict": "holds", "domain": "skips", "on": "", "checks": {"cubic": True}}
RUN = RunRecord(
    "d4-00000000",
    "D4",
    {"seed": 0, "scale": "quick", "series": "a"},
    ended=1767225600.0,
    seconds=1.5,
    file="d4-00000000.parquet",
    details={"judgement": JUDGED, "key_figure": ["residual", 0.5]},
)
OTHER = replace(RUN, key="d4-11111111", settings={**RUN.settings, "seed": 1})
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
        series="a",
        judgement=Judgement("holds", "skips", "", {"cubic": True}),
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
        ("details", json.dumps({**DETAILS, "judgement": {**JUDGED, "checks": [1]}})),
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
    with pytest.raises(InputError, match="has runs of 'sweep', expected 'reproduce'"):
        claim_runs(tmp_path)


def run(seed, verdict="holds", *, beyond=None, series="a", cubic=True, failure=""):
    judgement = Judgement(verdict, "skips", "", {"cubic": cubic})
    beyond = beyond and Judgement(beyond, "masks")
    return ClaimRun("D4", f"d4-{seed}", seed, "quick", series, judgement, beyond, None, 1.0, "",
                    failure)  # fmt: skip


def test_runs_that_differ_in_the_seed_alone_are_one_series():
    runs = [run(2), run(0, series="b"), run(1), run(0)]
    other, same = over_seeds(runs)
    assert [each.seed for each in same.runs] == [0, 1, 2]
    assert same.seeds == "seeds 0, 1, 2: stable"
    assert same.verdict == "Supported"
    assert (other.seeds, other.verdict) == ("seed 0 only", "Supported")


def test_a_verdict_that_changes_with_the_seed_depends_on_it():
    (series,) = over_seeds([run(0), run(1, "fails", cubic=False), run(2)])
    assert series.verdict == "Supported for seeds 0, 2; not supported for seed 1"
    assert series.seeds == "seeds 0, 1, 2: not stable"
    (series,) = over_seeds([run(0, beyond="holds"), run(1, beyond="fails")])
    assert (
        series.verdict
        == "Supported. Beyond its domain: supported for seed 0; not supported for seed 1"
    )
    assert series.seeds == "seeds 0, 1: not stable"


def test_a_check_that_changes_with_the_seed_is_named():
    (series,) = over_seeds([run(0, "depends"), run(1, "depends", cubic=False)])
    assert series.seeds == "seeds 0, 1: same verdict, but cubic in 1 of 2"


def test_a_failure_is_a_series_of_its_own_and_what_draws_nothing_says_so():
    failed, alone = over_seeds([run(0, failure="no memory."), run(None)])
    assert failed.runs[0].failure == "no memory."
    assert alone.seeds == "no random numbers"
