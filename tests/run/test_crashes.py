"""The driver is killed, interrupted, or has no room on its disk; nothing that was done is lost."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import works

from rankscope.run import Inline, Processes, drive, table
from rankscope.run._store import Store


def inline(runs, folder):
    return drive(runs, folder, engine=Inline(), work=works.numbers)


class KilledError(BaseException):
    """From here on the process is gone: whatever it still tries has no effect."""


@pytest.fixture
def dies_after(monkeypatch):
    """``dies_after(steps)``: let so many steps on the disk happen, and none after them.

    That leaves the disk as SIGKILL would there, and takes no process for each step.
    """
    patched = {
        os: ("fsync", "replace", "unlink", "mkdir"),
        Store: ("set_points", "record", "delete", "claim"),
    }

    def arm(steps):
        left = [steps]
        for owner, names in patched.items():
            for name in names:
                original = getattr(owner, name)

                def step(*args, _original=original, **options):
                    if left[0] == 0:
                        raise KilledError
                    left[0] -= 1
                    return _original(*args, **options)

                monkeypatch.setattr(owner, name, step)

    yield arm
    monkeypatch.undo()


def test_a_driver_that_dies_at_any_step_has_lost_nothing(
    dies_after, make_runs, digests, begun, monkeypatch, tmp_path
):
    log = tmp_path / "log"
    runs = make_runs(3, log=log)
    inline(runs, tmp_path / "undisturbed")
    expected = digests(tmp_path / "undisturbed")
    for steps in range(100):
        folder = tmp_path / f"{steps}"
        log.unlink(missing_ok=True)
        dies_after(steps)
        died = False
        try:
            inline(runs, folder)
        except KilledError:
            died = True
        finally:
            monkeypatch.undo()
        whole = set(digests(folder)) & set(expected) if (folder / "results").is_dir() else set()
        assert {digests(folder)[name] for name in whole} <= set(expected.values())
        inline(runs, folder)
        assert digests(folder) == expected
        again = {key for key, count in begun(log).items() if count > 1}
        assert not again & {Path(name).stem for name in whole}
        assert table(folder).collect().height == 9
        if not died:
            break
    assert steps > 20


def test_a_killed_driver_started_again_completes_the_rest_once(
    driver, workers_of, make_runs, digests, begun, until, hear, tmp_path
):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    fields = {"held_from": 20, "log": str(log)}
    works.held(log).touch()
    program = driver(folder, 40, fields=fields, options={"workers": 2})
    hear(program, 10)
    workers = workers_of(program)
    program.kill()
    program.wait()
    until(lambda: not any(each.is_running() for each in workers))
    before = digests(folder)
    done = {name.removesuffix(".parquet") for name in before if not name.startswith(".")}
    assert 10 <= len(done) <= 20
    works.held(log).unlink()
    runs = make_runs(40, **fields)
    progress = drive(runs, folder, engine=Processes(2), work=works.numbers)
    assert (progress.before, progress.done, progress.aside) == (len(done), 40, {})
    counts = begun(log)
    assert all(counts[key] == 1 for key in done)
    assert counts.total() <= 44  # of each worker, one that ran and one that was not written yet
    inline(runs, tmp_path / "undisturbed")
    assert digests(folder) == digests(tmp_path / "undisturbed")
    assert table(folder).collect().height == 120


def test_no_worker_outlives_a_killed_driver_in_the_midst_of_a_run(
    driver, workers_of, until, tmp_path
):
    log = tmp_path / "log"
    program = driver(tmp_path / "sweep", 0, fields={"log": str(log)}, actions=["family"])
    until(lambda: log.with_suffix(".child").exists())
    workers = workers_of(program)
    assert [each.name() for each in workers][-1] == "sleep"
    program.kill()
    program.wait()
    until(lambda: not any(psutil.pid_exists(each.pid) for each in workers))


def test_an_interruption_ends_all_processes_and_keeps_what_is_done(
    driver, workers_of, make_runs, until, hear, tmp_path
):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    program = driver(
        folder, 4, fields={"log": str(log)}, options={"workers": 2}, actions=["hang", "family"]
    )
    hear(program, 4)
    until(lambda: log.with_suffix(".child").exists())
    workers = workers_of(program)
    assert len(workers) >= 3
    started = time.monotonic()
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=works.PATIENCE)
    assert program.returncode == 130
    assert time.monotonic() - started < 30  # two seconds, unless the machine is busy
    assert "Traceback" not in said
    until(lambda: not any(psutil.pid_exists(each.pid) for each in workers))
    assert all(not path.name.startswith(".") for path in (folder / "results").iterdir())
    progress = inline(make_runs(6, log=str(log)), folder)
    assert progress.before == 4


def test_a_full_disk_is_said_and_leaves_whole_files(driver, make_run, make_runs, tmp_path):
    """No file may grow beyond some bytes: the large result cannot be written, as on a full disk."""
    folder = tmp_path / "sweep"
    asked = {"engine": "Inline", "most_bytes": 200_000}
    ran = driver(folder, 3, **asked)
    assert ran.wait(works.PATIENCE) == 0
    full = driver(folder, 5, fields={"rows": 80_000}, **asked)
    _, said = full.communicate(timeout=works.PATIENCE)
    assert full.returncode == 2
    assert "cannot be written: File too large. 0 of 5 results are saved; fix the problem" in said
    assert len(list((folder / "results").iterdir())) == 3
    assert inline([make_run(index, rows=80_000) for index in range(5)], folder).done == 5
    assert inline(make_runs(3), folder).before == 3


@pytest.mark.parametrize(("most_bytes", "kept"), [(100_000, True), (10_000, False)])
def test_no_room_for_the_database_is_said(driver, make_runs, begun, most_bytes, kept, tmp_path):
    folder, log = tmp_path / "sweep", tmp_path / "log"
    fields = {"log": str(log)}
    full = driver(folder, 60, fields=fields, engine="Inline", most_bytes=most_bytes)
    finished, said = full.communicate(timeout=works.PATIENCE)
    assert full.returncode == 2
    assert "runs.sqlite cannot be written: " in said
    assert "Traceback" not in said
    assert ("of 60 results are saved; fix the problem" in said) == kept
    progress = inline(make_runs(60, **fields), folder)
    assert progress.before >= len(finished.split())
    assert (progress.done, progress.aside) == (60, {})
    assert set(begun(log).values()) == {1}
    assert table(folder).collect().height == 180


def test_of_many_drivers_one_works_and_the_others_are_refused(driver, begun, until, tmp_path):
    folder, log = tmp_path / "sweep", tmp_path / "log"
    works.held(log).touch()
    fields = {"log": str(log), "held_from": 1}
    drivers = [driver(folder, 40, fields=fields, engine="Inline") for _ in range(3)]
    until(lambda: sum(program.poll() is not None for program in drivers) == 2)
    works.held(log).unlink()
    ended = {program: program.communicate(timeout=works.PATIENCE)[1] for program in drivers}
    assert sorted(program.returncode for program in drivers) == [0, 2, 2]
    for program, said in ended.items():
        refused = "another sweep is running in" in said and "process" in said
        assert refused == (program.returncode == 2)
    assert set(begun(log).values()) == {1}
    assert table(folder).collect().height == 120
