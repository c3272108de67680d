"""The lab's server: one page, its parts, and figures of the state its address names.

It answers pages of its own alone, by an address that is this machine's.
"""

import asyncio
import gzip
import hashlib
import ipaddress
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from string import Template
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rankscope.errors import InputError, RankscopeError
from rankscope.show.figures import bundle, dark_variables
from rankscope.show.lab._charts import TITLES, charts
from rankscope.show.lab._presets import PRESETS
from rankscope.show.lab._state import PARAMETERS, State, read_query, shown
from rankscope.show.lab._worker import (
    BrokenError,
    BusyError,
    SupersededError,
    TooSlowError,
    Workers,
)
from rankscope.version import __version__

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_SESSION = re.compile(r"[0-9a-z]{1,32}")
_FRESH = {"cache-control": "no-store"}
_SCRIPTS = ("lab", "mask", "controls", "charts")
_CODES: dict[type[RankscopeError], int] = {
    BusyError: 503,
    SupersededError: 409,
    TooSlowError: 504,
    BrokenError: 500,
}
"""How each error is told; every other one of rankscope's is about what was asked for: 422."""


def make_workers() -> Workers:
    """The processes that compute what the lab shows."""
    module = "rankscope.show.lab._compute"
    return Workers(f"{module}:run_task", preload=f"{module}:warm")


def make_app(*, host: str, workers: Workers) -> Starlette:
    """The lab as an application that any ASGI server can run.

    ``host`` is the address it is bound to; requests to other names are refused.
    """
    parts = Files()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        workers.start()
        Thread(target=parts.make, daemon=True).start()
        yield
        workers.stop()

    async def figures(request: Request) -> Response:
        state, own = _own_fields(request, part="first", session="")
        if own["part"] not in ("first", "second"):
            raise InputError(f"part={shown(own['part'])} is unknown; choose first or second.")
        body = await _computed(workers, request, own["part"], state, session=own["session"])
        return Response(body, media_type="application/json", headers=_FRESH)

    async def snippet(request: Request) -> Response:
        state, _ = _own_fields(request)
        body = await _computed(workers, request, "snippet", state)
        return _attachment(body, "text/x-python", "lab.py")

    async def picture(request: Request) -> Response:
        state, own = _own_fields(request, chart="residual")
        chart = own["chart"]
        if chart not in TITLES:
            raise InputError(f"chart={shown(chart)} is unknown; choose {', '.join(TITLES)}.")
        body = await _computed(workers, request, "picture", state, chart)
        return _attachment(body, "image/svg+xml", f"lab-{chart}.svg")

    handlers: dict[str, Handler] = {
        "/state.json": figures,
        "/snippet": snippet,
        "/figure.svg": picture,
    }
    handlers |= {path: _file(parts, path) for path in _MAKERS}
    app = Starlette(
        routes=[Route(path, answer, methods=["GET"]) for path, answer in handlers.items()],
        lifespan=lifespan,
        middleware=[Middleware(Guard, host=host)],
        exception_handlers={RankscopeError: _refuse},
    )
    app.router.redirect_slashes = False
    return app


def _own_fields(request: Request, **defaults: str) -> tuple[str, dict[str, str]]:
    """The query less some fields, checked as a state, and those fields."""
    pairs = read_query(request.url.query)
    own = [pair for pair in pairs if pair[0] in defaults]
    if len(own) != len(dict(own)):
        raise InputError(f"one of {', '.join(defaults)} is given twice; give it once.")
    session = dict(own).get("session")
    if session is not None and not _SESSION.fullmatch(session):
        raise InputError(f"session={shown(session)} is no name of up to 32 letters and digits.")
    rest = [pair for pair in pairs if pair[0] not in defaults]
    State.of(rest)
    return urlencode(rest), {**defaults, **dict(own)}


async def _computed(
    workers: Workers, request: Request, *arguments: str, session: str = ""
) -> bytes:
    """What a worker makes of it, unless the browser goes away first."""
    call = asyncio.create_task(workers.run(session or f"#{id(request)}", *arguments))
    gone = asyncio.create_task(_left(request))
    await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if not call.done():
        call.cancel()
        raise SupersededError("The browser has gone.")
    return await call


async def _left(request: Request) -> None:
    """Ends when the browser closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _attachment(body: bytes, kind: str, name: str) -> Response:
    headers = {**_FRESH, "content-disposition": f'attachment; filename="{name}"'}
    return Response(body, media_type=kind, headers=headers)


async def _refuse(_request: Request, error: Exception) -> Response:
    """An error as one sentence, with the code of its kind."""
    code = _CODES.get(type(error), 422)  # type: ignore[arg-type]
    headers = {**_FRESH, **({"retry-after": "1"} if code == 503 else {})}
    return JSONResponse({"error": str(error)}, status_code=code, headers=headers)


@dataclass(frozen=True)
class Part:
    """One file of the page: plain, packed, its kind, and a digest of it."""

    kind: str
    plain: bytes
    packed: bytes
    etag: str


class Files:
    """Every file of the page by its path; each is made when first asked for, or by ``make``."""

    def __init__(self) -> None:
        self._made: dict[str, Part] = {}
        self._locks = {path: Lock() for path in _MAKERS}

    def get(self, path: str) -> Part:
        """One file; two that ask at once wait for one making."""
        with self._locks[path]:
            if path not in self._made:
                kind, make = _MAKERS[path]
                plain = make().encode()
                digest = hashlib.sha256(plain).hexdigest()[:24]
                packed = gzip.compress(plain, 6, mtime=0)
                self._made[path] = Part(kind, plain, packed, f'"{digest}"')
            return self._made[path]

    def make(self) -> None:
        """All files, the slowest (Vega's) first."""
        for path in reversed(_MAKERS):
            self.get(path)


def _file(parts: Files, path: str) -> Handler:
    async def answer(request: Request) -> Response:
        part = await asyncio.to_thread(parts.get, path)
        headers = {"etag": part.etag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == part.etag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(part.packed, media_type=part.kind, headers=headers)
        return Response(part.plain, media_type=part.kind, headers=headers)

    return answer


def description() -> dict[str, Any]:
    """What the page is made of: parameters with their limits, presets, charts."""
    return {
        "version": __version__,
        "parameters": {name: each.describe() for name, each in PARAMETERS.items()},
        "presets": [preset.describe() for preset in PRESETS],
        "titles": TITLES,
        "charts": charts(),
    }


def _text(name: str) -> str:
    return (files("rankscope.show.lab") / name).read_text("utf-8")


_MAKERS: dict[str, tuple[str, Callable[[], str]]] = {
    "/": ("text/html", lambda: _text("page.html")),
    "/lab.css": (
        "text/css",
        lambda: Template(_text("lab.css")).substitute(chart_colours=dark_variables()),
    ),
    **{f"/{name}.js": ("text/javascript", partial(_text, f"{name}.js")) for name in _SCRIPTS},
    "/icon.svg": ("image/svg+xml", lambda: _text("icon.svg")),
    "/lab.json": (
        "application/json",
        lambda: json.dumps(description(), ensure_ascii=False, separators=(",", ":")),
    ),
    "/vega.js": ("text/javascript", bundle),
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
    """Refuses foreign hosts and origins and bodies of any size; adds the headers of safety.

    A page elsewhere whose name is made to lead here (DNS rebinding) sends that name as its host. A
    page elsewhere that asks by our own address is told by its origin, or by what the browser says
    of the request's site.
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
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        status, reason = self._refusal(scope["path"], Headers(scope=scope))
        if reason:
            answer = PlainTextResponse(reason, status_code=status)
            await answer(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str]:
        """Why a request is not answered, and with which code; no words if it is."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(name_of(hosts[0])):
            return 421, "The lab answers to its own address alone; open it as it was printed."
        if any(origin != f"http://{hosts[0]}" for origin in headers.getlist("origin")):
            return 403, "The lab answers its own page alone, not pages from elsewhere."
        sites = headers.getlist("sec-fetch-site")
        follows_link = headers.get("sec-fetch-mode") == "navigate" and path == "/"
        if any(each not in ("same-origin", "none") for each in sites) and not follows_link:
            return 403, "The lab answers its own page alone, not pages from elsewhere."
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "The lab reads no bodies; everything is in the address."
        return 200, ""


def name_of(host: str) -> str:
    """A host header without its port and brackets, in lower case; nothing if it is none."""
    found = _HOST.fullmatch(host.strip().lower())
    return "" if found is None else found["six"] or found["name"]


def host_rule(host: str) -> Callable[[str], bool]:
    """Which names of this server are its own.

    Those of the loopback, and the one it was told to bind to. Bound to every address, it answers to
    any address in numbers: those cannot be made to lead elsewhere.
    """
    own = {"localhost", host.lower()}
    any_number = host in ("0.0.0.0", "::", "")

    def is_ours(name: str) -> bool:
        if name in own:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return any_number or address.is_loopback

    return is_ours
