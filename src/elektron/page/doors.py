"""Who may come in: the right host, the right origin, the right token, and nothing but JSON."""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elektron.page.refusals import refusal
from elektron.page.terms import is_loopback

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Doors:
    """Whom a server is for."""

    token: str = ""
    """What the API demands as a bearer token; nothing if empty."""
    is_public: bool = False
    """Whether others than this machine reach it: by names that it does not know, so the token alone protects it."""

    def from_elsewhere(self, _method: str, _path: str, headers: Headers) -> JSONResponse | None:
        """Why a request may not come from where it comes from, if it may not; it costs nobody a request of his rate.

        A page elsewhere can have its own name point here, or post here from a visitor's browser. The first shows in
        Host, the second in Origin; and JSON cannot be posted across sites without asking, which we do not answer.
        """
        if self.is_public:
            return None
        if not is_loopback(_name(headers.get("host", ""))):
            return refusal(403, "wrong_host", "This server answers to 127.0.0.1 and localhost alone.")
        scheme, _, place = headers.get("origin", "").partition("://")
        if scheme and place != headers.get("host"):
            return refusal(403, "wrong_origin", "Pages of other sites may not ask this server.")
        return None

    def unfit(self, method: str, path: str, headers: Headers) -> JSONResponse | None:
        """Why a request may not come in, if it may not."""
        if path.startswith("/api/") and self.token and not self._knows(headers):
            return refusal(401, "no_token", "The API needs its token, as in `Authorization: Bearer TOKEN`.")
        if method == "POST" and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            return refusal(415, "not_json", "Send JSON, with `Content-Type: application/json`.")
        return None

    def _knows(self, headers: Mapping[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode())


class Guard:
    """Keeps a door: whoever is refused goes no further."""

    def __init__(self, app: ASGIApp, check: Callable[[str, str, Headers], JSONResponse | None]) -> None:
        self._app, self._check = app, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] == "http"
        refused = self._check(scope["method"], scope["path"], Headers(scope=scope)) if is_request else None
        await (refused or self._app)(scope, receive, send)


class Careful:
    """Sends every answer out with what a browser needs to know to be careful."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers["Cache-Control"] = "no-store" if scope["path"].startswith("/api/") else "no-cache"
            await send(message)

        await self._app(scope, receive, careful)


def _name(host: str) -> str:
    """A host without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
