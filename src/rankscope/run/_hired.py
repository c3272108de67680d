"""A worker process as the driver sees it: hired, given runs, and gone for one reason or another."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Final

from rankscope.process.threads import passive_wait
from rankscope.run._engine import READY, Outcome
from rankscope.run._run import Run

_LAST_WORDS: Final = 4000
_GRACE: Final = 0.5
"""Seconds for a worker to end by itself before it is killed."""
_LIMITS: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
)
"""How the libraries that compute are told their number of threads."""


@dataclass(frozen=True)
class Job:
    """A run, and how often it was begun."""

    run: Run
    attempts: int = 0


class Worker:
    """A process of its own session, in which nothing of the driver's program is run again.

    It is started as a program, not forked: a script need not guard its main part, threads and
    locks of the driver are not copied, and Ctrl-C in a terminal reaches the driver alone.
    """

    def __init__(self, work: bytes, threads: int) -> None:
        self.job: Job | None = None
        self.is_ready = False
        self.pipe, theirs = Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the worker
        command = [sys.executable, "-P", "-m", f"{__package__}._worker", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            pass_fds=[theirs.fileno()],
            env=_environment(threads),
            start_new_session=True,
        )
        theirs.close()
        assert self._process.stdin is not None
        self._lifeline = self._process.stdin
        with suppress(OSError):  # it has ended already, which is found out below
            self.pipe.send_bytes(work)

    def begin(self, job: Job) -> None:
        """Hand a run over."""
        self.job = Job(job.run, job.attempts + 1)
        with suppress(OSError):  # it has ended, which is found out when it is listened to
            self.pipe.send(job.run)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a run."""
        return self.is_ready and self.job is None

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended, and what it may have started holds the pipe open."""
        return self._process.poll() is not None and not self.pipe.poll()

    def listen(self) -> Outcome | None:
        """What it has to say; ``EOFError`` if it never will again."""
        if self.is_gone:
            raise EOFError
        try:
            message = self.pipe.recv()
        except OSError as error:
            raise EOFError from error
        if message == READY:
            self.is_ready = True
            return None
        assert isinstance(message, Outcome)
        assert self.job is not None
        attempts, self.job = self.job.attempts, None
        return replace(message, attempts=attempts)

    def hang_up(self) -> None:
        """Close its lines, whereupon it ends, unless it is stuck."""
        self.pipe.close()
        with suppress(OSError):
            self._lifeline.close()

    def dismiss(self) -> None:
        """Have it ended: by itself, or else killed."""
        self.hang_up()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        self._kill()
        self._said.close()

    def last_words(self) -> tuple[str, str]:
        """How it ended by itself, and the last it wrote to its standard error."""
        self._process.wait()
        self._said.seek(max(0, os.fstat(self._said.fileno()).st_size - _LAST_WORDS))
        said = self._said.read().decode(errors="replace").strip()
        code = self._process.returncode
        if code >= 0:
            return f"ended with exit code {code}", said
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}", said
        return f"was killed by signal {-code}", said

    def _kill(self) -> None:
        """End it and whatever it has started: all are of one session."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _environment(threads: int) -> dict[str, str]:
    """The driver's, with its modules to be found and a number of threads for every library."""
    modules = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
    limits = dict.fromkeys(_LIMITS, str(threads))
    return {**os.environ, **passive_wait(), **limits, "PYTHONPATH": modules}
