"""Claims run, kept, resumed and redrawn; a fault in one costs no other."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope import results, tables
from rankscope.errors import InputError, KindError
from rankscope.experiments.catalogue import Entry, entries, entry
from rankscope.experiments.config import Config as _Config
from rankscope.results import Drawing, Judgement, Result
from rankscope.run import SUMMARY, claim_runs, over_seeds, reproduce, reproductions
from rankscope.run._reproduce import write_summary
from rankscope.run._store import Store


@dataclass(frozen=True)
class Config(_Config):
    """As small as can be."""


@pytest.fixture
def ran(monkeypatch) -> list[tuple[str, int]]:
    """In the place of claims, ones that note that they ran; D3 fails, and D4 is interrupted."""
    noted: list[tuple[str, int]] = []

    def module(claim: Entry) -> SimpleNamespace:
        def run(config: Config, on_step: Any) -> Result:
            if claim.id == "D3":
                raise InputError("there is no such network.")
            if claim.id == "D5":
                raise ZeroDivisionError("division by zero")
            if claim.id == "D4" and not noted.count(("D4", 0)):
                noted.append(("D4", 0))
                raise KeyboardInterrupt
            noted.append((claim.id, config.seed))
            on_step(1.0)
            values = [2.0, float(config.seed)]
            return claim.result(
                config,
                question="Is it so?",
                sentences=("It is.",),
                table=tables.frame({"layer": [0, 1], "metric": ["rank"] * 2, "value": values}),
                judgement=Judgement("holds", claim.domain),
                beyond=Judgement("depends", "elsewhere", "the weather"),
                key_figures={"rank": 0.25},
                drawings=(Drawing("by_depth", "", "rank"),),
            )

        return SimpleNamespace(Config=Config, run=run, PAPER={"seed": 7})

    monkeypatch.setattr(Entry, "module", module)
    return noted


def test_what_the_folder_holds_is_not_computed_again(ran, tmp_path) -> None:
    (first,) = reproduce(["D1"], tmp_path)
    (again,) = reproduce(["d1"], tmp_path)
    assert ran == [("D1", 0)]
    assert (first.from_before, again.from_before) == (False, True)
    assert again.result.table.equals(first.result.table)
    assert again.run == first.run
    assert again.files == first.files
    reproduce(["D1"], tmp_path, fresh=True)
    assert ran == [("D1", 0)] * 2


def test_two_seeds_have_files_of_their_own(ran, tmp_path) -> None:
    one, other = (reproduce(["D1"], tmp_path, seed=seed)[0] for seed in (0, 1))
    assert ran == [("D1", 0), ("D1", 1)]
    assert not set(one.files.values()) & set(other.files.values())
    assert results.read(one.files["table"]).table["value"].to_list() == [2.0, 0.0]
    assert [run.seed for run in claim_runs(tmp_path)] == [0, 1]
    page = (tmp_path / SUMMARY).read_text("utf-8")
    assert "seeds 0, 1: stable, quick scale" in page
    assert f'<a href="{Path(other.files["page"]).name}">1</a>' in page


def test_a_claim_is_run_with_as_many_seeds_as_asked(ran, tmp_path) -> None:
    assert len(reproduce(["D1", "D2"], tmp_path, seeds=3, seed=4)) == 6
    assert ran == [(id_, seed) for id_ in ("D1", "D2") for seed in (4, 1004, 2004)]
    reproduce(["D1"], tmp_path, scale="paper", seeds=2)  # from the seed of that scale on
    assert ran[6:] == [("D1", 7), ("D1", 1007)]
    with pytest.raises(InputError, match="seeds=0"):
        reproduce(["D1"], tmp_path, seeds=0)


def test_a_claim_that_draws_nothing_is_run_once(tmp_path) -> None:
    (outcome,) = reproduce(["D8"], tmp_path, seeds=3)
    assert outcome.run.seed is None
    assert over_seeds(claim_runs(tmp_path))[0].seeds == "no random numbers"


def test_the_papers_sizes_are_a_configuration_of_their_own(ran, tmp_path) -> None:
    reproduce(["D1"], tmp_path, scale="paper")
    reproduce(["D1"], tmp_path, scale="paper", seed=3)
    assert ran == [("D1", 7), ("D1", 3)]
    assert {run.scale for run in claim_runs(tmp_path)} == {"paper"}


def test_a_claim_that_fails_to_run_costs_no_other(ran, tmp_path) -> None:
    found = reproduce(["D1", "D3", "D5", "D2"], tmp_path)
    assert ran == [("D1", 0), ("D2", 0)]
    failures = [outcome.run.failure for outcome in found]
    assert failures == [
        "", "there is no such network.", "ZeroDivisionError: division by zero.", "",
    ]  # fmt: skip
    assert [outcome.result is None for outcome in found] == [False, True, True, False]
    where = {run.id: run.traceback for run in claim_runs(tmp_path)}
    assert 'raise ZeroDivisionError("division by zero")' in where["D5"]
    page = (tmp_path / SUMMARY).read_text("utf-8")
    assert "there is no such network." in page
    assert "2 failed to run" in page


def test_an_interrupted_run_goes_on_where_it_was(ran, tmp_path) -> None:
    chosen = {entry(id_): {} for id_ in ("D1", "D4", "D2")}
    with pytest.raises(KeyboardInterrupt):
        list(reproductions(chosen, tmp_path))
    assert [run.id for run in claim_runs(tmp_path)] == ["D1"]
    done = list(reproductions(chosen, tmp_path))
    assert ran == [("D1", 0), ("D4", 0), ("D4", 0), ("D2", 0)]
    assert [outcome.from_before for outcome in done] == [True, False, False]


@pytest.mark.parametrize(
    "damage", ["truncated", "foreign", "gone", "other id", "other digest", "cannot be drawn"]
)
def test_a_damaged_file_is_computed_anew(ran, tmp_path, damage) -> None:
    (outcome,) = reproduce(["D1"], tmp_path)
    table = tmp_path / f"{outcome.run.stem}.parquet"
    changes: dict[str, dict[str, Any]] = {
        "other id": {"id": "D2"},
        "other digest": {"provenance": {**outcome.result.provenance, "digest": "f" * 12}},
        "cannot be drawn": {"drawings": (Drawing("by_magic", "", "rank"),)},
    }
    if damage == "truncated":
        table.write_bytes(table.read_bytes()[:50])
    elif damage in changes:
        results.write(replace(outcome.result, **changes[damage]), table)
    elif damage == "foreign":
        tables.write(outcome.result.table, table, {"seed": 0})
    else:
        table.unlink()
    (again,) = reproduce(["D1"], tmp_path)
    assert not again.from_before
    assert ran == [("D1", 0)] * 2
    assert results.read(table).verdict == "holds"


def test_pages_are_drawn_anew_without_computing(ran, tmp_path) -> None:
    chosen = {entry("D1"): {}}
    (first,) = reproductions(chosen, tmp_path)
    page = tmp_path / f"{first.run.stem}.html"
    whole = page.read_text("utf-8")
    page.unlink()
    (second,) = reproductions(chosen, tmp_path)
    assert page.read_text("utf-8") == whole
    page.write_text("old")
    (third,) = reproductions(chosen, tmp_path, redraw=True)
    assert page.read_text("utf-8") == whole
    assert ran == [("D1", 0)]
    assert first.run.seconds == second.run.seconds == third.run.seconds


def test_an_interruption_before_it_was_noted_costs_the_time_alone(ran, tmp_path) -> None:
    """The table is written first, what is known of it last."""
    reproduce(["D1"], tmp_path)
    (tmp_path / "runs.sqlite").unlink()
    (again,) = reproduce(["D1"], tmp_path)
    assert ran == [("D1", 0)]
    assert (again.run.seconds, again.run.judgement.verdict) == (None, "holds")
    assert claim_runs(tmp_path)[0].seconds is None


def test_what_was_asked_for_last_is_the_last_verdict(ran, tmp_path) -> None:
    for seed in (0, 1, 0):
        reproduce(["D1"], tmp_path, seed=seed)
    assert len(ran) == 2
    assert claim_runs(tmp_path)[-1].seed == 0


def test_a_folder_that_cannot_be_written_to_costs_no_other_claim(
    ran, tmp_path, monkeypatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise InputError("runs.sqlite cannot be written: No space left on device.")

    monkeypatch.setattr(Store, "record", full)
    found = reproduce(["D1", "D2"], tmp_path)
    assert len(ran) == 2
    assert all("No space left" in outcome.run.failure for outcome in found)


def test_a_claim_without_an_option_runs_without_it(ran, tmp_path) -> None:
    reproduce(["D8", "D1"], tmp_path, seed=4)
    assert ran == [("D8", 0), ("D1", 4)]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["D1"], {"nonsense": 1}, "none of D1 has a field 'nonsense'"),
        ("D1", {}, r"ids='D1' is a str, expected a sequence; put it in a list: \[ids\]"),
        ([5], {}, r"ids\[0\]=5 is a int, expected a str"),
    ],
)
def test_what_makes_no_sense_is_refused(ran, tmp_path, arguments, options, message) -> None:
    with pytest.raises((InputError, KindError), match=message):
        reproduce(arguments, tmp_path, **options)
    assert ran == []


def test_a_scale_there_is_not_and_a_seed_that_is_none(ran, tmp_path) -> None:
    with pytest.raises(InputError, match="scale='papr' is unknown, expected one of quick, paper"):
        reproduce(["D1"], tmp_path, scale="papr")
    (outcome,) = reproduce(["D1"], tmp_path, seed=1.5)
    assert "seed" in outcome.run.failure
    assert ran == []


def test_an_unknown_claim_is_refused_before_any_runs(ran, tmp_path) -> None:
    with pytest.raises(InputError, match="no claim 'D99'"):
        reproduce(["D1", "D99"], tmp_path)
    assert ran == []


@pytest.mark.usefixtures("ran")
def test_the_summary_has_a_row_for_every_claim_and_nothing_unescaped(sql, tmp_path) -> None:
    reproduce(["D1"], tmp_path)
    text = (tmp_path / SUMMARY).read_text("utf-8")
    assert text.count('<th scope="row">') == len(entries("claim"))
    assert 'href="d1-' in text
    assert "rankscope reproduce D2" in text  # what to type for those that were not run
    assert "supported in part</span></span> the weather" in text
    assert "elsewhere" in text
    assert "0.25" in text
    ((details,),) = sql(tmp_path, "SELECT details FROM runs")
    noted = json.loads(details)
    noted["judgement"]["on"] = noted["judgement"]["domain"] = noted["key_figure"][0] = "<script>"
    sql(tmp_path, "UPDATE runs SET details = ?", json.dumps(noted))
    sql(
        tmp_path,
        "UPDATE runs SET settings = ?",
        json.dumps({"seed": 0, "scale": "<script>", "series": ""}),
    )
    attacked = write_summary(tmp_path).read_text("utf-8")
    assert "<script>" not in attacked
    assert "&lt;script&gt;" in attacked


def test_one_number_changed_is_computed_anew(ran, tmp_path) -> None:
    """Which no reader of Parquet sees: the database has a digest."""
    (outcome,) = reproduce(["D1"], tmp_path)
    table = outcome.result.table.with_columns(value=outcome.result.table["value"] + 1)
    results.write(replace(outcome.result, table=table), outcome.files["table"])
    (again,) = reproduce(["D1"], tmp_path)
    assert len(ran) == 2
    assert again.result.table.equals(outcome.result.table)
