"""The guard of the hub: it refuses web pages of another origin, and beyond loopback requests without the token.

A browser lets any page post to a port of this machine, and a name that an attacker points at 127.0.0.1 lets the page
read the answer, too (DNS rebinding). Both show in headers that no script can set: Host, Origin and Sec-Fetch-Site
(Fetch standard, "Forbidden request-header"; W3C, "Fetch Metadata Request Headers").

A browser sends no token by itself: a link with ``/?token=`` gives it a cookie, with which it may look and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "TACHOGRAPH_HUB_TOKEN"  # noqa: S105 - the variable's name
PUBLIC = frozenset({"/metrics", "/sd", "/healthz"})
_PAGE = "/"
_OF_THE_STUDIO = ("/api/", "/static/")  # and the page

# RFC 9110, "Host and :authority": a name or an address, and perhaps a port.
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/\s]+)(?::\d{1,5})?", re.IGNORECASE)
_ALWAYS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


class Guard:
    """Lets a request through to ``app``, or answers 401 or 403 with one line that says why.

    Args:
        app: the guarded application.
        loopback: whether the hub listens on loopback; then every Host must name loopback, with any port.
        token: required in ``Authorization: Bearer`` for all but :data:`PUBLIC` paths; None for no such rule.
    """

    def __init__(self, app: ASGIApp, *, loopback: bool, token: str | None) -> None:
        self._app = app
        self._loopback = loopback
        self._token = token
        # Hashed, as a token may hold characters that no cookie may.
        name, value = (_hash(token or "", purpose) for purpose in ("name", "value"))
        self._cookie_name = f"tachograph-{name[:8]}"
        self._cookie_value = value

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        answer = self._refused(request) or self._linked(request) or self._app
        await answer(scope, receive, send_with_headers)

    def _refused(self, request: Request) -> Response | None:
        """Return the answer to a request that may not pass."""
        host = _only(request, "host")
        if self._loopback and not names_loopback(host):
            return _refusal(HTTPStatus.FORBIDDEN, "this hub serves only this machine: use localhost or 127.0.0.1")
        origins = {f"http://{host.lower()}", f"https://{host.lower()}"}
        if "origin" in request.headers and _only(request, "origin").lower() not in origins:
            return _refusal(HTTPStatus.FORBIDDEN, "requests from pages of another origin are refused")
        site = _only(request, "sec-fetch-site")
        # A page of another port of this machine may link here; its scripts and forms may not reach the hub.
        link = request.method == "GET" and _only(request, "sec-fetch-mode") == "navigate"
        if site == "cross-site" or (site == "same-site" and not link):
            return _refusal(HTTPStatus.FORBIDDEN, "requests from pages of another site are refused")
        if self._token is None or request.scope["path"] in PUBLIC or self._has_cookie(request):
            return None
        scheme, _, token = (_only(request, "authorization") or f"Bearer {_token_of(request)}").partition(" ")
        # A token is ASCII: any other text is wrong.
        if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token.encode()):
            return None
        why = "send the header 'Authorization: Bearer TOKEN' with the hub's token; in a browser, open /?token=TOKEN"
        return _refusal(HTTPStatus.UNAUTHORIZED, why, {"WWW-Authenticate": "Bearer"})

    def _has_cookie(self, request: Request) -> bool:
        path = request.scope["path"]
        only_reads = request.method in ("GET", "HEAD") and not _token_of(request)
        value = request.cookies.get(self._cookie_name, "")
        is_right = hmac.compare_digest(value.encode(), self._cookie_value.encode())
        return is_right and only_reads and (path == _PAGE or path.startswith(_OF_THE_STUDIO))

    def _linked(self, request: Request) -> Response | None:
        """Return the answer to the link that gives a browser its cookie; the token has been checked."""
        if self._token is None or not _token_of(request):
            return None
        cookie = f"{self._cookie_name}={self._cookie_value}; Path=/; HttpOnly; SameSite=Strict"
        headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "Set-Cookie": cookie}
        return RedirectResponse(_PAGE, HTTPStatus.SEE_OTHER, headers)


def read_token(file: Path | None, environ: Mapping[str, str], *, loopback: bool) -> str | None:
    """Return the token that clients must send; None where none is needed.

    Args:
        file: holds the token, which is then needed on loopback, too.
        environ: may hold it in TACHOGRAPH_HUB_TOKEN, which counts beyond loopback only.
        loopback: whether the hub listens on loopback.

    Raises:
        ValueError: the hub is reachable from other machines and there is no token, or it is invalid.
    """
    if file is None and loopback:
        return None
    where = TOKEN if file is None else f"--token-file {file}"
    try:
        token = environ.get(TOKEN, "").strip() if file is None else file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"cannot read {where}: {why}") from None
    if not token and file is None:
        raise ValueError(f"listening to other machines requires a token: use --token-file or set {TOKEN}")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{where} must be a token of printable ASCII characters without spaces")
    return token


def _refusal(status: HTTPStatus, why: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{status.value}: {why}\n", status, headers)


def _hash(token: str, purpose: str) -> str:
    return hmac.new(token.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def _token_of(request: Request) -> str:
    """Return the token in the page's address; empty if there is none."""
    is_page = request.scope["path"] == _PAGE and request.method == "GET"
    return request.query_params.get("token", "") if is_page else ""


def names_loopback(host: str) -> bool:
    """Tell whether a Host header names this machine's loopback: localhost, 127.x.x.x or [::1], with any port."""
    authority = _AUTHORITY.fullmatch(host)
    if authority is None:
        return False
    name = authority[1].lower()
    return name == "localhost" or is_loopback(name.strip("[]"))


def is_loopback(address: str) -> bool:
    """Tell whether an IP address is one of loopback."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _only(request: Request, name: str) -> str:
    """Return a header's value, empty if it is missing; given twice it is joined, and so matches nothing."""
    return ", ".join(request.headers.getlist(name)).strip()
