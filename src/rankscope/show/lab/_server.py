"""``serve``: the web server of the lab.

It accepts only requests of its own page, at an address of this machine.
"""

import asyncio
import gzip
import hashlib
import ipaddress
import json
import os
import re
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import urlencode

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rankscope.errors import InputError, RankscopeError
from rankscope.show.figures import bundle, dark_variables
from rankscope.show.lab._charts import TITLES, charts
from rankscope.show.lab._presets import PRESETS
from rankscope.show.lab._state import PARAMETERS, State, read_query, shown
from rankscope.show.lab._worker import CallError, Workers
from rankscope.version import __version__

PORT = 8417  # default port; if it is in use, any free one
REQUEST_SECONDS = 5.0  # time limit to receive a request
_ENDS = (signal.SIGINT, signal.SIGTERM)
_SESSION = re.compile(r"[0-9a-z]{1,32}")
_FRESH = {"cache-control": "no-store"}
_SCRIPTS = ("lab", "mask", "controls", "charts")


def serve(
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Run the lab until interrupted, which exits the process; calls ``on_ready(address)``."""
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    module = "rankscope.show.lab._compute"
    pool = Workers(f"{module}:run_task", preload=f"{module}:warm")
    config = uvicorn.Config(
        make_app(host=host, workers=pool),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        http=_Connection,
        loop="asyncio",
        lifespan="on",
        limit_concurrency=256,
        timeout_keep_alive=15,
        h11_max_incomplete_event_size=16 * 1024,
    )

    def announce() -> None:
        on_ready(address)
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    _Server(config, announce, pool).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server that reports when it is ready, and exits at once when interrupted."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], pool: Workers) -> None:
        super().__init__(config)
        self._on_ready, self._pool = on_ready, pool

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install signal handlers, which is possible only in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for kind in _ENDS:
                signal.signal(kind, self._end)
        yield

    def _end(self, *_: object) -> None:
        """Exit without waiting: there is nothing to save."""
        for kind in _ENDS:  # a second signal would deadlock
            signal.signal(kind, signal.SIG_IGN)
        self._pool.stop()
        sys.stdout.flush()
        os._exit(0)


class _Connection(H11Protocol):
    """A connection with a time limit for receiving a request."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._limit = self._limit or self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
        elif self._limit is not None:
            self._limit.cancel()
            self._limit = None


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at ``port``; by default at ``PORT``, or at a free port if that is in use."""
    if port is not None and not 0 <= port < 2**16:
        raise InputError(f"port={port} is out of range; expected 0 to 65535.")
    for candidate in (PORT, 0) if port is None else (port,):
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            reason = error
    raise InputError(
        f"the lab cannot listen at {host}, port {port if port is not None else PORT}: {reason}; "
        "choose another --host or --port."
    )


def make_app(*, host: str, workers: Workers) -> Starlette:
    """The lab as an ASGI application.

    ``host`` is the address it is bound to; requests for other host names are rejected.
    """
    files: dict[str, Future[tuple[bytes, bytes, str]]] = {}

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        workers.start()
        threads = ThreadPoolExecutor(len(_FILES), thread_name_prefix="lab-file")
        files.update({path: threads.submit(_make, path) for path in _FILES})
        yield
        workers.stop()
        threads.shutdown(wait=False)

    async def file(request: Request) -> Response:
        plain, packed, etag = await asyncio.wrap_future(files[request.url.path])
        headers = {"etag": etag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        zipped = "gzip" in request.headers.get("accept-encoding", "")
        headers |= {"content-encoding": "gzip"} if zipped else {}
        kind = _FILES[request.url.path][0]
        return Response(packed if zipped else plain, media_type=kind, headers=headers)

    async def figures(request: Request) -> Response:
        state, fields = _own_fields(request, part="first", session="")
        if fields["part"] not in ("first", "second"):
            raise InputError(f"part={shown(fields['part'])} is unknown; choose first or second.")
        body = await _computed(workers, request, fields["part"], state, session=fields["session"])
        return Response(body, media_type="application/json", headers=_FRESH)

    async def snippet(request: Request) -> Response:
        state, _ = _own_fields(request)
        body = await _computed(workers, request, "snippet", state)
        return _attachment(body, "text/x-python", "lab.py")

    async def picture(request: Request) -> Response:
        state, fields = _own_fields(request, chart="residual")
        chart = fields["chart"]
        if chart not in TITLES:
            raise InputError(f"chart={shown(chart)} is unknown; choose {', '.join(TITLES)}.")
        body = await _computed(workers, request, "picture", state, chart)
        return _attachment(body, "image/svg+xml", f"lab-{chart}.svg")

    handlers = {"/state.json": figures, "/snippet": snippet, "/figure.svg": picture}
    handlers |= dict.fromkeys(_FILES, file)
    app = Starlette(
        routes=[Route(path, answer, methods=["GET"]) for path, answer in handlers.items()],
        lifespan=lifespan,
        middleware=[Middleware(Guard, host=host)],
        exception_handlers={RankscopeError: _refuse},
    )
    app.router.redirect_slashes = False
    return app


def _own_fields(request: Request, **defaults: str) -> tuple[str, dict[str, str]]:
    """Split a query into a valid state and the fields in ``defaults``."""
    pairs = read_query(request.url.query)
    named = [pair for pair in pairs if pair[0] in defaults]
    if len(named) != len(dict(named)):
        raise InputError(f"one of {', '.join(defaults)} is given twice; give it once.")
    session = dict(named).get("session")
    if session is not None and not _SESSION.fullmatch(session):
        raise InputError(
            f"session={shown(session)} is invalid; expected up to 32 letters and digits."
        )
    rest = [pair for pair in pairs if pair[0] not in defaults]
    State.of(rest)
    return urlencode(rest), {**defaults, **dict(named)}


async def _computed(
    workers: Workers, request: Request, *arguments: str, session: str = ""
) -> bytes:
    """The reply of a worker; cancelled if the browser disconnects."""
    call = asyncio.create_task(workers.run(session or f"#{id(request)}", *arguments))

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        call.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await call
    except asyncio.CancelledError:
        raise CallError(409, "The browser has disconnected.") from None
    finally:
        watching.cancel()


def _attachment(body: bytes, kind: str, name: str) -> Response:
    headers = {**_FRESH, "content-disposition": f'attachment; filename="{name}"'}
    return Response(body, media_type=kind, headers=headers)


async def _refuse(_request: Request, error: Exception) -> Response:
    """An error response with one sentence; the default status is for an invalid request."""
    code = getattr(error, "code", 422)
    headers = {**_FRESH, **({"retry-after": "1"} if code == 503 else {})}
    return JSONResponse({"error": str(error)}, status_code=code, headers=headers)


def _make(path: str) -> tuple[bytes, bytes, str]:
    """A file of the page: plain, compressed, and its digest."""
    plain = _FILES[path][1]().encode()
    digest = hashlib.sha256(plain).hexdigest()[:24]
    return plain, gzip.compress(plain, 6, mtime=0), f'"{digest}"'


def description() -> dict[str, Any]:
    """The description of the page: parameters with their limits, presets, charts."""
    return {
        "version": __version__,
        "parameters": {name: parameter.describe() for name, parameter in PARAMETERS.items()},
        "presets": [preset._asdict() for preset in PRESETS],
        "titles": TITLES,
        "charts": charts(),
    }


def _text(name: str) -> str:
    return (files("rankscope.show.lab") / name).read_text("utf-8")


# All files of the page by path: media type and function. Vega is first, because it is slowest.
_FILES: dict[str, tuple[str, Callable[[], str]]] = {
    "/vega.js": ("text/javascript", bundle),
    "/lab.json": ("application/json", lambda: json.dumps(description(), separators=(",", ":"))),
    "/": ("text/html", partial(_text, "page.html")),
    "/lab.css": (
        "text/css",
        lambda: Template(_text("lab.css")).substitute(chart_colours=dark_variables()),
    ),
    **{f"/{name}.js": ("text/javascript", partial(_text, f"{name}.js")) for name in _SCRIPTS},
    "/icon.svg": ("image/svg+xml", partial(_text, "icon.svg")),
}

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/@%\s]+))(?::\d{1,5})?")


class Guard:
    """Rejects other hosts and origins and request bodies; adds security headers.

    A foreign page whose name resolves to this machine (DNS rebinding) sends that name as its host.
    A foreign page that uses our address is recognised by its origin, or by the Sec-Fetch-Site
    header of the browser.
    """

    def __init__(self, app: ASGIApp, *, host: str) -> None:
        self._app = app
        self._is_ours = host_rule(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        status, reason = self._refusal(scope["path"], Headers(scope=scope))
        answer = PlainTextResponse(reason, status_code=status) if reason else self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str]:
        """The status code and reason to reject a request; an empty reason if it is accepted."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(name_of(hosts[0])):
            return 421, "The lab accepts only its own address; open the address that was printed."
        if any(origin != f"http://{hosts[0]}" for origin in headers.getlist("origin")):
            return 403, "The lab accepts requests of its own page only."
        sites = headers.getlist("sec-fetch-site")
        follows_link = headers.get("sec-fetch-mode") == "navigate" and path == "/"
        if any(site not in ("same-origin", "none") for site in sites) and not follows_link:
            return 403, "The lab accepts requests of its own page only."
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "The lab reads no bodies; everything is in the address."
        return 200, ""


def name_of(host: str) -> str:
    """The host of a host header, in lower case; empty if it is invalid."""
    parts = _HOST.fullmatch(host.strip().lower())
    return "" if parts is None else parts["six"] or parts["name"]


def host_rule(host: str) -> Callable[[str], bool]:
    """The host names of this server.

    The names of the loopback, and the address it is bound to. If bound to all addresses, it accepts
    any numeric address, because DNS cannot redirect those.
    """
    any_number = host in ("0.0.0.0", "::", "")

    def is_ours(name: str) -> bool:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in ("localhost", host.lower())
        return any_number or address.is_loopback or name == host.lower()

    return is_ours
