"""``serve``: the lab on a port of this machine, until it is interrupted."""

import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from rankscope.errors import InputError
from rankscope.show.lab._server import make_app, make_workers
from rankscope.show.lab._worker import Workers

PORT = 8417
"""Where the lab is unless told otherwise; if it is taken, on any that is free."""


def serve(
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Run the lab until it is interrupted, which ends this process; ``on_ready`` is told where."""
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    pool = make_workers()
    config = uvicorn.Config(
        make_app(host=host, workers=pool),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        http="h11",
        loop="asyncio",
        lifespan="on",
        limit_concurrency=256,
        timeout_keep_alive=15,
        h11_max_incomplete_event_size=16 * 1024,
    )
    _Server(config, lambda: _tell(address, browser, on_ready), pool).run(sockets=[listening])


def _tell(address: str, browser: bool, on_ready: Callable[[str], None]) -> None:
    on_ready(address)
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


class _Server(uvicorn.Server):
    """A server that says when it answers, and that an interruption ends at once."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], pool: Workers) -> None:
        super().__init__(config)
        self._on_ready, self._pool = on_ready, pool

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """While the server runs, its own handlers; from other threads none can be set."""
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                signal.signal(kind, self._end)
        yield

    def _end(self, *_: object) -> None:
        """Nothing is written that could be lost, so nothing is waited for."""
        self._pool.stop()
        sys.stdout.flush()
        os._exit(0)


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port; without one, at the usual one or, if that is taken, a free one."""
    if port is not None and not 0 <= port < 2**16:
        raise InputError(f"port={port} is out of range; expected 0 to 65535.")
    for one in (PORT, 0) if port is None else (port,):
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, one), family=family)
        except OSError as error:
            reason = error
    raise InputError(
        f"the lab cannot listen at {host}, port {port if port is not None else PORT}: {reason}; "
        "choose another --host or --port."
    )
