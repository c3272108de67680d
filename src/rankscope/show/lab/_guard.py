"""Who may ask: only pages of this very server, by an address that is this machine's."""

import ipaddress
import re
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
