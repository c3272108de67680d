"""A sweep in this process: what is kept, skipped, repeated, refused and set aside."""

import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import works

from rankscope.errors import InputError
from rankscope.run import Inline, Run, drive, status, table

NO_FILE = "it is not a regular file"


def sweep(runs, folder, **options):
    return drive(runs, folder, engine=Inline(), work=works.acts, **options)


def single(folder):
    return sorted((Path(folder) / "results").iterdir())


def test_every_run_is_kept_under_its_key_with_its_axes(make_runs, sql, tmp_path):
    runs = make_runs(4)
    progress = sweep(runs, tmp_path / "new" / "sweep", grid={"axes": {"index": [0, 1, 2, 3]}})
    assert (progress.total, progress.done, progress.failed, progress.left) == (4, 4, 0, 0)
    assert (progress.before, progress.aside) == (0, {})
    folder = tmp_path / "new" / "sweep"
    assert {path.stem for path in single(folder)} == {run.key for run in runs}
    ((grid,),) = sql(folder, "SELECT value FROM meta WHERE name = 'grid'")
    assert json.loads(grid)["axes"]["index"] == [0, 1, 2, 3]
    noted = sql(folder, "SELECT key, experiment, status, file, attempts, seconds >= 0 FROM runs")
    assert noted == [
        (run.key, "numbers", "done", f"results/{run.key}.parquet", 1, 1) for run in runs
    ]
    assert sorted(path.name for path in folder.iterdir()) == [
        "lock.sqlite",
        "results",
        "runs.sqlite",
    ]
    read = table(folder).collect()
    assert read.columns == ["run", "index", "layer", "metric", "value"]
    assert read["value"].to_list() == [i + layer / 7 for i in range(4) for layer in range(3)]
    assert read["run"].to_list() == [run.key for run in runs for _ in range(3)]


def test_equal_runs_make_equal_files_and_other_runs_others(make_runs, digests, tmp_path):
    for name in ("one", "two"):
        sweep(make_runs(3), tmp_path / name)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert len(set(digests(tmp_path / "one").values())) == 3


def test_a_second_start_computes_the_rest_alone(make_runs, begun, tmp_path):
    log = tmp_path / "log"
    sweep(make_runs(3, log=log), tmp_path / "sweep")
    heard = []
    progress = sweep(
        make_runs(5, log=log), tmp_path / "sweep", on_outcome=lambda o, p: heard.append((o, p))
    )
    assert (progress.before, progress.done, progress.total) == (3, 5, 5)
    assert set(begun(log).values()) == {1}
    assert [outcome.run.axes["index"] for outcome, _ in heard] == [3, 4]
    assert [(each.done, each.left) for _, each in heard] == [(4, 1), (5, 0)]


def test_a_failure_is_written_down_and_repeated_only_if_asked(make_run, begun, tmp_path):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    bad = make_run(9, action="raise", log=log)
    runs = [make_run(0, log=log), bad, make_run(1, log=log)]
    assert (sweep(runs, folder).done, sweep(runs, folder).failed) == (2, 1)
    assert begun(log)[bad.key] == 1
    assert sweep(runs, folder, retry_failed=True).failed == 1
    (failure,) = status(folder).failures
    assert (failure.key, failure.error, failure.attempts) == (bad.key, "too wide.", 2)
    assert failure.axes == {"index": 9}
    assert "in acts" in failure.traceback
    mended = replace(bad, fields={**bad.fields, "action": ""})
    assert sweep([*runs[:1], mended], folder, retry_failed=True).failed == 0
    assert status(folder).failures == ()
    assert begun(log) == {runs[0].key: 1, runs[2].key: 1, bad.key: 3}


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("foreign", "ZeroDivisionError: by nothing."),
        ("unpicklable", "UnpicklableError: "),
        ("unprintable", "UnprintableError: (no message)."),
        ("exit", "SystemExit: 3."),
        ("none", "the run returned a NoneType, expected a polars DataFrame."),
        ("objects", "the run's table cannot be written: "),
        ("columns", "the run returned a table with metric, value, weather; expected metric"),
        ("kinds", "the run's table cannot be written: InvalidOperationError"),
    ],
)
def test_whatever_a_run_does_the_next_one_goes_on(action, said, make_run, tmp_path):
    progress = sweep([make_run(0, action=action), make_run(1)], tmp_path)
    assert (progress.done, progress.failed) == (1, 1)
    assert status(tmp_path).failures[0].error.startswith(said)


def test_runs_of_one_key_are_one(make_run, tmp_path):
    assert sweep([make_run(0), make_run(0)], tmp_path).total == 1


@pytest.mark.parametrize("key", ["", "../../0123456789ab", "0123456789AB", "xyz"])
def test_a_key_that_is_no_name_of_a_file_is_refused(key, make_run, tmp_path):
    with pytest.raises(InputError, match="as the key of a run"):
        sweep([replace(make_run(0), key=key)], tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b""),
        lambda path: shutil.copy(single(path.parents[1])[1], path),
    ],
    ids=["truncated", "empty", "of another run"],
)
@pytest.mark.parametrize("has_database", [True, False])
def test_a_damaged_result_is_set_aside_and_computed_anew(
    damage, has_database, make_runs, digests, begun, tmp_path
):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    runs = make_runs(3, log=log)
    sweep(runs, folder)
    whole = digests(folder)
    damage(single(folder)[0])
    assert digests(folder) != whole
    if has_database:
        with pytest.raises(InputError, match=r"is damaged .*; start the sweep again"):
            table(folder)
    else:
        (folder / "runs.sqlite").unlink()
    progress = sweep(runs, folder)
    name = single(folder)[0].name
    assert list(progress.aside) == [f"aside/1-{name}"]
    assert (folder / "aside" / f"1-{name}").exists()
    assert digests(folder) == whole
    assert begun(log)[name.removesuffix(".parquet")] == 2
    assert begun(log).total() == 4


def test_an_empty_result_of_another_run_is_damage_too(make_run, tmp_path):
    runs = [make_run(index, rows=0) for index in range(2)]
    sweep(runs, tmp_path)
    (tmp_path / "runs.sqlite").unlink()
    shutil.copy(single(tmp_path)[1], single(tmp_path)[0])
    (wrong,) = sweep(runs, tmp_path).aside.values()
    assert wrong == f"it belongs to {single(tmp_path)[1].stem}"


def test_one_letter_changed_is_damage(make_runs, digests, tmp_path):
    """Which no reader of Parquet sees: the database has a digest."""
    sweep(make_runs(2), tmp_path)
    whole, path = digests(tmp_path), single(tmp_path)[1]
    path.write_bytes(path.read_bytes().replace(b"residual", b"Residual"))
    assert pl.read_parquet(path)["metric"].to_list() == ["Residual"] * 3
    with pytest.raises(InputError, match=rf"{path.name} is damaged \(its content has changed\)"):
        table(tmp_path)
    assert list(sweep(make_runs(2), tmp_path).aside.values()) == ["its content has changed"]
    assert digests(tmp_path) == whole


def test_a_copy_under_another_key_is_not_read_and_set_aside(make_runs, tmp_path):
    sweep(make_runs(2), tmp_path)
    whole, stray = table(tmp_path).collect(), tmp_path / "results" / f"{'f' * 12}.parquet"
    shutil.copy(single(tmp_path)[0], stray)
    assert table(tmp_path).collect().equals(whole)
    assert status(tmp_path).done == 2
    assert list(sweep(make_runs(2), tmp_path).aside) == [f"aside/1-{stray.name}"]
    assert table(tmp_path).collect().equals(whole)


def test_a_result_that_is_gone_is_computed_anew(make_runs, begun, tmp_path):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    sweep(make_runs(2, log=log), folder)
    single(folder)[0].unlink()
    with pytest.raises(InputError, match=r"is damaged .*; start the sweep again"):
        table(folder)
    assert sweep(make_runs(2, log=log), folder).before == 1
    assert table(folder).collect().height == 6
    assert sorted(begun(log).values()) == [1, 2]


@pytest.mark.parametrize("column", ["settings", "details", "attempts", "error"])
def test_a_failure_that_cannot_be_read_is_repeated(column, make_run, sql, tmp_path):
    run = make_run(0, action="raise")
    sweep([run], tmp_path)
    sql(tmp_path, f"UPDATE runs SET {column} = ?", b"{")
    assert status(tmp_path).failures == ()
    sweep([run], tmp_path)
    assert status(tmp_path).failures[0].attempts == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE points SET axes = '{\"index\": 7}' WHERE number = 1",
        "UPDATE runs SET seconds = 1.5",
        "DELETE FROM runs WHERE asked = 1",
        "DELETE FROM points WHERE number = 2",
        "UPDATE meta SET value = '[]' WHERE name = 'grid'",
        "DELETE FROM meta WHERE name = 'seal'",
        "INSERT INTO runs (key, status) VALUES ('0123456789ab', 'done')",
    ],
)
def test_whatever_is_changed_in_the_database_is_noticed(change, make_runs, sql, tmp_path):
    sweep(make_runs(2), tmp_path)
    sql(tmp_path, change, sealed=False)
    for attempt in (lambda: sweep(make_runs(2), tmp_path), lambda: table(tmp_path)):
        with pytest.raises(InputError, match=r"runs\.sqlite is damaged \(its digest is wrong\)"):
            attempt()


def test_a_pipe_in_the_place_of_a_result_is_not_waited_for(make_runs, tmp_path):
    sweep(make_runs(2), tmp_path)
    path = single(tmp_path)[0]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="not a regular file"):
        table(tmp_path)
    assert list(sweep(make_runs(2), tmp_path).aside.values()) == [NO_FILE]
    assert table(tmp_path).collect().height == 6


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["lock.sqlite", "runs.sqlite", "runs.sqlite-wal"])
def test_what_is_no_file_in_the_place_of_the_database_is_refused(name, make, make_runs, tmp_path):
    make(tmp_path / name)
    with pytest.raises(InputError, match=f"{name} is not a file of a sweep; remove it"):
        sweep(make_runs(1), tmp_path)


def test_what_is_nested_without_end_is_damage(make_run, sql, tmp_path):
    sweep([make_run(0), make_run(1, action="raise")], tmp_path)
    deep = "[" * 100_000
    sql(tmp_path, "UPDATE runs SET settings = ? WHERE status = 'failed'", deep)
    sql(tmp_path, "UPDATE meta SET value = ? WHERE name IN ('grid', 'driver')", deep)
    assert status(tmp_path).failures == ()
    assert table(tmp_path).collect().height == 3
    sql(tmp_path, "UPDATE points SET axes = ?", deep)
    with pytest.raises(InputError, match=r"runs\.sqlite is damaged"):
        table(tmp_path)


def test_a_folder_of_something_else_is_refused_and_left_alone(make_runs, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"contains other files \(thesis.tex\)"):
        sweep(make_runs(1), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="cannot be used for a sweep"):
        sweep(make_runs(1), tmp_path / "thesis.tex")
    with pytest.raises(InputError, match="is not the folder of a sweep"):
        table(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("PRAGMA user_version = 1", "another version"),
        ("UPDATE meta SET value = 'reproduce' WHERE name = 'kind'", "has runs of 'reproduce'"),
        ("DROP TABLE meta", r"is damaged \(no such table"),
    ],
)
def test_a_database_that_is_not_ours_is_refused(change, said, make_runs, sql, tmp_path):
    sweep(make_runs(1), tmp_path)
    sql(tmp_path, change)
    for attempt in (lambda: sweep(make_runs(1), tmp_path), lambda: status(tmp_path)):
        with pytest.raises(InputError, match=said):
            attempt()


@pytest.mark.parametrize("damage", [lambda whole: b"{" * len(whole), lambda whole: whole[:5000]])
def test_a_damaged_database_costs_nothing_once_it_is_moved_away(
    damage, make_runs, begun, digests, tmp_path
):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    sweep(make_runs(4, log=log), folder)
    whole, path = digests(folder), folder / "runs.sqlite"
    path.write_bytes(damage(path.read_bytes()))
    for attempt in (lambda: sweep(make_runs(4), folder), lambda: table(folder)):
        with pytest.raises(InputError, match=r"runs.sqlite is damaged .*; move it away and start"):
            attempt()
    path.unlink()
    assert sweep(make_runs(4, log=log), folder).before == 4
    assert table(folder).collect().height == 12
    assert set(begun(log).values()) == {1}
    assert digests(folder) == whole


@pytest.mark.parametrize(
    "name", ["runs.sqlite", "lock.sqlite", "results", "aside", "runs.sqlite-wal"]
)
def test_a_planted_link_is_not_followed(name, make_runs, tmp_path):
    folder, elsewhere = tmp_path / "sweep", tmp_path / "elsewhere"
    folder.mkdir()
    if name in ("results", "aside"):
        elsewhere.mkdir()
    else:
        elsewhere.write_text("precious")
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(InputError, match=rf"{name} is a symbolic link; remove it"):
        sweep(make_runs(1), folder)
    assert [path.name for path in folder.iterdir()] == [name]
    assert list(elsewhere.iterdir()) == [] if elsewhere.is_dir() else True
    assert elsewhere.is_dir() or elsewhere.read_text() == "precious"


def test_a_link_in_the_place_of_a_result_is_set_aside(make_runs, tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "sweep"
    victim.write_text("precious")
    sweep(make_runs(1), folder)
    single(folder)[0].unlink()
    single_path = folder / "results" / f"{make_runs(1)[0].key}.parquet"
    single_path.symlink_to(victim)
    assert list(sweep(make_runs(1), folder).aside.values()) == [NO_FILE]
    assert not single_path.is_symlink()
    assert victim.read_text() == "precious"


def test_a_second_sweep_is_refused_or_waits(make_runs, until, tmp_path):
    go, ended = threading.Event(), []

    def hold(*_):
        go.wait(20)

    def first():
        ended.append(("first", sweep(make_runs(2), tmp_path, on_outcome=hold)))

    def second():
        ended.append(("second", sweep(make_runs(3), tmp_path, wait=True)))

    threads = [threading.Thread(target=first)]
    threads[0].start()
    until(lambda: (tmp_path / "results").is_dir() and single(tmp_path))
    with pytest.raises(InputError, match=r"another sweep is running in .* \(process \d+ on "):
        sweep(make_runs(2), tmp_path)
    threads.append(threading.Thread(target=second))
    threads[1].start()
    time.sleep(0.1)
    assert ended == []
    assert status(tmp_path).holder is not None
    go.set()
    for thread in threads:
        thread.join(120)
    assert [(name, progress.before, progress.done) for name, progress in ended] == [
        ("first", 0, 2),
        ("second", 2, 3),
    ]


def test_an_axis_may_be_called_as_a_column_of_the_table_but_not_run(tmp_path):
    runs = [
        Run(f"{at:012x}", "numbers", {"layer": kind, "experiment": "n"}, {"index": at})
        for at, kind in enumerate(["first", 2, None])
    ]
    sweep(runs, tmp_path)
    read = table(tmp_path).collect()
    assert read.columns == ["run", "layer", "experiment", "layer_in_run", "metric", "value"]
    assert read["layer"].to_list() == ["first"] * 3 + ["2"] * 3 + [None] * 3
    assert read["layer_in_run"].to_list() == [0, 1, 2] * 3
    with pytest.raises(InputError, match="cannot be named 'run'"):
        sweep([Run("0" * 12, "numbers", {"run": 1}, {"index": 0})], tmp_path)


def test_a_table_has_the_last_grid_s_runs_and_the_rest_is_kept(make_runs, tmp_path):
    sweep(make_runs(5), tmp_path)
    sweep(make_runs(2), tmp_path)
    assert table(tmp_path).collect()["index"].unique().sort().to_list() == [0, 1]
    found = status(tmp_path)
    assert (found.total, found.done, found.others, found.left) == (2, 2, 3, 0)
    assert sweep(make_runs(5), tmp_path).before == 5


def test_a_sweep_without_results_has_an_empty_table(make_run, tmp_path):
    sweep([make_run(0, action="raise")], tmp_path)
    assert table(tmp_path).collect().height == 0
    assert table(tmp_path).collect_schema()["value"] == pl.Float64


def test_files_that_are_not_ours_are_left_alone(make_runs, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    ours, other = results / ".rankscope-0123456789abcdef", results / ".settings.json"
    ours.write_text("{")
    other.write_text("{}")
    (tmp_path / ".more.json").mkdir()
    sweep(make_runs(1), tmp_path)
    assert not ours.exists()
    assert other.read_text() == "{}"
    (tmp_path / "notes.txt").touch()
    assert sweep(make_runs(1), tmp_path).before == 1


def test_one_engine_does_not_carry_out_two_sweeps_at_once(make_runs, tmp_path):
    engine, said = Inline(), []

    def again(*_):
        with pytest.raises(InputError, match="this engine is running another sweep") as found:
            drive(make_runs(1), tmp_path / "two", engine=engine, work=works.numbers)
        said.append(found)

    for _ in range(2):  # and afterwards it is free again
        drive(make_runs(2), tmp_path / "one", engine=engine, work=works.numbers, on_outcome=again)
    assert len(said) == 2
    assert drive(make_runs(1), tmp_path / "two", engine=engine, work=works.numbers).done == 1


def test_what_is_in_the_way_is_said(make_runs, tmp_path):
    sweep(make_runs(2), tmp_path)
    next((tmp_path / "results").iterdir()).write_bytes(b"")
    (tmp_path / "aside").write_text("in the way")
    with pytest.raises(InputError, match="aside is not a file of a sweep; remove it"):
        sweep(make_runs(2), tmp_path)
    with pytest.raises(InputError, match="is not valid Unicode"):
        sweep(make_runs(2), tmp_path / "\udcff")


def test_damage_inside_a_file_is_said_by_whoever_reads_it(make_runs, tmp_path):
    sweep(make_runs(2), tmp_path)
    path = single(tmp_path)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(60) + whole[64:])
    with pytest.raises(InputError, match=r"is damaged .*; start the sweep again"):
        table(tmp_path)
    path.write_bytes(whole)
    assert table(tmp_path).collect().height == 6


def test_a_program_that_goes_elsewhere_finds_its_results_where_it_said(
    make_runs, tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    sweep(make_runs(3), "swept", on_outcome=lambda *_: os.chdir(tmp_path / "elsewhere"))
    assert len(single(tmp_path / "swept")) == 3
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_process_that_a_run_has_left_behind_does_not_hold_the_folder(make_runs, tmp_path):
    left = []

    def fork(*_):
        left.append(os.fork())
        if not left[0]:
            signal.pause()

    try:
        sweep(make_runs(1), tmp_path, on_outcome=fork)
        assert status(tmp_path).holder is None
        assert sweep(make_runs(1), tmp_path).before == 1
    finally:
        os.kill(left[0], signal.SIGKILL)
        os.waitpid(left[0], 0)
