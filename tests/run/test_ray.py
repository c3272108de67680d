"""A real Ray of two nodes runs sweeps; workers, drivers and a node are killed meanwhile."""

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import works

from rankscope.errors import InputError
from rankscope.run import Inline, RayEngine, drive, status, table

pytestmark = pytest.mark.xdist_group("ray")  # one cluster for all of them


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The program of ``cluster.py``, with its address; and the environment it needs, set."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        program = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cluster.py"))],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        program.address = program.stdout.readline().strip()
        assert program.address
        yield program
        nodes = psutil.Process(program.pid).children(recursive=True)
        program.communicate(timeout=works.PATIENCE)
        _, alive = psutil.wait_procs(nodes, 10)
        assert alive == []


@pytest.fixture
def on_ray(cluster, driver):
    """``on_ray(folder, count, …)``: a sweep on the cluster, as a program of its own."""

    def start(folder, count, *, options=None, **more):
        asked = {"address": cluster.address, **(options or {})}
        return driver(folder, count, engine="RayEngine", options=asked, **more)

    return start


def undisturbed(runs, folder, digests):
    drive(runs, folder, engine=Inline(), work=works.acts)
    return digests(folder)


def processes(log, at=1):
    """The processes that have begun runs, or (at=2) their parents: one on each node."""
    return {int(line.split()[at]) for line in Path(log).read_text().splitlines()}


def test_two_nodes_run_a_sweep_and_a_killed_worker_costs_one_run(
    on_ray, make_runs, digests, begun, until, hear, tmp_path
):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    fields = {"seconds": 0.15, "log": str(log)}
    program = on_ray(folder, 24, fields=fields)
    until(lambda: log.exists() and len(processes(log, at=2)) == 2)
    hear(program, 3)
    victim = int(log.read_text().splitlines()[-1].split()[1])
    os.kill(victim, signal.SIGKILL)
    _, said = program.communicate(timeout=works.PATIENCE)
    assert program.returncode == 0, said
    counts = begun(log)
    assert set(counts) == {run.key for run in make_runs(24, **fields)}
    assert counts.total() == 25
    assert digests(folder) == undisturbed(make_runs(24, **fields), tmp_path / "one", digests)


def test_a_killed_driver_started_again_completes_the_rest_once(
    on_ray, make_runs, digests, begun, hear, tmp_path
):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    fields = {"seconds": 0.1, "log": str(log)}
    program = on_ray(folder, 20, fields=fields)
    hear(program, 6)
    program.kill()
    program.wait()
    done = {name.removesuffix(".parquet") for name in digests(folder)}
    assert 6 <= len(done) < 20
    again = on_ray(folder, 20, fields=fields)
    finished, said = again.communicate(timeout=works.PATIENCE)
    assert again.returncode == 0, said
    assert set(finished.split()).isdisjoint(done)
    counts = begun(log)
    assert all(counts[key] == 1 for key in done)
    assert digests(folder) == undisturbed(make_runs(20, **fields), tmp_path / "one", digests)
    assert table(folder).collect().height == 60


def test_failures_are_outcomes_and_an_interruption_leaves_no_task(
    on_ray, begun, until, hear, tmp_path
):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    acting = ["raise", "die", "unpicklable", "objects", "family"]
    program = on_ray(folder, 2, fields={"log": str(log)}, actions=acting, options={"retries": 1})
    hear(program, 6)
    until(lambda: log.with_suffix(".child").exists() and log.with_suffix(".child").read_text())
    child = psutil.Process(int(log.with_suffix(".child").read_text()))
    running = child.parent()
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=works.PATIENCE)
    assert program.returncode == 130
    assert "Traceback" not in said
    until(lambda: not running.is_running())
    with suppress(psutil.NoSuchProcess):  # Ray ends its own processes, and theirs not always
        child.kill()
    found = status(folder)
    assert (found.done, found.failed, found.left) == (2, 4, 1)
    assert found.failures[0].error == "too wide."
    assert found.failures[1].error.startswith("WorkerCrashedError: ")
    assert [each.attempts for each in found.failures] == [1, 2, 1, 1]
    assert "cannot be pickled: ComputeError" in found.failures[3].error
    assert sorted(begun(log).values()) == [1, 1, 1, 1, 1, 1, 2]


def test_no_cluster_is_said_soon(on_ray, tmp_path):
    started = time.monotonic()
    program = on_ray(tmp_path / "sweep", 1, options={"address": "127.0.0.1:1"})
    _, said = program.communicate(timeout=works.PATIENCE)
    assert program.returncode == 2
    assert "cannot connect to a Ray cluster at 127.0.0.1:1: ConnectionRefusedError" in said
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("given", "set_", "expected"),
    [(None, "", "local"), (None, "localhost", "localhost"), ("auto", "localhost", "auto")],
)
def test_a_cluster_that_was_not_asked_for_is_not_joined(given, set_, expected, monkeypatch):
    asked = []

    def init(address, **_):
        asked.append(address)
        raise ConnectionError("nobody")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setenv("RAY_ADDRESS", set_)
    with pytest.raises(InputError, match=f"cluster at {expected}: ConnectionError: nobody"):
        list(RayEngine(given).outcomes([], works.acts))
    assert asked == [expected]


def test_a_node_that_dies_costs_its_runs_some_time(
    on_ray, cluster, make_runs, digests, until, tmp_path
):
    log, folder = tmp_path / "log", tmp_path / "sweep"
    fields = {"seconds": 0.2, "log": str(log)}
    program = on_ray(folder, 24, fields=fields)
    until(lambda: log.exists() and len(processes(log, at=2)) == 2)
    cluster.stdin.write("kill a node\n")
    cluster.stdin.flush()
    assert cluster.stdout.readline() == "killed\n"
    _, said = program.communicate(timeout=works.PATIENCE)
    assert program.returncode == 0, said
    assert digests(folder) == undisturbed(make_runs(24, **fields), tmp_path / "one", digests)


def test_what_fits_on_no_node_is_refused(make_runs, tmp_path, monkeypatch):
    """Ray's own answers would need a second Ray, which takes seconds to start."""
    ray = SimpleNamespace(
        remote=lambda **_: lambda work: work,
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 2.0, "memory": 9.0}}],
    )
    engine = RayEngine(gpus=1)
    monkeypatch.setattr(engine, "_connected", lambda: ray)
    with pytest.raises(InputError, match="no node can run a task, which needs 1 CPU of"):
        drive(make_runs(1), tmp_path, engine=engine, work=works.numbers)


@pytest.mark.parametrize(("is_ours", "expected"), [(True, ["shutdown"]), (False, ["cancel"])])
def test_tasks_of_our_own_connection_end_with_it(is_ours, expected, make_run, monkeypatch):
    """Cancelling hundreds of tasks as they end can bring Ray down, and the driver with it."""
    done = []
    ray = SimpleNamespace(
        cancel=lambda *_, **__: done.append("cancel"), shutdown=lambda: done.append("shutdown")
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    engine = RayEngine()
    engine._pending, engine._is_ours = {"a task": make_run(0)}, is_ours
    engine.close()
    engine.close()
    assert done == expected
