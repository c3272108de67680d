"""A pool of worker processes with a queue; the newest call is executed first.

A call that is superseded by a newer one of its session, abandoned or too slow leaves the queue. If
it is running, its process is killed and replaced by a fork of one that has imported everything, so
that no work is wasted.
"""

import asyncio
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any, Final

from rankscope.errors import RankscopeError
from rankscope.process import CAN_FORK, Template, Worker

_TRIES: Final = 3  # an idle process may have been killed, and also its template


class CallError(RankscopeError):
    """A call that failed, with an HTTP status code and the reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


Reply = asyncio.Future[bytes]
"""The future of a call; cancelled when no caller waits for it."""


class Workers:
    """A pool of processes that run a task.

    ``count`` calls run at once; at most ``waiting`` are queued or running, each for at most
    ``seconds``. ``task`` is a function as ``module:name``, which only the workers import.
    ``preload`` is a function that is called in the process they are forked from.
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
        self._most, self._seconds = waiting, seconds
        self._template: Template | None = None
        self.workers: set[Worker] = set()
        self._replies: dict[str, Reply] = {}  # by session
        self._waiting: dict[Reply, bytes] = {}  # and the messages, the newest last
        self._asked = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="lab")

    def start(self) -> None:
        """Start the processes, which import modules in the background."""
        if self._preload and CAN_FORK:
            self._template = Template(self._preload)
        self._loops = [asyncio.create_task(self._serve()) for _ in range(self._count)]

    def stop(self) -> None:
        """Stop all processes at once."""
        for loop in self._loops:
            loop.cancel()
        for reply in self._replies.values():
            reply.cancel()
        if self._template is not None:
            self._template.close()
        for worker in self.workers:
            worker.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, session: str, *arguments: Any) -> bytes:
        """Run the task; an older call of the same session is cancelled."""
        older = self._replies.pop(session, None)
        if older is not None:
            _fail(older, 409, "Replaced by a newer request of the same page.")
        if len(self._replies) >= self._most:
            raise CallError(503, "The lab is busy with other pages; try again in a moment.")
        reply: Reply = asyncio.get_running_loop().create_future()
        self._replies[session] = reply
        self._waiting[reply] = pickle.dumps((self._task, arguments))
        self._asked.set()
        try:
            return await reply  # cancelled together with the task that awaits it
        finally:
            self._waiting.pop(reply, None)
            if self._replies.get(session) is reply:
                del self._replies[session]

    async def _serve(self) -> None:
        """Execute calls, the newest first, and replace processes that exit."""
        worker = await self._start_worker()
        while True:
            while not self._waiting:
                self._asked.clear()
                await self._asked.wait()
            (reply, message), tries = self._waiting.popitem(), 0
            while not reply.done():
                tries += 1
                try:
                    await self._ask(worker, message, reply)
                except EOFError:
                    if tries == _TRIES:
                        _fail(
                            reply,
                            500,
                            "The worker process exited during the computation; try again.",
                        )
                    self.workers.discard(worker)
                    worker.close()
                    worker = await self._start_worker()

    async def _ask(self, worker: Worker, message: bytes, reply: Reply) -> None:
        """Set the reply; raises ``EOFError`` if the process exits or is killed."""

        def kill(_reply: Reply) -> None:
            worker.kill()

        slow = (
            f"The computation took more than {self._seconds:g} seconds; choose a smaller network."
        )
        limit = reply.get_loop().call_later(self._seconds, _fail, reply, 504, slow)
        reply.add_done_callback(kill)
        try:
            packed = await asyncio.wrap_future(self._threads.submit(worker.ask, message))
        finally:
            limit.cancel()
            reply.remove_done_callback(kill)
        if reply.done():  # it timed out just now, and the process is being killed
            raise EOFError
        code, body = pickle.loads(packed)
        if code == 200:
            reply.set_result(body)
        else:
            _fail(reply, code, body.decode())

    async def _start_worker(self) -> Worker:
        """Start a process and wait until it is ready; one that fails raises when it is used."""
        while True:
            try:
                worker = Worker(f"{__name__}:answer", template=self._template)
                break
            except OSError:  # too many open files or processes; connections will be closed
                await asyncio.sleep(1)
        self.workers.add(worker)
        with suppress(EOFError):
            await asyncio.wrap_future(self._threads.submit(worker.wait_until_ready))
        return worker


def _fail(reply: Reply, code: int, reason: str) -> None:
    if not reply.done():
        reply.set_exception(CallError(code, reason))


def answer(message: bytes) -> bytes:
    """Executed in a worker: an HTTP status code, and the result of the task or an error."""
    task, arguments = pickle.loads(message)
    code = 422
    try:
        code, body = 200, resolve_name(task)(*arguments)
    except RankscopeError as error:
        body = str(error).encode()
    except MemoryError:
        body = b"Not enough memory; choose a smaller network."
    except Exception as error:  # one failed call must not stop the worker
        print(f"rankscope lab: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        code = 500
        body = b"Internal error; please report it with the address of this page."
    return pickle.dumps((code, body))
