"""Runs in processes of their own, some of which are killed, leave, hang or have children."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import works

from rankscope.errors import InputError, RankscopeError
from rankscope.run import Inline, Processes, drive, status, table


def worker_of(log, key, until):
    """The process that has begun a run."""
    return until(
        lambda: next(
            (
                int(line.split()[1])
                for line in (log.read_text() if log.exists() else "").splitlines()
                if line.startswith(key)
            ),
            None,
        )
    )


def test_processes_find_what_one_process_finds(make_runs, digests, begun, tmp_path):
    log = tmp_path / "log"
    drive(make_runs(30, log=log), tmp_path / "one", engine=Inline(), work=works.numbers)
    log.unlink()
    drive(make_runs(30, log=log), tmp_path / "two", engine=Processes(2), work=works.numbers_of_two)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert set(begun(log).values()) == {1}
    pids = {line.split()[1] for line in log.read_text().splitlines()}
    assert len(pids) == 2
    assert str(os.getpid()) not in pids


def test_a_killed_worker_costs_its_own_run_some_time_and_nothing_else(
    make_run, begun, until, digests, tmp_path
):
    log = tmp_path / "log"
    runs = [make_run(index, seconds=0.05, log=log) for index in range(20)]
    victim = runs[4].key
    killed = []

    def kill(*_):
        if not killed and victim in log.read_text():
            killed.append(worker_of(log, victim, until))
            os.kill(killed[0], signal.SIGKILL)

    progress = drive(
        runs, tmp_path / "sweep", engine=Processes(2), work=works.numbers, on_outcome=kill
    )
    assert (progress.done, progress.failed) == (20, 0)
    assert killed
    counts = begun(log)
    assert set(counts) == {run.key for run in runs}
    assert counts.total() <= 21  # the run that was killed, if any was running
    undisturbed = tmp_path / "undisturbed"
    drive(runs, undisturbed, engine=Inline(), work=works.numbers)
    assert digests(tmp_path / "sweep") == digests(undisturbed)


def test_runs_that_end_their_process_fail_after_some_tries(make_run, begun, tmp_path):
    log = tmp_path / "log"
    log.touch()
    acting = {
        action: make_run(at, action=action, log=log)
        for at, action in enumerate(["leave", "die", "flaky", "objects", "unpicklable", "exit"])
    }
    runs = [*acting.values(), *(make_run(index, log=log) for index in range(10, 16))]
    progress = drive(runs, tmp_path / "sweep", engine=Processes(2, retries=1), work=works.acts)
    assert (progress.done, progress.failed) == (7, 5)
    failures = {each.key: each for each in status(tmp_path / "sweep").failures}
    left, died = failures[acting["leave"].key], failures[acting["die"].key]
    assert left.error == "its worker process ended with exit code 7, 2 times."
    assert left.traceback == "last words"
    assert died.error == "its worker process was killed by SIGKILL, 2 times."
    assert left.attempts == died.attempts == 2
    assert "cannot be pickled: ComputeError" in failures[acting["objects"].key].error
    assert failures[acting["exit"].key].error == "SystemExit: 3."
    counts = begun(log)
    assert Counter(counts.values()) == {
        1: 9,
        2: 2,
        3: 1,
    }  # flaky notes itself when it succeeds, too


def test_a_worker_has_its_share_of_threads(make_run, tmp_path, monkeypatch):
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = make_run(0, action="threads")
    drive([run], tmp_path, engine=Processes(1, threads=cores), work=works.acts)
    assert table(tmp_path).collect()["value"].to_list() == [cores]  # and not the driver's one
    assert (Processes().workers, Processes().threads) == (cores, 1)
    assert Processes(1).threads == cores


@pytest.mark.parametrize("action", ["hang", "family"])
def test_a_worker_that_is_stuck_is_ended_with_all_it_started(make_run, until, action, tmp_path):
    log = tmp_path / "log"
    engine = Processes(2)
    stuck = make_run(0, action=action, log=log)
    outcomes = engine.outcomes([stuck, make_run(1, seconds=0.3)], works.acts)
    assert next(outcomes).run.axes == {"index": 1}
    worker = psutil.Process(worker_of(log, stuck.key, until))
    family = [worker]
    if action == "family":
        family.append(psutil.Process(int(until(log.with_suffix(".child").read_text))))
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 20  # at once, unless the machine is busy
    until(lambda: not any(_lives(each) for each in family))
    outcomes.close()


def _lives(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_runs_are_taken_as_there_is_room_for_them(make_runs):
    taken = []

    def few_at_a_time():
        for run in make_runs(50):
            taken.append(run)
            yield run

    before = psutil.Process().children()  # such as the browser of other tests
    engine = Processes(2)
    outcomes = engine.outcomes(few_at_a_time(), works.numbers)
    for done in range(1, 4):
        next(outcomes)
        assert len(taken) <= done + 4
    outcomes.close()
    assert psutil.Process().children() == before


def test_work_that_no_worker_can_import_is_refused(make_run, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot be pickled"):
        drive([make_run(0)], tmp_path, engine=Processes(1), work=lambda run: works.numbers(run))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "gone.py").write_text("def work(run): ...")
    from gone import work

    monkeypatch.undo()
    with pytest.raises(
        RankscopeError, match=r"no worker process can be started.* No module named 'gone'"
    ):
        list(Processes(1).outcomes([make_run(0)], work))


def test_a_script_needs_no_guard_and_a_local_file_hides_no_module(tmp_path):
    """Nothing of the program that sweeps is run again in its workers."""
    script = tmp_path / "study.py"
    script.write_text(
        "import works\nfrom conftest import make_run\nfrom rankscope.run import Processes, drive\n"
        "print('once')\n"
        "drive([make_run(0)], 'sweep', engine=Processes(1), work=works.numbers)\n"
    )
    (tmp_path / "polars.py").write_text("raise ImportError('the wrong one')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-P", str(script)], env=environment, cwd=tmp_path, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "once\n"), ran.stderr
    assert len(list(Path(tmp_path, "sweep", "results").iterdir())) == 1
