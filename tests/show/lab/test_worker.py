"""The pool of processes: bounded, and rid of work that no one wants any more."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from rankscope.process import Worker
from rankscope.show.lab import _worker
from rankscope.show.lab._worker import CallError, Workers


def using(task, scenario, **options):
    """Run a scenario with workers of its own."""

    async def run():
        workers = Workers(task, **options)
        workers.start()
        try:
            return await scenario(workers)
        finally:
            workers.stop()

    # In a thread of its own: tests with a browser may have left a loop running in this one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()


def processes(workers):
    """The ids of those that are ready."""
    return [worker.pid for worker in workers.workers if worker.pid is not None]


async def begun(workers, session, *arguments):
    """A call that has had time to reach its process."""
    call = asyncio.create_task(workers.run(session, *arguments))
    while not processes(workers):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    return call


def test_a_newer_call_of_a_session_ends_its_older_one():
    async def scenario(workers):
        older = await begun(workers, "a", 60)
        before = processes(workers)
        began = time.monotonic()
        assert await workers.run("a", 0) is None
        with pytest.raises(CallError, match="newer request"):
            await older
        return time.monotonic() - began, before, processes(workers)

    seconds, before, after = using("time:sleep", scenario, count=1)
    assert seconds < 10
    assert before != after  # the process that slept is gone


def test_calls_of_other_sessions_are_left_alone():
    async def scenario(workers):
        one = await begun(workers, "a", 0.3)
        await workers.run("b", 0)
        return await one

    assert using("time:sleep", scenario, count=2) is None


def test_a_call_no_one_waits_for_frees_its_process():
    async def scenario(workers):
        call = await begun(workers, "a", 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return await workers.run("b", 0)

    assert using("time:sleep", scenario, count=1) is None


def test_more_calls_than_are_kept_are_refused_at_once():
    async def scenario(workers):
        calls = [await begun(workers, session, 60) for session in ("a", "b")]
        with pytest.raises(CallError, match="busy"):
            await workers.run("c", 0)
        replaced = asyncio.create_task(workers.run("b", 0))  # takes the place of its own
        await asyncio.sleep(0.05)
        assert not replaced.done()
        for call in (*calls, replaced):
            call.cancel()
        found = await asyncio.gather(*calls, replaced, return_exceptions=True)
        return found[1].code

    assert using("time:sleep", scenario, count=1, waiting=2) == 409


def test_a_call_that_takes_too_long_is_ended_and_the_next_one_answered():
    async def scenario(workers):
        with pytest.raises(CallError, match=r"more than 2 seconds"):
            await workers.run("a", 60)
        return await workers.run("a", 0)

    assert using("time:sleep", scenario, count=1, seconds=2) is None


def test_a_process_that_ends_is_replaced():
    async def scenario(workers):
        for _ in range(2):
            with pytest.raises(CallError, match="exited during the computation"):
                await workers.run("a", 3)
        return True

    assert using("os:_exit", scenario, count=1)


def test_an_unforeseen_error_is_a_sentence_and_the_process_lives():
    async def scenario(workers):
        with pytest.raises(CallError, match="Internal error"):
            await workers.run("a", "no number")
        before = processes(workers)
        await workers.run("a", 0)
        return before, processes(workers)

    before, after = using("time:sleep", scenario, count=1)
    assert before == after


def test_stopping_ends_every_process():
    async def scenario(workers):
        await begun(workers, "a", 60)
        return [psutil.Process(pid) for pid in processes(workers)]

    running = using("time:sleep", scenario, count=1)
    assert running
    assert psutil.wait_procs(running, timeout=5)[1] == []


@pytest.fixture
def record(monkeypatch):
    """A task that leaves lines of what was begun and ended."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return "lab_tasks:record"


@pytest.mark.parametrize("preload", ["", "os:getpid"])
def test_calls_that_are_abandoned_are_not_computed(preload, record, tmp_path):
    """Forty callers who go 30 ms apart, whatever their calls would take."""
    gaps = random.Random(0)
    log = str(tmp_path / "log")

    async def scenario(workers):
        await workers.run("first", log, "first", 0)
        for at in range(40):
            call = asyncio.create_task(workers.run(f"{at}", log, f"{at}", 1))
            await asyncio.sleep(gaps.uniform(0.0, 0.06))
            call.cancel()
        began = time.monotonic()
        await workers.run("last", log, "last", 0)
        seconds = time.monotonic() - began
        await asyncio.sleep(1.5)  # time for whatever still runs to end
        return seconds

    assert using(record, scenario, count=2, preload=preload) < 3
    ended = [line for line in (tmp_path / "log").read_text().splitlines() if "ended" in line]
    assert ended == ["first ended", "last ended"]


def test_calls_that_are_abandoned_before_their_turn_cost_no_process(monkeypatch, record, tmp_path):
    hired = []
    monkeypatch.setattr(
        _worker, "Worker", lambda *given, **options: hired.append(1) or Worker(*given, **options)
    )
    log = str(tmp_path / "log")

    async def abandon(workers):
        calls = [asyncio.create_task(workers.run(f"{at}", log, f"{at}", 0)) for at in range(20)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()

    async def scenario(workers):
        await abandon(workers)  # while no process is ready
        busy = await begun(workers, "busy", log, "busy", 0.5)
        await abandon(workers)  # while the only one computes
        await asyncio.sleep(0.01)
        assert not workers._waiting
        await workers.run("last", log, "last", 0)
        await busy

    using(record, scenario, count=1, waiting=40)
    assert len(hired) == 1
    begins = [line for line in (tmp_path / "log").read_text().splitlines() if "begun" in line]
    assert begins == ["busy begun", "last begun"]


def test_the_newest_call_is_answered_first():
    async def scenario(workers):
        busy = await begun(workers, "busy", 0.3)
        order = []

        async def ask(session):
            await workers.run(session, 0)
            order.append(session)

        await asyncio.gather(busy, ask("a"), ask("b"), ask("c"))
        return order

    assert using("time:sleep", scenario, count=1) == ["c", "b", "a"]


@pytest.mark.parametrize("preload", ["", "os:getpid"])
def test_processes_killed_while_idle_are_not_noticed_by_whoever_asks(preload):
    async def scenario(workers):
        await asyncio.gather(*[workers.run(name, 0.1) for name in "ab"])
        before = processes(workers)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*[workers.run(name, 0.1) for name in "cd"])
        return before, processes(workers)

    before, after = using("time:sleep", scenario, count=2, preload=preload)
    assert len(before) == len(after) == 2
    assert not set(before) & set(after)


def test_a_process_that_cannot_be_started_is_started_later(monkeypatch):
    failures = [OSError("too many open files")]

    def start(*given, **options):
        if failures:
            raise failures.pop()
        return Worker(*given, **options)

    monkeypatch.setattr(_worker, "Worker", start)

    async def scenario(workers):
        return await asyncio.wait_for(workers.run("a", 0), 30)

    assert using("time:sleep", scenario, count=1) is None
    assert not failures


def test_workers_end_with_their_driver_however_it_ends():
    """Also those forked from another process, in the midst of a task."""
    code = (
        "import asyncio, os\n"
        "from rankscope.show.lab._worker import Workers\n"
        "async def main():\n"
        "    workers = Workers('time:sleep', preload='os:getpid', count=1)\n"
        "    workers.start()\n"
        "    await workers.run('a', 0)\n"
        "    call = asyncio.create_task(workers.run('a', 60))\n"
        "    await asyncio.sleep(0.2)\n"
        "    print(*[worker.pid for worker in workers.workers], flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == -9, ran.stderr
    (worker,) = map(int, ran.stdout.split())
    until = time.monotonic() + 5
    while psutil.pid_exists(worker) and time.monotonic() < until:
        time.sleep(0.01)
    assert not psutil.pid_exists(worker)
