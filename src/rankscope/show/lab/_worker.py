"""Calls to a bounded number of processes that compute; the newest call is answered first.

A call that is superseded by a newer one of its session, abandoned or too slow leaves the queue. If
it is being computed, its process is killed and another takes its place, forked from one that has
everything imported, so that nothing is computed for nobody.
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

_TRIES: Final = 3  # an idle process may have been killed, and the one it is forked from too


class CallError(RankscopeError):
    """A call without an answer: the status of HTTP that stands for the reason, and the reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


Reply = asyncio.Future[bytes]
"""What a caller waits for; done as soon as nobody waits for it any more."""


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
        self._most, self._seconds = waiting, seconds
        self._template: Template | None = None
        self.crew: set[Worker] = set()
        self._replies: dict[str, Reply] = {}  # by session
        self._waiting: dict[Reply, bytes] = {}  # and the messages, the newest last
        self._asked = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="lab")

    def start(self) -> None:
        """Start the processes; they import what they need in the background."""
        if self._preload and CAN_FORK:
            self._template = Template(self._preload)
        self._loops = [asyncio.create_task(self._serve()) for _ in range(self._count)]

    def stop(self) -> None:
        """End every process at once."""
        for loop in self._loops:
            loop.cancel()
        for reply in self._replies.values():
            reply.cancel()
        if self._template is not None:
            self._template.close()
        for worker in self.crew:
            worker.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, session: str, *arguments: Any) -> bytes:
        """What the task makes of the arguments; an older call of the session gives way."""
        older = self._replies.pop(session, None)
        if older is not None:
            _fail(older, 409, "A newer request of the same page took its place.")
        if len(self._replies) >= self._most:
            raise CallError(503, "The lab is busy with other pages; try again in a moment.")
        reply: Reply = asyncio.get_running_loop().create_future()
        self._replies[session] = reply
        self._waiting[reply] = pickle.dumps((self._task, arguments))
        self._asked.set()
        try:
            return await reply  # which is cancelled with the task that awaits it
        finally:
            self._waiting.pop(reply, None)
            if self._replies.get(session) is reply:
                del self._replies[session]

    async def _serve(self) -> None:
        """In one process after another, answer one call after another, the newest first."""
        worker = await self._hire()
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
                        _fail(reply, 500, "The computation ended before it was done; try again.")
                    self.crew.discard(worker)
                    worker.close()
                    worker = await self._hire()

    async def _ask(self, worker: Worker, message: bytes, reply: Reply) -> None:
        """Settle the reply; ``EOFError`` if the process has ended, or was killed with the call."""

        def kill(_reply: Reply) -> None:
            worker.kill()

        slow = f"This took more than {self._seconds:g} seconds; choose a smaller network."
        limit = reply.get_loop().call_later(self._seconds, _fail, reply, 504, slow)
        reply.add_done_callback(kill)
        try:
            packed = await asyncio.wrap_future(self._threads.submit(worker.ask, message))
        finally:
            limit.cancel()
            reply.remove_done_callback(kill)
        if reply.done():  # at the last moment: it is killed, or is about to be
            raise EOFError
        code, body = pickle.loads(packed)
        if code == 200:
            reply.set_result(body)
        else:
            _fail(reply, code, body.decode())

    async def _hire(self) -> Worker:
        """A process that is ready; one that could not start says so when it is asked."""
        while True:
            try:
                worker = Worker(f"{__name__}:answer", template=self._template)
                break
            except OSError:  # too many open files or processes; connections will be closed
                await asyncio.sleep(1)
        self.crew.add(worker)
        with suppress(EOFError):
            await asyncio.wrap_future(self._threads.submit(worker.wait_until_ready))
        return worker


def _fail(reply: Reply, code: int, reason: str) -> None:
    if not reply.done():
        reply.set_exception(CallError(code, reason))


def answer(message: bytes) -> bytes:
    """In a worker: what the task makes of its arguments, or why nothing can be made of them."""
    task, arguments = pickle.loads(message)
    code = 422
    try:
        code, body = 200, resolve_name(task)(*arguments)
    except RankscopeError as error:
        body = str(error).encode()
    except MemoryError:
        body = b"There is not enough memory for this; make the network smaller."
    except Exception as error:  # one broken call must not end the worker
        print(f"rankscope lab: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        code = 500
        body = b"This should not have happened; please report the address of this page."
    return pickle.dumps((code, body))
