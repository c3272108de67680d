"""A run of a monitor from the command line: its page, and its state in a terminal."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from rankscope.monitor._history import Alarm, History, RunFile, StepRecord


def run_of(count):
    records = [
        StepRecord(10 * k, {("rank/residual", layer): 0.5 ** (k * layer) for layer in (1, 2)})
        for k in range(count)
    ]
    return History({"layers": 2}, {}, records)


@pytest.fixture
def run(tmp_path):
    history = run_of(4)
    url = "docs/alarms.md#rank-collapse"
    history.alarms = [Alarm("rank-collapse", 30, 2, 1 / 64, "layer 2: low", url)]
    RunFile(tmp_path / "run").begin(history)
    return "run"


def test_a_report_is_printed_and_written(rankscope, run, tmp_path):
    got = rankscope("report", run, "--output=out")
    assert got.returncode == 0, got.stderr
    assert "Rank collapse in layer 2 at step 30" in got.stdout
    names = sorted(path.suffix for path in (tmp_path / "out").iterdir())
    assert names == [".html", ".parquet"]
    page = next((tmp_path / "out").glob("*.html")).read_text(encoding="utf-8")
    assert "rankscope report run" in page


def test_a_report_follows_a_run_that_goes_on(rankscope, tmp_path):
    history, file = run_of(3), RunFile(tmp_path / "run")
    file.begin(history)
    first = json.loads(rankscope("report", "run/monitor.parquet", "--json").stdout)
    assert first["headline"]["text"] == "Healthy so far: 20 steps, no alarm"
    history.add(StepRecord(30, {("rank/residual", 1): 0.5}))
    file.append(history)
    again = json.loads(rankscope("report", "run", "--json").stdout)
    assert again["headline"]["text"] == "Healthy so far: 30 steps, no alarm"
    assert again["provenance"]["digest"] == first["provenance"]["digest"]


def test_the_state_is_printed_once_without_a_terminal(rankscope, run):
    for more in ([], ["--once"]):
        got = rankscope("watch", run, *more)
        assert got.returncode == 0, got.stderr
        assert "1 open alarm" in got.stdout
        assert "docs/alarms.md#rank-collapse" in got.stdout
        assert "\x1b" not in got.stdout


def test_wrong_runs_and_metrics_are_refused(refuses, run, tmp_path):
    (tmp_path / "file").write_text("x")
    for command in (["report"], ["watch", "--once"]):
        assert "nowhere does not exist" in refuses(*command, "nowhere")
        assert "has the runs run" in refuses(*command, ".")
        assert "is no run of a monitor" in refuses(*command, "file")
    assert "it has rank/residual." in refuses("watch", run, "--metric=loss")
    assert "--table needs --json" in refuses("report", run, "--table")


@contextlib.contextmanager
def terminal(*arguments, rows=24, columns=80):
    """A command in a terminal, and a function that reads until some words were printed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rankscope", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
    )
    os.close(slave)

    def read_until(words):
        printed, end = "", time.monotonic() + 60
        while words not in printed:
            assert time.monotonic() < end, printed
            if select.select([master], [], [], 0.1)[0]:
                printed += os.read(master, 65536).decode(errors="replace")
        return printed

    try:
        yield process, read_until
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_run_is_awaited_and_followed_until_it_is_interrupted(tmp_path):
    history, file = run_of(3), RunFile(tmp_path / "run")
    with terminal("watch", str(tmp_path / "run"), columns=200) as (process, read_until):
        assert "has not begun" in read_until("stop with Ctrl-C")
        file.begin(history)
        assert "No alarm" in read_until("3 records")
        history.add(StepRecord(30, {("rank/residual", 1): 0.5}))
        file.append(history)
        read_until("4 records")
        process.send_signal(signal.SIGINT)
        read_until("\x1b[?1049l")  # the screen as it was before
        assert process.wait(timeout=20) == 0
    assert len(list((tmp_path / "run").iterdir())) == 2


def test_a_metric_that_is_measured_later_is_awaited(tmp_path):
    history, file = run_of(1), RunFile(tmp_path / "run")
    file.begin(history)
    command = ("watch", str(tmp_path / "run"), "--metric=grad/qk_over_v")
    with terminal(*command, columns=200) as (process, read_until):
        assert "it has rank/residual. Waiting" in read_until("stop with Ctrl-C")
        history.add(StepRecord(10, {("grad/qk_over_v", 1): 0.5}))
        file.append(history)
        read_until("Gradient of queries and keys")
        assert process.poll() is None
