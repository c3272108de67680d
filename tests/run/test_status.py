"""How far a sweep is, from outside, while it runs and afterwards."""

import json
import threading
import time

import pytest
import works

from rankscope.run import Inline, drive, status


def test_a_sweep_that_runs_says_how_fast(make_runs, tmp_path):
    seen = []

    def look(*_):
        if len(seen) < 3:
            seen.append(status(tmp_path))

    runs = make_runs(4, seconds=0.1)
    drive(runs, tmp_path, engine=Inline(), work=works.numbers, on_outcome=look)
    last = seen[-1]
    assert (last.total, last.done, last.failed, last.left) == (4, 3, 0, 1)
    assert 0.3 <= last.running_seconds < 60
    assert last.runs_per_minute == pytest.approx(3 / last.running_seconds * 60, rel=0.1)
    assert last.seconds_left == pytest.approx(60 / last.runs_per_minute)
    after = status(tmp_path)
    assert (after.done, after.left, after.holder) == (4, 0, None)
    assert after.running_seconds is after.runs_per_minute is after.seconds_left is None


def test_the_speed_is_that_of_the_last_minutes(make_runs, sql, tmp_path):
    """Runs from before the sweep was started, or from hours ago, do not count."""
    release, started = threading.Event(), threading.Event()

    def hold(*_):
        started.set()
        release.wait(120)

    thread = threading.Thread(
        target=lambda: drive(
            make_runs(2), tmp_path, engine=Inline(), work=works.numbers, on_outcome=hold
        )
    )
    thread.start()
    assert started.wait(120)
    now = time.time()
    long_ago = json.dumps(["process 1 on here", now - 3600])
    sql(tmp_path, "UPDATE meta SET value = ? WHERE name = 'driver'", long_ago)
    for ago in (1000, 900, 200, 100, 50):
        sql(tmp_path, "INSERT INTO runs (key, ended) VALUES (?, ?)", f"{ago}", now - ago)
    sql(tmp_path, "INSERT INTO runs (key, ended) VALUES ('half a row', 'yesterday')")
    found = status(tmp_path)
    release.set()
    thread.join(120)
    assert found.holder == "process 1 on here"
    assert found.running_seconds == pytest.approx(3600, abs=5)
    assert found.runs_per_minute == pytest.approx(4 / 5, rel=0.05)  # three and the real one


def test_failures_are_listed_in_the_order_of_the_grid(make_run, tmp_path):
    runs = [make_run(index, action="raise") for index in range(3)]
    drive(runs, tmp_path, engine=Inline(), work=works.acts)
    found = status(tmp_path)
    assert [each.axes["index"] for each in found.failures] == [0, 1, 2]
    assert (found.failed, found.left, found.done) == (3, 0, 0)
