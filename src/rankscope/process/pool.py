"""Worker processes: given messages, killed with all they started, and never left behind.

A worker is a program of its own, or forked from one that has imported everything. Nothing of the
driver's program is run again in it, so that a script need not guard its main part; it has a session
of its own, so that Ctrl-C in a terminal reaches the driver alone; and it ends as soon as its line
to the driver is closed, in the midst of a task too.
"""

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from pkgutil import resolve_name
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, Final

from rankscope.process.threads import passive_wait

Answer = Callable[[bytes], bytes]
"""What a worker does with a message."""
CAN_FORK: Final = hasattr(os, "fork") and hasattr(socket, "send_fds")
_LOOK_EVERY: Final = 1.0  # seconds between looks at a process whose line says nothing
_LAST_WORDS: Final = 4000
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
"""How the libraries that compute are told their number of threads."""


class Template:
    """A process that has called ``preload``, a function as ``module:name``, and forks workers.

    It has one thread, because a fork keeps no other.
    """

    def __init__(self, preload: str) -> None:
        self._preload = preload
        self._start()

    def fork(self) -> tuple[IO[bytes], IO[bytes]]:
        """The lines to a new worker: for messages, and for answers."""
        if self._program.poll() is not None:
            self._requests.close()
            self._start()
        (tasks, to_worker), (from_worker, answers) = os.pipe(), os.pipe()
        try:
            with suppress(OSError):  # it has just ended, and so have the worker's lines
                socket.send_fds(self._requests, [b"f"], [tasks, answers])
        finally:
            os.close(tasks)
            os.close(answers)
        return os.fdopen(to_worker, "wb"), os.fdopen(from_worker, "rb")

    def close(self) -> None:
        """End it; workers live on."""
        self._requests.close()
        self._program.kill()
        self._program.wait()

    def _start(self) -> None:
        self._requests, theirs = socket.socketpair()
        with theirs:
            self._program = _started([self._preload], 1, stdin=theirs.fileno())


class Worker:
    """A process that answers messages one by one with ``answer``, one call of ``ask`` at a time.

    ``answer`` is what can be pickled, or a function as ``module:name``, which this process need not
    import. Its libraries compute with so many ``threads``.
    """

    def __init__(
        self, answer: Answer | str, *, threads: int = 1, template: Template | None = None
    ) -> None:
        self._program: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self.pid: int | None = None
        """Of the process, once it is ready."""
        if template is None:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the worker
            self._program = _started([], threads, stdin=_PIPE, stdout=_PIPE, stderr=self._said)
            assert self._program.stdin is not None
            assert self._program.stdout is not None
            self._tasks, self._answers = self._program.stdin, self._program.stdout
        else:
            self._tasks, self._answers = template.fork()
        with suppress(OSError):  # it has ended already, which is found out when it is asked
            _write(self._tasks, pickle.dumps(answer))

    def wait_until_ready(self) -> None:
        """Until it has imported what it needs; ``EOFError`` if it ended before."""
        if self.pid is None:
            self.pid = int.from_bytes(self._read(), "big")

    def ask(self, message: bytes) -> bytes:
        """Its answer; ``EOFError`` if it ended, or was killed, before it gave one."""
        self.wait_until_ready()
        try:
            _write(self._tasks, message)
        except (OSError, ValueError) as error:  # the line is closed
            raise EOFError from error
        return self._read()

    def kill(self) -> None:
        """End it and whatever it has started, also while another thread is asking it."""
        pid = self._program.pid if self._program is not None else self.pid
        if pid is not None:
            with suppress(OSError):
                _kill_session(pid)
        with suppress(OSError):
            self._tasks.close()  # of a fork that is not ready, no more is known
        if self._program is not None:
            self._program.wait()

    def close(self) -> None:
        """Kill it, and let go of all that was kept of it."""
        self.kill()
        self._answers.close()
        if self._said is not None:
            self._said.close()

    def ending(self) -> tuple[str, str]:
        """How it ended by itself, and the last it wrote to its standard error."""
        assert self._program is not None
        assert self._said is not None
        code = self._program.wait()
        self._said.seek(max(0, os.fstat(self._said.fileno()).st_size - _LAST_WORDS))
        said = self._said.read().decode(errors="replace").strip()
        if code >= 0:
            return f"ended with exit code {code}", said
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}", said
        return f"was killed by signal {-code}", said

    def _read(self) -> bytes:
        try:
            # What a task has forked may hold the line open after the worker itself has died.
            while self._program is not None and os.name == "posix":
                if wait([self._answers.fileno()], _LOOK_EVERY):
                    break
                if self._program.poll() is not None and not wait([self._answers.fileno()], 0):
                    raise EOFError
            return _read(self._answers)
        except (OSError, ValueError) as error:  # the line is closed
            raise EOFError from error


def _started(arguments: list[str], threads: int, **streams: Any) -> subprocess.Popen[bytes]:
    """This file as a program in which the driver's modules are found."""
    modules = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    limits = dict.fromkeys(_THREADS, str(threads))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, *arguments],
        env={**os.environ, **passive_wait(), **limits, "PYTHONPATH": modules},
        start_new_session=True,
        **streams,
    )


def _kill_session(pid: int) -> None:
    if os.name == "posix":
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGTERM)  # which ends it at once there


def _write(line: IO[bytes], message: bytes) -> None:
    line.write(_LENGTH.pack(len(message)) + message)
    line.flush()


def _read(line: IO[bytes]) -> bytes:
    head = line.read(_LENGTH.size)
    message = line.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if len(head) < _LENGTH.size or len(message) < _LENGTH.unpack(head)[0]:
        raise EOFError
    return message


def work() -> None:
    """The program of a worker: say which process it is, then answer whatever comes."""
    tasks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("r+b") as nothing:
        for stream in (0, 1):  # a task that reads or prints must not take the lines
            os.dup2(nothing.fileno(), stream)
    messages: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_listen, args=(tasks, messages), daemon=True).start()
    answer = pickle.loads(messages.get())
    if isinstance(answer, str):
        answer = resolve_name(answer)
    reply = os.getpid().to_bytes(8, "big")
    while True:
        try:
            _write(answers, reply)
        except OSError:  # nobody listens any more
            os._exit(0)
        reply = answer(messages.get())


def _listen(tasks: IO[bytes], messages: "SimpleQueue[bytes]") -> None:
    with suppress(EOFError, OSError):
        while True:
            messages.put(_read(tasks))
    _kill_session(os.getpid())  # the driver has closed the line, or has ended


def fork_workers(preload: str) -> None:
    """The program of a template: fork a worker for every pair of lines that comes."""
    resolve_name(preload)()
    requests = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        said, lines, *_ = socket.recv_fds(requests, 1, 2)
        if not said:  # the driver has ended
            return
        if os.fork() == 0:
            requests.close()
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for stream, line in enumerate(lines):
                os.dup2(line, stream)
                os.close(line)
            work()
        for line in lines:
            os.close(line)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fork_workers(sys.argv[1])
    else:
        work()
