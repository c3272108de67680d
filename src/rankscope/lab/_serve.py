"""``serve``: the lab on a port of this machine, until it is interrupted."""

import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from rankscope.errors import InputError
from rankscope.lab._server import make_app

PORT = 8417
"""Where the lab is unless told otherwise; if it is taken, on any that is free."""


def serve(
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Run the lab until it is interrupted; ``on_ready`` is told its address."""
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    config = uvicorn.Config(
        make_app(host=host),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        http="h11",
        loop="asyncio",
        lifespan="on",
        limit_concurrency=256,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=16 * 1024,
    )
    server = _Server(config, lambda: _tell(address, browser, on_ready))
    server.run(sockets=[listening])


def _tell(address: str, browser: bool, on_ready: Callable[[str], None]) -> None:
    on_ready(address)
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


class _Server(uvicorn.Server):
    """A server that says when it answers, and for which an interruption is the end, no error."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the signal is not raised again once the server has ended."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port; without one, at the usual one or, if that is taken, a free one."""
    for one in (PORT, 0) if port is None else (port,):
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, one), family=family)
        except (OSError, OverflowError) as error:
            reason = error
    raise InputError(
        f"the lab cannot listen at {host}, port {port if port is not None else PORT}: {reason}; "
        "choose another --host or --port."
    )
