"""The pool of processes: bounded, and rid of work that no one wants any more."""

import asyncio
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from rankscope.show.lab._worker import (
    BrokenError,
    BusyError,
    SupersededError,
    TooSlowError,
    Workers,
)


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


async def begun(workers, session, *arguments):
    """A call that has had time to reach its process."""
    call = asyncio.create_task(workers.run(session, *arguments))
    while not workers.processes:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    return call


def test_a_newer_call_of_a_session_ends_its_older_one():
    async def scenario(workers):
        older = await begun(workers, "a", 60)
        before = workers.processes
        began = time.monotonic()
        assert await workers.run("a", 0) is None
        with pytest.raises(SupersededError, match="newer request"):
            await older
        return time.monotonic() - began, before, workers.processes

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
        with pytest.raises(BusyError, match="busy"):
            await workers.run("c", 0)
        replaced = asyncio.create_task(workers.run("b", 0))  # takes the place of its own
        await asyncio.sleep(0.05)
        assert not replaced.done()
        for call in (*calls, replaced):
            call.cancel()
        found = await asyncio.gather(*calls, replaced, return_exceptions=True)
        return [type(each) for each in found]

    kinds = using("time:sleep", scenario, count=1, waiting=2)
    assert kinds[1] is SupersededError


def test_a_call_that_takes_too_long_is_ended_and_the_next_one_answered():
    async def scenario(workers):
        with pytest.raises(TooSlowError, match=r"more than 2 seconds"):
            await workers.run("a", 60)
        return await workers.run("a", 0)

    assert using("time:sleep", scenario, count=1, seconds=2) is None


def test_a_process_that_ends_is_replaced():
    async def scenario(workers):
        for _ in range(2):
            with pytest.raises(BrokenError, match="ended before it was done"):
                await workers.run("a", 3)
        return True

    assert using("os:_exit", scenario, count=1)


def test_an_unforeseen_error_is_a_sentence_and_the_process_lives():
    async def scenario(workers):
        with pytest.raises(BrokenError, match="should not have happened"):
            await workers.run("a", "no number")
        before = workers.processes
        await workers.run("a", 0)
        return before, workers.processes

    before, after = using("time:sleep", scenario, count=1)
    assert before == after


def test_stopping_ends_every_process():
    async def scenario(workers):
        await begun(workers, "a", 60)
        return [psutil.Process(pid) for pid in workers.processes]

    running = using("time:sleep", scenario, count=1)
    assert running
    assert psutil.wait_procs(running, timeout=5)[1] == []


@pytest.mark.parametrize("preload", ["", "os:getpid"])
def test_calls_that_are_abandoned_cost_later_ones_nothing(preload):
    """Nothing is computed for whoever has gone before it was begun."""

    async def scenario(workers):
        await workers.run("first", 0)
        began = time.monotonic()
        for at in range(20):
            call = asyncio.create_task(workers.run(f"{at}", 60))
            await asyncio.sleep(0.01)
            call.cancel()
        await workers.run("last", 0)
        return time.monotonic() - began

    assert using("time:sleep", scenario, count=2, preload=preload) < 8


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
        "    print(*workers.processes, flush=True)\n"
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
