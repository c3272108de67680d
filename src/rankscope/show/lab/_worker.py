"""Calls to a bounded number of processes that compute; a session's newer call ends its older one.

A call that is superseded, abandoned or too slow costs its process: the process is killed and
another takes its place, forked from one that has everything imported, so that nothing waits for
work no one wants any more.
"""

import asyncio
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pkgutil import resolve_name
from typing import Any

from rankscope.errors import RankscopeError
from rankscope.process import CAN_FORK, Template, Worker


class BusyError(RankscopeError):
    """More calls are waiting than are kept."""

    code = 503


class SupersededError(RankscopeError):
    """The same session has asked for something else since."""

    code = 409


class TooSlowError(RankscopeError):
    """A call took longer than calls may."""

    code = 504


class RefusedError(RankscopeError):
    """What was asked for cannot be computed; the sentence says why."""


class BrokenError(RankscopeError):
    """A worker ended, or failed in a way that was not foreseen."""

    code = 500


class Workers:
    """Processes that run a task, some at a time.

    ``count`` run at once and at most ``waiting`` calls are kept, those that run among them; each
    may run for ``seconds``. ``task`` is a function, as ``module:name``: the processes import it,
    and this one need not. ``preload`` is one that is called in the process they are forked from.
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
        self._task, self._preload, self._count = task, preload, count
        self._waiting, self._seconds = waiting, seconds
        self._template: Template | None = None
        self._crew: set[Worker] = set()
        self._free: asyncio.Queue[Worker] = asyncio.Queue()
        self._calls: dict[str, asyncio.Task[bytes]] = {}
        # A thread waits for each process, and for the end of each that was killed.
        self._threads = ThreadPoolExecutor(2 * waiting, thread_name_prefix="lab")

    def start(self) -> None:
        """Start the processes; they import what they need in the background."""
        if self._preload and CAN_FORK:
            self._template = Template(self._preload)
        for _ in range(self._count):
            self._hire()

    def stop(self) -> None:
        """End every process at once."""
        for call in self._calls.values():
            call.cancel()
        for worker in self._crew:
            worker.kill()
        if self._template is not None:
            self._template.close()
        for worker in self._crew:
            worker.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that are ready."""
        return [worker.pid for worker in self._crew if worker.pid is not None]

    async def run(self, session: str, *arguments: Any) -> bytes:
        """What the task makes of the arguments; an older call of the session gives way."""
        older = self._calls.pop(session, None)
        if older is not None:
            older.cancel()
        if len(self._calls) >= self._waiting:
            raise BusyError("The lab is busy with other pages; try again in a moment.")
        call = asyncio.create_task(self._work(arguments))
        # Whoever asked may have gone when it fails, and then nobody asks why.
        call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
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
        worker, loop = await self._free.get(), asyncio.get_running_loop()
        message = pickle.dumps((self._task, arguments))
        try:
            async with asyncio.timeout(self._seconds):
                reply = await loop.run_in_executor(self._threads, worker.ask, message)
        except BaseException as error:
            self._crew.discard(worker)
            worker.kill()
            loop.run_in_executor(self._threads, worker.close)
            self._hire()
            if isinstance(error, TimeoutError):
                raise TooSlowError(
                    f"This took more than {self._seconds:g} seconds; choose fewer layers, tokens "
                    "or a smaller width."
                ) from None
            if isinstance(error, EOFError):
                raise BrokenError("The computation ended before it was done; try again.") from None
            raise
        self._free.put_nowait(worker)
        body: bytes
        refusal, body = pickle.loads(reply)
        if refusal is not None:
            raise refusal(body.decode())
        return body

    def _hire(self) -> None:
        worker = Worker(f"{__name__}:answer", template=self._template)
        self._crew.add(worker)
        self._free.put_nowait(worker)


def answer(message: bytes) -> bytes:
    """In a worker: what the task makes of its arguments, or why nothing can be made of them."""
    task, arguments = pickle.loads(message)
    kind: type[RankscopeError] | None = None
    try:
        body = resolve_name(task)(*arguments)
    except RankscopeError as error:
        kind, body = RefusedError, str(error).encode()
    except MemoryError:
        kind, body = RefusedError, b"There is not enough memory for this; make the network smaller."
    except Exception as error:  # one broken call must not end the worker
        print(f"rankscope lab: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        kind = BrokenError
        body = b"This should not have happened; please report the address of this page."
    return pickle.dumps((kind, body))
