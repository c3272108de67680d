"""Workers answer, die, are killed with all they started, and are never left behind."""

import os
import threading
import time

import psutil
import pytest

from rankscope.errors import InputError
from rankscope.process import pool
from rankscope.process.pool import Template, Worker, share_out

TASKS = """
import os, signal, subprocess, sys, time

def act(message):
    word, _, rest = message.decode().partition(" ")
    if word == "child":
        return str(subprocess.Popen(["sleep", "600"]).pid).encode()
    if word == "sleep":
        time.sleep(float(rest))
    if word == "print":
        print("to nobody")
        sys.stdin.read()
    if word == "fork":  # its child holds every line of the worker's open
        if os.fork() == 0:
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "leave":
        print("last words", file=sys.stderr, flush=True)
        os._exit(int(rest))
    return message.upper()
"""


@pytest.fixture
def hire(tmp_path, monkeypatch):
    """``hire()``: a worker that acts; ended with the test."""
    (tmp_path / "acting.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    hired = []

    def start(**options):
        hired.append(Worker("acting:act", **options))
        return hired[-1]

    yield start
    for worker in hired:
        worker.close()


@pytest.fixture(params=["program", "fork"])
def options(request):
    """A worker started as a program, or forked from another process."""
    if request.param == "program":
        yield {}
        return
    template = Template("os:getpid")
    yield {"template": template}
    template.close()


def gone(pid):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_messages_are_answered_one_by_one_whatever_is_printed_or_read(hire, options):
    worker = hire(**options)
    assert [worker.ask(each) for each in (b"one", b"print", b"", b"x" * 2**20)] == [
        b"ONE", b"PRINT", b"", b"X" * 2**20,
    ]  # fmt: skip
    assert worker.pid not in (None, os.getpid())


def test_a_killed_worker_takes_its_children_along_and_who_asks_is_told(hire, options):
    worker = hire(**options)
    child = int(worker.ask(b"child"))
    told = []

    def ask():
        with pytest.raises(EOFError):
            worker.ask(b"sleep 600")
        told.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.1)
    worker.kill()
    thread.join(60)
    assert told
    assert gone(worker.pid)
    assert gone(child)
    with pytest.raises(EOFError):
        worker.ask(b"again")


def test_a_worker_that_ended_says_how(hire):
    left, killed = hire(), hire()
    with pytest.raises(EOFError):
        left.ask(b"leave 7")
    assert left.ending() == ("ended with exit code 7", "last words")
    with pytest.raises(EOFError):
        killed.ask(b"fork")
    assert killed.ending() == ("was killed by SIGKILL", "")


def test_what_cannot_be_imported_is_said():
    worker = Worker("nowhere:act")
    with pytest.raises(EOFError):
        worker.wait_until_ready()
    how, said = worker.ending()
    worker.close()
    assert how == "ended with exit code 1"
    assert said.splitlines()[-1] == "ModuleNotFoundError: No module named 'nowhere'"


def test_a_template_that_was_killed_is_started_again(hire):
    template = Template("os:getpid")
    first = hire(template=template)
    assert first.ask(b"a") == b"A"
    template._program.kill()
    template._program.wait()
    assert first.ask(b"b") == b"B"  # its workers live on
    assert hire(template=template).ask(b"c") == b"C"
    template.close()


SHARED = """
import os, time
from rankscope.errors import InputError

def square(number):
    time.sleep(0.01 * abs(5 - number))  # the first takes longest
    if number == 7:
        raise InputError("not seven")
    return number**2, os.getpid()
"""


@pytest.fixture
def shared(tmp_path, monkeypatch):
    (tmp_path / "sharing.py").write_text(SHARED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(pool, "_cores", lambda: 2)
    import sharing

    return sharing.square


def test_work_is_shared_out_and_comes_back_in_order(shared) -> None:
    squares, processes = zip(*share_out(shared, range(5)), strict=True)
    assert squares == (0, 1, 4, 9, 16)
    assert os.getpid() not in processes
    assert len(set(processes)) == 2
    assert not any(map(psutil.pid_exists, processes))


def test_an_error_of_shared_work_is_raised_here_and_ends_the_rest(shared) -> None:
    replies = share_out(shared, [1, 7, 2])
    assert next(replies)[0] == 1
    with pytest.raises(InputError, match="not seven"):
        next(replies)


def test_a_single_core_does_the_work_itself(shared, monkeypatch) -> None:
    monkeypatch.setattr(pool, "_cores", lambda: 1)
    assert list(share_out(shared, [3])) == [(9, os.getpid())]


def test_a_template_that_is_exiting_is_replaced(monkeypatch) -> None:
    """Its socket is closed, and the exit code is not there yet."""
    template = Template("os:getpid")
    program = template._program
    program.kill()
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(program, "poll", lambda: None)
    worker = Worker("os:getenvb", template=template)
    assert worker.ask(b"PATH") == os.environb[b"PATH"]
    assert template._program is not program
    worker.close()
    template.close()
