"""The driver is killed, interrupted, or has no room on its disk; nothing that was done is lost."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import works

from rankscope import run as sweeping
from rankscope.errors import InputError
from rankscope.run import Inline, Processes, _drive, _packs, drive, table


def inline(runs, folder):
    return drive(runs, folder, engine=Inline(), work=works.numbers)


class KilledError(BaseException):
    """From here on the process is gone: whatever it still tries has no effect."""


@pytest.fixture
def dies_after(monkeypatch):
    """``dies_after(steps)``: let so many steps on the disk happen, and none after them.

    That leaves the disk as SIGKILL would there, and takes no process for each step.
    """
    patched = ("fsync", "replace", "unlink", "mkdir")

    def arm(steps):
        left = [steps]
        for name in patched:
            original = getattr(os, name)

            def step(*args, _original=original, **options):
                if left[0] == 0:
                    raise KilledError
                left[0] -= 1
                return _original(*args, **options)

            monkeypatch.setattr(os, name, step)

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


def test_packing_that_dies_at_any_step_has_lost_nothing(
    dies_after, make_runs, monkeypatch, begun, tmp_path
):
    log = tmp_path / "log"
    runs = make_runs(4, log=log)
    for steps in range(100):
        folder = tmp_path / f"{steps}"
        log.unlink(missing_ok=True)
        inline(runs, folder)
        expected = table(folder).collect()
        dies_after(steps)
        died = False
        try:
            _packs.pack(sweeping._folder.Folder(folder), [run.key for run in runs])
        except KilledError:
            died = True
        finally:
            monkeypatch.undo()
        assert table(folder).collect().equals(expected)
        assert inline(runs, folder).before == 4
        assert table(folder).collect().equals(expected)
        single, packs = list((folder / "results").iterdir()), list((folder / "packs").glob("*"))
        assert (len(single), len(packs)) in [(4, 0), (0, 1)]
        assert begun(log).total() == 4
        if not died:
            break
    assert steps > 7


def test_many_results_are_packed_while_a_sweep_goes_on(make_runs, monkeypatch, tmp_path):
    monkeypatch.setattr(_packs, "PACK_OF", 4)
    seen = []

    def read(_, progress):
        seen.append(table(tmp_path).collect()["run"].n_unique() == progress.done)

    drive(make_runs(10), tmp_path, engine=Inline(), work=works.numbers, on_outcome=read)
    assert len(list((tmp_path / "packs").iterdir())) == 2
    assert len(list((tmp_path / "results").iterdir())) == 2
    assert seen == [True] * 10
    assert table(tmp_path).collect()["index"].to_list() == [i for i in range(10) for _ in range(3)]
    assert inline(make_runs(10), tmp_path).before == 10


def test_a_damaged_pack_is_set_aside_and_its_runs_computed_anew(make_runs, monkeypatch, tmp_path):
    monkeypatch.setattr(_packs, "PACK_OF", 4)
    inline(make_runs(4), tmp_path)
    expected = table(tmp_path).collect()
    (pack,) = (tmp_path / "packs").iterdir()
    pack.write_bytes(pack.read_bytes().replace(b"residual", b"Residual"))
    progress = inline(make_runs(4), tmp_path)
    assert list(progress.aside) == [f"aside/1-{pack.name}"]
    assert (progress.before, progress.done) == (0, 4)
    assert table(tmp_path).collect().equals(expected)


def test_large_results_stay_by_themselves(make_run, monkeypatch, tmp_path):
    monkeypatch.setattr(_packs, "PACK_OF", 2)
    runs = [make_run(0, rows=40_000), make_run(1), make_run(2, rows=40_000), make_run(3)]
    inline(runs, tmp_path)
    assert len(list((tmp_path / "results").iterdir())) == 2
    assert table(tmp_path).collect().height == 80_006


def test_a_pack_that_cannot_be_written_costs_nothing(make_runs, monkeypatch, tmp_path):
    monkeypatch.setattr(_drive._packs, "PACK_OF", 3)
    (tmp_path / "sweep").mkdir()
    inline(make_runs(1), tmp_path / "sweep")
    (tmp_path / "sweep" / "packs").write_text("in the way")
    assert inline(make_runs(5), tmp_path / "sweep").done == 5
    assert len(list((tmp_path / "sweep" / "results").iterdir())) == 5


def test_a_killed_driver_started_again_completes_the_rest_once(
    driver, workers_of, make_runs, digests, begun, until, hear, tmp_path
):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    fields = {"seconds": 0.03, "log": str(log)}
    program = driver(folder, 40, fields=fields, options={"workers": 2})
    hear(program, 10)
    workers = workers_of(program)
    program.kill()
    program.wait()
    until(lambda: not any(each.is_running() for each in workers), 3)
    before = digests(folder)
    done = {name.removesuffix(".parquet") for name in before if not name.startswith(".")}
    assert 10 <= len(done) < 40
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
    until(lambda: not any(psutil.pid_exists(each.pid) for each in workers), 3)


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
    _, said = program.communicate(timeout=20)
    assert program.returncode == 130
    assert time.monotonic() - started < 5  # two seconds, on a machine that is busy otherwise
    assert "Traceback" not in said
    until(lambda: not any(psutil.pid_exists(each.pid) for each in workers), 3)
    assert all(not path.name.startswith(".") for path in (folder / "results").iterdir())
    progress = inline(make_runs(6, log=str(log)), folder)
    assert progress.before == 4


def test_a_full_disk_is_said_and_leaves_whole_files(driver, make_run, make_runs, tmp_path):
    """No file may grow beyond some bytes: the large result cannot be written, as on a full disk."""
    folder = tmp_path / "sweep"
    asked = {"engine": "Inline", "most_bytes": 20_000}
    ran = driver(folder, 3, **asked)
    ran.wait()
    assert ran.returncode == 0
    full = driver(folder, 5, fields={"rows": 40_000}, **asked)
    _, said = full.communicate(timeout=30)
    assert full.returncode == 2
    assert "cannot be written: File too large. 0 of 5 results are kept; once that" in said
    assert len(list((folder / "results").iterdir())) == 3
    assert inline([make_run(index, rows=40_000) for index in range(5)], folder).done == 5
    assert inline(make_runs(3), folder).before == 3


def test_no_room_for_the_journal_is_said(make_runs, tmp_path):
    inline(make_runs(1), tmp_path)
    (tmp_path / "sweep.jsonl").unlink()
    (tmp_path / "sweep.jsonl").mkdir()
    with pytest.raises(InputError, match=r"sweep.jsonl cannot be written: Is a directory\. 2 of 3"):
        inline(make_runs(3), tmp_path)
    (tmp_path / "sweep.jsonl").rmdir()
    assert inline(make_runs(3), tmp_path).before == 2


def test_no_room_for_what_was_asked_is_said(driver, make_runs, tmp_path):
    folder = tmp_path / "sweep"
    full = driver(folder, 200, engine="Inline", most_bytes=1000)
    _, said = full.communicate(timeout=30)
    assert full.returncode == 2
    assert "cannot be written: File too large" in said
    assert "Traceback" not in said
    assert inline(make_runs(3), folder).done == 3
