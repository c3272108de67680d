"""The lab's server: one page, its parts, and figures of the state its address names."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from threading import Thread
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rankscope.errors import InputError, RankscopeError
from rankscope.show.lab._charts import TITLES
from rankscope.show.lab._files import Files
from rankscope.show.lab._guard import Guard
from rankscope.show.lab._parameters import shown
from rankscope.show.lab._state import State, read_query
from rankscope.show.lab._worker import (
    BrokenError,
    BusyError,
    SupersededError,
    TooSlowError,
    Workers,
)

Handler = Callable[[Request], Awaitable[Response]]
_SESSION = re.compile(r"[0-9a-z]{1,32}")
_CODES: dict[type[RankscopeError], int] = {
    BusyError: 503,
    SupersededError: 409,
    TooSlowError: 504,
    BrokenError: 500,
}
"""How each error is told; every other one of rankscope's is about what was asked for: 422."""


def make_workers() -> Workers:
    """The processes that compute what the lab shows."""
    return Workers("rankscope.show.lab._tasks:run_task", preload="rankscope.show.lab._tasks:warm")


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

    routes = [
        Route("/state.json", _figures(workers), methods=["GET"]),
        Route("/snippet", _snippet(workers), methods=["GET"]),
        Route("/figure.svg", _picture(workers), methods=["GET"]),
        *(Route(path, _file(parts, path), methods=["GET"]) for path in parts.paths),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, host=host)],
        exception_handlers={RankscopeError: _refuse},
    )
    app.router.redirect_slashes = False
    return app


def _figures(pool: Workers) -> Handler:
    async def answer(request: Request) -> Response:
        rest, own = _own_fields(request, "part", "session")
        part = own.get("part", "first")
        if part not in ("first", "second"):
            raise InputError(f"part={shown(part)} is unknown; choose first or second.")
        body = await _computed(pool, request, own.get("session"), part, rest)
        return Response(body, media_type="application/json", headers=_FRESH)

    return answer


def _snippet(pool: Workers) -> Handler:
    async def answer(request: Request) -> Response:
        rest, _ = _own_fields(request)
        body = await _computed(pool, request, None, "snippet", rest)
        headers = {**_FRESH, "content-disposition": 'attachment; filename="lab.py"'}
        return Response(body, media_type="text/x-python", headers=headers)

    return answer


def _picture(pool: Workers) -> Handler:
    async def answer(request: Request) -> Response:
        rest, own = _own_fields(request, "chart")
        chart = own.get("chart", "residual")
        if chart not in TITLES:
            raise InputError(f"chart={shown(chart)} is unknown; choose {', '.join(TITLES)}.")
        body = await _computed(pool, request, None, "picture", rest, chart)
        headers = {**_FRESH, "content-disposition": f'attachment; filename="lab-{chart}.svg"'}
        return Response(body, media_type="image/svg+xml", headers=headers)

    return answer


_FRESH = {"cache-control": "no-store"}


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


def _own_fields(request: Request, *names: str) -> tuple[str, dict[str, str]]:
    """The query less some fields, checked as a state, and those fields."""
    pairs = read_query(request.url.query)
    own = [pair for pair in pairs if pair[0] in names]
    if len(own) != len(dict(own)):
        raise InputError(f"one of {', '.join(names)} is given twice; give it once.")
    rest = [pair for pair in pairs if pair[0] not in names]
    State.of(rest)
    return urlencode(rest), dict(own)


async def _computed(pool: Workers, request: Request, session: str | None, *arguments: str) -> bytes:
    """What a worker makes of it, unless the browser goes away first."""
    if session is not None and not _SESSION.fullmatch(session):
        raise InputError(f"session={shown(session)} is no name of up to 32 letters and digits.")
    name = session if session is not None else f"#{id(request)}"
    call = asyncio.create_task(pool.run(name, *arguments))
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


async def _refuse(_request: Request, error: Exception) -> Response:
    """An error as one sentence, with the code of its kind."""
    code = _CODES.get(type(error), 422)  # type: ignore[arg-type]
    headers = {**_FRESH, **({"retry-after": "1"} if code == 503 else {})}
    return JSONResponse({"error": str(error)}, status_code=code, headers=headers)
