"""Who may use a dashboard: whoever opened the link that it has printed, in that browser.

The link holds a token that is good for one opening. It sets a cookie, which all else asks for.
Everything lies below a folder with a random name, and the cookie is for that folder: browsers send
cookies of 127.0.0.1 to each of its ports, so a server of somebody else on another port would be
sent it otherwise.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
"""Of every answer. Scripts and styles come from here alone, and none stands in a page."""

_FORWARD: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>jaxd</title>'
    '<link rel="icon" href="static/icon.svg">'
    '<meta http-equiv="refresh" content="0; url=./"><p><a href="./">Go on to the dashboard</a></p>'
)
"""A page that goes on by itself. A redirect would count as coming from where the link stands, such
as a terminal in a browser, and the cookie (SameSite=Strict) would not be sent with it."""

_USE_THE_LINK: Final = "Open the link that `jaxd dashboard` has printed, in this browser."
_SPENT: Final = (
    "This link is wrong, or was opened already: it opens once. Start the dashboard again: "
    "jaxd dashboard"
)


class Access:
    """ASGI middleware that lets in who may, and adds headers to all that is answered.

    Args:
        port: of 127.0.0.1 that the dashboard listens on.

    Attributes:
        place: the name of the folder in which everything lies.
        app: what is let through to; set before the first request.
    """

    def __init__(self, port: int) -> None:
        self.place = secrets.token_urlsafe(16)
        self.app: ASGIApp = PlainTextResponse("", 404)
        self._token: str | None = secrets.token_urlsafe(32)
        self._secret = secrets.token_urlsafe(32)
        self._cookie = f"jaxd_{port}"
        names = ("127.0.0.1", "localhost")
        self._hosts = frozenset(f"{name}:{port}" for name in names) | (
            {*names} if port == 80 else set()
        )
        self.link = f"http://127.0.0.1:{port}/{self.place}/open?token={self._token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or lets through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(message)
            await send(message)

        answer = self._answer(Request(scope)) or self.app
        await answer(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """What is answered here; None: it is let through."""
        if request.headers.get("host", "") not in self._hosts:
            return _refusal(
                403, "This is no name of the dashboard. Use http://127.0.0.1 and its port."
            )
        is_known = self._is_known(request)
        if request.url.path == f"/{self.place}/open":
            return self._opened(request, is_known)
        if not is_known:
            return _refusal(401, _USE_THE_LINK)
        if not _is_from_here(request):
            return _refusal(403, "Another site has asked for this. Open the dashboard itself.")
        return None

    def _is_known(self, request: Request) -> bool:
        return hmac.compare_digest(
            request.cookies.get(self._cookie, "").encode(), self._secret.encode()
        )

    def _opened(self, request: Request, is_known: bool) -> Response:
        """The answer to the link: once, it sets the cookie."""
        told = request.query_params.get("token", "")
        is_good = self._token is not None and hmac.compare_digest(
            told.encode(), self._token.encode()
        )
        if request.method != "GET" or "prefetch" in request.headers.get("sec-purpose", ""):
            return _refusal(
                403, "Open this link yourself: what only looks at it does not use it up."
            )
        if not is_good:
            return HTMLResponse(_FORWARD) if is_known else _refusal(403, _SPENT)
        self._token = None
        answer = HTMLResponse(_FORWARD)
        answer.set_cookie(
            self._cookie, self._secret, path=f"/{self.place}/", httponly=True, samesite="strict"
        )
        return answer


def _is_from_here(request: Request) -> bool:
    """Whether a page of the dashboard asks, or its user; what changes something says so itself."""
    site = request.headers.get("sec-fetch-site")
    if request.method in ("GET", "HEAD"):
        return site in (None, "same-origin", "none")
    is_own = request.headers.get("origin") == f"http://{request.headers['host']}"
    is_json = request.headers.get("content-type", "").partition(";")[0] == "application/json"
    return is_own and is_json and site in (None, "same-origin")


def _refusal(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


def _add_headers(message: MutableMapping[str, Any]) -> None:
    names = {name for name, _ in _HEADERS}
    kept = [(name, value) for name, value in message["headers"] if name.lower() not in names]
    message["headers"] = [*kept, *_HEADERS]
