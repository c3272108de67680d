"""A bounded number of processes that compute; a session's newer call ends its older one.

A call that is superseded, abandoned or too slow costs its process: the process is killed and
another takes its place, forked from one that has everything imported, so that nothing waits for
work no one wants any more.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pkgutil import resolve_name
from threading import Lock
from typing import Any

from rankscope.errors import RankscopeError


class BusyError(RankscopeError):
    """More calls are waiting than are kept."""


class SupersededError(RankscopeError):
    """The same session has asked for something else since."""


class TooSlowError(RankscopeError):
    """A call took longer than calls may."""


class RefusedError(RankscopeError):
    """What was asked for cannot be computed; the sentence says why."""


class BrokenError(RankscopeError):
    """A worker ended, or failed in a way that was not foreseen."""


class Workers:
    """Processes that run a task, some at a time.

    ``count`` run at once and at most ``waiting`` calls are kept, those that run among them; each
    may run for ``seconds``. ``task`` is a function, as ``module:name``: the processes import it,
    and this one need not. ``preload`` is a module that the process they are forked from imports.
    """

    def __init__(
        self,
        task: str,
        *,
        preload: str = "",
        count: int = 2,
        waiting: int = 128,
        seconds: float = 30.0,
    ) -> None:
        self._waiting, self._seconds = waiting, seconds
        self._slots = [_Slot(task, preload) for _ in range(count)]
        self._free: asyncio.Queue[_Slot] = asyncio.Queue()
        self._calls: dict[str, asyncio.Task[bytes]] = {}

    def start(self) -> None:
        """Start the processes; they import what they need in the background."""
        for slot in self._slots:
            slot.begin()
            self._free.put_nowait(slot)

    def stop(self) -> None:
        """End every process at once."""
        for call in self._calls.values():
            call.cancel()
        for slot in self._slots:
            slot.end()

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that run."""
        return [slot.process.pid for slot in self._slots if slot.process and slot.process.pid]

    async def run(self, session: str, *arguments: Any) -> bytes:
        """What the task makes of the arguments; an older call of the session gives way."""
        older = self._calls.pop(session, None)
        if older is not None:
            older.cancel()
        if len(self._calls) >= self._waiting:
            raise BusyError("The lab is busy with other pages; try again in a moment.")
        call = asyncio.create_task(self._work(arguments))
        self._calls[session] = call
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if self._calls.get(session) is call:  # whoever asked has gone
                call.cancel()
                raise
            raise SupersededError("A newer request of the same page took its place.") from None
        finally:
            if self._calls.get(session) is call:
                del self._calls[session]

    async def _work(self, arguments: tuple[Any, ...]) -> bytes:
        slot = await self._free.get()
        try:
            return await slot.run(arguments, self._seconds)
        finally:
            self._free.put_nowait(slot)


class _Slot:
    """A process and the one thread that talks to it."""

    def __init__(self, task: str, preload: str) -> None:
        self._task, self._preload = task, preload
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lab")
        self.process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._ended = False

    def begin(self) -> None:
        """Start a process in the background, unless there is one."""
        self._thread.submit(self._ready)

    def end(self) -> None:
        """Kill the process; whoever waits for it is told."""
        self._ended = True
        if self.process is not None:
            self.process.kill()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def run(self, arguments: tuple[Any, ...], seconds: float) -> bytes:
        reply = asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, arguments)
        try:
            async with asyncio.timeout(seconds):
                kind, body = await asyncio.shield(reply)
        except TimeoutError:
            self._replace(reply)
            raise TooSlowError(
                f"This took more than {seconds:g} seconds; choose fewer layers, tokens or a "
                "smaller width."
            ) from None
        except asyncio.CancelledError:
            self._replace(reply)
            raise
        except (EOFError, OSError):
            self._replace(reply)
            raise BrokenError("The computation ended before it was done; try again.") from None
        if kind == "refused":
            raise RefusedError(body.decode())
        if kind == "broken":
            raise BrokenError(body.decode())
        return body

    def _replace(self, reply: "asyncio.Future[Any]") -> None:
        """Kill the process; another is there before the next call."""
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self.process is not None:
            self.process.kill()
        self._thread.submit(self._forget)
        self._thread.submit(self._ready)

    def _exchange(self, arguments: tuple[Any, ...]) -> tuple[str, bytes]:
        pipe = self._ready()
        pipe.send(arguments)
        kind, body = pipe.recv()
        return kind, body

    def _ready(self) -> Connection:
        if self._pipe is None:
            ours, theirs = multiprocessing.Pipe()
            process = _context(self._preload).Process(  # type: ignore[attr-defined]
                target=work, args=(self._task, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.process, self._pipe = process, ours
            if self._ended:  # while it was starting
                process.kill()
        return self._pipe

    def _forget(self) -> None:
        """Runs after the killed process's reader has ended."""
        if self.process is not None:
            self.process.join(5)
        if self._pipe is not None:
            self._pipe.close()
        self.process = self._pipe = None


def work(task: str, pipe: Connection) -> None:
    """Answer calls until the other end is closed."""
    function = resolve_name(task)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends its processes itself
    while True:
        try:
            arguments = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(_answer(function, arguments))


def _answer(function: Any, arguments: tuple[Any, ...]) -> tuple[str, bytes]:
    try:
        return "done", function(*arguments)
    except RankscopeError as error:
        return "refused", str(error).encode()
    except MemoryError:
        return "refused", b"There is not enough memory for this; make the network smaller."
    except Exception as error:  # one broken call must not end the worker
        print(f"rankscope lab: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return "broken", b"This should not have happened; please report the address of this page."


def _context(preload: str) -> BaseContext:
    """Processes forked from one that has imported everything, where there is such a thing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    with _starting:
        if preload:
            context.set_forkserver_preload([preload])
        before = {name: os.environ.get(name) for name in _ONE_THREAD}
        os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
        try:
            forkserver.ensure_running()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
    return context


_starting = Lock()
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What the process that is forked is told: a fork of one with a pool of threads may wait for ever
for threads it does not have."""
