"""Worker processes that answer messages, and that are killed together with their children.

A worker is a separate program, or a fork of one that has imported everything. It does not run the
driver's script again, so that the script needs no ``if __name__ == "__main__"``; it has its own
session, so that Ctrl-C in a terminal reaches only the driver; and it exits as soon as its pipe to
the driver is closed, even during a task.
"""

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from pkgutil import resolve_name
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, Final, TypeVar, cast

from rankscope.process.threads import passive_wait

Item = TypeVar("Item")
Reply = TypeVar("Reply")
Answer = Callable[[bytes], bytes]
"""Computes the reply to a message."""
CAN_FORK: Final = hasattr(os, "fork") and hasattr(socket, "send_fds")
_CHECK_EVERY: Final = 1.0  # seconds between checks of a process that does not reply
_STDERR_BYTES: Final = 4000
_PIPE: Final = subprocess.PIPE
_LENGTH: Final = struct.Struct("!Q")
_THREADS: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
)
"""Environment variables that set the number of threads."""


class Template:
    """A process that calls ``preload``, a function as ``module:name``, and forks workers.

    It has one thread, because a fork copies only one.
    """

    def __init__(self, preload: str) -> None:
        self._preload = preload
        self._start()

    def fork(self) -> tuple[IO[bytes], IO[bytes]]:
        """The pipes to and from a new worker."""
        if self._has_exited():
            self._requests.close()
            self._start()
        (tasks, to_worker), (from_worker, answers) = os.pipe(), os.pipe()
        try:
            with suppress(OSError):  # it has just exited; the worker's pipes are closed
                socket.send_fds(self._requests, [b"f"], [tasks, answers])
        finally:
            os.close(tasks)
            os.close(answers)
        return os.fdopen(to_worker, "wb"), os.fdopen(from_worker, "rb")

    def _has_exited(self) -> bool:
        """Its end of the socket, which it never writes to, is closed before its exit code is known:
        on a busy machine by long enough for several requests."""
        if self._program.poll() is None and not wait([self._requests], 0):
            return False
        self._program.wait()
        return True

    def close(self) -> None:
        """Stop the process; its workers keep running."""
        self._requests.close()
        self._program.kill()
        self._program.wait()

    def _start(self) -> None:
        self._requests, child_end = socket.socketpair()
        with child_end:
            self._program = _start([self._preload], 1, stdin=child_end.fileno())


class Worker:
    """A process that replies to messages with ``answer``, one call of ``ask`` at a time.

    ``answer`` is a picklable function, or a function as ``module:name``, which this process does
    not import. Its libraries use ``threads`` threads.
    """

    def __init__(
        self, answer: Answer | str, *, threads: int = 1, template: Template | None = None
    ) -> None:
        self._program: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self.pid: int | None = None
        """Process id, once it is ready."""
        if template is None:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the worker
            self._program = _start([], threads, stdin=_PIPE, stdout=_PIPE, stderr=self._stderr)
            assert self._program.stdin is not None
            assert self._program.stdout is not None
            self._tasks, self._answers = self._program.stdin, self._program.stdout
        else:
            self._tasks, self._answers = template.fork()
        with suppress(OSError):  # it has exited already; ``ask`` will raise
            _write(self._tasks, pickle.dumps(answer))

    def wait_until_ready(self) -> None:
        """Wait until it has imported everything; raises ``EOFError`` if it exits before."""
        if self.pid is None:
            self.pid = int.from_bytes(self._read(), "big")

    def ask(self, message: bytes) -> bytes:
        """The reply to a message; raises ``EOFError`` if the process exits or is killed before."""
        self.wait_until_ready()
        try:
            _write(self._tasks, message)
        except (OSError, ValueError) as error:  # the pipe is closed
            raise EOFError from error
        return self._read()

    def kill(self) -> None:
        """Kill the process and its children, even while another thread waits for a reply."""
        pid = self._program.pid if self._program is not None else self.pid
        if pid is not None:
            with suppress(OSError):
                _kill_session(pid)
        with suppress(OSError):
            self._tasks.close()  # this stops a fork whose id is not known yet
        if self._program is not None:
            self._program.wait()

    def close(self) -> None:
        """Kill the process and close its files."""
        self.kill()
        self._answers.close()
        if self._stderr is not None:
            self._stderr.close()

    def ending(self) -> tuple[str, str]:
        """How the process ended, and the end of its standard error."""
        assert self._program is not None
        assert self._stderr is not None
        code = self._program.wait()
        self._stderr.seek(max(0, os.fstat(self._stderr.fileno()).st_size - _STDERR_BYTES))
        stderr = self._stderr.read().decode(errors="replace").strip()
        if code >= 0:
            return f"ended with exit code {code}", stderr
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}", stderr
        return f"was killed by signal {-code}", stderr

    def _read(self) -> bytes:
        try:
            # A child of a task may keep the pipe open after the worker has died.
            while self._program is not None and os.name == "posix":
                if wait([self._answers.fileno()], _CHECK_EVERY):
                    break
                if self._program.poll() is not None and not wait([self._answers.fileno()], 0):
                    raise EOFError
            return _read(self._answers)
        except (OSError, ValueError) as error:  # the pipe is closed
            raise EOFError from error


def share_out(function: Callable[[Item], Reply], items: Sequence[Item]) -> Iterator[Reply]:
    """``function`` of every item, in their order, computed by a worker process on each core.

    For work that is Python more than arithmetic, which threads of one process cannot share. The
    function and what it takes and returns are pickled. A single core computes them here.
    """
    count = min(_cores(), len(items))
    if count < 2:
        yield from map(function, items)
        return
    workers = [Worker(partial(_reply, function)) for _ in range(count)]
    idle = SimpleQueue[Worker]()
    for worker in workers:
        idle.put(worker)

    def ask(item: Item) -> Reply:
        worker = idle.get()
        try:
            reply, error = pickle.loads(worker.ask(pickle.dumps(item)))
        finally:
            idle.put(worker)
        if error is not None:
            raise error
        return cast(Reply, reply)

    threads = ThreadPoolExecutor(count)
    try:
        yield from threads.map(ask, items)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()


def _reply(function: Callable[[Any], Any], message: bytes) -> bytes:
    try:
        return pickle.dumps((function(pickle.loads(message)), None))
    except Exception as error:
        return pickle.dumps((None, error))


def _cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start(arguments: list[str], threads: int, **streams: Any) -> subprocess.Popen[bytes]:
    """Start this file as a program with the driver's module path."""
    modules = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    limits = dict.fromkeys(_THREADS, str(threads))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, *arguments],
        env={**os.environ, **passive_wait(), **limits, "PYTHONPATH": modules},
        start_new_session=True,
        **streams,
    )


def _kill_session(pid: int) -> None:
    if hasattr(os, "killpg"):
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGTERM)  # which kills it at once on Windows


def _write(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    head = pipe.read(_LENGTH.size)
    message = pipe.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if len(head) < _LENGTH.size or len(message) < _LENGTH.unpack(head)[0]:
        raise EOFError
    return message


def work() -> None:
    """The main function of a worker: send its process id, then reply to messages."""
    tasks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("r+b") as null:
        for stream in (0, 1):  # a task that reads or prints must not use the pipes
            os.dup2(null.fileno(), stream)
    messages: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_listen, args=(tasks, messages), daemon=True).start()
    answer = pickle.loads(messages.get())
    if isinstance(answer, str):
        answer = resolve_name(answer)
    reply = os.getpid().to_bytes(8, "big")
    while True:
        try:
            _write(answers, reply)
        except OSError:  # the driver has exited
            os._exit(0)
        reply = answer(messages.get())


def _listen(tasks: IO[bytes], messages: "SimpleQueue[bytes]") -> None:
    with suppress(EOFError, OSError):
        while True:
            messages.put(_read(tasks))
    _kill_session(os.getpid())  # the driver has closed the pipe, or has exited


def fork_workers(preload: str) -> None:
    """The main function of a template: fork a worker for every pair of pipes received."""
    resolve_name(preload)()
    requests = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, pipes, *_ = socket.recv_fds(requests, 1, 2)
        if not request:  # the driver has exited
            return
        if os.fork() == 0:
            requests.close()
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for stream, pipe in enumerate(pipes):
                os.dup2(pipe, stream)
                os.close(pipe)
            work()
        for pipe in pipes:
            os.close(pipe)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fork_workers(sys.argv[1])
    else:
        work()
